"""The best weights of a run so far, by a figure of its evaluations, and whether to go on looking for better ones.

What is known of earlier evaluations comes from metrics.jsonl, which a run that is continued cuts back to the step where
it goes on. A state of the run is saved with each new best, so a continued run finds the weights it needs.
"""

from collections.abc import Mapping
from pathlib import Path

import keras

from modeling import google
from modeling.checkpoint import save_checkpoint
from training.reports import read_metrics
from training.state import BEST_PREFIX


class BestWeights:
    """Keeps the weights of the best evaluation.

    Args:
        output_dir: the directory of the run; weights are in `train_state/` in it.
        model: whose weights.
        metric: the figure that decides. Of a loss the lowest is best, of anything else the highest; of equal ones the
            first.
        patience: after so many evaluations without a new best the run is over; 0 for never.
    """

    def __init__(self, output_dir: str | Path, model: keras.Model, metric: str, patience: int = 0):
        self._output_dir = Path(output_dir)
        self._directory = self._output_dir / "train_state"
        self._model = model
        self._metric = metric
        self._patience = patience
        self._history: list[tuple[int, float]] = []

    def load_history(self, last_step: int) -> None:
        """Reads what evaluations up to a step have found."""
        if (self._output_dir / "metrics.jsonl").exists():
            lines = read_metrics(self._output_dir, "eval")
            self._history = [(line["step"], self._value(line)) for line in lines if line["step"] <= last_step]

    def add(self, step: int, figures: Mapping[str, float]) -> bool:
        """Takes note of an evaluation; says whether it is the best so far."""
        self._history.append((step, self._value(figures)))
        return self.step == step

    @property
    def step(self) -> int | None:
        """The step of the best evaluation; None before the first."""
        if not self._history:
            return None
        sign = -1.0 if self._metric.endswith("loss") else 1.0
        return max(self._history, key=lambda entry: (sign * entry[1], -entry[0]))[0]

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        since = [step for step, _ in self._history if self.step is not None and step > self.step]
        return 0 < self._patience <= len(since)

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
