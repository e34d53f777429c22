"""One step of training: gradients of the whole batch, whoever holds which part of it.

A batch may be spread over replicas, and each replica may go through its share in several parts. Losses are sums divided
by counts (of masked words, of sentences). The counts of the whole batch are added up first, so that every part is
divided by the same number and the gradient is that of the whole batch, however uneven the parts are. Only with
`clip_each_replica` each replica takes the mean over its own share, as the original did on TPUs.
"""

import contextlib
import functools
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from modeling.functions import compiled_by_xla
from training.bad_steps import BadSteps
from training.graphs import gradients_not_kept, summed_over_steps
from training.loss_scale import DynamicLossScale
from training.optimizer import in_all_replicas
from training.strategy import is_one_cpu

# Of a model whose steps are long enough to earn back that something is compiled for each length of its batches: about a
# second, for which MiniLM (22 M) takes a dozen steps.
_MANY_WEIGHTS = 20_000_000


class Task(Protocol):
    """What a step has to know of a task."""

    measures: tuple[str, ...]  # the keys of `counts` and `sums` together

    def counts(self, batch) -> dict[str, tf.Tensor]:
        """What sums will be divided by, from the batch alone."""

    def sums(self, outputs, batch) -> dict[str, tf.Tensor]:
        """Sums over a batch: of losses and of whatever is to be shown."""

    def loss(self, sums, counts) -> tf.Tensor:
        """The loss, linear in the sums."""

    def figures(self, totals: dict[str, float]) -> dict[str, float]:
        """Means to show, from sums and counts of any number of batches."""


class TrainStep:
    """Runs steps on the devices of a strategy.

    Args:
        strategy: where.
        model: a Keras model, called with the batch, `training` and `dropout_seed`.
        task: its loss.
        optimizer: an `AdamWeightDecay` or a `Lamb`, built.
        seed: of dropout. What a step draws depends on this, its number, the replica and the part, and nothing else.
        parts: in how many parts a replica goes through its share of a batch; each needs a part of the memory.
        loss_scale: for float16.
        jit_compile: compile with XLA. With one replica the step is compiled as a whole, with several all but the sum
            over replicas and the update. TPUs compile in any case.
        bad_steps: hears of steps that are not finite, if the optimizer leaves them out.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        task: Task,
        optimizer,
        seed: int,
        parts: int = 1,
        loss_scale: DynamicLossScale | None = None,
        jit_compile: bool = False,
        bad_steps: BadSteps | None = None,
    ):
        self._strategy = strategy
        self._model = model
        self._task = task
        self._optimizer = optimizer
        self._seed = seed
        self._parts = parts
        self._loss_scale = loss_scale
        self._elementwise = contextlib.nullcontext
        if is_one_cpu(strategy) and not jit_compile:
            of_many_lengths = model.count_params() >= _MANY_WEIGHTS
            self._elementwise = functools.partial(compiled_by_xla, of_many_lengths)
        with strategy.scope():
            self._bad_steps = bad_steps or BadSteps()
        if optimizer.skip_nonfinite:
            optimizer.decide = lambda is_finite: self._bad_steps.is_taken(is_finite, optimizer.iterations + 1)
        self._replica_step = self.replica_step
        if jit_compile and strategy.num_replicas_in_sync == 1:
            self._replica_step = tf.function(self.replica_step, jit_compile=True, autograph=False)
        elif jit_compile:
            self._gradients = tf.function(self._gradients, jit_compile=True, autograph=False)

    @tf.function(reduce_retracing=True, autograph=False)
    def run(self, iterator, num_steps) -> dict[str, tf.Tensor]:
        """Takes `num_steps` batches from `iterator` without coming back to Python; gives sums over all of them.

        Of steps that were left out, those with a loss that is not finite do not count, nor does any after the last.
        """

        def step() -> dict[str, tf.Tensor]:
            measured = self._strategy.run(self._replica_step, args=(next(iterator),))
            measured = summed(self._strategy, self._task, measured)
            measured |= {"loss": self._task.loss(measured, measured), "steps": tf.constant(1.0)}
            if not self._optimizer.skip_nonfinite:
                return measured
            is_counted = tf.math.is_finite(measured["loss"]) & self._bad_steps.is_going()
            return {name: tf.where(is_counted, value, 0.0) for name, value in measured.items()}

        return summed_over_steps(step, num_steps, (*self._task.measures, "loss", "steps"))

    def replica_step(self, batch) -> dict[str, tf.Tensor]:
        """The step of one replica, with its share of a batch; gives its own counts and sums."""
        with gradients_not_kept():
            return self._update(batch)

    def _update(self, batch) -> dict[str, tf.Tensor]:
        context = tf.distribute.get_replica_context()
        counts = self._task.counts(batch)
        all_counts = counts
        if not self._optimizer.clip_each_replica:
            all_counts = context.all_reduce(tf.distribute.ReduceOp.SUM, counts)
        seed = tf.random.experimental.stateless_fold_in(
            [self._seed, context.replica_id_in_sync_group], tf.cast(self._optimizer.iterations, tf.int32)
        )
        gradients, sums = self._gradients(batch, all_counts, seed)
        if self._loss_scale:
            gradients = self._loss_scale.unscale(gradients)
            # What is wrong with the loss itself no factor will mend.
            is_finite_loss = in_all_replicas(tf.math.is_finite(self._task.loss(sums, all_counts)))
            self._bad_steps.excuse(is_finite_loss & self._loss_scale.can_fall())
            self._loss_scale.update(gradients, is_finite_loss & self._bad_steps.is_going())
        pairs = zip(gradients, self._model.trainable_variables, self._is_reached, strict=True)
        gradients, variables = zip(*((g, v) for g, v, is_reached in pairs if is_reached), strict=True)
        with self._elementwise():
            self._optimizer.apply(list(gradients), list(variables))
        return counts | sums

    def _gradients(self, batch, all_counts, seed):
        """Gradients and sums of a share, part by part."""
        if self._parts == 1:
            return self._gradients_of_part(batch, all_counts, seed)
        split = _split(batch, self._parts)
        seeds = tf.random.experimental.stateless_split(seed, self._parts)
        gradients = [tf.zeros_like(variable) for variable in self._model.trainable_variables]
        sums = {name: tf.constant(0.0) for name in self._task.measures if name not in all_counts}

        def add(part, gradients, sums):
            of_part = {name: tensor[part] for name, tensor in split.items()}
            more_gradients, more_sums = self._gradients_of_part(of_part, all_counts, seeds[part])
            gradients = [total + more for total, more in zip(gradients, more_gradients, strict=True)]
            return part + 1, gradients, {name: total + more_sums[name] for name, total in sums.items()}

        # One after the other: otherwise all parts run at once, and take the memory of the whole.
        start = 0, gradients, sums
        return tf.while_loop(lambda part, *_: part < self._parts, add, start, parallel_iterations=1)[1:]

    def _gradients_of_part(self, batch, all_counts, seed):
        variables = self._model.trainable_variables
        with self._elementwise():
            with tf.GradientTape() as tape:
                sums = self._task.sums(self._model(batch, training=True, dropout_seed=seed), batch)
                loss = self._task.loss(sums, all_counts)
                if self._loss_scale:
                    loss = self._loss_scale.scale(loss)
            # The gradients of a loss that is not finite may well be: with this factor they are not.
            one = tf.where(tf.math.is_finite(loss), tf.ones_like(loss), np.nan)
            gradients = tape.gradient(loss, variables, output_gradients=one)
        # Known as soon as this is traced. Variables outside the loss are left alone, weight decay included.
        self._is_reached = [gradient is not None for gradient in gradients]
        return [
            tf.zeros_like(v) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, v in zip(gradients, variables, strict=True)
        ], sums


def summed(strategy: tf.distribute.Strategy, task: Task, measured) -> dict[str, tf.Tensor]:
    """Counts and sums of all replicas together; one by one in the task's order, which all workers have to keep."""
    return {name: strategy.reduce(tf.distribute.ReduceOp.SUM, measured[name], axis=None) for name in task.measures}


def distributed(strategy: tf.distribute.Strategy, batches_of_worker):
    """An iterator over batches for the replicas of a strategy.

    Args:
        batches_of_worker: `(worker, num_workers) -> tf.data.Dataset` of that worker's share of each batch, all of one
            size; replicas of one machine then share it evenly.
    """

    def for_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = batches_of_worker(context.input_pipeline_id, context.num_input_pipelines)
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        if replicas == 1:
            return batches
        return batches.map(tf.autograph.experimental.do_not_convert(lambda batch: _split(batch, replicas))).unbatch()

    if strategy.num_replicas_in_sync == 1:  # what a distributed iterator does to memory: see data/records.py
        return iter(batches_of_worker(0, 1))
    return iter(strategy.distribute_datasets_from_function(for_worker))


def _split(batch, shares: int):
    """Features [B, …] -> [shares, B / shares, …]. Rows and lengths may be known only when it runs."""
    split = {}
    for name, tensor in batch.items():
        rows = None if tensor.shape[0] is None else tensor.shape[0] // shares
        lengths = tf.unstack(tf.shape(tensor))[1:]
        split[name] = tf.reshape(tensor, tf.stack([shares, -1, *lengths]))
        split[name].set_shape([shares, rows, *tensor.shape[1:]])
    return split
