"""Files that are cut, flipped or gone: found, and named with the record or the variable."""

import random

import pytest
import tensorflow as tf

from data.metadata import metadata_path
from data.pretraining import InstanceOptions
from data.records import CorruptRecords, RecordFiles, read_block
from data.shards import Job, run_job
from data.tfrecord import AtomicRecordWriter, RecordError, read_records
from modeling import google, hugging_face
from modeling.config import BertConfig
from modeling.errors import CheckpointError
from modeling.models import PretrainingModel
from tests.faults.test_kills import PRETRAINING, assert_same_bits
from tests.scripts import spell


@pytest.fixture(scope="module")
def records(golden, tmp_path_factory):
    """A file of records with its metadata."""
    path = tmp_path_factory.mktemp("records") / "a.tfrecord"
    options = InstanceOptions(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=1)
    run_job(Job((str(golden / "sample_text.txt"),), (str(path),), 1, str(golden / "vocab.txt"), True, options))
    return path


def read(path):
    return [
        record for block in RecordFiles.open([str(path)]).blocks for record in read_block(block, CorruptRecords(False))
    ]


def test_a_shard_cut_at_any_byte_of_its_last_record(records, tmp_path):
    """Without metadata a file that ends between two records is whole: there is nothing that it could lack."""
    whole = records.read_bytes()
    number = len(read(records)) - 1
    starts = [r.offset for r in read_offsets(records)]
    for with_metadata in (True, False):
        cut = tmp_path / f"{with_metadata}.tfrecord"
        if with_metadata:
            metadata_path(cut).write_bytes(metadata_path(records).read_bytes())
        for size in range(starts[-1], len(whole)):
            cut.write_bytes(whole[:size])
            if size == starts[-1] and not with_metadata:
                assert len(read(cut)) == number
                continue
            wanted = f"has {size} bytes, but had {len(whole)}" if with_metadata else f"record {number} "
            with pytest.raises(RecordError, match=wanted) as error:
                read(cut)
            assert str(cut) in str(error.value)


def read_offsets(path):
    with open(path, "rb") as file:
        return list(read_records(file, str(path)))


def test_a_bit_flipped_anywhere_in_a_record(records, tmp_path):
    whole, flipped = records.read_bytes(), tmp_path / "flipped.tfrecord"
    last = read_offsets(records)[-1].offset
    number = len(read(records)) - 1
    metadata_path(flipped).write_bytes(metadata_path(records).read_bytes())
    for position in range(last, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        flipped.write_bytes(damaged)
        with pytest.raises(RecordError, match=f"{flipped}: record {number} "):
            read(flipped)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, tiny_model):
    """The same weights in both formats, and what they are."""
    config = BertConfig.from_json_file(tiny_model / "config.json")
    variables = {v.path: v.numpy() for v in PretrainingModel(config, seed=1).weights}
    directory = tmp_path_factory.mktemp("checkpoints")
    google.write_variables(variables, directory / "bert_model.ckpt")
    hugging_face.write(variables, config, directory / "hf")
    return directory, variables


@pytest.mark.parametrize(
    ("name", "read", "has_names"),
    [
        ("bert_model.ckpt.data-00000-of-00001", google.read_variables, True),
        ("bert_model.ckpt.index", google.read_variables, False),
        ("hf/model.safetensors", hugging_face.read_variables, True),
    ],
)
def test_a_bit_flipped_in_a_checkpoint(checkpoints, name, read, has_names):
    """It is found, or it changes nothing; in the data of a variable it is found, and the variable is named."""
    directory, variables = checkpoints
    path = directory / name
    whole = path.read_bytes()
    source = path.parent if "hf" in name else directory / "bert_model.ckpt"
    header = 8 + int.from_bytes(whole[:8], "little") if "hf" in name else 0 if has_names else len(whole)
    rng = random.Random(1)
    positions = rng.sample(range(header), min(header, 500))
    positions += [rng.randrange(header, len(whole)) for _ in range(200) if has_names]
    names = {*variables, *(hugging_face.hugging_face_name(name)[0] for name in variables)}
    found = 0
    try:
        for position in positions:
            damaged = bytearray(whole)
            damaged[position] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            try:
                assert_same_bits(read(source), variables)
                assert position < header
            except CheckpointError as error:
                found += 1
                assert str(source) in str(error)
                assert position < header or str(error).split(" in ")[0] in names
    finally:
        path.write_bytes(whole)
    assert found > 0.9 * len(positions)


VANISHES_AFTER_THE_CHECKS = """
    import os
    from data.pretraining_input import PretrainingInput
    whole = PretrainingInput.open.__func__
    def vanishing(cls, names, *arguments, **options):
        opened = whole(cls, names, *arguments, **options)
        os.unlink(names[0])
        return opened
    PretrainingInput.open = classmethod(vanishing)
"""
VANISHES_BEFORE_IT_IS_READ = """
    import os
    import data.text_files
    whole = data.text_files.find_files
    def vanishing(*arguments, **options):
        found = whole(*arguments, **options)
        os.unlink(found[0])
        return found
    data.text_files.find_files = vanishing
"""


@pytest.mark.slow
def test_scripts_name_what_is_cut_flipped_or_gone(warm, flags, golden, tmp_path):
    whole = (golden / "pretraining_plain.tfrecord").read_bytes()
    starts = [record.offset for record in read_offsets(golden / "pretraining_plain.tfrecord")]
    cut, flipped, gone = (tmp_path / f"{name}.tfrecord" for name in ("cut", "flipped", "gone"))
    cut.write_bytes(whole[:-50])
    damaged = bytearray(whole)
    damaged[starts[7] + 100] ^= 4
    flipped.write_bytes(damaged)
    gone.write_bytes(whole)
    said = warm.run(PRETRAINING, *spell(**flags | {"input_file": cut}), code=1)
    assert f"{cut}: record 103 (at byte {starts[-1]}) is cut short" in said and "--skip_corrupt_records" in said
    said = warm.run(PRETRAINING, *spell(**flags | {"input_file": flipped}), code=1)
    assert f"{flipped}: record 7 (at byte {starts[7]}) is damaged: its checksum does not fit" in said
    wrong = tmp_path / "wrong.tfrecord"
    with AtomicRecordWriter(wrong) as writer:
        for number, record in enumerate(read_offsets(golden / "pretraining_plain.tfrecord")):
            example = tf.train.Example.FromString(record.data)
            if number == 5:
                example.features.feature["input_ids"].int64_list.value[3] = 2**32 + 9
            writer.write(example.SerializeToString())
    said = warm.run(PRETRAINING, *spell(**flags | {"input_file": wrong}), code=1)
    assert f"{wrong}: record 5 has {2**32 + 9} in input_ids, where 0 to 699 can be" in said
    said = warm.run(PRETRAINING, *spell(**flags | {"input_file": gone}), code=1, before=VANISHES_AFTER_THE_CHECKS)
    assert f"{gone}" in said.splitlines()[-1] and "Traceback" not in said
    text = tmp_path / "text.txt"
    text.write_bytes((golden / "sample_text.txt").read_bytes())
    data = {"input_file": text, "vocab_file": golden / "vocab.txt", "output_file": tmp_path / "out.tfrecord"}
    said = warm.run("create_pretraining_data.py", *spell(**data), code=1, before=VANISHES_BEFORE_IT_IS_READ)
    assert f"No such file or directory: '{text}'" in said and "Traceback" not in said
