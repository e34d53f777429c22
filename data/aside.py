"""Files that are written beside their place and moved there when they are whole."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written_aside(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name once all went well: a reader meets the old one, or the new one.

    While it is written nobody else can write it. The lock goes with the process, so one that was killed leaves a file
    aside that the next writer takes over.

    Raises:
        ValueError: another process is writing it.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.part")
    file = _locked(aside, path)
    try:
        file.truncate()
        yield file
        file.flush()
        os.fsync(file.fileno())  # where there may be no room for it
        os.replace(aside, path)
    except BaseException:  # half a file would only fill a disk that is full
        aside.unlink(missing_ok=True)
        raise
    finally:
        with contextlib.suppress(OSError):  # what is in its buffer goes nowhere
            file.close()


def _locked(aside: Path, path: Path) -> BinaryIO:
    """Opens a file that nobody else has, without touching what is in it."""
    while True:
        file = os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT, 0o666), "wb", buffering=1 << 20)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ValueError(
                f"Another process is writing {path} at this moment. Wait for it, or write to another place."
            ) from None
        # Between the two lines above, whoever had it may have moved it into its place.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(aside)):
                return file
        file.close()
