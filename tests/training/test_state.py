import json

import keras
import numpy as np
import pytest

from modeling.errors import CheckpointError
from training.reports import Reports, read_metrics
from training.state import RunRecord, TrainState, locked


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
