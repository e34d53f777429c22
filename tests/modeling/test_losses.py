import numpy as np
import pytest
import tensorflow as tf

from modeling import losses


def nll(logits, label):
    logits = np.asarray(logits, np.float64)
    return float(np.log(np.exp(logits).sum()) - logits[label])


def test_masked_lm_counts_only_weighted_positions_and_keeps_the_originals_guard():
    logits = tf.constant([[[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], [[4.0, 0.0, 0.0], [9.0, 9.0, 9.0]]])
    ids = tf.constant([[1, 0], [2, 0]])
    weights = tf.constant([[1.0, 1.0], [1.0, 0.0]])
    total = nll([1, 2, 0.5], 1) + nll([0, 0, 3], 0) + nll([4, 0, 0], 2)
    assert losses.masked_lm_loss(logits, ids, weights).numpy() == pytest.approx(total / (3 + 1e-5), rel=1e-6)
    assert losses.masked_lm_loss(logits, ids, tf.zeros_like(weights)).numpy() == 0.0


@pytest.mark.parametrize("labels", [[0, 1], [[0], [1]]])
def test_next_sentence_takes_labels_as_records_hold_them(labels):
    logits = tf.constant([[3.0, 1.0], [0.0, 2.0]])
    expected = (nll([3, 1], 0) + nll([0, 2], 1)) / 2
    assert losses.next_sentence_loss(logits, tf.constant(labels)).numpy() == pytest.approx(expected, rel=1e-6)


def test_token_loss_is_a_mean_over_labelled_tokens():
    logits = tf.constant([[[1.0, 0.0], [0.0, 5.0], [7.0, 7.0]]])
    labels = tf.constant([[0, 0, 1]])
    expected = (nll([1, 0], 0) + nll([0, 5], 0)) / 2
    found = losses.token_loss(logits, labels, tf.constant([[1, 1, 0]]))
    assert found.numpy() == pytest.approx(expected, rel=1e-6)
    assert losses.token_loss(logits, labels, tf.constant([[0, 0, 0]])).numpy() == 0.0


def test_span_loss_is_the_mean_of_both_ends():
    start, end = tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[0.0, 0.0, 1.0]])
    expected = (nll([1, 2, 3], 0) + nll([0, 0, 1], 2)) / 2
    assert losses.span_loss(start, end, tf.constant([0]), tf.constant([2])).numpy() == pytest.approx(expected, rel=1e-6)


def test_regression_loss():
    found = losses.regression_loss(tf.constant([[1.0], [4.0]]), tf.constant([2.0, 2.0]))
    assert found.numpy() == pytest.approx((1 + 4) / 2)
    column = losses.regression_loss(tf.constant([[1.0], [4.0]]), tf.constant([[2.0], [2.0]]))
    assert column.numpy() == found.numpy()


def test_half_precision_logits_give_a_float32_loss():
    logits = tf.constant([[10.0, 20.0]], tf.float16)
    loss = losses.classification_loss(logits, tf.constant([0]))
    assert loss.dtype == tf.float32
    assert loss.numpy() == pytest.approx(nll([10, 20], 0), rel=1e-6)
