"""Answers of the service are those of the Python class, on whatever text, alone or in company."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.models import SpanModel
from serving import saved_model
from serving.spans import SpanService
from tasks.squad import SquadPredictor, SquadSettings
from tests.serving.mixed_lines import mixed_lines, mixed_vocab

LINES = mixed_lines(160)
VOCAB = {token: number for number, token in enumerate(mixed_vocab())}
# Large weights, so that answers differ from line to line.
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=48,
    initializer_range=0.6,
)


def make(lower=True, **changes):
    """(what answers in the graph, what answers in Python, the service itself)."""
    lengths = {"max_seq_length": 40, "doc_stride": 9, "max_query_length": 8}
    task = SquadSettings(lower, **lengths | changes)
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=lower)
    model = SpanModel(CONFIG, seed=5)
    service = SpanService(model, tokenizer, task)
    ask = tf.function(service.answer, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    return ask, SquadPredictor(model, tokenizer, task), service


parts = functools.cache(make)  # most of the time goes into graphs


def has_pieces(text):
    return bool(FullTokenizer(vocab=VOCAB).tokenize_to_ids(text))


QUESTIONS = [line for line in LINES if has_pieces(line)][:100]
CONTEXTS = LINES[-100:]


def check(told, expected):
    """Rows of five against lists of at most five."""
    told = {name: values.numpy() for name, values in told.items()}
    for name in ("answers", "starts", "ends", "probabilities"):
        assert told[name].shape == (len(expected), 5)
        np.testing.assert_array_equal(
            told[name.removesuffix("s").replace("probabilitie", "probability")], told[name][:, 0]
        )
    for row, found in enumerate(expected):
        rest = 5 - len(found)
        assert [text.decode() for text in told["answers"][row]] == [span.text for span in found] + [""] * rest
        assert told["starts"][row].tolist() == [span.start for span in found] + [0] * rest
        assert told["ends"][row].tolist() == [span.end for span in found] + [0] * rest
        wanted = [span.probability for span in found] + [0.0] * rest
        np.testing.assert_allclose(told["probabilities"][row], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("lower", "changes"),
    [
        (True, {}),
        (False, {"max_query_length": 20, "doc_stride": 30}),
        (True, {"version_2_with_negative": True}),
        (False, {"version_2_with_negative": True, "null_score_diff_threshold": -3.0, "max_seq_length": 24}),
    ],
)
def test_answers_as_the_class_does(lower, changes):
    ask, predictor, _ = parts(lower=lower, **changes)
    expected = [predictor.answers(*asked) for asked in zip(QUESTIONS, CONTEXTS, strict=True)]
    if changes.get("version_2_with_negative"):
        assert {found[0].text == "" for found in expected if len(found) > 1} == {True, False}
    for found, context in zip(expected, CONTEXTS, strict=True):
        assert all(context[span.start : span.end] == span.text for span in found)
        assert len({span.text for span in found}) == len(found)
    assert len({found[0].start for found in expected}) > 20
    check(ask(tf.constant(QUESTIONS), tf.constant(CONTEXTS)), expected)


@pytest.mark.parametrize("can_be_none", [False, True])
def test_agrees_on_any_text(can_be_none):
    ask, predictor, _ = parts(version_2_with_negative=can_be_none, max_seq_length=20, max_query_length=5)
    text = st.text(max_size=20) | st.text(st.sampled_from("".join(LINES[:26]) + "\u200b\u1fef각"), max_size=60)
    # Words that come again and again: many spans with the same text.
    text |= st.lists(st.sampled_from(["the", "lamp", "海"])).map(" ".join)

    @settings(max_examples=10, derandomize=True, deadline=None, database=None)
    @given(st.lists(st.tuples(text.filter(has_pieces), text), max_size=12))
    def agrees(pairs):
        expected = [predictor.answers(*pair) for pair in pairs]
        questions, contexts = ([pair[i] for pair in pairs] for i in range(2))
        check(ask(tf.constant(questions, tf.string), tf.constant(contexts, tf.string)), expected)

    agrees()


def test_rows_do_not_know_each_other():
    """Bad rows, long rows, none at all: each is answered as if it were alone."""
    ask, predictor, _ = parts(lower=True, version_2_with_negative=True)
    long, broken = ("the lamp was lit " * 1_000).encode(), b"\xff\xfe\x80 lamp \xc3"
    bad = [(broken, broken), (b"", long), (b"who", b""), (long, b"x" * 200_000), (b"\x00", b"lamp"), (b"who", long)]
    good = [(question.encode(), context.encode()) for question, context in zip(QUESTIONS, CONTEXTS, strict=True)][:20]
    rows = [*good[:10], *bad, *good[10:]]
    together = ask(*(tf.constant([row[i] for row in rows]) for i in range(2)))
    assert np.isfinite(together["probabilities"]).all()
    expected = [predictor.answers(*asked) for asked in zip(QUESTIONS[:20], CONTEXTS[:20], strict=True)]
    kept = np.delete(np.arange(len(rows)), range(10, 10 + len(bad)))
    check({name: tf.gather(values, kept) for name, values in together.items()}, expected)
    for (question, context), found in zip(good[:8], expected[:8], strict=True):
        check(ask(tf.constant([question]), tf.constant([context])), [found])
    # An empty question is not answered; an empty context has no answer.
    told = {name: values.numpy()[10:16] for name, values in together.items()}
    assert not told["probabilities"][[1, 4]].any() and not any(told["answers"][[1, 4]].flat)
    assert told["answer"][2] == b"" and told["probability"][2] == 1.0
    check(ask(tf.constant([], tf.string), tf.constant([], tf.string)), [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many rows"):
        ask(tf.constant(["who"]), tf.constant(["a", "b"]))


def test_accents_that_change_places():
    """Pieces of such a word do not stand in the order of its characters."""
    context = "zu \U0001d16d\U0001d165\U0001d165 zu"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "zu", "\U0001d165", "##\U0001d165", "##\U0001d16d"]
    tokenizer = FullTokenizer(vocab={name: number for number, name in enumerate(names)})
    assert [piece.start for piece in tokenizer.tokenize_with_offsets(context)] == [0, 4, 5, 3, 7]
    model, task = SpanModel(CONFIG, seed=5), SquadSettings(True, max_seq_length=40, max_query_length=8)
    found = SquadPredictor(model, tokenizer, task).answers("zu", context, top_k=20)
    assert len(found) > 8 and all(span.text and context[span.start : span.end] == span.text for span in found)
    check(SpanService(model, tokenizer, task).answer(tf.constant(["zu"]), tf.constant([context])), [found[:5]])


def test_saved(tmp_path):
    _, predictor, service = make(version_2_with_negative=True)
    loaded = tf.saved_model.load(saved_model.save(service, tmp_path / "1"))
    told = loaded.signatures["serving_default"](
        question=tf.constant(QUESTIONS[:40]), context=tf.constant(CONTEXTS[:40])
    )
    check(told, [predictor.answers(*asked) for asked in zip(QUESTIONS[:40], CONTEXTS[:40], strict=True)])
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tf.ones([2, 7], tf.int32))
    assert loaded.signatures["tokens"](**tokens)["end_logits"].shape == (2, 7)
