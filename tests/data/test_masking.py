import random

import numpy as np
import pytest
import tensorflow as tf

from data.masking import DynamicMasker, left_to_right
from data.pretraining import Corpus, InstanceOptions, Pieces, create_instances
from data.records import RecordFiles, evaluation_batches

# A vocabulary with a third of continuations, and text made of it.
VOCAB = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
VOCAB |= {f"w{i}": 5 + i for i in range(200)} | {f"##w{i}": 205 + i for i in range(100)}
PIECES = Pieces.of(VOCAB)


def make_corpus():
    rng = random.Random(0)
    corpus = Corpus(len(VOCAB))
    for _ in range(60):
        for _ in range(30):
            corpus.add_sentence([rng.randrange(5, 305) for _ in range(rng.randrange(3, 25))])
        corpus.end_document()
    return corpus


@pytest.fixture(scope="module", params=[False, True], ids=["pieces", "whole words"])
def both_ways(request):
    """Statistics of the static and of the dynamic way on the same sequences, made often enough to compare."""
    corpus = make_corpus()
    options = InstanceOptions(max_seq_length=64, max_predictions_per_seq=12, do_whole_word_mask=request.param)
    static = [
        statistics_of_instance(instance) for instance in create_instances(corpus, PIECES, options, random.Random(1))
    ]

    unmasked = InstanceOptions(max_seq_length=64, max_predictions_per_seq=12, masking="dynamic")
    masker = DynamicMasker(PIECES, options)
    dynamic = []
    for number in range(10):
        instances = list(create_instances(corpus, PIECES, unmasked, random.Random(number)))
        ids = np.zeros((len(instances), 64), np.int32)
        for row, instance in enumerate(instances):
            ids[row, : len(instance.tokens)] = instance.tokens
        batch = {"input_ids": tf.constant(ids), "input_mask": tf.constant((ids > 0).astype(np.int32))}
        masked = {name: array.numpy() for name, array in masker(batch, tf.constant([7, number])).items()}
        for row in range(len(instances)):
            count = int(masked["masked_lm_weights"][row].sum())
            dynamic.append(
                statistics_of(
                    masked["input_ids"][row][ids[row] > 0],
                    masked["masked_lm_positions"][row][:count],
                    masked["masked_lm_ids"][row][:count],
                )
            )
            np.testing.assert_array_equal(masked["masked_lm_positions"][row][count:], 0)
            np.testing.assert_array_equal(masked["masked_lm_ids"][row][count:], 0)
            restored = masked["input_ids"][row].copy()
            restored[masked["masked_lm_positions"][row][:count]] = masked["masked_lm_ids"][row][:count]
            np.testing.assert_array_equal(restored, ids[row])
    return request.param, np.array(static), np.array(dynamic)


def statistics_of_instance(instance):
    return statistics_of(
        np.array(instance.tokens), np.array(instance.masked_lm_positions), np.array(instance.masked_lm_ids)
    )


def statistics_of(tokens, positions, labels):
    """Of one sequence: part of the quota used, hidden by [MASK], kept; mean place; part that continue a word."""
    assert (np.diff(positions) > 0).all()
    at = tokens[positions]
    continues = np.frombuffer(PIECES.continues, np.uint8)[labels]
    wanted = min(12, max(1, round(len(tokens) * 0.15)))
    place = (positions / len(tokens)).mean()
    return len(positions) / wanted, (at == PIECES.mask).mean(), (at == labels).mean(), place, continues.mean()


def test_rates_are_those_of_the_static_way(both_ways):
    """Means agree within four standard errors: a wrong rule is off by dozens."""
    _, static, dynamic = both_ways
    for column in range(static.shape[1]):
        a, b = static[:, column], dynamic[:, column]
        error = np.hypot(a.std() / np.sqrt(len(a)), b.std() / np.sqrt(len(b)))
        assert abs(a.mean() - b.mean()) < 4 * error + 1e-9, column


def test_eighty_ten_ten(both_ways):
    _, _, dynamic = both_ways
    # A random piece is the same one now and then, and [MASK] itself at times.
    assert dynamic[:, 1].mean() == pytest.approx(0.8 + 0.1 / 305, abs=0.01)
    assert dynamic[:, 2].mean() == pytest.approx(0.1 + 0.1 / 305, abs=0.01)


def test_counts_follow_the_length(both_ways):
    whole_words, _, dynamic = both_ways
    assert (dynamic[:, 0] <= 1).all()
    if not whole_words:
        assert (dynamic[:, 0] == 1).all()


def test_whole_words_are_masked_whole():
    options = InstanceOptions(max_seq_length=32, max_predictions_per_seq=6, do_whole_word_mask=True)
    row = [2, 5, 205, 206, 6, 7, 207, 3, 8, 9, 208, 209, 210, 3]  # w0##w##w w1 w2##w [SEP] w3 w4##w##w##w
    ids = tf.constant([row] * 500)
    masked = DynamicMasker(PIECES, options)({"input_ids": ids, "input_mask": tf.ones_like(ids)}, tf.constant([1, 2]))
    words = [{1, 2, 3}, {4}, {5, 6}, {8}, {9, 10, 11, 12}]
    seen = set()
    for positions, weights in zip(
        masked["masked_lm_positions"].numpy(), masked["masked_lm_weights"].numpy().astype(bool), strict=True
    ):
        chosen = set(positions[weights].tolist())
        assert chosen
        assert len(chosen) <= 2  # round(14 * 0.15); words of three and four are passed over
        assert all(word <= chosen or not word & chosen for word in words)
        seen.add(frozenset(chosen))
    assert seen == {frozenset(s) for s in ({4, 8}, {5, 6})}


def test_the_same_seed_hides_the_same_pieces():
    masker = DynamicMasker(PIECES, InstanceOptions(max_seq_length=16, max_predictions_per_seq=3))
    ids = tf.constant([[2, 5, 6, 7, 3, 8, 9, 10, 3, 0, 0]])
    batch = {"input_ids": ids, "input_mask": tf.cast(ids > 0, tf.int32)}
    run = tf.function(masker)
    first, again, other = (
        run(batch, tf.constant(seed))["masked_lm_positions"].numpy() for seed in ([1, 2], [1, 2], [1, 9])
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_left_to_right_puts_back_what_was_hidden_and_asks_for_the_next_piece(golden):
    files = RecordFiles.open([str(golden / "pretraining_plain.tfrecord")])
    batches = evaluation_batches(files, batch_size=16)
    batch = next(batches.as_numpy_iterator())
    found = next(batches.map(left_to_right).as_numpy_iterator())
    whole = batch["input_ids"].copy()
    for row in range(16):
        for position, piece, weight in zip(
            *(batch[f"masked_lm_{name}"][row] for name in ("positions", "ids", "weights")), strict=True
        ):
            if weight:
                whole[row, position] = piece
    np.testing.assert_array_equal(found["input_ids"], whole)
    assert (whole != batch["input_ids"]).any()
    np.testing.assert_array_equal(found["masked_lm_ids"], whole[:, 1:])
    np.testing.assert_array_equal(found["masked_lm_positions"], np.tile(np.arange(127), (16, 1)))
    np.testing.assert_array_equal(found["masked_lm_weights"].sum(axis=1), batch["input_mask"].sum(axis=1) - 1)
    last = list(batches.map(left_to_right).as_numpy_iterator())[-1]  # 104 records: half of it only fills up
    assert (last["masked_lm_weights"].sum(axis=1) > 0).tolist() == [True] * 8 + [False] * 8
