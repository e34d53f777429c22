"""TFRecord files and the tf.Examples in them, as bytes, without TensorFlow.

Building data spends most of its time here if each record goes through a protobuf object, and importing TensorFlow
into every worker costs seconds and 400 MB. So records are put together from ready parts, and framed by hand:

    file    = record*
    record  = length (8 bytes) · masked CRC of the length (4) · data · masked CRC of the data (4)
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np

from data.aside import written_aside

_PLAUSIBLE_SIZE = 1 << 20  # of a record


class RecordError(ValueError):
    """A record that cannot be read, with its file and number."""


class AtomicRecordWriter:
    """Writes records beside their place and moves them there when all went well; see `written_aside`.

    Example:
        >>> with AtomicRecordWriter("out.tfrecord") as writer:
        ...     writer.write(b"data")
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.offsets: list[int] = []  # where each record starts, in bytes
        self.num_bytes = 0
        self._writing = written_aside(path)
        self._headers: dict[int, bytes] = {}

    def __enter__(self) -> "AtomicRecordWriter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._writing.__enter__()
        return self

    def write(self, data: bytes) -> None:
        size = len(data)
        if (header := self._headers.get(size)) is None:
            length = struct.pack("<Q", size)
            header = self._headers[size] = length + _masked_crc(length)
        self._file.write(header + data + _masked_crc(data))
        self.offsets.append(self.num_bytes)
        self.num_bytes += size + 16

    def sync(self) -> None:
        """Waits until all that was written is on the disk, where there may be no room for it."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(self, *error) -> None:
        self._writing.__exit__(*error)


class RawRecord(NamedTuple):
    offset: int  # of its first byte in the file
    data: bytes | None  # None where the checksum does not fit


def read_records(file: BinaryIO, name: str, first: int = 0, check: bool = True) -> Iterator[RawRecord]:
    """Reads records from where `file` stands to its end.

    Args:
        file: an open file.
        name: its name, for errors.
        first: the number of the first record, for errors.
        check: compare the data with its checksum.

    Raises:
        RecordError: the length of a record cannot be trusted, so nothing behind it can be found; or the file ends
            within a record.
    """
    number, offset = first, file.tell()
    while header := file.read(12):
        length = header[:8]
        if len(header) < 12 or header[8:] != _masked_crc(length):
            what = "the file ends within its header" if len(header) < 12 else "the checksum of its length does not fit"
            raise RecordError(f"{name}: record {number} (at byte {offset}) is damaged: {what}.")
        size = struct.unpack("<Q", length)[0]
        # A length may claim anything, and TensorFlow's files allocate before they read, or crash.
        data = file.read(size + 4) if size <= _PLAUSIBLE_SIZE or size + 4 <= _bytes_left(file) else b""
        if len(data) < size + 4:
            raise RecordError(f"{name}: record {number} (at byte {offset}) is cut short: the file ends within it.")
        body, crc = data[:size], data[size:]
        yield RawRecord(offset, None if check and crc != _masked_crc(body) else body)
        number, offset = number + 1, offset + size + 16


def _bytes_left(file: BinaryIO) -> int:
    here = file.tell()
    file.seek(0, os.SEEK_END)
    end = file.tell()
    file.seek(here)
    return end - here


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


# Numbers of protobuf fields in tf.train.Feature.
_FLOAT_LIST, _INT64_LIST = 2, 3

_BYTES = [bytes((number,)) for number in range(128)]


class ExampleEncoder:
    """Puts together serialized tf.Examples of named lists of numbers."""

    def __init__(self, max_number: int):
        self._varints = [_varint(number) for number in range(max_number + 1)]
        self._prefixes: dict[tuple[str, int], bytes] = {}  # what stands before the numbers of a feature, by their size

    def numbers(self, name: str, values: Iterable[int], padding: int = 0) -> bytes:
        """An int64 feature: the values, then zeros."""
        return self._feature(name, _INT64_LIST, b"".join(map(self._varints.__getitem__, values)) + bytes(padding))

    def packed(self, name: str, varints: bytes, padding: int = 0) -> bytes:
        """An int64 feature: what `Varints` made of the values, then zeros."""
        return self._feature(name, _INT64_LIST, varints + bytes(padding))

    def repeated(self, name: str, *runs: tuple[int, int]) -> bytes:
        """An int64 feature of runs of one number below 128 each: (number, times)."""
        return self._feature(name, _INT64_LIST, b"".join([_BYTES[number] * times for number, times in runs]))

    def number(self, name: str, value: int) -> bytes:
        """An int64 feature of one number, however large."""
        return self._feature(name, _INT64_LIST, _varint(value))

    def floats(self, name: str, values: Sequence[float]) -> bytes:
        """A float feature."""
        return self._feature(name, _FLOAT_LIST, struct.pack(f"<{len(values)}f", *values))

    def ones(self, name: str, count: int, padding: int) -> bytes:
        """A float feature: ones, then zeros."""
        return self._feature(name, _FLOAT_LIST, b"\x00\x00\x80\x3f" * count + bytes(4 * padding))

    def example(self, *features: bytes) -> bytes:
        return _field(1, b"".join(features))

    def _feature(self, name: str, kind: int, packed: bytes) -> bytes:
        """An entry of the map `features`: a name and a list of numbers."""
        key = name, len(packed)
        if (prefix := self._prefixes.get(key)) is None:
            whole = _field(1, _field(1, name.encode()) + _field(2, _field(kind, _field(1, packed))))
            prefix = self._prefixes[key] = whole[: len(whole) - len(packed)]
        return prefix + packed


class Varints:
    """Numbers as protobuf writes them, many at a time."""

    def __init__(self, max_number: int):
        if max_number >= 1 << 28:
            raise ValueError(f"{max_number} takes more than four bytes.")
        varints = [_varint(number) for number in range(max_number + 1)]
        self._sizes = np.array([len(varint) for varint in varints], np.uint8)
        # Four bytes for each number, so that they are taken at once, and which of them are used.
        self._bytes = np.array([int.from_bytes(varint, "little") for varint in varints], "<u4")
        self._is_used = np.array([int.from_bytes(b"\1" * len(varint), "little") for varint in varints], "<u4")

    def __call__(self, numbers: np.ndarray) -> tuple[bytes, np.ndarray]:
        """The bytes of numbers [N], one behind the other; and where each begins, with the end of the last: [N + 1]."""
        places = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(self._sizes.take(numbers), out=places[1:])
        is_used = self._is_used.take(numbers).view(np.bool_)
        return self._bytes.take(numbers).view(np.uint8)[is_used].tobytes(), places


def _field(number: int, data: bytes) -> bytes:
    """A protobuf field with a length."""
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
