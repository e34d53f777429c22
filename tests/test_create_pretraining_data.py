"""The script itself, as a person runs it."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from data.metadata import load_metadata

ROOT = Path(__file__).parents[1]


def run(*flags, timeout=120):
    command = [sys.executable, str(ROOT / "create_pretraining_data.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)


def parse(path):
    """Records as plain dicts: the order of features within a record has no meaning."""
    records = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        records.append({n: list(f.int64_list.value) or list(f.float_list.value) for n, f in features.items()})
    return records


@pytest.fixture
def flags(golden, tmp_path):
    return {
        "input_file": golden / "sample_text.txt",
        "output_file": tmp_path / "out.tfrecord",
        "vocab_file": golden / "vocab.txt",
    }


def spell(flags, **changes):
    return [f"--{name}={value}" for name, value in (flags | changes).items() if value is not None]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plain", {"dupe_factor": 5}),
        (
            "whole_word",
            {
                "do_whole_word_mask": True,
                "max_seq_length": 64,
                "max_predictions_per_seq": 10,
                "dupe_factor": 3,
                "random_seed": 7,
            },
        ),
    ],
)
def test_records_of_the_original_one_for_one(golden, flags, name, changes):
    result = run(*spell(flags, **changes))
    assert result.returncode == 0, result.stderr
    expected = parse(golden / f"pretraining_{name}.tfrecord")
    assert parse(flags["output_file"]) == expected
    assert f"Wrote {len(expected)} total instances" in result.stderr


def test_several_outputs_take_the_records_in_turn(golden, flags, tmp_path):
    outputs = [tmp_path / "x.tfrecord", tmp_path / "y.tfrecord"]
    assert run(*spell(flags, output_file=",".join(map(str, outputs)), dupe_factor=5)).returncode == 0
    x, y = map(parse, outputs)
    assert [record for pair in zip(x, y, strict=True) for record in pair] == parse(
        golden / "pretraining_plain.tfrecord"
    )


@pytest.fixture
def texts(golden, tmp_path):
    """The sample text cut into three files, one of them gzip."""
    documents = (golden / "sample_text.txt").read_bytes().split(b"\n\n")
    directory = tmp_path / "texts"
    directory.mkdir()
    for number in range(3):
        text = b"\n\n".join(documents[number::3])
        if number == 1:
            (directory / "1.txt.gz").write_bytes(gzip.compress(text))
        else:
            (directory / f"{number}.txt").write_bytes(text)
    return directory


@pytest.mark.slow
def test_shards_do_not_depend_on_who_makes_them(flags, texts, tmp_path):
    """One worker, two, and Apache Beam: the same bytes."""
    made = {}
    for name, how in (("one", {}), ("two", {"num_workers": 2}), ("beam", {"runner": "DirectRunner"})):
        output = tmp_path / name / "out.tfrecord"
        result = run(*spell(flags, input_file=texts / "*", output_file=output, **how), "--shard_by_file", timeout=300)
        assert result.returncode == 0, result.stderr
        made[name] = {path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())}
    assert [name for name in made["one"] if name.endswith("tfrecord")] == [
        f"out-{i:05d}-of-00003.tfrecord" for i in range(3)
    ]
    assert made["one"] == made["two"] == made["beam"]


def test_a_second_run_makes_only_what_is_missing(flags, texts, tmp_path):
    command = [*spell(flags, input_file=texts / "*"), "--shard_by_file"]
    assert run(*command).returncode == 0
    shards = sorted(tmp_path.glob("out-*.tfrecord"))
    contents = [shard.read_bytes() for shard in shards]
    shards[1].unlink()
    with open(shards[2], "ab") as file:
        file.write(b"torn")
    os.utime(shards[0], (1, 1))
    assert run(*command).returncode == 0
    assert [shard.read_bytes() for shard in shards] == contents
    assert shards[0].stat().st_mtime == 1  # not made again
    assert not list(tmp_path.glob(".*"))


def test_records_of_other_flags_are_not_replaced_unless_told_to(flags, golden, tmp_path):
    assert run(*spell(flags, dupe_factor=1)).returncode == 0
    before = flags["output_file"].read_bytes()
    result = run(*spell(flags, dupe_factor=2, random_seed=3))
    assert result.returncode == 1
    assert "--dupe_factor was 1 and is 2 now; --random_seed was 12345 and is 3 now" in result.stderr
    assert "Traceback" not in result.stderr
    changed = tmp_path / "changed.txt"
    changed.write_text("another text\n")
    assert "made from other text" in run(*spell(flags, input_file=changed, dupe_factor=1)).stderr
    both = f"{flags['output_file']},{tmp_path / 'second.tfrecord'}"
    assert "for another list of files" in run(*spell(flags, output_file=both, dupe_factor=1)).stderr
    assert flags["output_file"].read_bytes() == before
    assert run(*spell(flags, dupe_factor=2), "--overwrite").returncode == 0
    assert load_metadata(flags["output_file"]).flags["dupe_factor"] == 2


def test_the_order_of_texts_decides_the_records(flags, texts):
    first, second = texts / "0.txt", texts / "2.txt"
    assert run(*spell(flags, input_file=f"{first},{second}")).returncode == 0
    assert "made from other text" in run(*spell(flags, input_file=f"{second},{first}")).stderr


def test_a_vocabulary_with_a_piece_twice(flags, golden, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text((golden / "vocab.txt").read_text(encoding="utf-8") + "the\nthe\nlast\n", encoding="utf-8")
    text = tmp_path / "text.txt"
    text.write_text("the last lamp\nthe last\n")
    assert run(*spell(flags, input_file=text, vocab_file=vocab)).returncode == 0
    assert load_metadata(flags["output_file"]).vocab_size == 703


def test_a_failed_text_is_named_and_the_others_are_made(flags, texts, tmp_path):
    (texts / "3.txt.gz").write_bytes(b"not gzip")
    (texts / "4.txt").write_text(" \n\n")
    result = run(*spell(flags, input_file=texts / "*"), "--shard_by_file")
    assert result.returncode == 1
    assert "2 of 5 texts failed" in result.stderr
    assert "3.txt.gz is not a whole gzip file" in result.stderr
    assert "no text in" in result.stderr
    assert len(list(tmp_path.glob("out-*.tfrecord"))) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_file": None}, "Name the text by either --input_file or --tfds_name"),
        ({"input_file": "nowhere/*.txt"}, "No file matches 'nowhere/*.txt' of --input_file"),
        ({"vocab_file": "nowhere.txt"}, "There is no vocabulary file nowhere.txt"),
        ({"vocab_file": os.devnull}, "is empty"),
        ({"output_file": None}, "--output_file is missing"),
        ({"max_seq_length": 16}, "--max_predictions_per_seq must be between 1 and --max_seq_length (16), but is 20"),
        ({"max_seq_length": 4}, "--max_seq_length must be at least 5, room for two tokens"),
        ({"max_seq_length": 65536}, "--max_seq_length must be at most 65535"),
        ({"output_file": f"{__file__}/out.tfrecord"}, "out.tfrecord cannot be written"),
        ({"output_file": f"{__file__}/out.tfrecord", "shard_by_file": True}, "is a file. Name a directory"),
        ({"num_workers": 2}, "--num_workers needs --shard_by_file"),
        ({"input_file": os.devnull}, "No file matches"),
    ],
)
def test_mistakes_are_told_in_one_message(flags, changes, message):
    result = run(*spell(flags, **changes))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not flags["output_file"].exists()


def test_a_dry_run_downloads_nothing(flags):
    result = run(*spell(flags, input_file=None, tfds_name="no_such_set"), "--dry_run")
    assert result.returncode == 0, result.stderr
    assert "no_such_set, split train; not opened" in result.stdout


def test_hard_texts(flags, tmp_path):
    """A line of 1 MB, bytes that are no UTF-8, no text at all, a single sentence."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"word " * 200_000 + b"\n\xff\xfe\nthe end\n\nrain\n")
    assert run(*spell(flags, input_file=text, dupe_factor=1)).returncode == 0
    assert (
        load_metadata(flags["output_file"]).num_documents == 3
    )  # nothing is left of the bytes, and an empty line ends a document
    for name, content in (("empty", b""), ("blank", b"\n \n")):
        text.write_bytes(content)
        result = run(*spell(flags, input_file=text, output_file=tmp_path / name))
        assert result.returncode == 1
        assert f"There is no text in {text}" in result.stderr
    text.write_bytes(b"rain")
    assert run(*spell(flags, input_file=text, output_file=tmp_path / "single")).returncode == 0
    assert load_metadata(tmp_path / "single").num_records == 10


@pytest.mark.slow
def test_text_of_tensorflow_datasets(flags, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    documents = ["the sea\nthe salt", "rain\n\nmore rain"]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny_text",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets={"train": tf.data.Dataset.from_tensor_slices({"text": documents})},
        data_dir=tmp_path / "tfds",
    )
    result = run(*spell(flags, input_file=None, tfds_name="tiny_text", tfds_data_dir=tmp_path / "tfds"), timeout=200)
    assert result.returncode == 0, result.stderr
    metadata = load_metadata(flags["output_file"])
    assert (metadata.num_documents, metadata.num_sentences) == (2, 4)
    assert metadata.inputs[0][0] == "tiny_text-train-00000.txt"
    missing = run(
        *spell(flags, input_file=None, tfds_name="tiny_text", tfds_text_key="body"),
        f"--tfds_data_dir={tmp_path / 'tfds'}",
    )
    assert "no feature 'body' (--tfds_text_key). It has: text" in missing.stderr


def test_casing_that_does_not_fit_the_vocabulary_is_pointed_out(flags):
    assert "look otherwise" in run(*spell(flags, do_lower_case=False, dupe_factor=1)).stderr
    assert "look otherwise" not in run(*spell(flags, dupe_factor=1), "--overwrite").stderr


def test_help_is_enough(flags):
    result = run("--help")
    assert "Read these texts: a comma-separated list" in result.stdout.replace("\n    ", " ")
    assert "--[no]do_whole_word_mask" in result.stdout
