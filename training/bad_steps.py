"""Steps whose loss or gradients are NaN or infinite: left out, counted, and kept for whoever wants to know why."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from training.state import write_bytes


class BadSteps:
    """Counts bad steps on the device, and ends the run there after one too many: from then on nothing changes.

    Python hears of it later, since it does not wait for every step. What it finds then is the state before the step.

    Args:
        limit: how many are left out before that.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        # How many there were, and the number of the last, from 1. Every replica computes the same.
        self._found = tf.Variable(
            [0, 0],
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="bad_steps",
        )
        self._is_excused = tf.constant(False)

    def named_state(self) -> dict[str, tf.Variable]:
        return {"bad_steps": self._found}

    def excuse(self, is_excused) -> None:
        """Within a step: an overflow now is no bad step, since another loss scale will mend it."""
        self._is_excused = is_excused

    def is_going(self):
        """Whether steps are still taken, bool []."""
        return self._found[0] <= self.limit

    def is_taken(self, is_finite, step):
        """Whether a step is taken, bool []; in a replica, with the same in all of them."""
        is_going = self.is_going()
        is_bad = is_going & ~is_finite & ~self._is_excused
        found = tf.stack([self._found[0] + 1, tf.cast(step, tf.int64)])
        self._found.assign(tf.where(is_bad, found, self._found))
        return is_finite & is_going

    def found(self) -> tuple[int, int]:
        """How many there were, and the number of the last; waits for the device."""
        count, last = self._found.numpy()
        return int(count), int(last)

    def forget_last(self) -> None:
        """As it was before the last one."""
        self._found.assign([self._found[0] - 1, 0])


def save_batch(
    output_dir: str | Path, step: int, batches_from: Callable[[int, int, int], tf.data.Dataset], num_workers: int
) -> Path:
    """Writes the batch of a step, counted from 1, that of all workers, to `bad_step-N.npz`; gives its path."""
    shares = [next(iter(batches_from(step - 1, worker, num_workers))) for worker in range(num_workers)]
    content = io.BytesIO()
    np.savez(content, **{name: np.concatenate([share[name] for share in shares]) for name in shares[0]})
    path = Path(output_dir) / f"bad_step-{step}.npz"
    write_bytes(path, content.getvalue())
    return path
