"""Google's checkpoint format: `bert_model.ckpt.index` beside `bert_model.ckpt.data-00000-of-00001`.

The names of the variables are the paths of ours (see layers.py), so there is nothing to translate.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from modeling.errors import CheckpointError
from modeling.tensor_bundle import TensorBundle

CHECKPOINT_NAME = "bert_model.ckpt"


def read_variables(path: str | Path, with_optimizer: bool = False) -> dict[str, np.ndarray]:
    """All variables of a checkpoint by name; the state of its optimizer only if asked for."""
    prefix = find_checkpoint(path)
    bundle = TensorBundle(prefix)
    names = [name for name in bundle.names if with_optimizer or not _is_optimizer_state(name)]
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in names:
        raise CheckpointError(
            f"{prefix} was written by tf.train.Checkpoint, whose names depend on the program that wrote it. Load it "
            "there, and save its weights in one of the formats of BERT."
        )
    return {name: bundle.read(name) for name in names}


def write_variables(variables: Mapping[str, np.ndarray], prefix: str | Path) -> None:
    """Writes a checkpoint of named arrays: aside first, then moved into place, the index last.

    Without an index the data is not a checkpoint, so a reader meets the old one, none, or the new one, but no half one.
    """
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{prefix.name}.", dir=prefix.parent) as aside:
        names = sorted(variables)
        tf.raw_ops.SaveV2(
            prefix=os.path.join(aside, prefix.name),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(variables[name]) for name in names],
        )
        written = sorted(os.listdir(aside))  # ".data…" sorts before ".index"
        for name in written:
            _flush(os.path.join(aside, name))  # the old one goes when nothing can keep the new one from being whole
        prefix.with_name(prefix.name + ".index").unlink(missing_ok=True)
        for name in written:
            os.replace(os.path.join(aside, name), prefix.parent / name)


def _flush(path: str) -> None:
    """Waits until a file is on the disk: a name that outlives a power cut must not stand for half a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_checkpoint(path: str | Path) -> str:
    """The prefix of the checkpoint that a person means.

    Args:
        path: the prefix itself (`…/bert_model.ckpt`), one of its files (`….index`), or a directory with
            `bert_model.ckpt`, with the `checkpoint` file that TensorFlow leaves in its output, with a single
            checkpoint of any name, or with states of a training run that is not done.

    Raises:
        CheckpointError: there is none, or more than one.
    """
    path = Path(path)
    if path.is_dir():
        return _find_in_directory(path)
    prefix = path
    if path.suffix == ".index" or path.suffix.startswith(".data-"):
        prefix = path.with_suffix("")
    if prefix.with_name(prefix.name + ".index").is_file():
        return str(prefix)
    if not prefix.parent.is_dir():
        raise CheckpointError(f"There is no checkpoint {prefix}: the directory {prefix.parent} does not exist.")
    there = sorted(index.name.removesuffix(".index") for index in prefix.parent.glob("*.index"))
    raise CheckpointError(
        f"There is no checkpoint {prefix}: {prefix.name}.index is not in {prefix.parent}. "
        + (f"Checkpoints there: {', '.join(there)}." if there else "There is no checkpoint in that directory.")
    )


def _find_in_directory(directory: Path) -> str:
    if (directory / f"{CHECKPOINT_NAME}.index").is_file():
        return str(directory / CHECKPOINT_NAME)
    try:
        latest = tf.train.latest_checkpoint(str(directory))
    except (ValueError, tf.errors.OpError) as error:
        raise CheckpointError(
            f"{directory / 'checkpoint'} cannot be read: {error}. Name the checkpoint itself."
        ) from error
    if latest:
        _check_inside(latest, directory)
        return latest
    prefixes = sorted(str(index.with_suffix("")) for index in directory.glob("*.index"))
    if not prefixes and (states := list((directory / "train_state").glob("step-*.index"))):  # a run of ours, not done
        newest = max(states, key=lambda index: int(index.stem.removeprefix("step-")))
        return str(newest.with_suffix(""))
    if not prefixes:
        raise CheckpointError(f"There is no checkpoint in {directory}: no file there ends in .index.")
    if len(prefixes) > 1:
        raise CheckpointError(f"There are several checkpoints in {directory}; name one of: {', '.join(prefixes)}.")
    return prefixes[0]


def _check_inside(prefix: str, directory: Path) -> None:
    """Refuses a name from a file that leads elsewhere: whoever sends a directory does not choose what else is read."""
    if Path(prefix).parent.resolve() != directory.resolve():
        raise CheckpointError(
            f"{directory / 'checkpoint'} names {prefix}, which is not in {directory}. If you mean that one, "
            "name it yourself."
        )


def _is_optimizer_state(name: str) -> bool:
    is_of_run = name in ("global_step", "bad_steps") or name.startswith("loss_scale/")
    return is_of_run or name.endswith(("/adam_m", "/adam_v", "/lamb_m", "/lamb_v"))
