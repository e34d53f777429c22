"""Texts that are too long for one sequence as TensorFlow ops: windows as data.ner_features and data.squad_features make
them, which window answers for a piece, and parts of texts by their characters.

Axes in comments: B texts, R windows (those of all texts, in their order), P pieces of all texts, W pieces of all
windows.
"""

from typing import NamedTuple

import tensorflow as tf

from data.graph_packing import take


class Windows(NamedTuple):
    """Which pieces of which text each window shows."""

    texts: tf.Tensor  # int64 [R], sorted
    starts: tf.Tensor  # int64 [R], counted from the first piece of the text
    lengths: tf.Tensor  # int64 [R], one at least

    def show(self, pieces: tf.RaggedTensor) -> tf.RaggedTensor:
        """The pieces in each window: [B, (pieces)] -> [R, (pieces)]."""
        return take(pieces, self.texts, self.starts, self.lengths)


def slide(counts, size, step, is_last_full: bool) -> Windows:
    """Windows over texts, none over one without pieces.

    Args:
        counts: pieces of each text, int64 [B].
        size: the most pieces of a window, int64 [B].
        step: pieces from the start of a window to that of the next, int64 [B].
        is_last_full: the last window of a long text starts early enough to have `size` pieces, too.
    """
    beyond = tf.maximum(counts - size, 0)  # what the first window does not show
    nums_windows = tf.where(counts > 0, 1 + (beyond + step - 1) // step, 0)  # [B]
    texts = tf.repeat(tf.range(tf.size(counts, tf.int64)), nums_windows)
    starts = tf.ragged.range(nums_windows).values * tf.gather(step, texts)  # [R]
    if is_last_full:
        starts = tf.minimum(starts, tf.gather(beyond, texts))
    return Windows(texts, starts, tf.minimum(tf.gather(size, texts), tf.gather(counts, texts) - starts))


def surest_windows(windows: Windows, pieces: tf.RaggedTensor):
    """Of each piece the window that shows most around it, the first where several show as much: int64 [P].

    What counts is the shorter side, and a hundredth of the length of the window, which tells against a short last one.
    """
    of_window = tf.ragged.range(windows.lengths)
    windows_of, place = of_window.value_rowids(), of_window.values  # [W]
    firsts = tf.gather(pieces.row_starts(), windows.texts) + windows.starts  # [R]
    number = tf.gather(firsts, windows_of) + place  # [W], of all pieces
    length = tf.gather(windows.lengths, windows_of)
    # In 64 bits, as in Python: what is equal there must be equal here.
    score = tf.cast(tf.minimum(place, length - 1 - place), tf.float64) + 0.01 * tf.cast(length, tf.float64)
    num_pieces = tf.size(pieces.values, tf.int64)
    highest = tf.math.unsorted_segment_max(score, number, num_pieces)  # [P]
    is_highest = score == tf.gather(highest, number)
    last = tf.size(windows.texts, tf.int64)
    return tf.math.unsorted_segment_min(tf.where(is_highest, windows_of, last), number, num_pieces)


def decode(texts) -> tf.RaggedTensor:
    """The characters of texts, string [B] -> int32 [B, (characters)]; bytes that are not UTF-8 are left out."""
    return tf.strings.unicode_decode(texts, "UTF-8", errors="ignore").with_row_splits_dtype(tf.int64)


def cut_out(characters: tf.RaggedTensor, texts, starts, ends):
    """Parts of texts, by numbers of texts and of characters, int [N] each -> string [N].

    Of characters, not of strings: a string for each part to be cut from would be a copy of all of its text.
    """
    texts, starts, ends = (tf.cast(numbers, tf.int64) for numbers in (texts, starts, ends))
    return tf.strings.unicode_encode(take(characters, texts, starts, ends - starts), "UTF-8")
