"""Numbers that are none: the step and its batch are found, nothing of them is learned, and the run can go on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from data.tfrecord import AtomicRecordWriter, read_records
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.google import read_variables
from modeling.models import PretrainingModel, SentenceModel
from tasks.pretraining import PretrainingTask
from tasks.sentences import SentenceTask
from tests.faults.test_kills import CLASSIFIER, PRETRAINING, assert_same_bits, assert_same_run
from tests.scripts import KILLED, spell
from training.bad_steps import BadSteps
from training.loop import LoopOptions, train
from training.loss_scale import DynamicLossScale
from training.optimizer import OPTIMIZERS
from training.reports import read_metrics

TINY = BertConfig.preset("tiny", vocab_size=20, hidden_size=8, intermediate_size=16, max_position_embeddings=8)


def batches(bad, first, worker, num_workers):
    """From step `first` on, counted from 0; in steps that are in `bad`, a row has that weight."""

    def batch(step):
        weight = tf.constant([bad.get(number, 1.0) for number in range(20)])[step]
        ids = tf.stack([tf.fill([3], 2 + tf.cast(step, tf.int32) % 10), tf.constant([2, 9, 3])])
        return {"input_ids": ids, "label_ids": [0, 1], "row_weights": tf.stack([weight, 1.0])}

    return tf.data.Dataset.range(first, 20).map(batch)


def run(output_dir, bad, optimizer="adamw", dtype=None, **changes):
    """Twelve steps; `bad` has weights of a row by the number of the step, from 1."""
    model = SentenceModel(TINY, num_labels=2, seed=1, dtype=dtype)
    built = OPTIMIZERS[optimizer](1e-2, skip_nonfinite=True)
    built.build(model.trainable_variables)
    options = LoopOptions(str(output_dir), 12, 2, 3, seed=1, save_every_steps=100, log_every_steps=4)
    options = options.__class__(**options.__dict__ | changes)
    bad = {step - 1: weight for step, weight in bad.items()}
    train(
        tf.distribute.get_strategy(),
        model,
        SentenceTask("single_label"),
        built,
        lambda *arguments: batches(bad, *arguments),
        options,
        {"num_train_steps": 12},
        {},
        loss_scale=DynamicLossScale() if dtype == "mixed_float16" else None,
    )
    return {variable.path: variable.numpy() for variable in model.weights}


@pytest.mark.parametrize(("weight", "steps_per_call"), [(np.nan, 1), (np.inf, 4)])
def test_the_run_ends_before_the_step(tmp_path, weight, steps_per_call):
    with pytest.raises(ValueError, match=r"NaN or infinite at step 6\. .*--max_bad_steps=10"):
        run(tmp_path, {6: weight}, steps_per_call=steps_per_call)
    assert [line["step"] for line in read_metrics(tmp_path)] == [4, 5]
    assert read_variables(tmp_path / "train_state" / "step-5", with_optimizer=True)["global_step"] == 5
    batch = np.load(tmp_path / "bad_step-6.npz")
    np.testing.assert_array_equal(batch["row_weights"], np.float32([weight, 1.0]))
    np.testing.assert_array_equal(batch["input_ids"][0], [7, 7, 7])

    # Where the data was mended, it goes on as if nothing had happened.
    mended = run(tmp_path, {}, steps_per_call=steps_per_call)
    assert_same_bits(mended, run(tmp_path / "undisturbed", {}, steps_per_call=steps_per_call))


@pytest.mark.parametrize(
    "how",
    [{"optimizer": "adamw"}, {"optimizer": "lamb"}, {"dtype": "mixed_float16"}, {"jit_compile": True}],
    ids=["adamw", "lamb", "float16", "XLA"],
)
def test_steps_are_left_out_up_to_a_number(tmp_path, capsys, how):
    bad = {2: np.nan, 7: np.inf, 8: np.nan}
    how |= {"steps_per_call": 4}
    weights = run(tmp_path / "three", bad, max_bad_steps=3, **how)
    assert [line["bad_steps"] for line in read_metrics(tmp_path / "three")] == [1, 3, 3]
    assert all(np.isfinite(value).all() for value in weights.values())
    assert "Left out step 8" in capsys.readouterr().out

    # One more ends the run; with a higher number, it goes on to the same weights.
    with pytest.raises(ValueError, match="at step 8, after 2 such steps were left out"):
        run(tmp_path / "two", bad, max_bad_steps=2, **how)
    with pytest.raises(ValueError, match="at step 8, after 2 such steps were left out"):
        run(tmp_path / "two", bad, max_bad_steps=2, **how)
    assert_same_bits(run(tmp_path / "two", bad, max_bad_steps=3, **how), weights)
    assert [line["step"] for line in read_metrics(tmp_path / "two")] == [4, 7, 8, 12]


def test_a_step_that_is_left_out_moves_nothing():
    """Neither weights nor moments, with either optimizer: to the last bit."""
    for make in OPTIMIZERS.values():
        variable = keras.Variable([[1.0, -2.0]], name="kernel")
        optimizer = make(0.1, skip_nonfinite=True)
        optimizer.build([variable])
        optimizer.apply([tf.constant([[0.3, 0.1]])], [variable])
        before = [np.array(v) for v in (variable, optimizer.adam_m[0], optimizer.adam_v[0])]
        for number in (np.nan, np.inf, -np.inf):
            optimizer.apply([tf.constant([[number, 0.1]])], [variable])
            for old, new in zip(before, (variable, optimizer.adam_m[0], optimizer.adam_v[0]), strict=True):
                np.testing.assert_array_equal(old, np.array(new))
        assert int(optimizer.iterations) == 4


def test_a_run_that_knew_no_bad_steps_is_continued(tmp_path):
    """Its states have no count of them."""
    with pytest.raises(ValueError, match="at step 6"):
        run(tmp_path, {6: np.nan})
    assert "bad_steps" not in read_variables(tmp_path / "train_state" / "step-5", with_optimizer=True)
    run(tmp_path, {6: np.nan}, max_bad_steps=1)
    assert read_variables(tmp_path / "train_state" / "step-12", with_optimizer=True)["bad_steps"].tolist() == [1, 6]


def test_counting_ends_with_the_limit():
    steps = BadSteps(limit=1)
    finite, none = tf.constant(True), tf.constant(False)
    taken = [bool(steps.is_taken(ok, number)) for number, ok in enumerate([finite, none, finite, none, finite], 1)]
    assert taken == [True, False, True, False, False]
    assert steps.found() == (2, 4)


@pytest.fixture
def poisoned(golden, tmp_path):
    """The golden records, the 20th of which has a weight that is NaN."""
    with open(golden / "pretraining_plain.tfrecord", "rb") as file:
        records = [record.data for record in read_records(file, "golden")]
    example = tf.train.Example.FromString(records[20])
    example.features.feature["masked_lm_weights"].float_list.value[0] = np.nan
    records[20] = example.SerializeToString()
    with AtomicRecordWriter(tmp_path / "poisoned.tfrecord") as writer:
        for record in records:
            writer.write(record)
    return writer.path


DIE_WHILE_SAVING = """
    import os, signal
    replace = os.replace
    def dying(source, target):
        if str(target).endswith("step-{step}.index"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = dying
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"distribution_strategy": "mirrored", "virtual_devices": 2}])
def test_pretraining_stops_replays_and_goes_on(warm, flags, poisoned, more, tmp_path):
    flags |= more | {
        "input_file": poisoned,
        "iterations_per_loop": 6,
        "log_every_steps": 6,
        "save_checkpoints_steps": 6,
    }
    out = tmp_path / "out"
    said = warm.run(PRETRAINING, *spell(**flags), code=1)
    [path] = out.glob("bad_step-*.npz")
    step = int(path.stem.removeprefix("bad_step-"))
    assert f"NaN or infinite at step {step}. " in said and str(path) in said and "Traceback" not in said
    replayed = warm.run(PRETRAINING, *spell(**flags), code=1)
    assert f"from step {step - 1}" in replayed and f"NaN or infinite at step {step}. " in replayed

    # The way that docs/reliability.md tells.
    batch = dict(np.load(path))
    assert len(batch["input_ids"]) == 8
    model = PretrainingModel(BertConfig.from_json_file(out / "bert_config.json"))
    load_checkpoint(model, out / "train_state" / f"step-{step - 1}")
    task = PretrainingTask()
    losses = []
    for row in range(8):
        one = {name: array[row : row + 1] for name, array in batch.items()}
        losses.append(float(task.loss(task.sums(model(one), one), task.counts(one))))
    [bad] = np.flatnonzero(~np.isfinite(losses))
    assert np.isnan(batch["masked_lm_weights"][bad, 0])

    assert "bad_steps" not in read_metrics(out)[-1]
    said = warm.run(PRETRAINING, *spell(**flags, max_bad_steps=1))
    assert f"Left out step {step}, which was not finite: 1 of --max_bad_steps=1" in said
    if more:
        return
    # Left alone from the start, and killed behind the bad step: the same bits.
    for name in ("alone", "killed"):
        command = spell(**flags | {"output_dir": tmp_path / name}, max_bad_steps=1)
        if name == "killed":
            warm.run(PRETRAINING, *command, code=KILLED, before=DIE_WHILE_SAVING.format(step=12))
        warm.run(PRETRAINING, *command)
    assert_same_run(tmp_path / "killed", tmp_path / "alone", last=12)
    assert_same_bits(*(read_variables(tmp_path / name / "bert_model.ckpt") for name in ("alone", "out")))
    assert read_metrics(tmp_path / "alone")[-1]["bad_steps"] == 1


@pytest.mark.slow
def test_small_numbers(warm, flags, tuning_flags, table, tmp_path):
    """A rate of 0 learns nothing, one step is enough, a batch may have one row, and no data is told."""
    still = flags | {"learning_rate": 0, "num_train_steps": 3, "output_dir": tmp_path / "still"}
    warm.run(PRETRAINING, *spell(**still))
    moved = [line["masked_lm_loss"] for line in read_metrics(tmp_path / "still")]
    assert len(moved) == 3 and np.isfinite(moved).all()
    start = PretrainingModel(BertConfig.from_json_file(flags["bert_config_file"]), seed=1)
    assert_same_bits(read_variables(tmp_path / "still" / "bert_model.ckpt"), {v.path: v.numpy() for v in start.weights})
    one = flags | {"num_train_steps": 1, "num_warmup_steps": 0, "train_batch_size": 1, "output_dir": tmp_path / "one"}
    warm.run(PRETRAINING, *spell(**one))
    assert [line["step"] for line in read_metrics(tmp_path / "one")] == [1]

    # 17 rows in batches of 8: the last has one. So has the development set.
    rows = tuning_flags | {"train_file": table(17), "eval_file": table(1, seed=3), "num_train_epochs": 1.5}
    warm.run(CLASSIFIER, *spell(**rows, do_train=True, do_eval=True))
    assert "eval_accuracy" in (tmp_path / "tuned" / "eval_results.txt").read_text()
    said = warm.run(CLASSIFIER, *spell(**rows | {"eval_file": table(0)}, do_train=True, do_eval=True), code=1)
    assert str(table(0)) in said and "Traceback" not in said
    for rate in ("nan", "inf"):
        said = warm.run(PRETRAINING, *spell(**flags | {"learning_rate": rate}), code=1)
        assert f"--learning_rate={rate} is not a finite number" in said
