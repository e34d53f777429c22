"""Pieces into sequences as TensorFlow ops: what data.sentence_features does, in tf.data and in a SavedModel.

Axes in comments: B texts, R rows (the sequences of all texts, in their order), S pieces of a row.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from data.sentence_features import LONG_TEXTS


class Rows(NamedTuple):
    """Sequences as the network reads them, and the number of the text that each is of."""

    batch: dict[str, tf.Tensor]  # int32 [R, S] each
    text_of_row: tf.Tensor  # int64 [R], sorted


class _Slices(NamedTuple):
    """Which part of a text goes into each row."""

    starts: tf.Tensor  # int64 [R]
    lengths: tf.Tensor  # int64 [R]


class SentencePacker:
    """Packs [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b has pieces, and cuts what is too long as in training.

    Example:
        >>> tokenizer = FullTokenizer("vocab.txt")
        >>> graph, packer = GraphTokenizer(tokenizer), SentencePacker(tokenizer.vocab, max_seq_length=128)
        >>> dataset = dataset.map(lambda texts: packer(graph.tokenize(texts)).batch)

    Args:
        vocab: of the model.
        max_seq_length, long_text: see `SentenceEncoder`.
        pad_to_longest: to the longest row of a batch; otherwise to `max_seq_length`.
    """

    def __init__(
        self, vocab: Mapping[str, int], max_seq_length: int, long_text: str = "head", pad_to_longest: bool = False
    ):
        if missing := [token for token in ("[CLS]", "[SEP]") if token not in vocab]:
            raise ValueError(f"Packing needs [CLS] and [SEP], but the vocabulary has no {' and no '.join(missing)}.")
        if long_text not in LONG_TEXTS:
            raise ValueError(f"long_text is {long_text!r}, but should be one of {', '.join(LONG_TEXTS)}.")
        self._cls_id, self._sep_id = vocab["[CLS]"], vocab["[SEP]"]
        self._max_seq_length, self._long_text, self._pad_to_longest = max_seq_length, long_text, pad_to_longest

    def __call__(self, a: tf.RaggedTensor, b: tf.RaggedTensor | None = None) -> Rows:
        """Packs texts, int32 [B, (pieces)], or pairs of them."""
        if self._max_seq_length < (3 if b is None else 5):
            raise ValueError(f"max_seq_length={self._max_seq_length} leaves no room for text.")
        a = a.with_row_splits_dtype(tf.int64)
        b = tf.RaggedTensor.from_row_lengths(a.values[:0], a.row_lengths() * 0) if b is None else b
        b = b.with_row_splits_dtype(tf.int64)
        room = self._max_seq_length - tf.where(b.row_lengths() > 0, 3, 2)  # [B]: for pieces of texts
        room = tf.cast(room, tf.int64)
        if self._long_text == "windows":
            text_of_row, of_a, of_b = _windows(a.row_lengths(), b.row_lengths(), room)
            a, b = take(a, text_of_row, *of_a), take(b, text_of_row, *of_b)
        else:
            text_of_row = tf.range(a.nrows())
            length_a, length_b = kept_lengths(a.row_lengths(), b.row_lengths(), room)
            a, b = self._cut(a, length_a), self._cut(b, length_b)
        return Rows(self.join(a, b), text_of_row)

    def join(self, a: tf.RaggedTensor, b: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """Pieces that fit, [R, (pieces)] -> `input_ids`, `input_mask` and `segment_ids`, each int32 [R, S]."""
        ones = tf.ones([a.nrows(), 1], tf.int32)
        has_b = tf.cast(b.row_lengths() > 0, tf.int64)
        last = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(has_b)], self._sep_id), has_b)
        rows = tf.concat([ones * self._cls_id, a, ones * self._sep_id, b, last], axis=1)  # [R, (S)]
        # Without a row there is no longest one, and the network cannot do with none.
        input_ids = rows.to_tensor(shape=[None, None if self._pad_to_longest else self._max_seq_length])
        if self._pad_to_longest:
            input_ids = tf.pad(input_ids, [[0, 0], [0, tf.cast(tf.shape(input_ids)[1] == 0, tf.int32)]])
        positions = tf.range(tf.shape(input_ids, tf.int64)[1])[tf.newaxis]
        is_token = positions < rows.row_lengths()[:, tf.newaxis]
        is_second = is_token & (positions >= a.row_lengths()[:, tf.newaxis] + 2)
        return {
            "input_ids": input_ids,
            "input_mask": tf.cast(is_token, tf.int32),
            "segment_ids": tf.cast(is_second, tf.int32),
        }

    def _cut(self, ids: tf.RaggedTensor, lengths) -> tf.RaggedTensor:
        """Of each text this many pieces: its head, its tail, or a quarter of the first and the rest of the other."""
        rows, zeros = tf.range(ids.nrows()), tf.zeros_like(lengths)
        if self._long_text == "head":
            return take(ids, rows, zeros, lengths)
        head = zeros if self._long_text == "tail" else (lengths + 3) // 4
        tail = lengths - head
        return tf.concat([take(ids, rows, zeros, head), take(ids, rows, ids.row_lengths() - tail, tail)], axis=1)


def take(ids: tf.RaggedTensor, rows, starts, lengths) -> tf.RaggedTensor:
    """A part of each of some rows: int64 [R] each -> [R, (lengths)]."""
    first = tf.gather(ids.row_starts(), rows) + starts
    places = tf.ragged.range(first, first + lengths)
    return places.with_values(tf.gather(ids.values, places.values))


def kept_lengths(a, b, room):
    """How much of each text stays: pieces go one by one from the longer, and from the second if both are as long.

    So neither is cut below its half of the room (the odd place is a's), and what one leaves free is the other's.
    """
    return (
        tf.minimum(a, tf.maximum(room - b, (room + 1) // 2)),
        tf.minimum(b, tf.maximum(room - a, room // 2)),
    )


def _windows(a, b, room) -> tuple[tf.Tensor, _Slices, _Slices]:
    """(text_of_row, slices of a, slices of b): parts of the longer text, each with the other one."""
    fits = a + b <= room
    slides_a = a >= b
    long, other = tf.maximum(a, b), tf.minimum(a, b)
    other = tf.where(fits, other, tf.minimum(other, room // 2))
    size = tf.where(fits, long, room - other)
    step = tf.maximum(size * 3 // 4, 1)
    counts = 1 + (tf.maximum(long - size, 0) + step - 1) // step  # [B]: rows of each text
    text_of_row = tf.repeat(tf.range(tf.size(a, tf.int64)), counts)
    nth = tf.ragged.range(counts).values  # [R]: which row of its text
    slides_a, long, other, size, step = (tf.gather(x, text_of_row) for x in (slides_a, long, other, size, step))
    starts = nth * step
    lengths = tf.minimum(size, long - starts)
    zeros = tf.zeros_like(starts)
    of_a = _Slices(tf.where(slides_a, starts, zeros), tf.where(slides_a, lengths, other))
    of_b = _Slices(tf.where(slides_a, zeros, starts), tf.where(slides_a, other, lengths))
    return text_of_row, of_a, of_b
