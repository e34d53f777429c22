"""Loss scaling for float16, whose smallest numbers are too large for many gradients.

Keras' own scaler asks only the first replica whether its gradients are finite, before they are summed; with several
replicas it lets the infinities of the others into the weights.
"""

import tensorflow as tf


class DynamicLossScale:
    """A factor for the loss: halved when gradients overflow, doubled when they have not for long.

    Args:
        initial: the first factor.
        growth_steps: good steps before it is doubled.
    """

    def __init__(self, initial: float = 2.0**15, growth_steps: int = 2000):
        self._growth_steps = growth_steps
        # Every replica computes the same value, so whose is kept does not matter.
        same = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self._factor = tf.Variable(initial, dtype=tf.float32, name="loss_scale/factor", **same)
        self._good_steps = tf.Variable(0, dtype=tf.int32, name="loss_scale/good_steps", **same)

    def named_state(self) -> dict[str, tf.Variable]:
        return {"loss_scale/factor": self._factor, "loss_scale/good_steps": self._good_steps}

    def scale(self, loss):
        return loss * self._factor

    def unscale(self, gradients):
        """What is infinite stays so, and the optimizer leaves such a step out."""
        return [gradient / self._factor for gradient in gradients]

    def can_fall(self):
        """Whether there is a lower factor to try, bool []."""
        return self._factor > 1.0

    def update(self, gradients, is_counted) -> None:
        """Counts a step. In a replica, with its own gradients: it asks the others about theirs.

        Args:
            gradients: unscaled.
            is_counted: whether it is the factor that decides if they are finite, bool [], the same in all replicas.
        """
        overflows = [tf.reduce_any(~tf.math.is_finite(gradient)) for gradient in gradients]
        count = tf.cast(tf.reduce_any(tf.stack(overflows)), tf.float32)
        overflowed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, count) > 0.0
        grows = self._good_steps + 1 >= self._growth_steps
        factor = tf.where(overflowed, self._factor / 2.0, tf.where(grows, self._factor * 2.0, self._factor))
        good_steps = tf.where(overflowed | grows, 0, self._good_steps + 1)
        self._factor.assign(tf.where(is_counted, tf.maximum(factor, 1.0), self._factor))
        self._good_steps.assign(tf.where(is_counted, good_steps, self._good_steps))
