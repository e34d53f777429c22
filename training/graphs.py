"""Functions that are traced: how they repeat a step, and what TensorFlow keeps of them after all others have let go.

None of ours is converted by AutoGraph, which takes longer than all the rest of tracing: loops are written as such.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf
from tensorflow.python.framework import ops


def summed_over_steps(
    step: Callable[[], dict[str, tf.Tensor]], num_steps: tf.Tensor, names: Iterable[str]
) -> dict[str, tf.Tensor]:
    """Runs `step` some times, on the device; the sums of what it measures, by name."""

    def run(number, totals):
        measured = step()
        return number + 1, {name: total + measured[name] for name, total in totals.items()}

    start = 0, dict.fromkeys(names, tf.constant(0.0))
    return tf.while_loop(lambda number, _: number < num_steps, run, start)[1]


@contextlib.contextmanager
def gradients_not_kept() -> Iterator[None]:
    """Within it, a function is traced whose gradients are taken within it, too, or never.

    In a graph, TensorFlow files the gradient of each `tf.custom_gradient` under a name, for whoever asks for gradients
    later. What is filed stays as long as the process, and the graph with it: 20 MB and more for each training step or
    evaluation that was ever traced, as where one process trains several models.
    """
    filed = ops.gradient_registry._registry
    before = set(filed)
    try:
        yield
    finally:
        for name in filed.keys() - before:
            filed.pop(name, None)
