"""Where text comes from: files by name or glob, plain or gzip, and sets of tensorflow-datasets."""

import glob
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import tqdm

# Examples of a set of tensorflow-datasets that go into one text, which can be a shard.
_DOCUMENTS_PER_TEXT = 10_000

# In bytes. The longest line that people have is a corpus of 100 MB without line ends.
_LONGEST_LINE = 1 << 27


def find_files(patterns: str, flag: str) -> list[str]:
    """The files that a comma-separated list of globs names: in the order of the list, each pattern's by name.

    Raises:
        FileNotFoundError: a pattern matches nothing.
    """
    files = []
    for pattern in patterns.split(","):
        found = sorted(path for path in glob.glob(pattern) if Path(path).is_file())
        if not found:
            raise FileNotFoundError(f"No file matches {pattern!r} of --{flag}.")
        files += found
    return files


def check_writable(path: str | Path, flag: str) -> None:
    """Refuses a place where nothing can be written, without writing: for those who want to know before the work."""
    there = next(place for place in (Path(path), *Path(path).absolute().parents) if place.exists())
    if (there != Path(path) and not there.is_dir()) or not os.access(there, os.W_OK):
        raise PermissionError(f"--{flag}={path} cannot be written: {there} does not allow it.")


def read_lines(path: str) -> Iterator[bytes]:
    """Lines of a text file, plain or gzip (.gz); a line ends at "\\n" and nowhere else."""
    with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
        try:
            # A few bytes of gzip can hold a line that no memory can.
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
                if len(line) > _LONGEST_LINE:
                    raise ValueError(
                        f"{path}, line {number} has more than {_LONGEST_LINE >> 20} MB: put its sentences on lines of "
                        "their own."
                    )
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}.") from error


def write_texts(tfds_name: str, split: str, text_key: str, data_dir: str | None, directory: str) -> list[str]:
    """Writes a set of tensorflow-datasets as texts: an empty line between examples, their lines as they are."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(tfds_name, data_dir=data_dir)
    if text_key not in builder.info.features:
        raise ValueError(
            f"{tfds_name} has no feature {text_key!r} (--tfds_text_key). It has: {', '.join(builder.info.features)}."
        )
    builder.download_and_prepare()
    stem = f"{tfds_name.replace('/', '-').replace(':', '-')}-{split}"
    paths: list[str] = []
    text: list[bytes] = []
    examples = tfds.as_numpy(builder.as_dataset(split=split))
    for example in tqdm.tqdm(examples, desc=f"Reading {tfds_name}", unit=" documents"):
        lines = [line for line in example[text_key].split(b"\n") if line.strip()]  # an empty one would end the document
        text.append(b"\n".join(lines) + b"\n\n")
        if len(text) >= _DOCUMENTS_PER_TEXT:
            _write_text(paths, directory, stem, text)
    if text:
        _write_text(paths, directory, stem, text)
    if not paths:
        raise ValueError(f"The split {split!r} of {tfds_name} has no examples.")
    return paths


def _write_text(paths: list[str], directory: str, stem: str, text: list[bytes]) -> None:
    paths.append(str(Path(directory) / f"{stem}-{len(paths):05d}.txt"))
    Path(paths[-1]).write_bytes(b"".join(text))
    text.clear()
