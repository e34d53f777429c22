"""Evaluations within a run: what is kept, when it ends, and what a signal between them must not change."""

import numpy as np
import pytest
import tensorflow as tf

from modeling.config import BertConfig
from modeling.google import read_variables
from modeling.models import SentenceModel
from tasks.sentences import SentenceTask
from training.evaluation import load_latest
from training.loop import LoopOptions, train
from training.optimizer import AdamWeightDecay
from training.reports import read_metrics
from training.stopping import RunAgain, StopSignals

TINY = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
    type_vocab_size=2,
)


def batches(first, worker, num_workers):
    batch = {
        "input_ids": np.int32([[2, 5, 3], [2, 9, 3]]),
        "label_ids": np.int32([0, 1]),
        "row_weights": np.float32([1.0, 1.0]),
    }
    return tf.data.Dataset.from_tensors(batch).repeat()


def run(output_dir, values, stop_after=None, **changes):
    """Twelve steps with an evaluation every third, which gives one of `values` after the other, by its step."""
    model = SentenceModel(TINY, num_labels=2, seed=1)
    optimizer = AdamWeightDecay(1e-2)
    optimizer.build(model.trainable_variables)
    asked = []

    class Signals(StopSignals):
        """One that comes during a certain step."""

        @property
        def received(self):
            return int(optimizer.iterations) == stop_after

        @received.setter
        def received(self, value):
            pass

    def evaluate():
        step = int(optimizer.iterations)
        asked.append(step)
        return {"f1": values[step]}

    options = LoopOptions(str(output_dir), 12, 2, 3, seed=1, eval_every_steps=3, save_every_steps=4, log_every_steps=1)
    options = options.__class__(**options.__dict__ | changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.loop.StopSignals", Signals)
        trained = train(
            tf.distribute.get_strategy(),
            model,
            SentenceTask("single_label"),
            optimizer,
            batches,
            options,
            {"num_train_steps": 12},
            {},
            evaluate=evaluate,
        )
    return trained, asked


def test_it_ends_with_the_best_weights_and_says_when_it_is_done(tmp_path, caplog):
    caplog.set_level("INFO")
    trained, asked = run(tmp_path, {3: 0.1, 6: 0.9, 9: 0.5, 12: 0.4}, keep_best_metric="f1")
    assert asked == [3, 6, 9, 12]
    assert trained == (6, None)
    best = read_variables(tmp_path / "bert_model.ckpt")
    np.testing.assert_array_equal(
        best["output_weights"], read_variables(tmp_path / "train_state" / "best-6")["output_weights"]
    )
    assert load_latest(SentenceModel(TINY, num_labels=2), tmp_path) == 6
    again, asked = run(tmp_path, {}, keep_best_metric="f1")
    assert again == (6, None) and asked == []
    assert "is done: it has all of its 12 steps" in caplog.text


def test_it_ends_early_and_stays_ended(tmp_path, caplog):
    caplog.set_level("INFO")
    trained, asked = run(tmp_path, {3: 0.9, 6: 0.5, 9: 0.6}, keep_best_metric="f1", patience=2)
    assert asked == [3, 6, 9] and trained.step == 3
    again, asked = run(tmp_path, {}, keep_best_metric="f1", patience=2)
    assert again.step == 3 and asked == []
    assert "is done: it ended early, after step 9" in caplog.text
    assert max(line["step"] for line in read_metrics(tmp_path)) == 9


def test_a_signal_on_the_step_of_an_evaluation_only_puts_it_off(tmp_path):
    """The step is saved without its evaluation, which the run makes up for when it goes on."""
    values = {3: 0.1, 6: 0.9, 9: 0.5, 12: 0.4}
    with pytest.raises(RunAgain, match="after step 6"):
        run(tmp_path / "stopped", values, stop_after=6, keep_best_metric="f1")
    assert [line["step"] for line in read_metrics(tmp_path / "stopped", "eval")] == [3]
    trained, asked = run(tmp_path / "stopped", values, keep_best_metric="f1")
    assert asked == [6, 9, 12] and trained.step == 6
    run(tmp_path / "left_alone", values, keep_best_metric="f1")
    ours, theirs = (read_variables(tmp_path / name / "bert_model.ckpt") for name in ("stopped", "left_alone"))
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    kinds = [[(m["kind"], m["step"]) for m in read_metrics(tmp_path / n)] for n in ("stopped", "left_alone")]
    assert sorted(kinds[0]) == sorted(kinds[1])


def test_figures_that_nobody_tells_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep_best_metric=accuracy is not among the figures of an evaluation: f1"):
        run(tmp_path, {3: 0.5}, keep_best_metric="accuracy")
