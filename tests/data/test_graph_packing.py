import itertools

import numpy as np
import pytest
import tensorflow as tf

from data.graph_packing import SentencePacker
from data.sentence_features import LONG_TEXTS, SentenceEncoder, padded

VOCAB = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}


class Numbers:
    """A tokenizer of texts that are numbers already."""

    vocab = VOCAB

    def tokenize_to_ids(self, text):
        return [int(number) for number in text.split()]


def ragged(rows):
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([piece for row in rows for piece in row], tf.int32),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def words(row):
    return " ".join(map(str, row))


@pytest.mark.parametrize("long_text", LONG_TEXTS)
@pytest.mark.parametrize("max_seq_length", [3, 5, 6, 7, 8, 9, 13, 16])
def test_packs_as_the_encoder_of_training_does(max_seq_length, long_text):
    encoder = SentenceEncoder(Numbers(), max_seq_length, long_text)
    lengths = list(itertools.product([*range(12), 37], repeat=2))
    first = [[5 + i for i in range(length)] for length, _ in lengths]
    second = [[50 + i for i in range(length)] for _, length in lengths]
    for rows in [None] if max_seq_length < 5 else [None, second]:
        expected, owners = [], []
        for number, a in enumerate(first):
            made, _ = encoder(words(a), None if rows is None else words(rows[number]))
            expected += made
            owners += [number] * len(made)
        arguments = [ragged(first)] if rows is None else [ragged(first), ragged(rows)]
        packed = SentencePacker(VOCAB, max_seq_length, long_text)(*arguments)
        np.testing.assert_array_equal(packed.text_of_row, owners)
        for name, values in padded(expected, max_seq_length).items():
            assert packed.batch[name].dtype == tf.int32
            np.testing.assert_array_equal(packed.batch[name], values, err_msg=name)
        shorter = SentencePacker(VOCAB, max_seq_length, long_text, pad_to_longest=True)(arguments[0][:4])
        assert shorter.batch["input_ids"].shape[1] == max(len(encoder(words(a))[0][0].input_ids) for a in first[:4])


@pytest.mark.parametrize("long_text", LONG_TEXTS)
def test_packs_nothing(long_text):
    for rows in ([], [[], []]):
        for pad_to_longest, length in ((False, 8), (True, 2 if rows else 1)):
            packed = SentencePacker(VOCAB, 8, long_text, pad_to_longest)(ragged(rows), ragged(rows))
            assert packed.batch["input_ids"].shape == packed.batch["segment_ids"].shape == (len(rows), length)


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match="max_seq_length=4"):
        SentencePacker(VOCAB, 4)(ragged([[5]]), ragged([[5]]))
    with pytest.raises(ValueError, match=r"no \[CLS\] and no \[SEP\]"):
        SentencePacker({"[UNK]": 0}, 8)
    with pytest.raises(ValueError, match="'middle'"):
        SentencePacker(VOCAB, 8, "middle")
