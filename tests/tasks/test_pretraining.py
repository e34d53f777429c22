import numpy as np
import pytest
import tensorflow as tf

from modeling.losses import masked_lm_loss, next_sentence_loss
from tasks.pretraining import PretrainingTask


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": np.zeros((4, 8), np.int32),
        "masked_lm_ids": rng.integers(0, 9, (4, 3)).astype(np.int32),
        "masked_lm_weights": np.float32([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]),
        "next_sentence_labels": np.int32([[0], [1], [1], [0]]),
    }
    logits = {
        "masked_lm_logits": rng.normal(size=(4, 3, 9)).astype(np.float32),
        "next_sentence_logits": rng.normal(size=(4, 2)).astype(np.float32),
    }
    return batch, logits


def test_the_loss_is_that_of_the_original(case):
    batch, logits = case
    task = PretrainingTask()
    expected = masked_lm_loss(logits["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
    expected += next_sentence_loss(logits["next_sentence_logits"], batch["next_sentence_labels"])
    sums, counts = task.sums(logits, batch), task.counts(batch)
    np.testing.assert_allclose(task.loss(sums, counts), expected, rtol=1e-6)
    assert set(task.measures) == sums.keys() | counts.keys()


def test_uneven_parts_add_up_to_the_whole(case):
    batch, logits = case
    task = PretrainingTask()
    counts = task.counts(batch)
    parts = [
        task.loss(task.sums(*({k: v[rows] for k, v in d.items()} for d in (logits, batch))), counts)
        for rows in (slice(0, 1), slice(1, 4))
    ]
    np.testing.assert_allclose(sum(parts), task.loss(task.sums(logits, batch), counts), rtol=1e-6)


def test_rows_that_only_fill_up_count_for_nothing(case):
    batch, logits = case
    batch["masked_lm_weights"][3] = 0
    task = PretrainingTask()
    filled = batch | {"row_weights": np.float32([1, 1, 1, 0])}
    short, short_logits = ({k: v[:3] for k, v in d.items()} for d in (batch, logits))
    totals = [
        {name: float(value) for name, value in (task.counts(b) | task.sums(x, b)).items()}
        for b, x in ((filled, logits), (short, short_logits))
    ]
    assert totals[0] == pytest.approx(totals[1])
    figures = task.figures(totals[0])
    right = np.argmax(logits["next_sentence_logits"][:3], axis=1) == [0, 1, 1]
    assert figures["next_sentence_accuracy"] == pytest.approx(right.mean())


def test_without_next_sentence(case):
    batch, logits = case
    task = PretrainingTask(use_next_sentence=False)
    loss = task.loss(task.sums(logits, batch), task.counts(batch))
    expected = masked_lm_loss(logits["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert tf.math.is_finite(loss)
    assert set(task.figures(dict.fromkeys(task.measures, 1.0))) == {"masked_lm_loss", "masked_lm_accuracy"}
