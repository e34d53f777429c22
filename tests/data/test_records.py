import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from data.masking import DynamicMasker
from data.metadata import check_vocab, check_vocab_size, load_metadata, metadata_path
from data.pretraining import InstanceOptions, Pieces
from data.pretraining_input import PretrainingInput
from data.records import (
    CorruptRecords,
    RecordFiles,
    RecordFormat,
    evaluation_batches,
    read_block,
    shuffled_records,
    training_batches,
)
from data.shards import Job, run_job
from data.tfrecord import AtomicRecordWriter, RecordError, read_records
from data.tokenization import load_vocab


@pytest.fixture(scope="module")
def records(golden, tmp_path_factory):
    """925 records in three files, more than a block each."""
    directory = tmp_path_factory.mktemp("records")
    outputs = tuple(str(directory / f"{name}.tfrecord") for name in "abc")
    options = InstanceOptions(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=20)
    run_job(Job((str(golden / "sample_text.txt"),), outputs, 1, str(golden / "vocab.txt"), True, options))
    return outputs


@pytest.fixture
def copies(records, tmp_path):
    """Files that a test may damage."""
    return tuple(
        shutil.copy(file, tmp_path)
        and str(shutil.copy(metadata_path(file), tmp_path)).replace("metadata.json", "tfrecord")
        for file in records
    )


def take(dataset, count):
    return [{name: tensor.numpy() for name, tensor in batch.items()} for batch in dataset.take(count)]


def assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def num_real(batches):
    return sum(batch["row_weights"].sum() for batch in batches.as_numpy_iterator())


def rows(batches):
    return sorted(row.tobytes() for batch in batches for row in batch["input_ids"])


def test_evaluation_reads_every_record_once_in_order(records):
    files = RecordFiles.open(records)
    batches = list(evaluation_batches(files, batch_size=64).as_numpy_iterator())
    assert files.num_records == 925
    assert [batch["row_weights"].sum() for batch in batches] == [64] * 14 + [29]
    assert {len(batch["input_ids"]) for batch in batches} == {64}
    assert (batches[-1]["masked_lm_weights"][28:].sum(axis=1) > 0).tolist() == [True] + [False] * 35
    assert batches[0].pop("row_weights").dtype == np.float32
    assert {name: (array.dtype.name, array.shape[1]) for name, array in batches[0].items()} == {
        "input_ids": ("int32", 32),
        "input_mask": ("int32", 32),
        "segment_ids": ("int32", 32),
        "masked_lm_positions": ("int32", 5),
        "masked_lm_ids": ("int32", 5),
        "masked_lm_weights": ("float32", 5),
        "next_sentence_labels": ("int32", 1),
    }
    again = list(evaluation_batches(files, batch_size=64).as_numpy_iterator())
    assert_same(batches[1:], again[1:])
    shares = [list(evaluation_batches(files, 64, worker, 2).as_numpy_iterator()) for worker in range(2)]
    for whole, *parts in zip(again, *shares, strict=True):
        for name in whole:
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), whole[name])


def test_an_epoch_has_every_record_once_in_an_order_of_its_seed(records):
    files = RecordFiles.open(records[:1])
    files = dataclasses.replace(files, blocks=files.blocks[:1])  # 256 records
    epochs = take(training_batches(files, batch_size=256, seed=1), 2)
    everything = rows(evaluation_batches(files, batch_size=256).as_numpy_iterator())
    assert rows(epochs[:1]) == rows(epochs[1:]) == everything
    assert (epochs[0]["input_ids"] != epochs[1]["input_ids"]).any()
    assert_same(epochs, take(training_batches(files, batch_size=256, seed=1), 2))
    assert (take(training_batches(files, batch_size=256, seed=2), 1)[0]["input_ids"] != epochs[0]["input_ids"]).any()


@pytest.mark.parametrize("start", [1, 7, 28, 43])
@pytest.mark.parametrize("blocks_per_window", [2, 64])
def test_starts_at_any_step(records, start, blocks_per_window, monkeypatch):
    """Across windows and epochs: an epoch has 28.9 steps."""
    monkeypatch.setattr("data.records._BLOCKS_PER_WINDOW", blocks_per_window)
    files = RecordFiles.open(records)
    from_the_start = take(training_batches(files, batch_size=32, seed=3), start + 3)
    assert_same(from_the_start[start:], take(training_batches(files, batch_size=32, seed=3, start_step=start), 3))


def test_starting_late_reads_only_what_is_needed(copies, monkeypatch):
    """Of files of its own: pipelines of other tests may still be reading ahead in theirs."""
    monkeypatch.setattr("data.records._BLOCKS_PER_WINDOW", 1)
    read = []
    files = RecordFiles.open(copies)

    def counting(block, corrupt):
        if block.file in copies:
            read.append(block)
        return read_block(block, corrupt)

    monkeypatch.setattr("data.records.read_block", counting)
    start, checked = files.num_records * 5 + 900, RecordFormat.of(files).checked_blocks()
    read.clear()
    next(shuffled_records(files, 3, start, CorruptRecords(skip=False), checked))
    assert 1 <= len(read) <= 2  # the window that holds it, and the one read ahead


def test_workers_share_every_batch(records):
    files = RecordFiles.open(records)
    whole = take(training_batches(files, batch_size=8, seed=1), 4)
    shares = [take(training_batches(files, 8, seed=1, worker=worker, num_workers=2), 4) for worker in range(2)]
    joined = [{name: np.concatenate([a[name], b[name]]) for name in a} for a, b in zip(*shares, strict=True)]
    assert_same(whole, joined)
    with pytest.raises(ValueError, match="batch of 9 cannot be shared evenly by 2"):
        training_batches(files, 9, seed=1, num_workers=2)


def test_reads_records_of_the_original_that_have_no_metadata(golden):
    files = RecordFiles.open([str(golden / "pretraining_plain.tfrecord")])
    assert files.num_records == 104
    assert RecordFormat.of(files) == RecordFormat(128, 20, "static")
    assert num_real(evaluation_batches(files, 10)) == 104


def test_metadata_among_the_records_of_a_glob_is_passed_over(records):
    files = [*records, *(str(metadata_path(file)) for file in records)]
    assert RecordFiles.open(files).num_records == RecordFiles.open(records).num_records


def test_flags_and_vocabulary_that_do_not_fit(records, golden):
    record_format = RecordFormat.of(RecordFiles.open(records))
    record_format.check(records[0], 32, 5)
    with pytest.raises(ValueError, match=r"a\.tfrecord .*--max_seq_length=32, but --max_seq_length is 128"):
        record_format.check(records[0], 128, 5)
    with pytest.raises(ValueError, match="Use --max_predictions_per_seq=5"):
        record_format.check(records[0], 32, 20)
    check_vocab_size(records, 700)
    with pytest.raises(ValueError, match="700 pieces, but the model has vocab_size 30522"):
        check_vocab_size(records, 30522)
    vocab = load_vocab(golden / "vocab.txt")
    check_vocab(records[0], vocab, "vocab.txt")
    with pytest.raises(ValueError, match=r"another vocabulary .*--vocab_file=other\.txt"):
        check_vocab(records[0], vocab | {"new": 700}, "other.txt")


@pytest.mark.parametrize("skip", [False, True])
def test_a_damaged_record_is_named_or_counted(copies, skip):
    files = RecordFiles.open(copies)
    with open(copies[1], "r+b") as file:
        file.seek(files.blocks[2].offset + 30)
        file.write(b"\xff\xff")
    corrupt = CorruptRecords(skip)
    batches = evaluation_batches(files, 64, corrupt=corrupt).as_numpy_iterator()
    if skip:
        assert sum(batch["row_weights"].sum() for batch in batches) == files.num_records - 1
        assert corrupt.count == 1
    else:
        with pytest.raises(Exception, match=r"b\.tfrecord: record 0 \(at byte 0\) is damaged.*--skip_corrupt_records"):
            list(batches)


def set_number(name, at, value):
    return lambda features: features[name].int64_list.value.__setitem__(at, value)


WRONG_CONTENT = {
    "has -7 in input_ids, where 0 to 699 can be": set_number("input_ids", 3, -7),
    "has 700 in input_ids": set_number("input_ids", 3, 700),
    f"has {2**32 + 9} in input_ids": set_number("input_ids", 3, 2**32 + 9),
    "has 32 in masked_lm_positions, where 0 to 31 can be": set_number("masked_lm_positions", 0, 32),
    "has -3 in masked_lm_positions": set_number("masked_lm_positions", 0, -3),
    "has 700 in masked_lm_ids": set_number("masked_lm_ids", 0, 700),
    "has 9 in segment_ids, where 0 to 1 can be": set_number("segment_ids", 3, 9),
    "has 1000 in input_mask": set_number("input_mask", 3, 1000),
    "has 7 in next_sentence_labels": set_number("next_sentence_labels", 0, 7),
    "has 31 numbers in input_ids instead of 32": lambda features: features["input_ids"].int64_list.value.pop(),
    "has 0 numbers in segment_ids instead of 32": lambda features: features.pop("segment_ids"),
    "is no tf.Example": None,
}


@pytest.mark.parametrize("message", WRONG_CONTENT)
@pytest.mark.parametrize("skip", [False, True])
def test_a_record_that_is_whole_but_wrong_is_named_or_counted(records, tmp_path, message, skip):
    """The checksum fits: somebody wrote it so."""
    path = str(tmp_path / "wrong.tfrecord")
    with open(records[0], "rb") as file, AtomicRecordWriter(path) as writer:
        for number, (_, data) in enumerate(itertools.islice(read_records(file, path), 260)):
            example = tf.train.Example.FromString(data)
            if number == 257 and WRONG_CONTENT[message]:
                WRONG_CONTENT[message](example.features.feature)
            is_garbage = number == 257 and WRONG_CONTENT[message] is None
            writer.write(b"\xff\xff not a proto" if is_garbage else example.SerializeToString())
    opened = PretrainingInput.open([path], 32, 5, vocab_size=700, skip_corrupt=skip)
    if skip:
        assert num_real(opened.evaluation_batches(64, 0, 1)) == 259
        assert len(take(opened.training_batches(260, 1, 0, 0, 1), 1)) == 1
        return
    for batches in (opened.evaluation_batches(64, 0, 1), opened.training_batches(8, 1, 0, 0, 1)):
        with pytest.raises(Exception, match=f"{path}: record 257 {message}.*--skip_corrupt_records"):
            take(batches, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_records", "x"),
        ("num_records", 5000),
        ("num_records", -1),
        ("num_records", True),
        ("num_bytes", 2**70),
        ("block_offsets", ["a", 1]),
        ("block_offsets", [0, -5]),
        ("block_offsets", [5, 0]),
        ("vocab_size", "x"),
        ("vocab_sha256", 3),
        ("flags", 3),
        ("shard", [1]),
        ("inputs", 3),
    ],
)
def test_metadata_that_cannot_be_true_is_named(copies, name, value):
    path = metadata_path(copies[0])
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=rf"{path} is damaged \("):
        load_metadata(copies[0])


def test_a_skipped_record_moves_no_other(copies):
    """What a step sees stays where it is: a resumed run goes on as the first one would have."""
    files = RecordFiles.open(copies)
    with open(copies[1], "r+b") as file:
        file.seek(files.blocks[2].offset + 30)
        file.write(b"\xff\xff")

    def batches(start, count):
        return take(training_batches(files, 32, seed=3, start_step=start, corrupt=CorruptRecords(skip=True)), count)

    assert_same(batches(0, 40)[30:], batches(30, 10))


def test_files_of_two_formats_do_not_go_together(records, golden):
    with pytest.raises(RecordError, match=r"plain\.tfrecord and .*a\.tfrecord do not go together: .*length=128"):
        RecordFormat.of(RecordFiles.open([*records, str(golden / "pretraining_plain.tfrecord")]))


def test_an_empty_file_among_others(golden, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("rain\n")
    outputs = tuple(str(tmp_path / f"{name}.tfrecord") for name in "ab")
    run_job(Job((str(text),), outputs, 1, str(golden / "vocab.txt"), True, InstanceOptions(dupe_factor=1)))
    assert RecordFiles.open(outputs).num_records == 1


def test_a_truncated_file_can_be_used_up_to_there(copies):
    with open(copies[0], "r+b") as file:
        file.truncate(5100)
    corrupt = CorruptRecords(skip=True)
    files = RecordFiles.open(copies, corrupt)
    assert 600 < files.num_records < 900
    assert corrupt.count == 1
    assert num_real(evaluation_batches(files, 64)) == files.num_records


def test_a_damaged_length_costs_the_rest_of_its_block(copies):
    files = RecordFiles.open(copies)
    with open(copies[0], "r+b") as file:
        file.write(b"\xff")
    corrupt = CorruptRecords(skip=True)
    found = num_real(evaluation_batches(files, 64, corrupt=corrupt))
    assert (found, corrupt.count) == (files.num_records - 256, 256)


def test_files_that_are_not_whole(copies, tmp_path):
    with open(copies[0], "r+b") as file:
        file.truncate(5100)
    with pytest.raises(RecordError, match=r"a\.tfrecord has 5100 bytes, but had \d+ when it was written"):
        RecordFiles.open(copies)
    metadata_path(copies[0]).unlink()
    with pytest.raises(RecordError, match=r"a\.tfrecord: record \d+ \(at byte \d+\) is cut short"):
        RecordFiles.open(copies)
    (tmp_path / "empty.tfrecord").touch()
    with pytest.raises(RecordError, match="not a single record"):
        RecordFiles.open([str(tmp_path / "empty.tfrecord")])
    metadata_path(copies[1]).write_text("{}")
    with pytest.raises(ValueError, match=r"b\.metadata\.json is damaged"):
        RecordFiles.open(copies[1:])


def test_dynamic_records_need_a_masker_and_get_new_masks_each_epoch(golden, tmp_path):
    output = str(tmp_path / "dynamic.tfrecord")
    options = InstanceOptions(max_seq_length=64, max_predictions_per_seq=10, masking="dynamic")
    run_job(Job((str(golden / "sample_text.txt"),), (output,), 1, str(golden / "vocab.txt"), True, options))
    files = RecordFiles.open([output])
    with pytest.raises(ValueError, match="need a masker"):
        training_batches(files, 4, seed=1)
    with pytest.raises(ValueError, match="need a masker"):
        evaluation_batches(files, 4)
    masker = DynamicMasker(Pieces.of(load_vocab(golden / "vocab.txt")), options)
    with pytest.raises(ValueError, match="would mask them again"):
        training_batches(RecordFiles.open([str(golden / "pretraining_plain.tfrecord")]), 4, seed=1, masker=masker)
    count = files.num_records
    epochs = take(training_batches(files, count, seed=1, masker=masker), 2)
    assert_same(epochs[1:], take(training_batches(files, count, seed=1, start_step=1, masker=masker), 1))
    masks = [{row.tobytes() for row in epoch["masked_lm_positions"]} for epoch in epochs]
    assert len(masks[0] & masks[1]) < count / 2
