import io
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from data.tfrecord import AtomicRecordWriter, ExampleEncoder, RecordError, Varints, read_records

RECORDS = [b"one", b"", b"three" * 100]


@pytest.fixture
def path(tmp_path):
    with AtomicRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in RECORDS:
            writer.write(record)
    return writer.path


def read(path):
    with open(path, "rb") as file:
        return [record.data for record in read_records(file, "a.tfrecord")]


def test_tensorflow_reads_what_we_write_and_we_read_what_it_writes(path, tmp_path):
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == RECORDS
    with tf.io.TFRecordWriter(str(tmp_path / "tf.tfrecord")) as writer:
        for record in RECORDS:
            writer.write(record)
    assert read(tmp_path / "tf.tfrecord") == RECORDS
    assert (tmp_path / "tf.tfrecord").read_bytes() == path.read_bytes()


def test_a_failed_write_leaves_the_old_file_and_no_other(path):
    before = path.read_bytes()

    class DiskFull(OSError):
        pass

    with pytest.raises(DiskFull), AtomicRecordWriter(path) as writer:
        writer.write(b"new")
        raise DiskFull
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["a.tfrecord"]


def test_a_second_writer_is_refused_and_one_that_was_killed_leaves_nothing(path, tmp_path):
    with AtomicRecordWriter(path) as writer:
        writer.write(b"first")
        with pytest.raises(ValueError, match=f"Another process is writing {path}"), AtomicRecordWriter(path) as second:
            second.write(b"second")
    assert read(path) == [b"first"]
    killed = f"from data.tfrecord import AtomicRecordWriter\nw = AtomicRecordWriter({str(path)!r}).__enter__()\n"
    killed += "w.write(b'third' * 1_000_000)\nw.sync()\nimport os\nos.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed], check=False)
    aside = tmp_path / ".a.tfrecord.part"
    assert read(path) == [b"first"] and aside.stat().st_size > 1_000_000
    with AtomicRecordWriter(path) as writer:
        writer.write(b"fourth")
    assert read(path) == [b"fourth"] and not aside.exists()


def test_every_truncation_is_found(path):
    data = path.read_bytes()
    bounds = {0, 19, 35, len(data)}
    for size in range(len(data)):
        file = io.BytesIO(data[:size])
        if size in bounds:
            list(read_records(file, "a.tfrecord"))
        else:
            with pytest.raises(RecordError, match=r"a\.tfrecord: record [012] \(at byte (0|19|35)\)"):
                list(read_records(file, "a.tfrecord"))


def test_every_flipped_bit_is_found(path):
    data = path.read_bytes()
    for position in range(60):
        for bit in (0, 7):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                found = [record.data for record in read_records(io.BytesIO(bytes(damaged)), "a.tfrecord")]
            except RecordError:
                continue  # a length that cannot be trusted
            assert found.count(None) == 1


def test_examples_are_those_of_tensorflow():
    encoder = ExampleEncoder(70_000)
    data = encoder.example(
        encoder.numbers("ids", [1, 127, 128, 16_384, 70_000], padding=2),
        encoder.repeated("mask", (1, 3), (0, 2)),
        encoder.ones("weights", 2, padding=1),
    )
    features = tf.train.Example.FromString(data).features.feature
    assert list(features["ids"].int64_list.value) == [1, 127, 128, 16_384, 70_000, 0, 0]
    assert list(features["mask"].int64_list.value) == [1, 1, 1, 0, 0]
    assert list(features["weights"].float_list.value) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_many_varints_are_those_of_tensorflow(dtype):
    numbers = [0, 1, 127, 128, 129, 16_383, 16_384, 65_535] + ([2_097_151, 2_097_152] if dtype == "uint32" else [])
    varints, places = Varints(max(numbers))(np.array(numbers, dtype))
    encoder = ExampleEncoder(0)
    data = encoder.example(encoder.packed("ids", varints, padding=1), encoder.packed("some", varints[: places[3]]))
    features = tf.train.Example.FromString(data).features.feature
    assert list(features["ids"].int64_list.value) == [*numbers, 0]
    assert list(features["some"].int64_list.value) == [0, 1, 127]
    assert places[-1] == len(varints)
