"""TensorFlow's checkpoints of version 2, read without its own reader, which a false index makes end the process.

`….index` is a table in LevelDB's format: blocks of sorted keys and values, then a block that tells where these blocks
are, then a footer that tells where that one is. A key is the name of a variable. Its value is a BundleEntryProto: type,
shape, and where the numbers are in `….data-00000-of-00001`. The key "" has a BundleHeaderProto.

Nothing here takes more memory than the files have bytes, whatever they claim.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from modeling.errors import CheckpointError

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48  # two handles of blocks, filled up to 40 bytes, and the magic number
_TRAILER_BYTES = 5  # behind each block: how it is compressed, and a checksum
_LONGEST_VARINT = 10  # of 64 bits, seven to a byte

# A BERT of 24 layers with the moments of its optimizer has 1,200 variables, and names of 90 characters.
_MOST_VARIABLES, _LONGEST_NAME = 100_000, 500
_MOST_FILES, _MOST_AXES = 1_000, 32

_NUMBERS = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool]
_NUMBERS += [tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]
_DTYPES = {kind.as_datatype_enum: np.dtype(kind.as_numpy_dtype) for kind in _NUMBERS}


class _DamagedError(Exception):
    """What is wrong with bytes, told where nobody knows whose they are."""


class TensorBundle:
    """The variables of a checkpoint, each read when it is asked for.

    Args:
        prefix: of the files.

    Raises:
        CheckpointError: the index is damaged, or claims what the data does not have.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        try:
            values = _read_index(Path(f"{prefix}.index").read_bytes())
            header = tensor_bundle_pb2.BundleHeaderProto.FromString(values.pop("", b""))
            self._entries = {key: tensor_bundle_pb2.BundleEntryProto.FromString(v) for key, v in values.items()}
            self._files = _data_files(prefix, header)
            sizes = [path.stat().st_size for path in self._files]
        except (_DamagedError, DecodeError, OSError) as error:
            raise self._cannot_read(error) from error
        self._check_places(sizes)

    @property
    def names(self) -> list[str]:
        return sorted(self._entries)

    def read(self, name: str) -> np.ndarray:
        """The value of a variable."""
        entry = self._entries[name]
        try:
            dtype, shape = _type_and_shape(entry)
            content = np.fromfile(self._files[entry.shard_id], np.uint8, entry.size, offset=entry.offset)
            if _masked_crc(content) != entry.crc32c:
                raise _DamagedError("its checksum does not fit")
            return content.view(dtype).reshape(shape)
        except (_DamagedError, ValueError, OSError) as error:  # ValueError: axes of 0 beside some of 2^60
            raise self._cannot_read(error, name) from error

    def _check_places(self, sizes: list[int]) -> None:
        for name, entry in self._entries.items():
            size = sizes[entry.shard_id] if 0 <= entry.shard_id < len(sizes) else 0
            if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > size:
                raise self._cannot_read("its place is not within the data", name)
        if sum(entry.size for entry in self._entries.values()) > sum(sizes):
            raise self._cannot_read("its variables overlap, and would take more memory than the data")

    def _cannot_read(self, reason: object, name: str = "") -> CheckpointError:
        what = f"{name} in {self._prefix}" if name else self._prefix
        return CheckpointError(
            f"{what} cannot be read: {reason}. The file is damaged or cut short, or not of a BERT: fetch or copy the "
            "checkpoint again."
        )


def _data_files(prefix: str, header: tensor_bundle_pb2.BundleHeaderProto) -> list[Path]:
    if header.endianness != tensor_bundle_pb2.BundleHeaderProto.LITTLE:
        raise _DamagedError("its numbers have their highest byte first")
    count = header.num_shards
    if not 1 <= count <= _MOST_FILES:
        raise _DamagedError(f"its index tells of {count} files of data")
    return [Path(f"{prefix}.data-{number:05}-of-{count:05}") for number in range(count)]


def _type_and_shape(entry: tensor_bundle_pb2.BundleEntryProto) -> tuple[np.dtype, list[int]]:
    if entry.slices:
        raise _DamagedError("it was saved in slices, as no variable of BERT is")
    if entry.dtype not in _DTYPES:
        raise _DamagedError(f"its type is number {entry.dtype} of TensorFlow's, and not one of numbers")
    dtype, shape = _DTYPES[entry.dtype], [axis.size for axis in entry.shape.dim]
    if entry.shape.unknown_rank or len(shape) > _MOST_AXES:
        raise _DamagedError(f"it has {'no shape' if entry.shape.unknown_rank else f'{len(shape)} axes'}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != entry.size:
        raise _DamagedError(f"the shape {shape} of {dtype} does not fit its {entry.size} bytes")
    return dtype, shape


def _read_index(table: bytes) -> dict[str, bytes]:
    """Everything in a table, by key."""
    footer = table[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise _DamagedError("its index does not end as one")
    _, _, start = _handle(footer, 0)  # of a block that has nothing for us
    offset, size, _ = _handle(footer, start)
    found: dict[str, bytes] = {}
    last = None
    for _, handle in _read_block(table, offset, size):
        for key, value in _read_block(table, *_handle(handle, 0)[:2]):
            # So no key comes twice, and blocks that are named again and again end at once.
            if last is not None and key <= last or len(found) >= _MOST_VARIABLES:
                raise _DamagedError("its index is out of order, or has no end")
            last = key
            if key.startswith(b"\0"):  # a slice of a variable, whose own entry tells that it has some
                continue
            try:
                found[key.decode()] = value
            except UnicodeDecodeError:
                raise _DamagedError(f"its index has the key {key[:60]!r}, which is no name") from None
    return found


def _read_block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block. A key is told by how many bytes it shares with the one before, and its others."""
    block, trailer = table[offset : offset + size], table[offset + size : offset + size + _TRAILER_BYTES]
    if len(block) < 4 or len(trailer) < _TRAILER_BYTES:
        raise _DamagedError("its index is cut short")
    compression, checksum = struct.unpack("<BI", trailer)
    if _masked_crc(block + trailer[:1]) != checksum:
        raise _DamagedError("a checksum in its index does not fit")
    if compression:
        raise _DamagedError("its index is compressed, which TensorFlow did in version 1.1 only; load and save it there")
    (num_restarts,) = struct.unpack("<I", block[-4:])  # places to start searching from, which we have no need of
    end = len(block) - 4 - 4 * num_restarts
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        others, at = _varint(block, at)
        value_size, at = _varint(block, at)
        if shared > len(key) or shared + others > _LONGEST_NAME or at + others + value_size > end:
            raise _DamagedError("its index has an entry of an impossible length")
        key = key[:shared] + block[at : at + others]
        at += others + value_size
        yield key, block[at - value_size : at]


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Where a block starts, its size, and where the handle ends."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return offset, size, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in as few bytes as it needs, the lowest bits first, and where it ends."""
    number = 0
    for position, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return number, at + position + 1
    raise _DamagedError("its index has a number without an end")


def _masked_crc(data: bytes | np.ndarray) -> int:
    """As TensorFlow stores checksums, so that a checksum of what has checksums in it is as good as any."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
