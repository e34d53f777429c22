"""Several processes that train together: what they agree on, and what becomes of them when one dies."""

import contextlib

import tensorflow as tf

from training.stopping import RunAgain


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def sum_over_replicas(strategy: tf.distribute.Strategy, value: float) -> float:
    """The sum of what all replicas were given. Waits for all workers, and so makes them wait for each other."""
    if not is_multi_worker(strategy):
        return value * strategy.num_replicas_in_sync
    return float(_sum(strategy, tf.constant(value, tf.float32)))


@tf.function(autograph=False)
def _sum(strategy, value):
    def of_replica(value):
        # A copy, since a tensor from outside has no device that the sum could go to.
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    return strategy.experimental_local_results(strategy.run(of_replica, args=(value,)))[0]


@contextlib.contextmanager
def lost_worker_means_run_again(strategy: tf.distribute.Strategy):
    """Turns what TensorFlow raises when another worker has died into the word for it."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if not is_multi_worker(strategy):
            raise
        raise RunAgain(
            "Another worker went away. Start all of them again with the same command: they continue from the last "
            "state that was saved."
        ) from error
