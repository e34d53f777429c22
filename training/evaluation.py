"""Figures of a model on data that is gone through once."""

import logging
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from modeling.checkpoint import Checkpoint, load_checkpoint
from modeling.google import CHECKPOINT_NAME, read_variables
from training.graphs import gradients_not_kept, summed_over_steps
from training.reports import store_once
from training.state import RunRecord, TrainState, write_text
from training.step import Task, distributed, summed
from training.workers import lost_worker_means_run_again


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
        self._replica_step = self._measure
        if jit_compile:
            self._replica_step = tf.function(self._measure, jit_compile=True, autograph=False)

    def __call__(self) -> dict[str, float]:
        """The figures of the task, and `loss`: the mean of the losses of all batches, as in the original."""
        iterator = distributed(self._strategy, self._batches_of_worker)
        with lost_worker_means_run_again(self._strategy):
            totals = self._run(iterator, tf.constant(self._num_steps))
            totals = {name: float(total) for name, total in totals.items()}
        return {"loss": totals["loss"] / max(totals["batches"], 1.0)} | self._task.figures(totals)

    @tf.function(reduce_retracing=True, autograph=False)
    def _run(self, iterator, num_steps):
        def step() -> dict[str, tf.Tensor]:
            measured = self._strategy.run(self._replica_step, args=(next(iterator),))
            measured = summed(self._strategy, self._task, measured)
            # A batch that consists of filling alone, where records could not be read, counts for nothing.
            is_real = tf.reduce_max([measured[name] for name in self._task.measures if name.endswith("_count")]) > 0.0
            measured["loss"] = tf.where(is_real, self._task.loss(measured, measured), 0.0)
            return measured | {"batches": tf.cast(is_real, tf.float32)}

        return summed_over_steps(step, num_steps, (*self._task.measures, "loss", "batches"))

    def _measure(self, batch):
        with gradients_not_kept():
            return self._task.counts(batch) | self._task.sums(self._model(batch, training=False), batch)


def load_latest(model: keras.Model, output_dir: str | Path) -> int | None:
    """Sets the weights of the run in a directory, done or under way, and says its step; None where there is no run.

    Of a run that is done these are the weights it ended with, which need not be those of its last step.
    """
    prefix = Path(output_dir) / CHECKPOINT_NAME
    if prefix.with_name(f"{CHECKPOINT_NAME}.index").is_file():
        values = read_variables(prefix)
        step = RunRecord(output_dir).final_step()
    else:
        step, values = TrainState(output_dir, {}).newest()
        if step is None:
            return None
    report = load_checkpoint(model, Checkpoint(str(output_dir), "google", values, config=None))
    if report.missing:
        raise ValueError(f"{output_dir} holds another model: it lacks {', '.join(report.missing)}.")
    logging.getLogger(__name__).info("Weights of step %d in %s.", step, output_dir)
    return step


def write_results(output_dir: str | Path, step: int, figures: Mapping[str, float], name: str = "eval_results") -> None:
    """Writes eval_results.txt as the original did, sorted `key = value`, and adds the figures to the reports.

    Another `name` is for another set; in metrics.jsonl and TensorBoard it has a kind of its own.
    """
    results = dict(figures) | {"global_step": step}
    lines = [f"{key} = {results[key]}" for key in sorted(results)]
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    write_text(Path(output_dir) / f"{name}.txt", "".join(line + "\n" for line in lines))
    store_once(output_dir, step, figures, kind=name.replace("_results", ""))
    log = logging.getLogger(__name__)
    log.info("***** %s *****", name.replace("_", " ").capitalize())
    for line in lines:
        log.info("  %s", line)
