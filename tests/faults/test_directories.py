"""Directories of others, directories that two want at once, and directories that are not what they were."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.faults.test_kills import CLASSIFIER, PRETRAINING, assert_same_run
from tests.scripts import KILLED, SLOW_STEPS, complaints, last_step, spell


@pytest.fixture
def read_only(disk):
    """A directory that nobody may write to, not even root."""
    place = disk(100)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    return place


@pytest.mark.slow
def test_a_read_only_directory_is_told_before_the_work(warm, read_only, flags, tuning_flags, golden):
    out = read_only / "out"
    data = {"input_file": golden / "sample_text.txt", "vocab_file": golden / "vocab.txt", "output_file": out}
    for script, command, flag in (
        (PRETRAINING, flags | {"output_dir": out}, "output_dir"),
        (CLASSIFIER, tuning_flags | {"output_dir": out, "do_train": True}, "output_dir"),
        ("create_pretraining_data.py", data, "output_file"),
    ):
        said = warm.run(script, *spell(**command), code=1)
        assert f"--{flag}={out}" in said and f"cannot be written: {read_only} does not allow it" in said
        assert "Training:" not in said and "Traceback" not in said


@pytest.mark.slow
def test_other_runs_are_refused_and_older_ones_are_not(warm, flags, config_file, tmp_path):
    flags |= {"num_train_steps": 3}
    warm.run(PRETRAINING, *spell(**flags))
    wider = tmp_path / "wider.json"
    wider.write_text(json.dumps(json.loads(config_file.read_text()) | {"hidden_size": 32}))
    older, lost = tmp_path / "older", tmp_path / "lost"
    for directory in (older, lost):
        shutil.copytree(tmp_path / "out", directory)
    record = json.loads((older / "train_state" / "run.json").read_text())
    assert record.pop("bias_correction", 0) is None and record.pop("layerwise_lr_decay") == 1.0
    (older / "train_state" / "run.json").write_text(json.dumps(record))
    (lost / "train_state" / "run.json").unlink()
    lines = {
        "--learning_rate was 0.01 and is 0.02 now; --train_batch_size was 8 and is 4 now": {
            "learning_rate": 0.02,
            "train_batch_size": 4,
        },
        "in --bert_config_file, hidden_size was 16 and is 32 now": {"bert_config_file": wider},
        "--layerwise_lr_decay was not there yet and is 0.5 now": {"output_dir": older, "layerwise_lr_decay": 0.5},
        "holds states of a run, but no run.json that tells its flags": {"output_dir": lost},
        "": {"output_dir": older},  # a flag that the run does not know has its default: it is continued
    }
    told = complaints(PRETRAINING, *(spell(**flags | changes) for changes in lines.values()))
    for wanted, said in zip(lines, told, strict=True):
        assert wanted in said if wanted else said == ""
    assert json.loads((tmp_path / "out" / "bert_config.json").read_text())["hidden_size"] == 16


@pytest.mark.slow
def test_a_second_run_is_refused_and_a_clock_that_is_wrong_changes_nothing(warm, flags, tmp_path):
    warm.run(PRETRAINING, *spell(**flags))
    both = tmp_path / "both"
    command = spell(**flags | {"output_dir": both})
    first = warm.start(PRETRAINING, *command, before=SLOW_STEPS)
    first.wait_for(lambda: last_step(both) >= 1)
    said = warm.run(PRETRAINING, *command, code=1)
    assert f"Another process is training in {both}" in said and "use another --output_dir" in said
    first.wait_for(lambda: last_step(both) >= 4)
    first.send_signal(signal.SIGTERM)
    assert "Run the same command again" in first.finish(code=75)
    for path in both.rglob("*"):
        os.utime(path, (4e9, 4e9))  # in the year 2096
    said = warm.run(PRETRAINING, *command, before="import time; time.time = lambda: 1.0")
    assert "Continuing the run" in said
    assert_same_run(both, tmp_path / "out", last=12)


@pytest.mark.slow
def test_a_directory_that_is_removed_gets_no_half_run(warm, flags, tmp_path):
    running = warm.start(PRETRAINING, *spell(**flags), before=SLOW_STEPS)
    running.wait_for(lambda: last_step(tmp_path / "out") >= 4)
    shutil.rmtree(tmp_path / "out" / "train_state")
    running.send_signal(signal.SIGTERM)
    assert f"{tmp_path / 'out'} was removed while the run was going on" in running.finish(code=1)
    assert not (tmp_path / "out" / "train_state").exists()
    assert "A new run" in warm.run(PRETRAINING, *spell(**flags))


@pytest.mark.slow
def test_a_directory_that_is_removed_and_taken_by_another_run(warm, flags, tmp_path):
    """The first run ends before it writes anything into it; the second ends as if it had been alone."""
    out, other = tmp_path / "out", flags | {"learning_rate": 1e-3, "seed": 2, "save_checkpoints_steps": 100}
    first = warm.start(PRETRAINING, *spell(**flags | {"num_train_steps": 1000}), before=SLOW_STEPS)
    first.wait_for(lambda: last_step(out) >= 2)
    first.send_signal(signal.SIGSTOP)
    shutil.rmtree(out)
    second = warm.start(PRETRAINING, *spell(**other), before=SLOW_STEPS)
    second.wait_for(lambda: last_step(out) >= 2)
    first.send_signal(signal.SIGCONT)
    assert f"{out} was removed while the run was going on" in first.finish(code=1)
    second.finish()
    alone = tmp_path / "alone"
    warm.run(PRETRAINING, *spell(**other | {"output_dir": alone}))
    assert_same_run(out, alone, last=12)


@pytest.mark.slow
def test_a_model_that_is_there_is_not_overwritten(warm, flags, tuning_flags, tmp_path):
    """Where --output_dir names the directory of --init_checkpoint, by mistake."""
    flags |= {"num_train_steps": 1}
    warm.run(PRETRAINING, *spell(**flags))
    model = tmp_path / "model"
    shutil.copytree(tmp_path / "out", model, ignore=shutil.ignore_patterns("train*", "metrics.jsonl"))
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    tuning_flags |= {"do_train": True, "output_dir": model}
    for script, command in (
        (PRETRAINING, flags | {"init_checkpoint": model, "output_dir": model}),
        (CLASSIFIER, tuning_flags),
        (CLASSIFIER, tuning_flags | {"dry_run": True}),
    ):
        said = warm.run(script, *spell(**command), code=1)
        assert f"{model / 'bert_model.ckpt.index'} is a model" in said and "Use another --output_dir" in said
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before


@pytest.mark.slow
def test_a_run_whose_states_are_all_damaged_is_not_begun_again(warm, flags, tmp_path):
    flags |= {"num_train_steps": 3, "keep_checkpoint_max": 1}
    warm.run(PRETRAINING, *spell(**flags))
    data = tmp_path / "out" / "train_state" / "step-3.data-00000-of-00001"
    flipped = bytearray(data.read_bytes())
    flipped[5000] ^= 4
    data.write_bytes(flipped)
    kept = [(tmp_path / "out" / name).read_bytes() for name in ("metrics.jsonl", "bert_model.ckpt.data-00000-of-00001")]
    said = warm.run(PRETRAINING, *spell(**flags), code=1)
    assert f"No state of the run in {tmp_path / 'out' / 'train_state'} can be read: step-3." in said
    assert kept == [
        (tmp_path / "out" / name).read_bytes() for name in ("metrics.jsonl", "bert_model.ckpt.data-00000-of-00001")
    ]


TAKES_TIME = """
    import time
    from data.tfrecord import AtomicRecordWriter
    write = AtomicRecordWriter.write
    AtomicRecordWriter.write = lambda self, record: (time.sleep(0.02), write(self, record))
"""


@pytest.mark.slow
def test_records_that_two_want_to_write_at_once(warm, golden, tmp_path):
    out, aside = tmp_path / "out.tfrecord", tmp_path / ".out.tfrecord.part"
    data = {"input_file": golden / "sample_text.txt", "vocab_file": golden / "vocab.txt", "output_file": out}
    data |= {"dupe_factor": 1}
    first = warm.start("create_pretraining_data.py", *spell(**data), before=TAKES_TIME)
    first.wait_for(aside.exists)
    said = warm.run("create_pretraining_data.py", *spell(**data | {"random_seed": 2}), code=1)
    assert f"Another process is writing {out}" in said
    first.finish()
    alone = tmp_path / "alone.tfrecord"
    warm.run("create_pretraining_data.py", *spell(**data | {"output_file": alone}))
    assert out.read_bytes() == alone.read_bytes()

    # Killed, it leaves half a file, which the next one takes over.
    data |= {"random_seed": 3, "overwrite": True}
    killed = warm.start("create_pretraining_data.py", *spell(**data), before=TAKES_TIME)
    killed.wait_for(aside.exists)
    killed.send_signal(signal.SIGKILL)
    killed.finish(code=KILLED)
    assert aside.exists() and out.read_bytes() == alone.read_bytes()
    warm.run("create_pretraining_data.py", *spell(**data))
    assert not aside.exists() and out.read_bytes() != alone.read_bytes()
