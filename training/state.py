"""Everything that a training run is made of, on disk: so that one that was killed goes on as if nothing had happened.

A state is a checkpoint in Google's format, `train_state/step-1000.index` and `….data-…`: the weights, and beside each
`…/adam_m`, `…/adam_v` and `global_step`, as in the original's own training checkpoints. Which records come next, and
what dropout draws, follows from the seed and the step, so the step says that too. `train_state/run.json` holds the seed
and the flags that decide the numbers.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import keras
import numpy as np

from data.aside import written_aside
from data.text_files import check_writable
from modeling import google
from modeling.errors import CheckpointError

_LOCK = Path("train_state", "lock")
_PREFIX = "step-"
BEST_PREFIX = "best-"  # weights alone, see training/best.py
TRIAL = "trial-{}"  # a run of its own, see training/trials.py


class TrainState:
    """Writes and reads states of one output directory.

    Args:
        output_dir: the directory of the run; states are in `train_state/` in it.
        variables: name -> variable, all that has to be the same after a restart; `global_step` among them.
        keep: how many states to keep, the newest ones.
        may_lack: names of variables that keep their value where a state has none of them.
    """

    def __init__(
        self, output_dir: str | Path, variables: Mapping[str, Any], keep: int = 5, may_lack: Collection[str] = ()
    ):
        self.directory = Path(output_dir) / "train_state"
        self._variables = variables
        self._keep = keep
        self._may_lack = may_lack

    def save(self, step: int) -> None:
        """Writes the state of a step: aside, then moved into place; then lets go of the oldest."""
        values = {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables.items()}
        for name, value in values.items():
            if not np.isfinite(value).all():
                raise ValueError(
                    f"{name} is not finite after step {step}, so this state was not saved; those before it are there. "
                    "Start anew in another --output_dir with a lower --learning_rate or more --num_warmup_steps."
                )
        google.write_variables(values, self.prefix(step))
        for old in self.steps()[: -self._keep]:
            _delete(self.directory, old)

    def restore(self) -> int | None:
        """Sets all variables from the newest whole state and says its step; None where there is none yet."""
        step, values = self.newest()
        if step is not None:
            lacking = {name: variable for name, variable in self._variables.items() if name in self._may_lack}
            values = {name: keras.ops.convert_to_numpy(variable) for name, variable in lacking.items()} | values
            self._check(values, self.prefix(step))
            for name, variable in self._variables.items():
                variable.assign(values[name])
        return step

    def newest(self) -> tuple[int | None, dict[str, np.ndarray]]:
        """The newest state that is whole: its step, None where no state was written yet, and its values by name.

        Raises:
            CheckpointError: there are states, but none of them is whole.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, google.read_variables(self.prefix(step), with_optimizer=True)
            except CheckpointError as error:
                logging.getLogger(__name__).warning("Passed over the state of step %d: %s", step, error)
        if steps:  # to begin again would throw away what metrics and weights there are
            names = ", ".join(f"{_PREFIX}{step}" for step in steps)
            raise CheckpointError(
                f"No state of the run in {self.directory} can be read: {names}. Bring them back from a copy; or, to "
                f"begin again, remove {self.directory} and {google.CHECKPOINT_NAME}.* beside it, or use another "
                "--output_dir."
            )
        return None, {}

    def steps(self) -> list[int]:
        """Steps that a state was written for, the oldest first."""
        names = (path.name.removeprefix(_PREFIX).removesuffix(".index") for path in self.directory.glob("step-*.index"))
        return sorted(int(name) for name in names if name.isdigit())

    def clear_leftovers(self) -> None:
        """Removes what writers that were killed have left behind. Only for whoever holds the lock."""
        asides = [
            *self.directory.glob(f".{_PREFIX}*"),
            *self.directory.glob(f".{BEST_PREFIX}*"),
            *self.directory.parent.glob(f".{google.CHECKPOINT_NAME}.*"),
        ]
        for path in asides:
            shutil.rmtree(path, ignore_errors=True)
        whole = {f"{_PREFIX}{step}" for step in self.steps()}
        for path in self.directory.glob(f"{_PREFIX}*.data-*"):
            if path.name.split(".data-")[0] not in whole:
                path.unlink()

    def prefix(self, step: int) -> str:
        """The checkpoint of a step: any tool that reads Google's format reads it."""
        return str(self.directory / f"{_PREFIX}{step}")

    def _check(self, values: Mapping[str, np.ndarray], prefix: str) -> None:
        for name, variable in self._variables.items():
            found = values[name].shape if name in values else "nothing"
            if found != (wanted := tuple(variable.shape)):
                raise CheckpointError(
                    f"{prefix} is the state of another model: {name} has the shape {wanted} here, and {found} there. "
                    "Give this run an --output_dir of its own."
                )


def variables_of(model: keras.Model, optimizer) -> dict[str, Any]:
    """Name -> variable for a model and its optimizer, named as the original named them."""
    return {variable.path: variable for variable in model.weights} | optimizer.named_state()


def _delete(directory: Path, step: int) -> None:
    (directory / f"{_PREFIX}{step}.index").unlink(missing_ok=True)  # first: without it the data is not a checkpoint
    for data in directory.glob(f"{_PREFIX}{step}.data-*"):
        data.unlink()


class RunRecord:
    """The seed and the flags of a run, so that the same command continues it and another one is refused.

    Only the number of replicas may change, with a warning: machines come and go.
    """

    def __init__(self, output_dir: str | Path):
        self._path = Path(output_dir) / "train_state" / "run.json"

    def load(self) -> dict[str, Any] | None:
        return load_object(self._path, "Without it the run cannot be continued: use another --output_dir.")

    def exists(self) -> bool:
        return self._path.exists()

    def save(self, flags: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, json.dumps(dict(flags), indent=1, sort_keys=True) + "\n")

    def finish(self, step: int) -> None:
        """Notes the step whose weights the run ended with."""
        write_text(self._path.with_name("final_step"), f"{step}\n")

    def final_step(self) -> int:
        """What `finish` noted; the last step where nothing was, and 0 where there was no run."""
        path = self._path.with_name("final_step")
        try:
            return int(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return (self.load() or {}).get("num_train_steps", 0)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}). Run the training command again to write it anew.") from None

    def check(self, flags: Mapping[str, Any], at_default: Collection[str] = ()) -> None:
        """Raises where a flag has another value than in the run that is there.

        Args:
            flags: name -> value.
            at_default: names of those that have their default. A run that does not know such a flag was started before
                there was one, and so as if it had its default.
        """
        before, now = self.load(), json.loads(json.dumps(dict(flags)))  # in JSON a tuple is a list
        if before is None:
            raise ValueError(
                f"{self._path.parent} holds states of a run, but no {self._path.name} that tells its flags: somebody "
                "has removed it, or all of the directory while the run was going on. Remove the rest of it to start "
                "anew, or use another --output_dir, with --init_checkpoint for the weights."
            )
        before |= {name: now[name] for name in at_default if name in now and name not in before}
        old_replicas, replicas = before.pop("replicas", None), now.pop("replicas", None)
        if old_replicas != replicas:
            logging.getLogger(__name__).warning(
                "The run had %s replicas and has %s now. Its batches stay the same, but dropout draws other numbers.",
                old_replicas,
                replicas,
            )
        changed = _differences(before, now)
        if changed:
            raise ValueError(
                f"{self._path.parent.parent} holds a run with other flags: {'; '.join(changed)}. To continue it, use "
                "its flags; to start another, use another --output_dir (with --init_checkpoint for its weights)."
            )

    def check_only(self, name: str, value: Any) -> None:
        """Raises where the run that is there had another value of one flag; says nothing where there is no run."""
        before = self.load() or {}
        if name in before and (changed := _differences({name: before[name]}, json.loads(json.dumps({name: value})))):
            raise ValueError(f"{self._path.parent.parent} holds a run with other flags: {'; '.join(changed)}.")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed, by the names of flags; within a config, by its keys."""
    differences = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += [f"in --{name}, {difference.removeprefix('--')}" for difference in _differences(old, new)]
        elif old != new:
            flag = name if " " in name else f"--{name}"  # not all that decides is a flag
            was = f"was {old!r}" if name in before else "was not there yet"
            differences.append(f"{flag} {was} and is {new!r} now")
    return differences


def load_object(path: Path, advice: str) -> dict[str, Any] | None:
    """What a JSON file holds by name; None where there is no file. A damaged one is told, with advice."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"it should hold an object, not {type(values).__name__}")
        return values
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). {advice}") from error


class HeldDirectory:
    """An output directory that this process alone writes to."""

    def __init__(self, output_dir: str | Path, lock: TextIO):
        self._output_dir = Path(output_dir)
        self._lock = lock

    def check(self) -> None:
        """Raises where the directory, or what tells of its run, was removed: it may be that of another run by now."""
        with contextlib.suppress(FileNotFoundError):
            is_same = os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self._output_dir / _LOCK))
            if is_same and RunRecord(self._output_dir).exists():
                return
        raise ValueError(
            f"{self._output_dir} was removed while the run was going on, or its train_state was: what came after the "
            "last state is not saved. Start it again."
        )


@contextlib.contextmanager
def locked(output_dir: str | Path) -> Iterator[HeldDirectory]:
    """Holds an output directory, so that two runs do not write into it at once. The lock goes with the process."""
    path = Path(output_dir) / _LOCK
    check_writable(path.parent, "output_dir")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another process is training in {output_dir}. Wait for it, or use another --output_dir."
            ) from None
        yield HeldDirectory(output_dir, file)


def check_free(output_dir: str | Path) -> None:
    """Refuses a directory that a run could not write to: see `check_no_model` and `locked`. Writes nothing."""
    check_writable(Path(output_dir) / "train_state", "output_dir")
    if not (Path(output_dir) / TRIAL.format(0)).exists():  # else the model is the best of its trials
        check_no_model(output_dir)
    if (Path(output_dir) / _LOCK).exists():
        with locked(output_dir):
            pass


def check_no_model(output_dir: str | Path) -> None:
    """Refuses a directory with a model that is of no run there: a new run would write its own over it."""
    if TrainState(output_dir, {}).steps():
        return
    for name in (f"{google.CHECKPOINT_NAME}.index", "model.safetensors"):
        if (path := Path(output_dir) / name).exists():
            raise ValueError(
                f"{path} is a model, and no run in {output_dir} can be continued: a new one would overwrite it. Use "
                "another --output_dir, or move it away."
            )


def write_text(path: Path, text: str) -> None:
    """Writes a file aside and moves it into place: a reader meets the old one or the new one, never half of it."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """See `write_text`."""
    with written_aside(path) as file:
        file.write(content)
