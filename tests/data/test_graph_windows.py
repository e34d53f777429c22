"""Windows in the graph against those of Python."""

import numpy as np
import pytest
import tensorflow as tf

from data.graph_windows import cut_out, decode, slide, surest_windows
from data.ner_features import UnitText, windows
from data.squad import Context, Question
from data.squad_features import WindowEncoder

LENGTHS = [*range(14), 30, 31, 32, 33, 57]


class Numbers:
    """A tokenizer of texts that are numbers already."""

    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}

    def tokenize_to_ids(self, text):
        return [int(number) for number in text.split()]


def ragged(lengths):
    return tf.ragged.range(tf.constant(lengths, tf.int64) + 5, dtype=tf.int64)[:, 5:]


def same_for_all(number):
    return tf.fill([len(LENGTHS)], tf.constant(number, tf.int64))


@pytest.mark.parametrize("room", [1, 2, 3, 4, 7, 12])
def test_windows_of_taggers(room):
    units = [UnitText(list(range(5, 5 + n)), list(range(n)), []) for n in LENGTHS]
    made = list(windows(units, range(len(units)), Numbers(), room + 2, False))
    pieces = ragged(LENGTHS)
    found = slide(pieces.row_lengths(), same_for_all(room), same_for_all(max(room // 2, 1)), is_last_full=True)
    surest = surest_windows(found, pieces)
    # A window that answers for no piece is left out in Python.
    kept = sorted(set(surest.numpy().tolist()))
    assert tf.gather(found.show(pieces), kept).to_list() == [window.input_ids[1:-1] for window in made]
    assert tf.gather(found.texts, kept).numpy().tolist() == [window.text for window in made]
    answering = [(window.text, unit, kept[number]) for number, window in enumerate(made) for unit in window.units]
    assert surest.numpy().tolist() == [number for _, _, number in sorted(answering)]


@pytest.mark.parametrize(("room", "stride"), [(1, 1), (4, 1), (5, 2), (5, 9), (12, 5), (12, 12)])
def test_windows_of_questions(room, stride):
    encoder = WindowEncoder(Numbers(), room + 4, stride, max_query_length=1)
    pieces = ragged(LENGTHS)
    found = slide(pieces.row_lengths(), same_for_all(room), same_for_all(min(room, stride)), is_last_full=False)
    surest = surest_windows(found, pieces).numpy()
    shown, number = found.show(pieces).to_list(), 0
    for text, row in enumerate(pieces.to_list()):
        context = Context.of(" ".join(map(str, row)))
        for window in encoder.windows(Question("", "3", context), encoder.document(context))[0]:
            assert shown[number] == window.input_ids[3:-1] and found.texts[number] == text
            first = int(pieces.row_starts()[text] + found.starts[number])
            np.testing.assert_array_equal(surest[first : first + len(shown[number])] == number, window.is_max_context)
            number += 1
    assert number == len(shown)


def test_cuts_characters():
    texts = ["등대의 👩‍🔬 lamp", "", "a\u0301\x00b", "\ufffe\uffff\ufeff"]
    characters = decode(tf.constant([*texts, b"a\xffb\xe2\x82"]))
    places = [(0, 0, 3), (0, 4, 7), (2, 1, 3), (0, 8, 12), (3, 0, 3), (1, 0, 0), (4, 0, 2)]
    parts = cut_out(characters, *(tf.constant(numbers) for numbers in zip(*places, strict=True)))
    texts.append("ab")
    assert [part.decode() for part in parts.numpy()] == [texts[text][start:end] for text, start, end in places]
    assert cut_out(characters, *[tf.constant([], tf.int32)] * 3).shape == (0,)
