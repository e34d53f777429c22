"""What a file of records holds, in a small JSON file beside it, and whether that fits what somebody wants of it."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from data.aside import written_aside
from data.quoting import shown

SUFFIX = ".metadata.json"

# Some models have a few rows more than words, so that a size divides by 8, 64 or 128.
LARGEST_PADDING = 127

# Every so many records their place in the file is noted, so that a reader can start in the middle.
RECORDS_PER_BLOCK = 256


@dataclasses.dataclass(frozen=True)
class RecordMetadata:
    """How a file of pre-training records was made. Reading it is enough to know whether it can be used."""

    num_records: int
    num_bytes: int
    block_offsets: tuple[int, ...]  # where records 0, 256, 512, … start
    vocab_size: int
    vocab_sha256: str
    flags: Mapping[str, Any]  # all flags that decide the content, by name
    inputs: tuple[tuple[str, str], ...]  # the texts in their order: name and SHA-256 of the content
    shard: tuple[int, int]  # which of how many files that take the records in turn
    num_documents: int
    num_sentences: int
    num_tokens: int

    def save(self, records: str | Path) -> None:
        """Writes the file that belongs to `records`: aside, then moved into place."""
        with written_aside(metadata_path(records)) as file:
            file.write((json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode())


def metadata_path(records: str | Path) -> Path:
    """`out.tfrecord` -> `out.metadata.json`, which no glob like `out.tfrecord*` takes for records."""
    records = Path(records)
    return records.with_name(records.name.removesuffix(".tfrecord") + SUFFIX)


def load_metadata(records: str | Path) -> RecordMetadata | None:
    """The metadata of a file of records; None where there is none, as beside files of the original."""
    path = metadata_path(records)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["inputs"] = tuple(map(tuple, values["inputs"]))
        metadata = RecordMetadata(**values | {name: tuple(values[name]) for name in ("block_offsets", "shard")})
        _check(metadata)
        return metadata
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Without it, the records beside it can still be read."
        ) from error


def _check(metadata: RecordMetadata) -> None:
    """Raises where a value cannot be what was written: it would go wrong far from the file that it is from."""
    for field in dataclasses.fields(metadata):
        value = getattr(metadata, field.name)
        if field.type is int and not _is_count(value):
            raise ValueError(f"{field.name} is no count: {shown(value)}")
    offsets, num_blocks = metadata.block_offsets, -(-metadata.num_records // RECORDS_PER_BLOCK)
    if len(offsets) != num_blocks or not all(map(_is_count, offsets)) or list(offsets) != sorted(set(offsets)):
        raise ValueError(f"block_offsets are not those of {metadata.num_records} records")
    if len(metadata.shard) != 2 or not all(map(_is_count, metadata.shard)):
        raise ValueError(f"shard is no pair of numbers: {shown(metadata.shard)}")
    if not isinstance(metadata.flags, dict) or not isinstance(metadata.vocab_sha256, str):
        raise ValueError("flags or vocab_sha256 are of another type")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def vocab_sha256(vocab: Mapping[str, int]) -> str:
    """A fingerprint of a vocabulary: the same for the same pieces with the same ids, whatever the file was called."""
    lines = (f"{index}\t{token}\n" for token, index in sorted(vocab.items(), key=lambda item: item[1]))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_flags(records: str | Path, metadata: RecordMetadata, wanted: Mapping[str, Any]) -> None:
    """Raises where records were made with other values of flags than those wanted, and names the flags."""
    differing = [
        f"--{name} was {metadata.flags[name]!r} and is {value!r} now"
        for name, value in wanted.items()
        if name in metadata.flags and metadata.flags[name] != value
    ]
    if differing:
        raise ValueError(f"{records} was made with other flags: {'; '.join(differing)}.")


def check_vocab(records: str | Path, vocab: Mapping[str, int], vocab_file: str) -> None:
    """Raises where records were made with another vocabulary."""
    metadata = load_metadata(records)
    if metadata and metadata.vocab_sha256 != vocab_sha256(vocab):
        raise ValueError(
            f"{records} was made with another vocabulary ({metadata.vocab_size} pieces) than --vocab_file={vocab_file} "
            f"({len(vocab)} pieces). Ids would stand for other words: use the vocabulary the records were made with."
        )


def check_vocab_size(files: Iterable[str | Path], vocab_size: int) -> None:
    """Raises where records hold ids that a model with `vocab_size` words does not have."""
    for records in files:
        metadata = load_metadata(records)
        if metadata and not 0 <= vocab_size - metadata.vocab_size <= LARGEST_PADDING:
            raise ValueError(
                f"{records} was made with a vocabulary of {metadata.vocab_size} pieces, but the model has "
                f"vocab_size {vocab_size}. Change vocab_size in --bert_config_file, or the records."
            )
