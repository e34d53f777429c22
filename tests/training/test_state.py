import json
import shutil

import keras
import numpy as np
import pytest

from data.aside import written_aside
from modeling.errors import CheckpointError
from training.best import Evaluations
from training.reports import Reports, read_metrics, store_once
from training.state import RunRecord, TrainState, check_free, check_no_model, locked, write_text


@pytest.fixture
def variables():
    return {"bert/w": keras.Variable(np.zeros((3, 2), np.float32)), "global_step": keras.Variable(0, dtype="int64")}


def save(state, variables, step):
    variables["bert/w"].assign(np.full((3, 2), float(step)))
    variables["global_step"].assign(step)
    state.save(step)


def test_the_newest_whole_state_is_restored(tmp_path, variables, caplog):
    state = TrainState(tmp_path, variables, keep=3)
    assert state.restore() is None
    for step in (1, 2, 10, 20):
        save(state, variables, step)
    assert state.steps() == [2, 10, 20]
    variables["bert/w"].assign(np.zeros((3, 2)))
    assert state.restore() == 20
    assert variables["bert/w"].numpy()[0, 0] == 20.0

    data = tmp_path / "train_state" / "step-20.data-00000-of-00001"
    flipped = bytearray(data.read_bytes())
    flipped[5] ^= 1
    data.write_bytes(flipped)
    (tmp_path / "train_state" / "step-10.index").write_bytes(b"")
    assert state.restore() == 2
    assert variables["global_step"].numpy() == 2
    assert "Passed over the state of step 20" in caplog.text
    assert "Passed over the state of step 10" in caplog.text

    # None is whole: to begin again would overwrite whatever else the run has left.
    (tmp_path / "train_state" / "step-2.index").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"train_state can be read: step-2, step-10, step-20\. .*begin again, remove"
    ):
        state.restore()


def test_leftovers_of_a_killed_writer_are_removed(tmp_path, variables):
    state = TrainState(tmp_path, variables)
    save(state, variables, 1)
    (tmp_path / "train_state" / ".step-2.xyz").mkdir()
    (tmp_path / "train_state" / "step-2.data-00000-of-00001").write_bytes(b"half")
    state.clear_leftovers()
    assert sorted(path.name for path in (tmp_path / "train_state").iterdir()) == [
        "step-1.data-00000-of-00001",
        "step-1.index",
    ]


def test_the_state_of_another_model_is_refused(tmp_path, variables):
    save(TrainState(tmp_path, variables), variables, 1)
    other = {"bert/w": keras.Variable(np.zeros((4, 2), np.float32)), "global_step": variables["global_step"]}
    with pytest.raises(CheckpointError, match=r"another model: bert/w has the shape \(4, 2\) here, and \(3, 2\) there"):
        TrainState(tmp_path, other).restore()
    with pytest.raises(CheckpointError, match="and nothing there"):
        TrainState(tmp_path, variables | {"bert/more": variables["bert/w"]}).restore()


def test_a_changed_flag_is_named(tmp_path):
    record = RunRecord(tmp_path)
    assert record.load() is None
    record.save({"seed": 1, "sizes": (1, 2), "init_checkpoint": None})
    record.check({"seed": 1, "sizes": (1, 2), "init_checkpoint": None})
    with pytest.raises(ValueError, match="--seed was 1 and is 2 now"):
        record.check({"seed": 2, "sizes": (1, 2)})
    (tmp_path / "train_state" / "run.json").write_text('{"seed"')
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        record.load()


def test_two_runs_cannot_share_a_directory(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="Another process is training"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_directory_that_was_removed_and_made_again_is_another(tmp_path):
    record = RunRecord(tmp_path / "out")
    with locked(tmp_path / "out") as held:
        record.save({})
        held.check()
        shutil.rmtree(tmp_path / "out")
        with pytest.raises(ValueError, match="out was removed while the run was going on"):
            held.check()
        with locked(tmp_path / "out") as other:
            record.save({})
            other.check()
            with pytest.raises(ValueError, match="was removed"):
                held.check()


@pytest.mark.parametrize("name", ["bert_model.ckpt.index", "model.safetensors"])
def test_a_model_of_no_run_is_not_overwritten(tmp_path, variables, name):
    (tmp_path / name).touch()
    for check in (check_no_model, check_free):
        with pytest.raises(ValueError, match=f"{name} is a model, .* Use another --output_dir"):
            check(tmp_path)
    (tmp_path / "trial-0").mkdir()
    check_free(tmp_path)  # the model is the best of the trials, which the same command goes on with
    (tmp_path / "trial-0").rmdir()
    save(TrainState(tmp_path, variables), variables, 1)
    check_free(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("run.json", "[1]", lambda path: RunRecord(path).load()),
        ("run.json", "{" * 100_000, lambda path: RunRecord(path).load()),
        ("final_step", "", lambda path: RunRecord(path).final_step()),
        ("evaluations.json", "", lambda path: Evaluations(path, 9)),
        ("evaluations.json", "[1]", lambda path: Evaluations(path, 9)),
        ("evaluations.json", '{"a": {}}', lambda path: Evaluations(path, 9)),
        ("evaluations.json", '{"1": 3}', lambda path: Evaluations(path, 9)),
        ("evaluations.json", '{"1": {"f1": "x"}}', lambda path: Evaluations(path, 9)),
        ("evaluations.json", "\xff", lambda path: Evaluations(path, 9)),
    ],
)
def test_damaged_files_of_a_run_are_named(tmp_path, name, content, read):
    path = tmp_path / "train_state" / name
    path.parent.mkdir()
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{path} is damaged .*"):
        read(tmp_path)


def test_a_second_writer_is_refused_and_half_a_file_is_taken_over(tmp_path):
    (tmp_path / ".a.txt.part").write_text("half of what a killed process had to say")
    write_text(tmp_path / "a.txt", "whole")
    with written_aside(tmp_path / "a.txt") as file:
        file.write(b"new")
        with pytest.raises(ValueError, match=f"Another process is writing {tmp_path / 'a.txt'}"):
            write_text(tmp_path / "a.txt", "other")
        assert (tmp_path / "a.txt").read_text() == "whole"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_figures_after_half_a_line(tmp_path):
    """Where a process was killed while it wrote the figures of an evaluation, outside of any run."""
    whole = '{"kind": "train", "step": 2, "loss": 1.0}\n'
    (tmp_path / "metrics.jsonl").write_text(whole + '{"kind": "eval", "ste')
    assert [line["step"] for line in read_metrics(tmp_path)] == [2]
    for _ in range(2):
        store_once(tmp_path, 2, {"loss": 0.5}, "eval")
        assert [(line["kind"], line["loss"]) for line in read_metrics(tmp_path)] == [("train", 1.0), ("eval", 0.5)]


@pytest.mark.parametrize("line", ["broken", "3", '{"a": 1}', '{"kind": 1, "step": 1}', "\xff", "[" * 100_000])
def test_a_damaged_line_of_metrics_is_named(tmp_path, line):
    good = '{"kind": "train", "step": 1}\n'
    content = f"{good}{line}\n{good}".encode("latin-1")
    (tmp_path / "metrics.jsonl").write_bytes(content)
    for use in (lambda: read_metrics(tmp_path), lambda: Reports(tmp_path, 4, 10, 4, 64)):
        with pytest.raises(ValueError, match=f"{tmp_path / 'metrics.jsonl'}, line 2 is damaged"):
            use()
    assert (tmp_path / "metrics.jsonl").read_bytes() == content


def test_reports_go_on_where_the_run_does(tmp_path):
    with Reports(tmp_path, 0, 10, 4, 64) as reports:
        for step in (2, 4, 6):
            reports.store(step, {"loss": 1.0 / step})
        reports.store(6, {"loss": 0.5}, kind="eval")
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    with Reports(tmp_path, 4, 10, 4, 64) as reports:
        reports.store(6, {"loss": 0.1})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [("train", 2), ("train", 4), ("train", 6)]
    assert read_metrics(tmp_path, "train")[-1]["loss"] == 0.1
    assert list((tmp_path / "train").glob("events*"))
    assert list((tmp_path / "eval").glob("events*"))
