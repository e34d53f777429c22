"""TFRecords of pre-training instances into batches: shuffled by a seed, split over workers, and from any step on.

Files are read in blocks of 256 records. An epoch puts all blocks into a random order, and shuffles the records of
each 64 neighbouring ones together (a window, some 15 MB). Which records a step sees so follows from the seed and
the number of the step alone, and to start at a step one window is read, and nothing that came before it.
"""

import dataclasses
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.metadata import RECORDS_PER_BLOCK, SUFFIX, load_metadata
from data.record_checks import Bounds, RecordCheck
from data.tfrecord import RecordError, read_records

_BLOCKS_PER_WINDOW = 64
_PARALLEL_BATCHES = 4
_BATCHES_AHEAD = 8

# Stands for rows that fill up the last batch of an evaluation. No record is empty.
_FILLER = b""


class Block(NamedTuple):
    """A run of records in a file."""

    file: str
    offset: int  # in bytes
    first: int  # number of its first record
    count: int


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Files of records and where their blocks are."""

    blocks: tuple[Block, ...]

    @classmethod
    def open(cls, files: Sequence[str], corrupt: "CorruptRecords | None" = None) -> "RecordFiles":
        """Finds the blocks: from the metadata beside each file, or by going from record to record.

        Args:
            files: names of files.
            corrupt: what becomes of a file that is cut short, or is longer or shorter than its metadata says.
        """
        corrupt = corrupt or CorruptRecords(skip=False)
        blocks = []
        for file in files:
            if not file.endswith(SUFFIX):  # a glob like `out-*` takes them in
                blocks += _find_blocks(file, corrupt)
        if not blocks:
            raise RecordError(f"There is not a single record in {', '.join(files)}.")
        return cls(tuple(blocks))

    @property
    def num_records(self) -> int:
        return sum(block.count for block in self.blocks)


def _find_blocks(file: str, corrupt: "CorruptRecords") -> list[Block]:
    metadata = load_metadata(file)
    if metadata and (size := tf.io.gfile.stat(file).length) != metadata.num_bytes:
        corrupt.found(f"{file} has {size} bytes, but had {metadata.num_bytes} when it was written.", records=0)
        metadata = None
    if metadata:
        offsets, num_records = metadata.block_offsets, metadata.num_records
    else:
        starts = _record_starts(file, corrupt)
        offsets, num_records = starts[::RECORDS_PER_BLOCK], len(starts)
    return [
        Block(file, offset, first, min(RECORDS_PER_BLOCK, num_records - first))
        for offset, first in zip(offsets, range(0, num_records, RECORDS_PER_BLOCK), strict=True)
    ]


def _record_starts(file: str, corrupt: "CorruptRecords") -> list[int]:
    starts: list[int] = []
    with tf.io.gfile.GFile(file, "rb") as stream:
        try:
            starts.extend(record.offset for record in read_records(stream, file, check=False))
        except RecordError as error:  # nothing behind it can be found
            corrupt.found(str(error))
    return starts


class CorruptRecords:
    """Decides what becomes of records that cannot be read: an error, or a count."""

    def __init__(self, skip: bool, silent: bool = False):
        self.skip = skip
        self.silent = silent
        self.count = 0

    def found(self, message: str, records: int = 1) -> None:
        if not self.skip:
            raise RecordError(f"{message} Make the file again, or leave such records out with --skip_corrupt_records.")
        self.count += records
        if self.silent:
            return
        logging.getLogger(__name__).warning("%s Skipped; %d records so far.", message, self.count)


class CheckedBlocks:
    """Reads blocks and sees that their records are right: in the first epoch, and then no more."""

    def __init__(self, check: RecordCheck):
        self._check = check
        self._right: set[Block] = set()

    def read(self, block: Block, corrupt: CorruptRecords) -> list[bytes | None]:
        """See `read_block`; None for what a model cannot take, too."""
        records = read_block(block, corrupt)
        if block in self._right:
            return records
        numbers = [number for number, record in enumerate(records) if record is not None]
        wrong = self._check.wrong([records[number] for number in numbers])
        for index, why in sorted(wrong.items()):
            corrupt.found(f"{block.file}: record {block.first + numbers[index]} {why}.")
            records[numbers[index]] = None
        if not wrong:
            self._right.add(block)
        return records


def read_block(block: Block, corrupt: CorruptRecords) -> list[bytes | None]:
    """The records of a block; None for one that cannot be read, if that is allowed."""
    records: list[bytes | None] = []
    with tf.io.gfile.GFile(block.file, "rb") as stream:
        stream.seek(block.offset)
        reader = read_records(stream, block.file, first=block.first)
        for number in range(block.first, block.first + block.count):
            try:
                record = next(reader)
            except RecordError as error:  # nothing behind it in this block can be found
                lost = block.first + block.count - number
                corrupt.found(str(error), records=lost)
                return records + [None] * lost
            if record.data is None:
                where = f"{block.file}: record {number} (at byte {record.offset})"
                corrupt.found(f"{where} is damaged: its checksum does not fit.")
            records.append(record.data)
    return records


def shuffled_records(
    files: RecordFiles, seed: int, start: int, corrupt: CorruptRecords, checked: CheckedBlocks
) -> Iterator[bytes]:
    """Records without end, each epoch in another order that follows from `seed`, from the `start`-th on."""
    epoch, position = divmod(start, files.num_records)
    windows = _windows(files, seed, epoch, position)
    window, skip, rng = next(windows)
    pending = _in_thread(_read_window, window, rng, corrupt, checked)
    while True:
        records, skip_now = pending.result(), skip
        window, skip, rng = next(windows)
        pending = _in_thread(_read_window, window, rng, corrupt, checked)  # the next one is read while this one is used
        yield from records[skip_now:]


def _in_thread(function: Callable, *arguments) -> Future:
    """Runs a function in a thread that ends with it; one that waits for more would outlive whoever reads."""
    with_thread = ThreadPoolExecutor(1)
    future = with_thread.submit(function, *arguments)
    with_thread.shutdown(wait=False)
    return future


def _windows(files: RecordFiles, seed: int, epoch: int, position: int):
    """Yields windows: (blocks, how many of their shuffled records to pass over, their random numbers)."""
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(len(files.blocks))
        for first in range(0, len(order), _BLOCKS_PER_WINDOW):
            window = [files.blocks[i] for i in order[first : first + _BLOCKS_PER_WINDOW]]
            count = sum(block.count for block in window)
            if position >= count:
                position -= count
                continue
            yield window, position, np.random.default_rng([seed, epoch, 1 + first])
            position = 0
        epoch += 1


def _read_window(
    window: list[Block], rng: np.random.Generator, corrupt: CorruptRecords, checked: CheckedBlocks
) -> list[bytes]:
    records = [record for block in window for record in checked.read(block, corrupt)]
    whole = [record for record in records if record is not None]
    if not whole:
        raise RecordError(f"None of {len(records)} records in {window[0].file} and after can be read.")
    # Another record takes the place of one that cannot be read, so that what a step sees stays where it is.
    order = rng.permutation(len(records))
    return [records[i] if records[i] is not None else whole[i % len(whole)] for i in order]


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """Lengths of the features of a record."""

    max_seq_length: int
    max_predictions_per_seq: int
    masking: str = "static"  # "dynamic" records hold no masked positions

    @classmethod
    def of(cls, files: RecordFiles) -> "RecordFormat":
        """Reads the format off the first record of each file, and sees that all are alike."""
        formats = {
            block.file: found
            for block in files.blocks
            if block.first == 0 and (found := cls._of_block(block)) is not None
        }
        if not formats:
            raise RecordError(f"{files.blocks[0].file} does not hold a single record that can be read.")
        first_file, first = next(iter(formats.items()))
        for file, found in formats.items():
            if found != first:
                raise RecordError(
                    f"{file} and {first_file} do not go together: the one holds {found}, the other {first}."
                )
        return first

    @classmethod
    def _of_block(cls, block: Block) -> "RecordFormat | None":
        """None where no record of the block can be read; whoever reads it for its content will say so."""
        corrupt = CorruptRecords(skip=True, silent=True)
        for part in (block._replace(count=1), block):  # the first record will do, if it can be read
            if whole := [record for record in read_block(part, corrupt) if record is not None]:
                break
        else:
            return None
        try:
            features = tf.train.Example.FromString(whole[0]).features.feature
        except Exception as error:  # of the protobuf library, which has several
            raise RecordError(f"{block.file} does not hold tf.Examples: {error}.") from error
        if "input_ids" not in features:
            raise RecordError(f"{block.file} is not pre-training data: its features are {sorted(features)}.")
        predictions = len(features["masked_lm_positions"].int64_list.value)
        return cls(len(features["input_ids"].int64_list.value), predictions, "static" if predictions else "dynamic")

    def check_masker(self, file: str, masker) -> None:
        if self.masking == "dynamic" and masker is None:
            raise ValueError(f"{file} holds records without masks (--masking=dynamic): they need a masker.")
        if self.masking == "static" and masker is not None:
            raise ValueError(f"{file} holds records with masks: a masker would mask them again.")

    def check(self, file: str, max_seq_length: int, max_predictions_per_seq: int) -> None:
        """Raises where flags ask for other lengths, and says which."""
        for flag, found, wanted in (
            ("max_seq_length", self.max_seq_length, max_seq_length),
            ("max_predictions_per_seq", self.max_predictions_per_seq, max_predictions_per_seq),
        ):
            if found != wanted and (flag == "max_seq_length" or self.masking == "static"):
                raise ValueError(
                    f"{file} holds records made with --{flag}={found}, but --{flag} is {wanted}. Use --{flag}={found}, "
                    "or make other records."
                )

    def parse(self, records) -> dict[str, tf.Tensor]:
        """string [B] -> dict of int32 [B, T], [B, P] and [B, 1], and float32 [B, P] for the weights."""
        parsed = tf.io.parse_example(records, self._spec())
        # Accelerators want int32, as in the original.
        return {name: tf.cast(t, tf.int32) if t.dtype == tf.int64 else t for name, t in parsed.items()}

    def checked_blocks(self, bounds: Bounds | None = None) -> CheckedBlocks:
        return CheckedBlocks(RecordCheck(self._spec(), bounds))

    def _spec(self) -> dict[str, tf.io.FixedLenFeature]:
        features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), self.max_seq_length)
        features["next_sentence_labels"] = 1
        if self.masking == "static":
            features |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), self.max_predictions_per_seq)
        spec = {name: tf.io.FixedLenFeature([length], tf.int64) for name, length in features.items()}
        if self.masking == "static":
            spec["masked_lm_weights"] = tf.io.FixedLenFeature([self.max_predictions_per_seq], tf.float32)
        return spec


def training_batches(
    files: RecordFiles,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    worker: int = 0,
    num_workers: int = 1,
    masker=None,
    corrupt: CorruptRecords | None = None,
    checked: CheckedBlocks | None = None,
) -> tf.data.Dataset:
    """Batches without end for training.

    Args:
        files: what to read.
        batch_size: sequences in a batch of all workers together.
        seed: decides the order, and the masks of dynamic masking.
        start_step: the first step to give batches for.
        worker, num_workers: which part of every batch to give.
        masker: a `DynamicMasker` for records without masks.
        corrupt: what becomes of records that cannot be read, or that no model can take.
        checked: reads the files; for all who read them, so that each record is looked at once.
    """
    share = _share(batch_size, num_workers)
    corrupt = corrupt or CorruptRecords(skip=False)
    record_format = RecordFormat.of(files)
    record_format.check_masker(files.blocks[0].file, masker)
    checked = checked or record_format.checked_blocks()

    def batches(first_step: int) -> Iterator[list[bytes]]:
        records = shuffled_records(files, seed, first_step * batch_size, corrupt, checked)
        while True:
            batch = list(itertools.islice(records, batch_size))
            yield batch[worker * share : (worker + 1) * share]

    def prepare(step, records) -> dict[str, tf.Tensor]:
        batch = record_format.parse(records)
        # A seed of its own for each step and worker: a resumed run meets the masks it would have met.
        return masker(batch, tf.stack([seed, step * num_workers + worker])) if masker else batch

    steps = tf.data.Dataset.range(start_step, np.iinfo(np.int32).max)
    return prepared_ahead(_numbered(steps, batches, rows=share), prepare)


def evaluation_batches(
    files: RecordFiles,
    batch_size: int,
    worker: int = 0,
    num_workers: int = 1,
    masker=None,
    seed: int = 0,
    corrupt: CorruptRecords | None = None,
    checked: CheckedBlocks | None = None,
) -> tf.data.Dataset:
    """All records once, in their order. Masks, where made here, are always the same.

    All batches are of one size: the last is filled up with rows that do not count, which is to say that their
    `row_weights`, float [B], are 0, and so are their `masked_lm_weights`.

    Args: see `training_batches`.
    """
    share = _share(batch_size, num_workers)
    corrupt = corrupt or CorruptRecords(skip=False)
    record_format = RecordFormat.of(files)
    record_format.check_masker(files.blocks[0].file, masker)
    checked = checked or record_format.checked_blocks()
    first_record = _first_record(files, checked)

    def batches(first: int) -> Iterator[list[bytes]]:
        records = (r for block in files.blocks for r in checked.read(block, corrupt) if r is not None)
        records = itertools.islice(records, first * batch_size, None)
        while True:
            batch = list(itertools.islice(records, batch_size))
            batch += [_FILLER] * (batch_size - len(batch))
            yield batch[worker * share : (worker + 1) * share]

    def prepare(number, records) -> dict[str, tf.Tensor]:
        is_real = records != _FILLER  # [B]
        batch = record_format.parse(tf.where(is_real, records, first_record))
        if masker:
            batch = masker(batch, tf.stack([seed, number * num_workers + worker]))
        weights = tf.cast(is_real, tf.float32)
        return batch | {
            "row_weights": weights,
            "masked_lm_weights": batch["masked_lm_weights"] * weights[:, tf.newaxis],
        }

    numbers = tf.data.Dataset.range(num_evaluation_batches(files, batch_size))
    return prepared_ahead(_numbered(numbers, batches, rows=share), prepare)


def num_evaluation_batches(files: RecordFiles, batch_size: int) -> int:
    return -(-files.num_records // batch_size)


def _share(batch_size: int, num_workers: int) -> int:
    if batch_size % num_workers:
        raise ValueError(f"A batch of {batch_size} cannot be shared evenly by {num_workers} workers.")
    return batch_size // num_workers


def _first_record(files: RecordFiles, checked: CheckedBlocks) -> bytes:
    """Some record that can be read."""
    anyhow = CorruptRecords(skip=True, silent=True)
    for block in files.blocks:
        for part in (block._replace(count=1), block):
            if whole := [record for record in checked.read(part, anyhow) if record is not None]:
                return whole[0]
    raise RecordError(f"No record in {files.blocks[0].file} and after can be read.")


class _ByNumber:
    """Batches by their number: in order it goes on reading, and at any other number it starts there anew."""

    def __init__(self, batches: Callable[[int], Iterator[list[bytes]]]):
        self._batches_from = batches
        self._next = None
        self._lock = threading.Lock()

    def __call__(self, number) -> np.ndarray:
        number = int(number)
        with self._lock:
            if number != self._next:
                self._batches = self._batches_from(number)
            self._next = None  # in case it fails
            batch = np.array(next(self._batches), dtype=object)
            self._next = number + 1
        return batch


def _numbered(numbers: tf.data.Dataset, batches: Callable[[int], Iterator[list[bytes]]], rows: int) -> tf.data.Dataset:
    """Batches of `rows` records, each with its number."""
    read = _ByNumber(batches)
    call = weakly(read)

    def with_records(number):
        records = tf.numpy_function(call, [number], tf.string)
        records.set_shape([rows])
        return tf.cast(number, tf.int32), records

    batches = numbers.map(tf.autograph.experimental.do_not_convert(with_records))
    batches.held = read
    return batches


def weakly(read: Callable) -> Callable:
    """The function for a `numpy_function` that lives no longer than `read` does: the dataset has to hold that.

    TensorFlow keeps what it calls as long as the process, and with it a window of records of every training and
    evaluation that there ever was. A dataset is kept by those that are made of it, and by their iterators.
    """
    reference = weakref.ref(read)
    return lambda *arguments: reference()(*arguments)


def prepared_ahead(batches: tf.data.Dataset, prepare: Callable) -> tf.data.Dataset:
    """Batches that went through `prepare`, in parallel and some steps before they are needed.

    Whoever reads for it uses `numpy_function` and not `Dataset.from_generator`: under Python 3.11 the latter tells the
    C library to give every block of memory above 128 kB back to the system at once, for the whole process, and training
    on a CPU then spends a third of its time on page faults.
    """
    prepare = tf.autograph.experimental.do_not_convert(prepare)  # which takes longer than to trace it
    dataset = batches.map(prepare, num_parallel_calls=_PARALLEL_BATCHES).prefetch(_BATCHES_AHEAD)
    options = tf.data.Options()
    # Its thread sleeps for up to a minute at a time, and whoever lets go of an iterator waits until it wakes.
    options.autotune.enabled = False
    return dataset.with_options(options)
