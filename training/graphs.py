"""What TensorFlow keeps of a traced function after everybody else has let go of it."""

import contextlib
from collections.abc import Iterator

from tensorflow.python.framework import ops


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
