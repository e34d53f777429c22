"""Pre-training: masked words and next sentences, with the loss and the figures of the original.

Axes in comments: B batch, T sequence length, P masked positions a sequence.
"""

import tensorflow as tf

from modeling.losses import MASKED_LM_GUARD, cross_entropy


class PretrainingTask:
    """What a step adds up, and what comes of the sums.

    Args:
        use_next_sentence: whether the loss has its second term.
    """

    def __init__(self, use_next_sentence: bool = True):
        self.use_next_sentence = use_next_sentence
        self.measures = ("masked_lm_count", "masked_lm_loss", "masked_lm_correct")
        if use_next_sentence:
            self.measures += ("next_sentence_count", "next_sentence_loss", "next_sentence_correct")

    def counts(self, batch) -> dict[str, tf.Tensor]:
        """What sums are divided by; known before the network has run, so that replicas can add it up first."""
        counts = {"masked_lm_count": tf.reduce_sum(batch["masked_lm_weights"])}
        if self.use_next_sentence:
            counts["next_sentence_count"] = tf.reduce_sum(_row_weights(batch))
        return counts

    def sums(self, logits, batch) -> dict[str, tf.Tensor]:
        """Sums over a batch or a part of it: of losses, and of right answers."""
        ids, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]  # [B, P]
        masked_lm = logits["masked_lm_logits"]  # [B, P, V]
        sums = {
            "masked_lm_loss": tf.reduce_sum(cross_entropy(masked_lm, ids) * weights),
            "masked_lm_correct": _correct(masked_lm, ids, weights),
        }
        if self.use_next_sentence:
            labels, rows = tf.reshape(batch["next_sentence_labels"], [-1]), _row_weights(batch)  # [B]
            next_sentence = logits["next_sentence_logits"]  # [B, 2]
            sums["next_sentence_loss"] = tf.reduce_sum(cross_entropy(next_sentence, labels) * rows)
            sums["next_sentence_correct"] = _correct(next_sentence, labels, rows)
        return sums

    def loss(self, sums, counts) -> tf.Tensor:
        """The loss of the original. It is linear in the sums: parts of a batch may be added up in any way."""
        loss = sums["masked_lm_loss"] / (counts["masked_lm_count"] + MASKED_LM_GUARD)
        if self.use_next_sentence:
            loss += sums["next_sentence_loss"] / counts["next_sentence_count"]
        return loss

    def figures(self, totals) -> dict[str, float]:
        """Means to show, under the names of the original's eval_results.txt."""
        names = ("masked_lm", "next_sentence") if self.use_next_sentence else ("masked_lm",)
        figures = {}
        for name in names:
            count = max(totals[f"{name}_count"], 1e-9)
            figures[f"{name}_loss"] = totals[f"{name}_loss"] / count
            figures[f"{name}_accuracy"] = totals[f"{name}_correct"] / count
        return figures


def _row_weights(batch):
    """[B]: 1 for a row that counts, 0 for one that only fills up the last batch of an evaluation."""
    rows = tf.shape(batch["input_ids"])[0]
    return batch.get("row_weights", tf.ones([rows]))


def _correct(logits, label_ids, weights):
    is_right = tf.argmax(logits, axis=-1, output_type=tf.int32) == tf.cast(label_ids, tf.int32)
    return tf.reduce_sum(tf.cast(is_right, tf.float32) * weights)
