"""Files as accidents and enemies leave them: valid ones that something happened to, and bytes that never were one."""

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from data.tfrecord import RecordError
from modeling.errors import CheckpointError

# Where numbers, names or texts should be.
_ODD = [
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"99999999999999999999999999",
    b"-1",
    b"1e999",
    b"-Infinity",
    b"1" + b"0" * 400,
    b"NaN",
    b"null",
    b"[[]]",
    b"{}",
    b'"',
    b'"\\ud800"',  # the same half, as JSON can spell it
    b"\r",
    b"\n\n",
    b"\t",
    "\u2028\u0085é漢".encode(),
    "ä".encode("utf-16"),
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b"\xff" * 16,
    b"../../etc/passwd",
]

# Where JSON has a value: others that are JSON, too, for Python at least.
_OTHER_VALUES = [None, True, -1, 0, 2**60, 10**40, 10**400, 1e308, 0.5, float("nan"), float("inf"), float("-inf")]
_OTHER_VALUES += ["", "\0", "../x", "\ud800", "a\udfffb", "é" * 99, "x" * 5_000, [], {}, [[]], {"a": 1}, ["\ud800"]]


def bounded(examples: int) -> settings:
    """The same cases in every run."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


@st.composite
def damaged(draw, valid: Sequence[bytes]) -> bytes:
    """One of the valid contents after one to three accidents, or bytes of no meaning."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(1, 3))):
        data = draw(_accident(data, valid))
    return data


@st.composite
def _accident(draw, data: bytes, valid: Sequence[bytes]) -> bytes:
    # Half of them where most of what decides stands: at the start.
    end = len(data) if draw(st.booleans()) else min(len(data), 64)
    first, last = sorted(draw(st.tuples(st.integers(0, end), st.integers(0, end))))
    kind = draw(st.sampled_from(["flip", "cut", "drop", "repeat", "splice", "insert", "replace", "value", "recode"]))
    if kind == "flip" and first < len(data):
        return data[:first] + bytes([data[first] ^ (1 << draw(st.integers(0, 7)))]) + data[first + 1 :]
    if kind == "cut":
        return data[:first]
    if kind == "drop":
        return data[:first] + data[last:]
    if kind == "repeat":
        return data[:last] + data[first:last] * draw(st.integers(1, 20)) + data[last:]
    if kind == "splice":
        return data[:first] + draw(st.sampled_from(valid))[last:]
    if kind == "value":
        return _with_another_value(draw, data)
    if kind == "recode":
        return data.decode("utf-8", "replace").encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig"])))
    odd = draw(st.sampled_from(_ODD))
    return data[:first] + odd + data[first if kind == "insert" else last :]


def _with_another_value(draw, data: bytes) -> bytes:
    """JSON that stays JSON, with a value of another type or size somewhere; other data as it is."""
    documents = _documents(data)
    places = list(_places(documents))
    if not places:
        return data
    holder, key = draw(st.sampled_from(places))
    holder[key] = draw(st.sampled_from(_OTHER_VALUES))
    return _dumped(documents)


def accidents(data: bytes, count: int, rng: random.Random) -> list[bytes]:
    """Bytes flipped, cut, repeated, zeroed; and numbers of 8 bytes that are far too large."""
    found = []
    for number in range(count):
        at, end = rng.randrange(len(data)), rng.randrange(len(data))
        at, end = min(at, end), max(at, end)
        kind = number % 6
        if kind == 0:
            found.append(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        elif kind == 1:
            found.append(data[:at])
        elif kind == 2:
            found.append(data[:end] + data[at:end] + data[end:])
        elif kind == 3:
            found.append(data[:at] + bytes(end - at) + data[end:])
        elif kind == 4:
            found.append(data[:at] + struct.pack("<Q", 2 ** rng.choice([31, 40, 60, 63])) + data[at + 8 :])
        else:
            found.append(data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[end:])
    return found


def inflated(whole: bytes) -> list[bytes]:
    """Files that are long where others are short, so that what takes the square of a length does not end."""
    middle, size = len(whole) // 2, 2**18
    found = [whole * (size // len(whole))]
    parts = [b",", b"\t", b'"', b" ", b"\n", b"\r", b"9", b"a ", b"##a", b"{", b"[1,", b"\\u0000", "\u202f".encode()]
    for part in parts:
        found.append(whole[:middle] + part * (size // len(part)) + whole[middle:])
    return found


def with_other_values(data: bytes) -> Iterator[bytes]:
    """JSON with every other value in every place, one at a time, and with lists nested as deep as can be read."""
    documents = _documents(data)
    for holder, key in _places(documents):
        whole = holder[key]
        for other in _OTHER_VALUES:
            holder[key] = other
            yield _dumped(documents)
        holder[key] = "<here>"
        before, after = _dumped(documents).split(b'"<here>"')
        # Python's parser bears so many levels as calls are left: what it just bore may be too much a few calls later.
        for depth in range(800, 1_000, 4):
            yield before + b"[" * depth + b"]" * depth + after
        holder[key] = whole


def _documents(data: bytes) -> list[Any]:
    """What JSON, or lines of JSON, hold; nothing where it is neither."""
    for parts in ([data], data.splitlines()):
        try:
            return [json.loads(part) for part in parts]
        except (ValueError, RecursionError):
            continue
    return []


def _dumped(documents: Sequence[Any]) -> bytes:
    return "\n".join(map(json.dumps, documents)).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where a value can be replaced: (holder, key)."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def refused_properly(read: Callable[[Path], object], path: Path) -> bool:
    """Reads a file. False if it could be read; True if it was refused by an error of ours that names it."""
    try:
        read(path)
    except (ValueError, OSError) as error:
        ours = (CheckpointError, RecordError)
        is_ours = isinstance(error, ours) or type(error).__module__.startswith(("data.", "modeling."))
        assert is_ours or type(error) in (ValueError, FileNotFoundError), repr(error)[:300]
        message = str(error)
        assert path.name in message, f"It does not name the file: {message[:300]}"
        assert len(message) < 1_200, f"It quotes {len(message)} characters: {message[:300]}"
        return True
    return False
