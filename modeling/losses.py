"""The losses of the original, each one number for a batch, in float32 whatever the precision of the network.

Axes in comments: B batch, T sequence length, P masked positions a sequence, V vocabulary size, L labels.
"""

import tensorflow as tf

# The original's guard against a batch without any masked position; it lowers the loss by a hair.
MASKED_LM_GUARD = 1e-5


def masked_lm_loss(logits, masked_lm_ids, masked_lm_weights):
    """Mean over the positions that were really masked.

    Args:
        logits: [B, P, V].
        masked_lm_ids: int [B, P], the words that stood there.
        masked_lm_weights: [B, P], 1 where a position counts, 0 where it only fills up the row.
    """
    losses = cross_entropy(logits, masked_lm_ids)  # [B, P]
    weights = tf.cast(masked_lm_weights, tf.float32)
    return tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + MASKED_LM_GUARD)


def next_sentence_loss(logits, next_sentence_labels):
    """Mean over the batch. Logits [B, 2]; labels [B] or [B, 1]: 0 = the next sentence, 1 = a random one."""
    return classification_loss(logits, tf.reshape(next_sentence_labels, [-1]))


def classification_loss(logits, label_ids):
    """Mean over the batch. Logits [B, L], labels int [B]; also for choices, with one logit a choice."""
    return tf.reduce_mean(cross_entropy(logits, label_ids))


def regression_loss(logits, targets):
    """Mean squared error. Logits [B, 1], targets [B] or [B, 1]."""
    predictions, targets = tf.reshape(logits, [-1]), tf.reshape(targets, [-1])
    return tf.reduce_mean(tf.square(tf.cast(predictions, tf.float32) - tf.cast(targets, tf.float32)))


def token_loss(logits, label_ids, label_weights):
    """Mean over the tokens that carry a label. Logits [B, T, L], labels int [B, T], weights [B, T]."""
    weights = tf.cast(label_weights, tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(cross_entropy(logits, label_ids) * weights), tf.reduce_sum(weights))


def span_loss(start_logits, end_logits, start_positions, end_positions):
    """Mean of the loss of the start and of the end. Logits [B, T], positions int [B]."""
    return (classification_loss(start_logits, start_positions) + classification_loss(end_logits, end_positions)) / 2.0


def cross_entropy(logits, label_ids):
    """One loss a label: [..., L], int [...] -> [...]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label_ids, logits=tf.cast(logits, tf.float32))
