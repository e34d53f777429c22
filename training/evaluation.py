"""Figures of a model on data that is gone through once."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from modeling.google import CHECKPOINT_NAME
from training.state import TrainState, write_text
from training.step import Task, distributed


class Evaluator:
    """Measures a model; compiled once, run as often as wanted.

    Args:
        strategy: under whose scope the model was made.
        model, task: see `TrainStep`.
        batches_of_worker: `(worker, num_workers)` -> that worker's share of all batches.
        num_steps: how many batches to go through.
        jit_compile: compile the network with XLA.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        task: Task,
        batches_of_worker,
        num_steps: int,
        jit_compile: bool = False,
    ):
        self._strategy = strategy
        self._model = model
        self._task = task
        self._batches_of_worker = batches_of_worker
        self._num_steps = num_steps
        self._replica_step = tf.function(self._measure, jit_compile=True) if jit_compile else self._measure

    def __call__(self) -> dict[str, float]:
        """The figures of the task, and `loss`: the mean of the losses of all batches, as in the original."""
        iterator = distributed(self._strategy, self._batches_of_worker)
        totals = {name: float(total) for name, total in self._run(iterator, tf.constant(self._num_steps)).items()}
        return {"loss": totals["loss"] / self._num_steps} | self._task.figures(totals)

    @tf.function(reduce_retracing=True)
    def _run(self, iterator, num_steps):
        totals = dict.fromkeys((*self._task.measures, "loss"), tf.constant(0.0))
        for _ in tf.range(num_steps):
            measured = self._strategy.run(self._replica_step, args=(next(iterator),))
            measured = {
                name: self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
                for name, value in measured.items()
            }
            measured["loss"] = self._task.loss(measured, measured)
            totals = {name: totals[name] + measured[name] for name in totals}
        return totals

    def _measure(self, batch):
        return self._task.counts(batch) | self._task.sums(self._model(batch, training=False), batch)


def perplexity(loss: float) -> float:
    """How many equally likely words a mean loss in nats stands for."""
    return math.exp(min(loss, 700.0))


def latest_weights(output_dir: str | Path) -> tuple[str, int] | None:
    """The newest checkpoint of a run that is done or under way, and its step; None where there is none."""
    state = TrainState(output_dir, {})
    if step := state.restore():
        return state.prefix(step), step
    prefix = Path(output_dir) / CHECKPOINT_NAME
    return (str(prefix), 0) if prefix.with_name(f"{CHECKPOINT_NAME}.index").is_file() else None


def write_results(output_dir: str | Path, results: Mapping[str, float], name: str = "eval_results.txt") -> None:
    """Writes and logs results as the original did: `key = value`, sorted."""
    lines = [f"{key} = {results[key]}" for key in sorted(results)]
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    write_text(Path(output_dir) / name, "".join(line + "\n" for line in lines))
    log = logging.getLogger(__name__)
    log.info("***** Eval results *****")
    for line in lines:
        log.info("  %s", line)
