"""Records of fine-tuning examples: written as the original wrote them, read in whatever order a plan says.

A file is small enough that the place and the length of each of its records are kept in memory; the records stay on
disk. Axes in comments: B batch, T sequence length, L labels.
"""

import dataclasses
import functools
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data.batch_plans import FILLER, padded_length
from data.records import prepared_ahead, weakly
from data.tfrecord import AtomicRecordWriter, RecordError, read_records

# Features that have something for each piece, in every task.
SEQUENCES = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class ExampleRecords:
    """A file of records, and what has to be known to put batches together."""

    path: str
    offsets: np.ndarray  # int64 [number of records], in bytes
    lengths: np.ndarray  # int32 [number of records], pieces that are not padding
    sha256: str  # of all records, one behind the other

    def __post_init__(self):
        if len(self):
            _ = self._num_bytes  # opens the file now, while it is known to be the right one

    @classmethod
    def write(cls, path: str | Path, examples: Iterable[tuple[bytes, int]]) -> "ExampleRecords":
        """Writes serialized examples, each given with the length of its sequence."""
        lengths, digest = [], hashlib.sha256()
        with AtomicRecordWriter(path) as writer:
            for data, length in examples:
                writer.write(data)
                digest.update(data)
                lengths.append(length)
        return cls(str(path), np.array(writer.offsets, np.int64), np.array(lengths, np.int32), digest.hexdigest())

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The records of these numbers; from any thread."""
        return [self._read_one(int(number)) for number in numbers]

    def _read_one(self, number: int) -> bytes:
        start = int(self.offsets[number])
        end = int(self.offsets[number + 1]) if number + 1 < len(self) else self._num_bytes
        data = os.pread(self._file.fileno(), end - start, start)
        record = next(read_records(io.BytesIO(data), self.path, first=number))
        if record.data is None:
            raise RecordError(f"{self.path}: record {number} is damaged. Run the same command again to write it anew.")
        return record.data

    @functools.cached_property
    def _file(self):
        """Open as long as the records are in use: who writes others in their place does not touch these."""
        return open(self.path, "rb", buffering=0)

    @functools.cached_property
    def _num_bytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def numbered_batches(
    records: ExampleRecords,
    plan,
    parse: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    max_seq_length: int,
    first: int = 0,
    worker: int = 0,
    num_workers: int = 1,
    length_step: int | None = 8,
    fixed_rows: int | None = None,
    sequences: Sequence[str] = SEQUENCES,
) -> tf.data.Dataset:
    """The batches of a plan, from one of them on.

    Args:
        records: what the numbers of the plan stand for.
        plan: a sequence of arrays of numbers, see data/batch_plans.py.
        parse: serialized examples [B] -> features [B, …]; of these, `sequences` end in `max_seq_length` columns, e.g.
            [B, T], or [B, C, T] with C choices.
        first: number of the first batch.
        worker, num_workers: which part of every batch to give.
        length_step: columns that are padding in all rows are cut off, down to a multiple of this. None to keep them:
            every batch then has the same shape.
        fixed_rows: the number of rows, if it is the same in all batches.
        sequences: features that have something for each piece.

    Yields:
        Features, and besides: `row_weights`, float [B], 0 for rows that are only filling; `record_numbers`, int32 [B].
    """

    def read(step):
        numbers = plan[int(step)]
        length = max_seq_length
        if length_step is not None:
            longest = int(records.lengths[numbers[numbers != FILLER]].max())
            length = min(padded_length(longest, length_step), max_seq_length)
        share = len(numbers) // num_workers
        numbers = numbers[worker * share : (worker + 1) * share]
        found = records.read(np.where(numbers == FILLER, 0, numbers))
        return np.array(found, dtype=object), numbers.astype(np.int32), np.int32(length)

    call = weakly(read)

    def with_records(step):
        data, numbers, length = tf.numpy_function(call, [step], [tf.string, tf.int32, tf.int32])
        rows = None if fixed_rows is None else fixed_rows // num_workers
        data.set_shape([rows])
        numbers.set_shape([rows])
        length.set_shape([])
        return data, numbers, length

    def prepare(data, numbers, length):
        batch = parse(data)
        if length_step is not None:
            batch = {name: tensor[..., :length] if name in sequences else tensor for name, tensor in batch.items()}
        return batch | {"row_weights": tf.cast(numbers != FILLER, tf.float32), "record_numbers": numbers}

    batches = tf.data.Dataset.range(first, len(plan)).map(tf.autograph.experimental.do_not_convert(with_records))
    batches.held = read
    return prepared_ahead(batches, prepare)
