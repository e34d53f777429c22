"""What evaluations of a run have found, the best weights by one of their figures, and whether to look for better ones.

A run that is continued knows of the evaluations up to the step it goes on from. A state of the run is saved with each
new best, so that it finds the weights it needs.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import keras

from modeling import google
from modeling.checkpoint import save_checkpoint
from training.state import BEST_PREFIX, load_object, write_text


def merit(metric: str, value: float) -> tuple[bool, float]:
    """What to compare by, the best being the highest: of a loss the lowest value is best, and NaN is never best."""
    if math.isnan(value):
        return False, 0.0
    return True, -value if metric.endswith("loss") else value


def _is_number(value) -> bool:
    return isinstance(value, (int, float))


class Evaluations:
    """The figures of all evaluations within a run, by their step; on disk in `train_state/evaluations.json`.

    Not in metrics.jsonl, where evaluations from outside of the run have their lines, too.

    Args:
        output_dir: the directory of the run.
        last_step: where the run goes on; what was found after it will be found again.
    """

    def __init__(self, output_dir: str | Path, last_step: int):
        self._path = Path(output_dir) / "train_state" / "evaluations.json"
        advice = "Remove it to go on without the evaluations it held, or use another --output_dir."
        found = load_object(self._path, advice) or {}
        for step, figures in found.items():
            if not (step.isdecimal() and isinstance(figures, dict) and all(map(_is_number, figures.values()))):
                raise ValueError(f"{self._path} is damaged (step {step!r} has no figures). {advice}")
        self.by_step: dict[int, Mapping[str, float]] = {
            int(step): figures for step, figures in found.items() if int(step) <= last_step
        }

    def add(self, step: int, figures: Mapping[str, float], write: bool) -> None:
        """Takes note of an evaluation; only one of several workers writes."""
        self.by_step[step] = dict(figures)
        if write:
            write_text(self._path, json.dumps(self.by_step) + "\n")


class BestWeights:
    """Keeps the weights of the best evaluation.

    Args:
        output_dir: the directory of the run; weights are in `train_state/` in it.
        model: whose weights.
        evaluations: what was found so far.
        metric: the figure that decides, see `merit`; of equal ones the first is best.
        patience: after this many evaluations without a new best the run is over; 0 for never.
    """

    def __init__(
        self, output_dir: str | Path, model: keras.Model, evaluations: Evaluations, metric: str, patience: int = 0
    ):
        self._directory = Path(output_dir) / "train_state"
        self._model = model
        self._evaluations = evaluations
        self._metric = metric
        self._patience = patience

    @property
    def step(self) -> int | None:
        """The step of the best evaluation; None before the first."""
        values = {step: self._value(figures) for step, figures in self._evaluations.by_step.items()}
        return max(values, key=lambda step: (merit(self._metric, values[step]), -step), default=None)

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        best = self.step
        return 0 < self._patience <= sum(step > (best or 0) for step in self._evaluations.by_step)

    def save(self) -> None:
        """Writes the weights of the model, which are the best now; call `forget_others` once the state is saved."""
        save_checkpoint(self._model, self._prefix(self.step))

    def forget_others(self) -> None:
        """Deletes weights that were the best once."""
        for path in self._directory.glob(f"{BEST_PREFIX}*"):
            if path.name.split(".")[0] != f"{BEST_PREFIX}{self.step}":
                path.unlink()

    def restore(self) -> None:
        """Sets the weights of the model to the best ones."""
        values = google.read_variables(self._prefix(self.step))
        for variable in self._model.weights:
            variable.assign(values[variable.path])

    def _prefix(self, step: int) -> str:
        return str(self._directory / f"{BEST_PREFIX}{step}")

    def _value(self, figures: Mapping[str, float]) -> float:
        if self._metric not in figures:
            names = ", ".join(name for name in figures if name not in ("kind", "step"))
            raise ValueError(f"--keep_best_metric={self._metric} is not among the figures of an evaluation: {names}.")
        return float(figures[self._metric])
