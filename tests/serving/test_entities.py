"""Entities of the service are those of the Python class, on whatever text, alone or in company."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from serving import saved_model
from serving.entities import EntityService
from tasks.ner import NerSettings, make_model
from tasks.ner_predictor import NerPredictor
from tests.serving.mixed_lines import mixed_lines, mixed_vocab

LINES = mixed_lines(150)
VOCAB = {token: number for number, token in enumerate(mixed_vocab())}
# Large weights, so that there are many entities.
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    initializer_range=0.6,
)
TAGS = ("O", "B-장소", "I-장소", "B-person", "I-person")


def make(unit, lower=True, max_seq_length=18, feature_layers=()):
    """(what answers in the graph, what answers in Python, the service itself)."""
    task = NerSettings(TAGS, unit, lower, max_seq_length, feature_layers=feature_layers)
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=lower)
    model = make_model(CONFIG, task, seed=5)
    service = EntityService(model, tokenizer, task)
    ask = tf.function(service.answer, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    return ask, NerPredictor(model, tokenizer, task), service


parts = functools.cache(make)  # most of the time goes into graphs


def check(told, expected):
    """Dense answers against lists of entities."""
    told = {name: values.numpy() for name, values in told.items()}
    assert told["count"].tolist() == [*map(len, expected)]
    for name in ("entities", "types", "starts", "ends", "probabilities"):
        assert told[name].shape == (len(expected), max(map(len, expected), default=0))
    for row, found in enumerate(expected):
        count = len(found)
        assert [text.decode() for text in told["entities"][row, :count]] == [entity.text for entity in found]
        assert [text.decode() for text in told["types"][row, :count]] == [entity.type for entity in found]
        assert told["starts"][row, :count].tolist() == [entity.start for entity in found]
        assert told["ends"][row, :count].tolist() == [entity.end for entity in found]
        np.testing.assert_allclose(
            told["probabilities"][row, :count], [entity.probability for entity in found], atol=1e-5
        )
        assert not any(told["entities"][row, count:]) and not told["ends"][row, count:].any()


@pytest.mark.parametrize(
    ("unit", "lower", "max_seq_length"),
    [("word", True, 18), ("word", False, 32), ("piece", True, 18), ("piece", False, 32)],
)
def test_finds_what_the_class_finds(unit, lower, max_seq_length):
    ask, predictor, _ = parts(unit, lower=lower, max_seq_length=max_seq_length)
    expected = predictor.predict(LINES)
    assert {entity.type for found in expected for entity in found} == {"장소", "person"}
    assert sum(map(len, expected)) > len(LINES) and [] in expected
    assert any(" " in entity.text for found in expected for entity in found)
    check(ask(tf.constant(LINES)), expected)


def test_features_of_a_frozen_encoder_in_the_shortest_windows():
    ask, predictor, _ = parts("piece", max_seq_length=3, feature_layers=(-2, -1))
    expected = predictor.predict(LINES[:30])
    assert sum(map(len, expected)) > 20
    check(ask(tf.constant(LINES[:30])), expected)


@pytest.mark.parametrize("unit", ["word", "piece"])
def test_agrees_on_any_text(unit):
    ask, predictor, _ = parts(unit, max_seq_length=8 if unit == "word" else 5)
    some = st.text(st.sampled_from("".join(LINES[:26]) + "\u200b\u1fef\u00bd\u0301각"), max_size=40)

    @settings(max_examples=15, derandomize=True, deadline=None, database=None)
    @given(st.lists(st.text(max_size=20) | some, max_size=20))
    def agrees(texts):
        check(ask(tf.constant(texts, tf.string)), predictor.predict(texts))

    agrees()


@pytest.mark.parametrize("unit", ["word", "piece"])
def test_rows_do_not_know_each_other(unit):
    """Bad rows, long rows, none at all: each is answered as if it were alone."""
    ask, predictor, _ = parts(unit, lower=True, max_seq_length=18)
    bad = [b"\xff\xfe\x80 broken \xc3", b"", b"\x00", b"lamp " * 4_000, b"x" * 200_000, "가".encode()[:2]]
    moved = "\U0001d16d\U0001d165 a\U0001d16d\U0001d165\u0301\U0001d165b".encode()  # marks that change places
    good = LINES[:30]
    together = ask(tf.constant([*good[:15], *bad, moved, *good[15:]]))
    kept = np.delete(np.arange(len(good) + len(bad) + 1), range(15, 16 + len(bad)))
    expected = predictor.predict(good)
    width = max(map(len, expected))
    check(
        {name: tf.gather(x, kept)[:, :width] if x.ndim == 2 else tf.gather(x, kept) for name, x in together.items()},
        expected,
    )
    assert np.isfinite(together["probabilities"]).all()
    for line in good[:10]:
        check(ask(tf.constant([line])), predictor.predict([line]))
    for texts in ([], [""], ["", " ", "\0"]):
        check(ask(tf.constant(texts, tf.string)), [[] for _ in texts])


def test_bytes_that_are_not_utf8_are_left_out():
    ask, predictor, _ = parts("word", lower=True, max_seq_length=18)
    broken = [b"The lamp\xff was lit \xe2\x82before", b"\xc3Marta\x80"]
    check(ask(tf.constant(broken)), predictor.predict([text.decode("utf-8", "ignore") for text in broken]))


def test_saved(tmp_path):
    _, predictor, service = make("word")
    loaded = tf.saved_model.load(saved_model.save(service, tmp_path / "1"))
    check(loaded.signatures["serving_default"](text=tf.constant(LINES[:60])), predictor.predict(LINES[:60]))
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tf.ones([2, 7], tf.int32))
    assert loaded.signatures["tokens"](**tokens)["logits"].shape == (2, 7, len(TAGS))
