"""Weights and records that something happened to. What C++ parses is parsed in a process of its own, with bounded
memory: a crash, a hang or an allocation of what a header claims would end it."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import save_file
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from data.metadata import RECORDS_PER_BLOCK
from data.records import CorruptRecords, RecordFiles, RecordFormat, read_block
from data.tfrecord import AtomicRecordWriter, ExampleEncoder, _masked_crc
from modeling import tensor_bundle
from tests.faults.damage import accidents, bounded, damaged, refused_properly
from tests.scripts import ROOT

# Reads every directory named on standard input, and says of each whether it was read or why not.
_READ = """
    import json, resource, signal, sys
    import tensorflow as tf
    from modeling.checkpoint import read_checkpoint

    tf.constant(0) + 1  # starts its threads before memory is bounded
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    for line in sys.stdin:
        path = line.strip()
        signal.alarm(20)
        try:
            read_checkpoint(path)
            said = ["read", ""]
        except Exception as error:
            said = [type(error).__name__, str(error)]
        print(json.dumps([path, *said]), flush=True)
"""


def read_elsewhere(paths) -> dict[str, tuple[str, str]]:
    """path -> how reading it ended. A path that is missing there killed the process that read it."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_READ)],
        input="".join(f"{path}\n" for path in paths),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    found = {path: (kind, message) for path, kind, message in told}
    for path in paths:
        assert str(path) in found, f"Reading {path} ended the process: {result.returncode}, {result.stderr[-500:]}"
    return found


def check_refused(found, names) -> int:
    """Sees that whatever was refused was refused by us, by name; how many were."""
    refused = [(path, *said) for path, said in found.items() if said[0] != "read"]
    for path, kind, message in refused:
        assert kind in ("CheckpointError", "ValueError"), (path, kind, message[:300])
        assert any(name in message for name in names) or path in message, (path, message[:300])
        assert len(message) < 1_500, (path, message[:300])
    return len(refused)


@pytest.mark.slow
def test_damaged_checkpoints_of_google(golden, tmp_path):
    rng = random.Random(1)
    prefix = golden / "model" / "bert_model.ckpt"
    index, data = (prefix.with_name(prefix.name + end) for end in (".index", ".data-00000-of-00001"))
    paths = []
    cases = [("index", content) for content in accidents(index.read_bytes(), 48, rng)]
    cases += [("data", content) for content in accidents(data.read_bytes()[:20_000], 6, rng)]
    cases += [("checkpoint", text) for text in (b"", b"\0\xff", b'model_checkpoint_path: "' + b"x" * 9_000 + b'"\n')]
    for number, (kind, content) in enumerate(cases):
        directory = tmp_path / str(number)
        directory.mkdir()
        name = "other.ckpt" if kind == "checkpoint" else "bert_model.ckpt"
        (directory / f"{name}.index").write_bytes(content if kind == "index" else index.read_bytes())
        target = directory / f"{name}.data-00000-of-00001"
        target.write_bytes(content) if kind == "data" else target.symlink_to(data)
        if kind == "checkpoint":
            (directory / "checkpoint").write_bytes(content)
        paths.append(str(directory))
    assert check_refused(read_elsewhere(paths), ["bert_model.ckpt", "other.ckpt"]) > 20


@pytest.mark.slow
def test_false_indices_of_google(golden, tmp_path):
    """Indices whose checksums fit: whoever wrote them meant it, and TensorFlow's own reader would end the process."""
    rng = random.Random(3)
    values = tensor_bundle._read_index((golden / "model" / "bert_model.ckpt.index").read_bytes())
    names = [name for name in values if name]
    contents = [index_of(values | {name: false}) for name in names[:1] for false in false_entries(values[name])]
    contents += [index_of(values | {"": header.SerializeToString()}) for header in false_headers()]
    for name in ("", names[0], names[-1]):
        contents += [index_of(values | {name: damage}) for damage in accidents(values[name], 12, rng)]
    block = block_of(values.items())
    contents += [table_of(damage) for damage in accidents(block, 60, rng)]
    contents += [table_of(block, times=100_000), table_of(block_of([("a" * 400 + str(n), b"") for n in range(9)]))]
    contents += [table_of(block, compression=1), table_of(block, compression=7)]
    paths = [str(tmp_path / str(number)) for number in range(len(contents) + 1)]
    for path, content in zip(paths, [index_of(values), *contents], strict=True):
        write_checkpoint(path, content, golden)
    found = read_elsewhere(paths)
    assert found[paths[0]][0] == "read"
    assert check_refused(found, []) > 100
    for path, false in zip(paths[1:], false_entries(values[names[0]]), strict=False):
        assert names[0] in found[path][1], (false, found[path])


def write_checkpoint(directory: str, index: bytes, golden) -> None:
    os.mkdir(directory)
    prefix = os.path.join(directory, "bert_model.ckpt")
    os.symlink(golden / "model" / "bert_model.ckpt.data-00000-of-00001", f"{prefix}.data-00000-of-00001")
    with open(f"{prefix}.index", "wb") as file:
        file.write(index)


def false_entries(whole: bytes) -> list[bytes]:
    """A variable that has another type, shape or place than its numbers."""
    changes = [
        {"dims": dims} for dims in ([-5, 4], [-1, 4], [2**40, 2**40], [1] * 300, [0, 2**62], [2**62, 2**62, 0], [])
    ]
    changes += [{"dtype": number} for number in (0, 2, 7, 20, 21, 99, 101)]
    changes += [{"dtype": 7, "dims": [2**34]}, {"dtype": 7, "dims": [2**34], "size": 2**36}, {"unknown_rank": True}]
    changes += [{"size": size} for size in (-1, 0, 4, 2**40, 2**63 - 1)]
    changes += [{"offset": offset} for offset in (-100, 2**40, 2**63 - 1)]
    changes += [{"shard_id": shard} for shard in (-1, 1, 7, 2**31 - 1)]
    changes += [{"crc32c": 5}, {"slices": 1}]
    found = []
    for change in changes:
        entry = BundleEntryProto.FromString(whole)
        for name, value in change.items():
            if name == "dims":
                entry.shape.ClearField("dim")
                for size in value:
                    entry.shape.dim.add(size=size)
            elif name == "unknown_rank":
                entry.shape.unknown_rank = value
            elif name == "slices":
                entry.slices.add().extent.add(start=-1, length=2**40)
            else:
                setattr(entry, name, value)
        found.append(entry.SerializeToString())
    return found


def false_headers() -> list[BundleHeaderProto]:
    return [BundleHeaderProto(num_shards=count) for count in (-1, 0, 2, 2**31 - 1)] + [
        BundleHeaderProto(num_shards=1, endianness=BundleHeaderProto.BIG)
    ]


def index_of(values: dict[str, bytes]) -> bytes:
    return table_of(block_of(values.items()))


def table_of(block: bytes, times: int = 1, compression: int = 0) -> bytes:
    """A table of one block, which its index may name again and again."""

    def sealed(content: bytes) -> bytes:
        content += bytes([compression])
        return content + _masked_crc(content)

    index = block_of([(f"~{number:06}", varint(0) + varint(len(block))) for number in range(times)])
    first = sealed(block)
    handles = varint(0) + varint(len(block)) + varint(len(first)) + varint(len(index))
    return first + sealed(index) + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def block_of(values) -> bytes:
    """Each key whole, so that every place is one to start searching from."""
    content, starts = bytearray(), []
    for key, value in sorted(values):
        starts.append(len(content))
        content += varint(0) + varint(len(key.encode())) + varint(len(value)) + key.encode() + value
    return bytes(content) + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


@pytest.mark.slow
def test_damaged_checkpoints_of_hugging_face(tmp_path):
    rng = random.Random(2)
    config = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1} | {
        "intermediate_size": 4,
        "max_position_embeddings": 8,
        "model_type": "bert",
    }
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(config))
    tensors = {"bert.embeddings.word_embeddings.weight": np.ones((9, 4), np.float32)}
    tensors["bert.embeddings.position_ids"] = np.arange(8)[np.newaxis]
    save_file(tensors, str(whole / "model.safetensors"))
    weights = (whole / "model.safetensors").read_bytes()
    bfloat = weights.replace(b'"dtype":"F32","shape":[9,4]', b'"dtype":"BF16","shape":[9,8]')
    assert bfloat != weights
    index = json.dumps({"weight_map": {"bert.embeddings.word_embeddings.weight": "model.safetensors"}}).encode()
    cases = [("model.safetensors", content) for content in accidents(weights, 60, rng) + accidents(bfloat, 30, rng)]
    cases += [("model.safetensors", claim(2**60)), ("model.safetensors", claim(100_000_000) + b"[" * 100_000)]
    cases += [("model.safetensors", header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}))]
    cases += [("model.safetensors", header({"a": {"dtype": "BF16", "shape": [2**62], "data_offsets": [0, 2**63]}}))]
    sums = ["[]", "5", "{", '{"a": 3}', '"x"', "[" * 100_000, '{"a":' * 100_000, '{"a": ' + "[" * 900 + "]" * 900 + "}"]
    tensor = {"bert.embeddings.word_embeddings.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    cases += [("model.safetensors", header({"__metadata__": {"crc32c": text}} | tensor)) for text in sums]
    cases += [("model.safetensors.index.json", content) for content in accidents(index, 30, rng)]
    cases += [("model.safetensors.index.json", b"[" * 100_000)]
    cases += [("model.safetensors.index.json", json.dumps({"weight_map": {"a": value}}).encode()) for value in (3, {})]
    cases += [("tokenizer_config.json", content) for content in (b"[" * 100_000, b"3", b"\xff")]
    paths = [str(whole)]
    for number, (name, content) in enumerate(cases):
        directory = tmp_path / str(number)
        shutil.copytree(whole, directory)
        (directory / name).write_bytes(content)
        paths.append(str(directory))
    found = read_elsewhere(paths)
    assert found[str(whole)][0] == "read"
    assert check_refused(found, []) > 60


def claim(size: int) -> bytes:
    return struct.pack("<Q", size) + b"{}"


def header(content: dict) -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "out.tfrecord"
    encoder = ExampleEncoder(30)
    with AtomicRecordWriter(path) as writer:
        for _ in range(3):
            features = [encoder.numbers(name, [1, 2, 3, 4]) for name in ("input_ids", "input_mask", "segment_ids")]
            features += [encoder.numbers(name, [1]) for name in ("masked_lm_positions", "masked_lm_ids")]
            features += [encoder.ones("masked_lm_weights", 1, 0), encoder.repeated("next_sentence_labels", (1, 1))]
            writer.write(encoder.example(*features))
    return path


def _read_records(path):
    files = RecordFiles.open([str(path)])
    RecordFormat.of(files)
    for block in files.blocks:
        assert block.count <= RECORDS_PER_BLOCK
        read_block(block, CorruptRecords(skip=False))


def test_damaged_records_are_named(records):
    whole = records.read_bytes()
    assert not refused_properly(_read_records, records)
    refused = []

    @bounded(200)
    @given(damaged([whole]))
    def check(content):
        records.write_bytes(content)
        refused.append(refused_properly(_read_records, records))

    check()
    assert sum(refused) > 100


@pytest.mark.parametrize("size", [2**40, 2**60, 2**63, 2**64 - 8])
def test_a_length_beyond_the_file_takes_no_memory(records, size):
    """One whose checksum fits: whoever wrote it meant it."""
    length = struct.pack("<Q", size)
    records.write_bytes(length + _masked_crc(length) + b"short")
    assert refused_properly(_read_records, records)
