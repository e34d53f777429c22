"""Question answering: where an answer starts and where it ends, with the loss of the original.

Axes in comments: B batch, T sequence length.
"""

import tensorflow as tf

from modeling.losses import cross_entropy


class SpanTask:
    """The mean of the losses of both ends, and how often both are right; see `training.step.Task`."""

    measures = ("window_count", "window_loss", "window_correct")

    def counts(self, batch) -> dict[str, tf.Tensor]:
        return {"window_count": tf.reduce_sum(batch["row_weights"])}

    def sums(self, logits, batch) -> dict[str, tf.Tensor]:
        weights = batch["row_weights"]  # [B]
        losses, is_right = [], []
        for end in ("start", "end"):
            scores, positions = logits[f"{end}_logits"], batch[f"{end}_positions"]  # [B, T], [B]
            losses.append(cross_entropy(scores, positions))
            is_right.append(tf.argmax(scores, axis=-1, output_type=tf.int32) == positions)
        return {
            "window_loss": tf.reduce_sum((losses[0] + losses[1]) / 2.0 * weights),
            "window_correct": tf.reduce_sum(tf.cast(is_right[0] & is_right[1], tf.float32) * weights),
        }

    def loss(self, sums, counts) -> tf.Tensor:
        return tf.math.divide_no_nan(sums["window_loss"], counts["window_count"])

    def figures(self, totals) -> dict[str, float]:
        return {"accuracy": totals["window_correct"] / max(totals["window_count"], 1.0)}


def both_ends(logits) -> tf.Tensor:
    """What a span model gives, as one tensor [B, T, 2]."""
    return tf.stack([logits["start_logits"], logits["end_logits"]], axis=-1)


def parser(max_seq_length: int, is_training: bool):
    """A function from serialized windows [B] to features [B, …]."""
    sequence = tf.io.FixedLenFeature([max_seq_length], tf.int64)
    features = {"input_ids": sequence, "input_mask": sequence, "segment_ids": sequence}
    if is_training:
        features |= dict.fromkeys(("start_positions", "end_positions"), tf.io.FixedLenFeature([], tf.int64))

    def parse(records) -> dict[str, tf.Tensor]:
        batch = tf.io.parse_example(records, features)
        return {name: tf.cast(value, tf.int32) for name, value in batch.items()}

    return parse
