"""Questions as a file of records, made once: the same questions, vocabulary and settings find it again.

Beside `eval.tf_record` stand `eval.index.json`, which tells what it was made of, and `eval.index.npz`, which holds the
place of each record, and, for prediction, what has to be known to find answers.
"""

import dataclasses
import hashlib
import json
import logging
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data.aside import written_aside
from data.example_records import ExampleRecords
from data.metadata import file_sha256, vocab_sha256
from data.squad import Question, read_questions
from data.squad_features import FIRST_UNIQUE_ID, WindowEncoder, WindowTable, encode_blocks
from data.tfrecord import ExampleEncoder

# Another number makes all files anew. It has to change whenever the same questions would become other records.
FORMAT_VERSION = 1

_TABLE_ARRAYS = tuple(field.name for field in dataclasses.fields(WindowTable))


@dataclasses.dataclass(frozen=True)
class WindowRecords:
    """The windows of a set of questions in a file of records."""

    records: ExampleRecords
    num_questions: int  # by which the original counts epochs
    table: WindowTable | None  # for prediction

    @classmethod
    def write(
        cls,
        path: str | Path,
        questions: Sequence[Question],
        encoder: WindowEncoder,
        is_training: bool,
        num_workers: int = 1,
    ) -> "WindowRecords":
        """Writes questions as the original did: its features under its names, padded to the full length.

        Args:
            path: of the TFRecord file.
            questions: one after the other.
            encoder: of the questions.
            is_training: the records tell where the answers are; if not, a table is made to find them.
            num_workers: processes that share the work. The records do not depend on it.
        """
        tables, cut = [], []

        def records() -> Iterator[tuple[bytes, int]]:
            encode, next_id = ExampleEncoder(max_number=0), FIRST_UNIQUE_ID
            with tqdm(total=len(questions), desc=f"Encoding {Path(path).stem}", unit=" questions") as bar:
                for block in encode_blocks(questions, encoder, is_training, num_workers):
                    for features, length in zip(block.features, block.lengths, strict=True):
                        yield encode.example(encode.number("unique_ids", next_id), features), length
                        next_id += 1
                    cut.extend(block.cut_questions)
                    if block.table is not None:
                        tables.append(block.table)
                    bar.update(block.num_questions)

        written = ExampleRecords.write(path, records())
        if cut:
            logging.getLogger(__name__).warning(
                "%s: questions cut to %d pieces (--max_query_length): %d, e.g. %r.",
                Path(path).stem,
                encoder.max_query_length,
                len(cut),
                cut[0],
            )
        return cls(written, len(questions), None if is_training else WindowTable.join(tables))


def window_records(
    path: str | Path,
    input_file: str | Path,
    encoder: WindowEncoder,
    is_training: bool,
    version_2_with_negative: bool,
    num_workers: int = 1,
    questions: Sequence[Question] | None = None,
) -> WindowRecords:
    """The records of a file of questions: as they are where they are there already, else made now.

    Args:
        path: of the TFRecord file.
        input_file: of the questions.
        encoder: of the questions.
        is_training, version_2_with_negative: see `read_questions`.
        num_workers: processes that share the work.
        questions: what `read_questions` gives for all this; None to read them here, where that is needed.
    """
    origin = _origin(input_file, encoder, is_training, version_2_with_negative)
    if (found := _load(Path(path), origin)) is not None:
        logging.getLogger(__name__).info("%s is there already: %d windows.", path, len(found.records))
        return found
    if questions is None:
        questions = read_questions(input_file, is_training, version_2_with_negative)
    for index in _index_paths(Path(path)):  # the records they tell of are about to go
        index.unlink(missing_ok=True)
    written = WindowRecords.write(path, questions, encoder, is_training, num_workers)
    _save(written, origin)
    return written


def _origin(
    input_file: str | Path, encoder: WindowEncoder, is_training: bool, version_2_with_negative: bool
) -> dict[str, Any]:
    """All that decides what the records are, and a key that stands for it."""
    tokenizer = encoder.tokenizer
    origin = {
        "format_version": FORMAT_VERSION,
        "input_sha256": file_sha256(input_file),
        "vocab_sha256": vocab_sha256(tokenizer.vocab),
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents,
        "never_split": list(tokenizer.never_split),
        "max_seq_length": encoder.max_seq_length,
        "doc_stride": encoder.doc_stride,
        "max_query_length": encoder.max_query_length,
        "is_training": is_training,
        "version_2_with_negative": version_2_with_negative,
    }
    return origin | {"key": hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()}


def _index_paths(records: Path) -> tuple[Path, Path]:
    """`eval.tf_record` -> `eval.index.json` and `eval.index.npz`, which `*.tf_record*` does not match."""
    stem = records.name.removesuffix(".tf_record")
    return records.with_name(f"{stem}.index.json"), records.with_name(f"{stem}.index.npz")


def _state(records: Path) -> dict[str, int]:
    """Tells without reading a file whether it is still the one that was written."""
    stat = records.stat()
    return {"num_bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}


def _save(written: WindowRecords, origin: Mapping[str, Any]) -> None:
    """Writes what belongs to the records. The JSON comes last: with it all is there."""
    records = written.records
    json_path, arrays_path = _index_paths(Path(records.path))
    arrays = {"key": np.array(origin["key"]), "offsets": records.offsets, "lengths": records.lengths}
    if written.table is not None:
        arrays |= {f"table_{name}": getattr(written.table, name) for name in _TABLE_ARRAYS}
    with written_aside(arrays_path) as file:
        np.savez_compressed(file, **arrays)
    with written_aside(json_path) as file:
        state = _state(Path(records.path))
        content = {"origin": origin, "state": state, "sha256": records.sha256, "num_questions": written.num_questions}
        file.write(json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")


def _load(path: Path, origin: Mapping[str, Any]) -> WindowRecords | None:
    """The records at a path, of which only the index is read; None where they are not those of `origin`, or damaged."""
    json_path, arrays_path = _index_paths(path)
    try:
        content = json.loads(json_path.read_bytes())
        if content["origin"] != origin or content["state"] != _state(path):
            return None
        with np.load(arrays_path, allow_pickle=False) as arrays:
            if arrays["key"].item() != origin["key"] or len(arrays["offsets"]) != len(arrays["lengths"]):
                return None
            table = None
            if not origin["is_training"]:
                table = WindowTable(**{name: arrays[f"table_{name}"] for name in _TABLE_ARRAYS})
            records = ExampleRecords(str(path), arrays["offsets"], arrays["lengths"], content["sha256"])
            return WindowRecords(records, content["num_questions"], table)
    # Whatever is wrong with an index, the questions are there to make it anew.
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        RecursionError,
    ):
        return None
