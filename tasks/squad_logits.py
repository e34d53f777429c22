"""What SQuAD models say of windows, kept in files, and averaged over several models. Nothing here needs TensorFlow."""

import contextlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

_IDS_IN_MESSAGES = 3  # of the ids that are wrong, so many are told


class RawResults(NamedTuple):
    """What a model says of windows: unique_ids int [N], start_logits and end_logits float [N, sequence length]."""

    unique_ids: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray


def average(raw_results: Sequence[RawResults]) -> RawResults:
    """The mean of the logits of several models, which have seen the same windows, in whatever order.

    Raises:
        ValueError: they have not, or sequences are not of the same length.
    """
    if not raw_results:
        raise ValueError("There are no logits to average.")
    first = raw_results[0]
    row_of = {unique_id: row for row, unique_id in enumerate(first.unique_ids.tolist())}
    start_sum = np.zeros(first.start_logits.shape, np.float64)
    end_sum = np.zeros(first.end_logits.shape, np.float64)
    for number, other in enumerate(raw_results, start=1):
        check_raw(other, f"Model {number}")
        if difference := _difference(first, other):
            raise ValueError(f"Model {number} has seen other windows than model 1: {difference}.")
        if other.start_logits.shape != first.start_logits.shape:
            raise ValueError(
                f"Model {number} has logits for {other.start_logits.shape[1]} tokens, model 1 for "
                f"{first.start_logits.shape[1]}. Use the same --max_seq_length for all."
            )
        rows = [row_of[unique_id] for unique_id in other.unique_ids.tolist()]
        start_sum[rows] += other.start_logits
        end_sum[rows] += other.end_logits
    count = len(raw_results)
    return RawResults(first.unique_ids, (start_sum / count).astype(np.float32), (end_sum / count).astype(np.float32))


def _difference(first: RawResults, other: RawResults) -> str:
    """Which ids only one of both has; "" where they have the same."""
    parts = []
    for verb, ids in (
        ("lacks", np.setdiff1d(first.unique_ids, other.unique_ids)),
        ("adds", np.setdiff1d(other.unique_ids, first.unique_ids)),
    ):
        if len(ids):
            more = "" if len(ids) <= _IDS_IN_MESSAGES else f" and {len(ids) - _IDS_IN_MESSAGES} more"
            parts.append(f"it {verb} {', '.join(map(str, ids[:_IDS_IN_MESSAGES]))}{more}")
    return ", and ".join(parts)


def check_raw(raw: RawResults, name: str) -> None:
    """Raises where logits are of the wrong shape, come twice, or are not finite."""
    shape = raw.start_logits.shape
    if len(shape) != 2 or raw.end_logits.shape != shape or raw.unique_ids.shape != shape[:1]:
        raise ValueError(
            f"{name}: unique_ids should be [N], start_logits and end_logits [N, sequence length], but they are "
            f"{list(raw.unique_ids.shape)}, {list(shape)} and {list(raw.end_logits.shape)}."
        )
    ids, counts = np.unique(raw.unique_ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name}: window {ids[np.argmax(counts)]} has logits more than once.")
    is_finite = np.isfinite(raw.start_logits).all(axis=-1) & np.isfinite(raw.end_logits).all(axis=-1)
    if not is_finite.all():
        raise ValueError(
            f"{name}: logits of window {raw.unique_ids[np.argmin(is_finite)]} are not finite. The model that made them "
            "has diverged: train it with a lower --learning_rate."
        )


def save_raw(path: str | Path, raw: RawResults) -> None:
    """Writes logits to an .npz file, for `load_raw`."""
    with aside(Path(path)) as file:
        np.savez(file, **raw._asdict())


def load_raw(path: str | Path) -> RawResults:
    """Reads logits that `save_raw` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is another kind of file.
    """
    try:
        with np.load(path) as arrays:
            raw = RawResults(**{name: arrays[name] for name in RawResults._fields})
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file of logits {path}.") from None
    except (KeyError, ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} does not hold {', '.join(RawResults._fields)}: {error!r}.") from error
    check_raw(raw, str(path))
    return raw


@contextlib.contextmanager
def aside(path: Path):
    """A file to write that takes its place when it is whole, as `training.state.write_text`, which needs TensorFlow."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        yield file
    os.replace(part, path)
