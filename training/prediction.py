"""What a model says of each record of a set, on all devices of a strategy."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from training.graphs import gradients_not_kept
from training.step import distributed
from training.workers import lost_worker_means_run_again

# Stands for logits of positions that no batch had.
MISSING = -10000.0


class Predictions:
    """Runs a model over numbered records; compiled once, run as often as wanted.

    Args:
        strategy: under whose scope the model was made.
        model: called with a batch.
        batches_of_worker: `(worker, num_workers)` -> that worker's share of all batches; a batch tells in
            `record_numbers`, int32 [B], which records it holds, with -1 for rows that only fill it up.
        num_steps: how many batches there are.
        num_records: how many records.
        outputs: what to keep of what the model gives, a tensor [B, …]; all of it if not set.
        sequence_length: set where `outputs` gives something for each piece, [B, T, …]. Batches may be shorter; what is
            beyond their end is then `MISSING`, lower than whatever a model says.
        jit_compile: compile the network with XLA.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        batches_of_worker: Callable[[int, int], tf.data.Dataset],
        num_steps: int,
        num_records: int,
        outputs: Callable | None = None,
        sequence_length: int | None = None,
        jit_compile: bool = False,
    ):
        self._strategy = strategy
        self._batches_of_worker = batches_of_worker
        self._num_steps = num_steps
        self._num_records = num_records
        self._sequence_length = sequence_length

        def predict(batch):
            with gradients_not_kept():
                given = model(batch, training=False)
            return tf.cast(outputs(given) if outputs else given, tf.float32)

        self._predict = tf.function(predict, jit_compile=jit_compile or None, autograph=False)

    def __call__(self, description: str | None = None) -> np.ndarray:
        """What the model says, float [number of records, …], with a bar if it has a `description`."""
        iterator = distributed(self._strategy, self._batches_of_worker)
        results: np.ndarray | None = None
        with lost_worker_means_run_again(self._strategy):
            for _ in tqdm(range(self._num_steps), desc=description, unit=" batches", disable=description is None):
                numbers, outputs = (array.numpy() for array in self._next(iterator))
                if results is None:
                    results = self._empty(outputs.shape)
                if self._sequence_length is None:
                    results[numbers[numbers >= 0]] = outputs[numbers >= 0]
                else:
                    results[numbers[numbers >= 0], : outputs.shape[1]] = outputs[numbers >= 0]
        return results

    def _empty(self, shape) -> np.ndarray:
        if self._sequence_length is None:
            return np.zeros([self._num_records, *shape[1:]], np.float32)
        return np.full([self._num_records, self._sequence_length, *shape[2:]], MISSING, np.float32)

    @tf.function(reduce_retracing=True, autograph=False)
    def _next(self, iterator):
        def of_replica(batch):
            return batch["record_numbers"], self._predict(batch)

        numbers, outputs = self._strategy.run(of_replica, args=(next(iterator),))
        return self._strategy.gather(numbers, axis=0), self._strategy.gather(outputs, axis=0)
