import numpy as np
import pytest
import tensorflow as tf

from data.batch_plans import BatchSize, evaluation_plan
from data.example_records import ExampleRecords, numbered_batches
from data.tfrecord import ExampleEncoder, RecordError

LENGTHS = [3, 16, 5, 9, 4]


def parse(records):
    sequence = tf.io.FixedLenFeature([16], tf.int64)
    names = ("input_ids", "input_mask", "segment_ids")
    return {n: tf.cast(v, tf.int32) for n, v in tf.io.parse_example(records, dict.fromkeys(names, sequence)).items()}


@pytest.fixture
def records(tmp_path):
    encode = ExampleEncoder(max_number=100)

    def examples():
        for number, length in enumerate(LENGTHS):
            row = [
                encode.numbers("input_ids", [number + 1] * length, 16 - length),
                encode.repeated("input_mask", (1, length), (0, 16 - length)),
                encode.repeated("segment_ids", (0, 16)),
            ]
            yield encode.example(*row), length

    return ExampleRecords.write(tmp_path / "a.tf_record", examples())


def test_batches_are_trimmed_and_filled(records):
    plan = evaluation_plan(records.lengths, BatchSize(2), by_length=True)
    batches = list(numbered_batches(records, plan, parse, 16, fixed_rows=2).as_numpy_iterator())
    assert [batch["input_ids"].shape for batch in batches] == [(2, 8), (2, 16), (2, 16)]
    assert [batch["record_numbers"].tolist() for batch in batches] == [[0, 4], [2, 3], [1, -1]]
    assert [batch["row_weights"].tolist() for batch in batches] == [[1, 1], [1, 1], [1, 0]]
    for batch in batches:
        real = batch["row_weights"] == 1
        numbers = batch["record_numbers"][real]
        assert (batch["input_ids"][real].max(axis=1) == numbers + 1).all()
        assert (batch["input_mask"][real].sum(axis=1) == records.lengths[numbers]).all()


def test_padded_batches_have_one_shape_that_is_known_ahead(records):
    plan = evaluation_plan(records.lengths, BatchSize(2), by_length=False)
    batches = numbered_batches(records, plan, parse, 16, length_step=None, fixed_rows=2)
    assert all(
        spec.is_fully_defined() for spec in tf.nest.map_structure(lambda s: s.shape, batches.element_spec).values()
    )
    assert {batch["input_ids"].shape for batch in batches.as_numpy_iterator()} == {(2, 16)}


def test_workers_share_batches_of_one_length_from_any_on(records):
    plan = [np.array([0, 1, 2, 3]), np.array([4, 0, 3, 2])]
    whole = list(numbered_batches(records, plan, parse, 16).as_numpy_iterator())
    parts = [
        list(numbered_batches(records, plan, parse, 16, 1, worker, num_workers=2).as_numpy_iterator())
        for worker in range(2)
    ]
    assert [len(part) for part in parts] == [1, 1]
    for name, tensor in whole[1].items():
        np.testing.assert_array_equal(np.concatenate([part[0][name] for part in parts]), tensor)


def test_damage_is_found(records):
    with open(records.path, "r+b") as file:
        file.seek(int(records.offsets[2]) + 20)
        file.write(b"\xff\xff")
    assert records.read([0, 1])
    with pytest.raises(RecordError, match="a.tf_record: record 2 is damaged"):
        records.read([2])
