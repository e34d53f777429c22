"""Killed at any moment, a run ends with the bits of one that was left alone."""

import functools
import json
import random
import signal
import time

import numpy as np
import pytest

from modeling.google import read_variables
from tests.scripts import KILLED, SLOW_STEPS, last_step, spell
from training.state import TrainState

PRETRAINING, CLASSIFIER = "run_pretraining.py", "run_classifier.py"

# Kills the process in the middle of writing the state of a step: after the data is in place, before the index is.
DIE_BETWEEN_DATA_AND_INDEX = """
    import os, signal
    replace = os.replace
    def dying(source, target):
        if str(target).endswith("step-{step}.index"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = dying
"""
# The same before either is in place.
DIE_BEFORE_DATA = DIE_BETWEEN_DATA_AND_INDEX.replace(".index", ".data-00000-of-00001")
# In the middle of a line of metrics.jsonl.
DIE_IN_A_REPORT = """
    import json, os, signal
    dumps = json.dumps
    def dying(value, **options):
        text = dumps(value, **options)
        if isinstance(value, dict) and value.get("step") == {step}:
            with open({metrics!r}, "a") as file:
                file.write(text[:20])
            os.kill(os.getpid(), signal.SIGKILL)
        return text
    json.dumps = dying
"""


def metrics_without_speed(output_dir):
    lines = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if "per_second" not in name} for line in lines]


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_same_run(one, other, last):
    states = (read_variables(path / "train_state" / f"step-{last}", with_optimizer=True) for path in (one, other))
    assert_same_bits(*states)
    assert_same_bits(*(read_variables(path / "bert_model.ckpt") for path in (one, other)))
    assert metrics_without_speed(one) == metrics_without_speed(other)
    assert not list(one.rglob(".*"))  # nothing that was written aside


def assert_nothing_is_half(output_dir):
    """What has its name is whole. Only metrics.jsonl grows in place, and may end with half a line."""
    directory = output_dir / "train_state"
    for step in TrainState(output_dir, {}).steps():
        values = read_variables(directory / f"step-{step}", with_optimizer=True)
        assert values["global_step"] == step
    for index in directory.glob("best-*.index"):
        read_variables(index)
    for name in ("run.json", "evaluations.json"):
        if (directory / name).exists():
            json.loads((directory / name).read_text())
    for line in (output_dir / "metrics.jsonl").read_text().splitlines()[:-1]:
        json.loads(line)


def has_said(running, text):
    return text in running.said()


def is_at_step(output_dir, step):
    return last_step(output_dir) >= step


def kill_again_and_again(warm, script, command, output_dir, times, seed):
    """Starts a run anew each time it was killed: mostly some steps on, and now and then before the first."""
    rng = random.Random(seed)
    for number in range(times):
        before, steps = last_step(output_dir), rng.randrange(1, 12)
        running = warm.start(script, *command)
        running.wait_for(functools.partial(has_said, running, "Devices:"))
        if number % 5:
            running.wait_for(functools.partial(is_at_step, output_dir, before + steps))
            time.sleep(rng.uniform(0.0, 0.05))
        else:
            time.sleep(rng.uniform(0.0, 3.0))
        running.send_signal(signal.SIGKILL)
        running.finish(code=KILLED)
        if (output_dir / "metrics.jsonl").exists():
            assert_nothing_is_half(output_dir)


@pytest.mark.slow
def test_pretraining_is_killed_twenty_times(warm, flags, tmp_path):
    flags |= {"num_train_steps": 320, "save_checkpoints_steps": 5}
    warm.run(PRETRAINING, *spell(**flags))
    victim = tmp_path / "victim"
    command = spell(**flags | {"output_dir": victim})
    kill_again_and_again(warm, PRETRAINING, command, victim, times=20, seed=1)
    assert "Continuing the run" in warm.run(PRETRAINING, *command)
    assert_same_run(victim, tmp_path / "out", last=320)
    assert [line["step"] for line in metrics_without_speed(victim)] == list(range(1, 321))


@pytest.mark.slow
def test_fine_tuning_is_killed_twenty_times(warm, tuning_flags, tmp_path):
    """With evaluations between, of which the best weights are kept, and batches by length."""
    tuning_flags |= {"do_train": True, "num_train_epochs": 32, "save_checkpoints_steps": 5, "log_every_steps": 1}
    tuning_flags |= {"eval_every_steps": 16, "keep_best_metric": "eval_accuracy", "batching": "bucketed"}
    warm.run(CLASSIFIER, *spell(**tuning_flags))
    victim = tmp_path / "victim"
    command = spell(**tuning_flags | {"output_dir": victim})
    kill_again_and_again(warm, CLASSIFIER, command, victim, times=20, seed=2)
    assert "Continuing the run" in warm.run(CLASSIFIER, *command)
    assert_same_run(victim, tmp_path / "tuned", last=320)
    steps = [line["step"] for line in metrics_without_speed(victim) if line["kind"] == "train"]
    assert steps == list(range(1, 321))
    evaluated = [line["step"] for line in metrics_without_speed(victim) if line["kind"] == "eval"]
    assert evaluated == list(range(16, 321, 16))


@pytest.mark.slow
def test_killed_in_the_last_evaluation_it_ends_with_the_same_figures(warm, tuning_flags, tmp_path):
    """Training is over then, and nothing of it is done again; the same for an evaluation alone."""
    tuning_flags |= {"do_train": True, "do_eval": True, "num_train_epochs": 1}
    warm.run(CLASSIFIER, *spell(**tuning_flags))
    victim = tmp_path / "victim"
    tuning_flags |= {"output_dir": victim}
    in_a_report = DIE_IN_A_REPORT.format(step=10, metrics=str(victim / "metrics.jsonl"))
    in_an_evaluation = in_a_report.replace('value.get("step")', 'value.get("kind") == "eval" and value.get("step")')
    for changes in ({}, {}, {"do_train": False}):
        warm.run(CLASSIFIER, *spell(**tuning_flags | changes), code=KILLED, before=in_an_evaluation)
        assert not (victim / "metrics.jsonl").read_text().endswith("\n")
    assert "is done" in warm.run(CLASSIFIER, *spell(**tuning_flags))
    assert_same_run(victim, tmp_path / "tuned", last=10)
    assert [line["kind"] for line in metrics_without_speed(victim)] == ["train", "eval"]


@pytest.mark.slow
def test_killed_in_the_worst_moments_it_ends_with_the_same_bits(warm, flags, tmp_path):
    assert "A new run" in warm.run(PRETRAINING, *spell(**flags))
    victim = tmp_path / "victim"
    command = spell(**flags | {"output_dir": victim})
    warm.run(PRETRAINING, *command, code=KILLED, before=DIE_BETWEEN_DATA_AND_INDEX.format(step=3))
    assert not list((victim / "train_state").glob("*.index"))
    warm.run(PRETRAINING, *command, code=KILLED, before=DIE_BETWEEN_DATA_AND_INDEX.format(step=6))
    said = warm.run(PRETRAINING, *command, code=KILLED, before=DIE_BEFORE_DATA.format(step=6))
    assert "from step 3" in said
    in_a_report = DIE_IN_A_REPORT.format(step=8, metrics=str(victim / "metrics.jsonl"))
    warm.run(PRETRAINING, *command, code=KILLED, before=in_a_report)
    # A state that was whole once and is not any more.
    data = victim / "train_state" / "step-6.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-100])
    stopped = warm.start(PRETRAINING, *command, before=SLOW_STEPS)
    stopped.wait_for(lambda: last_step(victim) >= 4)  # until it has started, the file ends with half a line
    stopped.send_signal(signal.SIGTERM)
    said = stopped.finish(code=75)
    assert "Passed over the state of step 6" in said
    assert "from step 3" in said
    assert "Run the same command again" in said

    said = warm.run(PRETRAINING, *command)
    assert "Continuing the run" in said
    assert_same_run(victim, tmp_path / "out", last=12)
    assert [line["step"] for line in metrics_without_speed(victim)] == list(range(1, 13))
    assert "is done" in warm.run(PRETRAINING, *command)
