import json

import keras
import numpy as np
import pytest

from training.best import BestWeights, Evaluations
from training.trials import keep_best, trial_dir


def model_of(value):
    model = keras.Sequential(
        [keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(value))]
    )
    model.build((None, 1))
    return model


def test_the_best_is_kept_and_patience_runs_out(tmp_path):
    model = model_of(0.0)
    (tmp_path / "train_state").mkdir()
    evaluations = Evaluations(tmp_path, last_step=0)
    best = BestWeights(tmp_path, model, evaluations, "accuracy", patience=2)
    assert best.step is None and not best.is_exhausted
    for step, accuracy, is_new in ((10, 0.5, True), (20, 0.7, True), (30, 0.7, False), (40, 0.6, False)):
        model.weights[0].assign([[float(step)]])
        evaluations.add(step, {"accuracy": accuracy, "loss": 1.0}, write=True)
        assert (best.step == step) == is_new
        if is_new:
            best.save()
            best.forget_others()
        assert best.is_exhausted == (step == 40)
    assert best.step == 20
    assert {path.name.split(".")[0] for path in (tmp_path / "train_state").glob("best-*")} == {"best-20"}
    best.restore()
    assert model.weights[0].numpy().item() == 20.0

    # A run that goes on from step 25 knows of two evaluations, and finds the others again.
    before = Evaluations(tmp_path, last_step=25)
    assert list(before.by_step) == [10, 20]
    assert BestWeights(tmp_path, model, before, "accuracy", patience=2).step == 20


def test_of_losses_the_lowest_is_best(tmp_path):
    evaluations = Evaluations(tmp_path, last_step=0)
    best = BestWeights(tmp_path, model_of(0.0), evaluations, "eval_loss")
    for step, loss, wanted in ((1, 2.0, 1), (2, 1.0, 2), (3, 3.0, 2)):
        evaluations.add(step, {"eval_loss": loss}, write=False)
        assert best.step == wanted
    assert not best.is_exhausted
    with pytest.raises(ValueError, match="f1 is not among the figures of an evaluation: eval_loss"):
        _ = BestWeights(tmp_path, model_of(0.0), evaluations, "f1").step


@pytest.mark.parametrize("metric", ["f1", "eval_loss"])
def test_what_is_not_a_number_is_never_best(tmp_path, metric):
    evaluations = Evaluations(tmp_path, last_step=0)
    best = BestWeights(tmp_path, model_of(0.0), evaluations, metric)
    for step, value, wanted in ((1, np.nan, 1), (2, 0.5, 2), (3, np.nan, 2)):
        evaluations.add(step, {metric: value}, write=False)
        assert best.step == wanted


@pytest.mark.parametrize("values", [(0.1, 0.9, 0.5), (np.nan, 0.9, 0.5)])
def test_the_best_of_several_trials(tmp_path, values):
    for trial, value in enumerate(values):
        directory = tmp_path / f"trial-{trial}"
        assert str(directory) == trial_dir(str(tmp_path), trial, 3)
        (directory / "train_state").mkdir(parents=True)
        (directory / "eval_results.txt").write_text(str(value))
    results = [{"f1": value} for value in values]
    keep_best(str(tmp_path), results, [7, 8, 9], "f1")
    assert (tmp_path / "eval_results.txt").read_text() == "0.9"
    summary = json.loads((tmp_path / "trials.json").read_text())
    assert summary["best_trial"] == 1 and summary["trials"][1] == {"f1": 0.9, "seed": 8}
    found = [summary["mean"]["f1"], summary["deviation"]["f1"]]
    np.testing.assert_allclose(found, [np.mean(values), np.std(values, ddof=1)])
    assert trial_dir("out", 0, 1) == "out"
