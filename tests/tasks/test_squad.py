"""The Python class, with a model that finds what a test wants."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from data.tokenization import FullTokenizer
from tasks.squad import SquadPredictor, SquadSettings

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "the", "lamp", "gruße", "18", "##95", "-", "(", ")", "i", "##x"]
TOKENIZER = FullTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})


class Points:
    """Answers start at one piece and end at another; padding looks better than either."""

    def __init__(self, first, last):
        self._first, self._last = PIECES.index(first), PIECES.index(last)

    def __call__(self, batch, training):
        ids = batch["input_ids"]
        places = tf.range(tf.shape(ids)[1], dtype=tf.float32)
        return {
            f"{end}_logits": tf.where(ids == 0, 50.0, tf.where(ids == wanted, 20.0, -10.0) - 0.01 * places)
            for end, wanted in (("start", self._first), ("end", self._last))
        }


def predictor(first, last, **changes):
    lengths = {"max_seq_length": 30, "doc_stride": 8, "max_query_length": 4}
    return SquadPredictor(Points(first, last), TOKENIZER, SquadSettings(True, **lengths | changes))


@pytest.mark.parametrize(
    ("first", "last", "context", "wanted"),
    [
        ("18", "##95", "the lamp (1895-1943)", "1895"),  # part of a word
        ("the", "lamp", "who \u00a0the \t  lamp\u200b who", "the \t  lamp"),  # white space as it stands there
        # Where lower-casing changes how many characters there are, the original would answer with the whole word.
        ("gruße", "gruße", "(GRÜẞE-\u0130)", "GRÜẞE"),
        ("i", "##x", "(\u0130x)", "\u0130x"),
    ],
)
def test_cuts_by_characters(first, last, context, wanted):
    found = predictor(first, last).answer("who", context)
    assert found.text == wanted == context[found.start : found.end]
    assert found.probability > 0.5


def test_padding_has_no_say():
    """Long contexts and short ones together, in batches of any size."""
    asked = predictor("lamp", "lamp")
    for context in ("the lamp", "the who " * 30 + "lamp " + "the " * 20):
        alone, together = (asked.answers("who", context, batch_size=size) for size in (1, 32))
        assert alone == together
        assert alone[0].text == "lamp" == context[alone[0].start : alone[0].end]


def test_questions_without_an_answer():
    context = "the who the"
    assert predictor("lamp", "lamp").answer("who", context).text != ""
    none = predictor("[CLS]", "[CLS]", version_2_with_negative=True)
    assert none.answer("who", context)[:3] == ("", 0, 0)
    assert none.answers("who", context)[1].text != ""
    kept = predictor("[CLS]", "[CLS]", version_2_with_negative=True, null_score_diff_threshold=1000.0)
    found = kept.answers("who", context, top_k=20)
    assert found[0].text != "" and found[-1].text == ""


def test_empty_texts():
    asked = predictor("lamp", "lamp")
    assert asked.answers("who", " \0") == [("", 0, 0, 1.0)]
    for question in ("", " \t", "\0\u200b"):
        with pytest.raises(ValueError, match="question is empty"):
            asked.answer(question, "the lamp")


def test_many_threads():
    asked = predictor("lamp", "lamp")
    contexts = ["the " * number + "lamp" for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda context: asked.answer("who", context), contexts))
    np.testing.assert_array_equal([span.start for span in found], [4 * number for number in range(40)])
