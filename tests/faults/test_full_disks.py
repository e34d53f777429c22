"""A disk that is full: told with its place, nothing whole is lost, and the same command goes on when there is room."""

import subprocess

import pytest

from modeling.checkpoint import save_checkpoint
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tests.faults.test_kills import PRETRAINING, assert_nothing_is_half, assert_same_run
from tests.scripts import spell
from training.state import TrainState


def resize(disk, kilobytes):
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


def files(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_records(warm, disk, golden):
    small = disk(300)
    made = {"input_file": golden / "sample_text.txt", "vocab_file": golden / "vocab.txt"}
    made |= {"output_file": small / "a.tfrecord", "max_seq_length": 64}
    warm.run("create_pretraining_data.py", *spell(**made, dupe_factor=1))
    before = files(small)
    assert before.keys() == {"a.tfrecord", "a.metadata.json"}
    more = spell(**made, dupe_factor=20, overwrite=True)
    said = warm.run("create_pretraining_data.py", *more, code=1)
    assert f"The disk of --output_file={small / 'a.tfrecord'} is full" in said and "Traceback" not in said
    assert "run the same command again" in said
    assert files(small) == before
    resize(small, 5000)
    assert "Wrote" in warm.run("create_pretraining_data.py", *more)
    assert len(files(small)["a.tfrecord"]) > 10 * len(before["a.tfrecord"])


@pytest.mark.slow
def test_checkpoints(warm, disk, flags, tmp_path):
    warm.run(PRETRAINING, *spell(**flags))
    small = disk(600)
    command = spell(**flags | {"output_dir": small / "out"})
    said = warm.run(PRETRAINING, *command, code=1)
    assert f"The disk of --output_dir={small / 'out'} is full" in said and "Traceback" not in said
    saved = TrainState(small / "out", {}).steps()
    assert 0 < len(saved) < 4
    assert_nothing_is_half(small / "out")
    assert not list(small.rglob(".*"))
    resize(small, 10_000)
    assert f"from step {saved[-1]}" in warm.run(PRETRAINING, *command)
    assert_same_run(small / "out", tmp_path / "out", last=12)


# Some disks tell only when they are asked to keep a file for good.
FULL_WHEN_FLUSHED = """
    import errno, os
    flush = os.fsync
    def failing(descriptor):
        if {name!r} in os.readlink(f"/proc/self/fd/{{descriptor}}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)
    os.fsync = failing
"""


@pytest.mark.slow
def test_what_is_replaced_stays_until_the_new_one_is_kept(warm, flags, golden, tmp_path):
    flags |= {"num_train_steps": 3}
    warm.run(PRETRAINING, *spell(**flags))
    before = files(tmp_path / "out")
    full = FULL_WHEN_FLUSHED.format(name="bert_model.ckpt")
    said = warm.run(PRETRAINING, *spell(**flags), code=1, before=full)
    assert f"The disk of --output_dir={tmp_path / 'out'} is full" in said and "No space left on device" in said
    assert files(tmp_path / "out") == before
    assert "is done" in warm.run(PRETRAINING, *spell(**flags))

    made = {"input_file": golden / "sample_text.txt", "vocab_file": golden / "vocab.txt"}
    made |= {"output_file": tmp_path / "records" / "a.tfrecord", "dupe_factor": 1}
    warm.run("create_pretraining_data.py", *spell(**made))
    before, again = files(tmp_path / "records"), spell(**made, overwrite=True, random_seed=1)
    warm.run("create_pretraining_data.py", *again, code=1, before=FULL_WHEN_FLUSHED.format(name="a.tfrecord"))
    assert files(tmp_path / "records") == before
    warm.run("create_pretraining_data.py", *again)
    assert files(tmp_path / "records") != before


@pytest.mark.slow
def test_exports(warm, disk, tiny_model, tmp_path):
    config = BertConfig.from_json_file(tiny_model / "config.json")
    model = tmp_path / "model"
    save_checkpoint(PretrainingModel(config, seed=1), model / "bert_model.ckpt")
    (model / "bert_config.json").write_text(config.to_json_string())
    (model / "vocab.txt").write_bytes((tiny_model / "vocab.txt").read_bytes())
    small = disk(20_000)
    command = spell(model_dir=model, output_dir=small, task="fill_mask", max_seq_length=16)
    warm.run("export_model.py", *command)
    before = files(small)
    room = subprocess.run(["df", "--output=avail", str(small)], capture_output=True, text=True, check=True)
    resize(small, 20_000 - int(room.stdout.split()[1]) + 100)
    said = warm.run("export_model.py", *command, code=1)
    assert f"The disk of --output_dir={small} is full" in said and "Traceback" not in said
    assert files(small) == before and not list(small.rglob(".*"))
    resize(small, 20_000)
    assert "/model/2: " in warm.run("export_model.py", *command)
    check = ["sha256sum", "--check", "--quiet", "assets.extra/SHA256SUMS"]
    subprocess.run(check, cwd=small / "model" / "2", check=True)
