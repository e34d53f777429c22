"""The files that vectors are kept in: the original's JSON lines, npz, and TFRecord.

Axes in comments: H hidden size, L chosen layers, D numbers of a text's vector (L * H).
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data.tfrecord import AtomicRecordWriter
from tasks.vectors import TokenVectors

FORMATS = ("jsonl", "npz", "tfrecord")


def write_token_vectors(path: str | Path, file_format: str, lines: Iterable[TokenVectors], layers: Sequence[int]):
    """Writes the vectors of tokens as they come; the file appears when all are there.

    Args:
        path: of the file.
        file_format: one of `FORMATS`.
            jsonl: the original's. An object a line: `linex_index`, the number of the line from 0; `features`, for each
                token `token` and `layers`, for each layer `index` and `values`, rounded to six places.
            npz: `values`, float32 [tokens of all lines, L, H]; `tokens`, [tokens of all lines]; `offsets`,
                [lines + 1]: line i has the tokens from offsets[i] to offsets[i + 1]; `layers`, [L].
            tfrecord: a tf.Example a line: `linex_index`; `tokens`; `layers`; `values`, floats in the order
                [tokens, L, H].
        lines: see `TextEncoder.token_vectors`.
        layers: which ones they have, by the numbers they were asked for.
    """
    path = _checked_path(path, file_format)
    if file_format == "jsonl":
        with _aside(path) as aside, open(aside, "w", encoding="ascii", newline="\n") as file:
            for number, line in enumerate(lines):
                file.write(_json_line(number, line, layers) + "\n")
    elif file_format == "npz":
        tokens, offsets = [], [0]

        def by_token() -> Iterator[np.ndarray]:
            for line in lines:
                tokens.extend(line.tokens)
                offsets.append(len(tokens))
                yield line.values.swapaxes(0, 1)

        # The lists are full when they are read, behind the last of the values.
        _write_npz(path, "values", by_token(), {"tokens": tokens, "offsets": offsets, "layers": list(layers)})
    else:
        _write_tfrecord(
            path,
            (
                {
                    "linex_index": _integers([number]),
                    "tokens": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[token.encode() for token in line.tokens])
                    ),
                    "layers": _integers(layers),
                    "values": _floats(line.values.swapaxes(0, 1)),
                }
                for number, line in enumerate(lines)
            ),
        )


def write_vectors(path: str | Path, file_format: str, vectors: Iterable[np.ndarray]) -> None:
    """Writes one vector a line as they come; the file appears when all are there.

    Args:
        path: of the file.
        file_format: npz: `vectors`, float32 [lines, D]. tfrecord: a tf.Example a line: `linex_index`, the number of the
            line from 0, and `vector`.
        vectors: see `TextEncoder.vectors`.
    """
    path = _checked_path(path, file_format)
    if file_format == "jsonl":
        raise ValueError("jsonl holds vectors of tokens. Vectors of whole texts go into npz or tfrecord.")
    if file_format == "npz":
        _write_npz(path, "vectors", (vector[np.newaxis] for vector in vectors), {})
    else:
        examples = ({"linex_index": _integers([i]), "vector": _floats(vector)} for i, vector in enumerate(vectors))
        _write_tfrecord(path, examples)


def _json_line(number: int, line: TokenVectors, layers: Sequence[int]) -> str:
    # The original rounds one by one. Numpy rounds float32 to the same digits, since their product with 10**6 is exact
    # in float64, and much sooner.
    values = np.round(line.values.astype(np.float64), 6).tolist()
    features = [
        {
            "token": token,
            "layers": [{"index": layer, "values": of_layer[i]} for layer, of_layer in zip(layers, values, strict=True)],
        }
        for i, token in enumerate(line.tokens)
    ]
    return json.dumps({"linex_index": number, "features": features})


def _checked_path(path: str | Path, file_format: str) -> Path:
    if file_format not in FORMATS:
        raise ValueError(f"The format {file_format!r} is not known: {', '.join(FORMATS)}.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Where to write a file that is to be found at `path` when all of it is there, and not before."""
    aside = path.with_name(f".{path.name}.part")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _write_npz(path: Path, name: str, arrays: Iterable[np.ndarray], others: dict[str, Sequence]) -> None:
    """Writes arrays, float32 [some, …], joined into one; and others, which are looked at when the last one has come.

    A header tells the size of its array before the first number. So the numbers wait in a file without a name: they may
    be more than fit into memory, and the disk holds them twice while they are copied.
    """
    count, shape = 0, ()
    with tempfile.TemporaryFile(dir=path.parent) as waiting:
        for array in arrays:
            waiting.write(np.ascontiguousarray(array, np.float32))
            count, shape = count + len(array), array.shape[1:]
        if not count:
            raise ValueError(f"There is nothing to write to {path}: no text was given.")
        waiting.flush()
        joined = np.memmap(waiting, np.float32, "r", shape=(count, *shape))
        with _aside(path) as aside, open(aside, "wb") as file:
            np.savez(file, **{name: joined}, **others)


def _write_tfrecord(path: Path, examples: Iterable[dict[str, tf.train.Feature]]) -> None:
    with AtomicRecordWriter(path) as writer:
        for features in examples:
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _integers(values: Sequence[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values.ravel().tolist()))
