"""Masking inside tf.data: words are hidden anew each time a sequence is read, by the rules of the original.

And the other way round: `left_to_right` puts back what was hidden, for a model that tells the next word.

Axes in comments: B batch, T sequence length, P predictions a sequence, W words a sequence (at most T).
"""

import numpy as np
import tensorflow as tf

from data.pretraining import InstanceOptions, Pieces


class DynamicMasker:
    """Chooses and hides pieces as `data.pretraining` does: as many, with the same odds, whole words together if wanted.

    Args:
        pieces: the special pieces of the vocabulary.
        options: `masked_lm_prob`, `max_predictions_per_seq` and `do_whole_word_mask` are used.
    """

    def __init__(self, pieces: Pieces, options: InstanceOptions):
        self._pieces = pieces
        self._options = options
        self._continues = tf.constant(np.frombuffer(pieces.continues, np.uint8) == 1)  # [V]
        self._random = tf.constant(pieces.random, tf.int32)  # [V]

    def __call__(self, batch: dict[str, tf.Tensor], seed) -> dict[str, tf.Tensor]:
        """Masks a batch.

        Args:
            batch: `input_ids` and `input_mask`, int32 [B, T], and whatever else goes along.
            seed: int [2]; the same one hides the same pieces.

        Returns:
            The batch with masked `input_ids`, and `masked_lm_positions` (rising), `masked_lm_ids` and
            `masked_lm_weights`, each [B, P].
        """
        ids = batch["input_ids"]
        order_seed, kind_seed, piece_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 3), num=3)
        words, num_words = self._words(ids, batch["input_mask"])  # [B, T], [B]
        chosen_words = self._choose_words(words, num_words, self._num_to_predict(batch["input_mask"]), order_seed)
        chosen = tf.gather(chosen_words, tf.maximum(words, 0), batch_dims=1) & (words >= 0)  # [B, T]

        # One draw decides: below 0.8 [MASK], up to 0.9 the piece itself, above a random one.
        kind = tf.random.stateless_uniform(tf.shape(ids), kind_seed)
        drawn = tf.random.stateless_uniform(tf.shape(ids), piece_seed, 0, len(self._pieces.random), tf.int32)
        hidden = tf.where(kind < 0.8, self._pieces.mask, tf.where(kind < 0.9, ids, tf.gather(self._random, drawn)))
        positions, weights = self._positions(chosen)  # [B, P]
        labels = tf.gather(ids, positions, batch_dims=1) * tf.cast(weights, tf.int32)
        return batch | {
            "input_ids": tf.where(chosen, hidden, ids),
            "masked_lm_positions": positions,
            "masked_lm_ids": labels,
            "masked_lm_weights": weights,
        }

    def _num_to_predict(self, input_mask):
        """[B]. In float64, and halves to the even side, as Python rounds."""
        lengths = tf.cast(tf.reduce_sum(input_mask, axis=1), tf.float64)
        wanted = tf.cast(tf.round(lengths * self._options.masked_lm_prob), tf.int32)
        return tf.clip_by_value(wanted, 1, self._options.max_predictions_per_seq)

    def _words(self, ids, input_mask):
        """The word of each piece, from 0 on, -1 for special pieces and padding: [B, T]; and words in a row: [B]."""
        is_candidate = (input_mask > 0) & (ids != self._pieces.cls) & (ids != self._pieces.sep)
        starts = is_candidate
        if self._options.do_whole_word_mask:
            first = tf.cumsum(tf.cast(is_candidate, tf.int32), axis=1) == 1  # nothing before it to continue
            starts = is_candidate & (~tf.gather(self._continues, ids) | first)
        count = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
        return tf.where(is_candidate, count - 1, -1), count[:, -1]

    def _choose_words(self, words, num_words, num_to_predict, seed):
        """Goes through the words in random order and takes those that still fit: bool [B, W]."""
        batch, length = tf.unstack(tf.shape(words), num=2)
        # A number for each word of the batch; pieces without one have a negative number and are not counted.
        numbers = tf.where(words >= 0, words + tf.range(batch)[:, tf.newaxis] * length, -1)
        sizes = tf.math.unsorted_segment_sum(tf.ones_like(words), numbers, batch * length)
        sizes = tf.reshape(sizes, [batch, length])  # [B, W]
        keys = tf.random.stateless_uniform([batch, length], seed)
        is_word = tf.range(length) < num_words[:, tf.newaxis]
        order = tf.argsort(tf.where(is_word, keys, 2.0), axis=1)  # [B, W], what is no word last
        if not self._options.do_whole_word_mask:
            taken = tf.range(length) < tf.minimum(num_to_predict, num_words)[:, tf.newaxis]
        else:
            taken = self._take_what_fits(tf.gather(sizes, order, batch_dims=1), num_to_predict)
        rank = tf.argsort(order, axis=1)  # the place of each word in the order
        return tf.gather(taken, rank, batch_dims=1)

    @staticmethod
    def _take_what_fits(sizes, num_to_predict):
        """Sizes of words in their order, [B, W], 0 where there is none -> which are taken, bool [B, W]."""

        def step(state, size):
            total, _ = state
            fits = (size > 0) & (total + size <= num_to_predict)
            return total + tf.where(fits, size, 0), fits

        start = tf.zeros_like(num_to_predict), tf.zeros_like(num_to_predict, tf.bool)
        _, taken = tf.scan(step, tf.transpose(sizes), start)
        return tf.transpose(taken)

    def _positions(self, chosen):
        """bool [B, T] -> positions in rising order, int32 [B, P], 0 where there are fewer, and their weights."""
        length = tf.shape(chosen)[1]
        keys = tf.where(chosen, tf.range(length), length)
        positions = tf.sort(keys, axis=1)[:, : self._options.max_predictions_per_seq]
        is_real = positions < length
        return tf.where(is_real, positions, 0), tf.cast(is_real, tf.float32)


def left_to_right(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Turns a batch with masks into one of an ordinary language model: each position is to tell the next piece.

    What the masks hid is put back. The features keep their names, so that the same model and the same loss serve both;
    `masked_lm_positions` are then all positions but the last, P = T - 1.
    """
    ids, positions = batch["input_ids"], batch["masked_lm_positions"]  # [B, T], [B, P]
    rows = tf.tile(tf.range(tf.shape(ids)[0])[:, tf.newaxis], [1, tf.shape(positions)[1]])  # [B, P]
    is_real = batch["masked_lm_weights"] > 0
    hidden = tf.boolean_mask(tf.stack([rows, positions], axis=-1), is_real)
    ids = tf.tensor_scatter_nd_update(ids, hidden, tf.boolean_mask(batch["masked_lm_ids"], is_real))
    mask = batch["input_mask"]
    weights = tf.cast(mask[:, :-1] * mask[:, 1:], tf.float32)  # [B, T - 1]
    if "row_weights" in batch:
        weights *= batch["row_weights"][:, tf.newaxis]
    return batch | {
        "input_ids": ids,
        "masked_lm_positions": tf.zeros_like(ids)[:, :-1] + tf.range(ids.shape[1] - 1),
        "masked_lm_ids": ids[:, 1:],
        "masked_lm_weights": weights,
    }
