"""The original's optimizer, its schedule, and LAMB for large batches.

Both quirks of the original that later versions "fixed" are kept, each with a switch.
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from modeling.functions import is_compiled_by_xla

# Variables that are not pulled towards zero, by their path: the original's list.
NO_DECAY = ("LayerNorm", "layer_norm", "bias")


class StepSize(NamedTuple):
    """How far a step goes, the same for all variables: numbers, or tensors [] where a step may be left out.

    One that is left out has the rate 0, keeps all of the moments and takes nothing of the gradient.
    """

    gradient_scale: Any  # what clipping multiplies gradients with; 0 even where they are infinite
    rate: Any
    beta_1: Any  # how much is kept of the moments
    beta_2: Any
    taken_1: Any  # how much is taken of the gradient, and of its square: 1 - beta, before it is rounded
    taken_2: Any


@keras.saving.register_keras_serializable(package="bert")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam with weight decay beside the gradient, as BERT was trained.

    One step, for each variable w with the gradient g:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g^2
        w = w - learning_rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)

    Args:
        learning_rate: a number or a schedule, see `WarmupLinearDecay`.
        weight_decay_rate: how strongly weights are pulled towards zero.
        no_decay: patterns; a variable whose path matches one of them is not pulled.
        bias_correction: divide m and v by what their zero start makes them too small, as Adam was published. The
            original leaves it out, so its first steps are up to three times as long; small data sets then fail to
            train from some seeds.
        global_clipnorm: all gradients are scaled down together to at most this norm. Gradients of embeddings are
            made dense first, so that a word that occurs twice counts as one row, as on the original's TPUs.
        clip_each_replica: clip in every replica before gradients are summed, as the original did on TPUs. Otherwise the
            sum is clipped, and the result does not depend on the number of replicas.
        layerwise_lr_decay: the learning rate of each block of the encoder is that of the block above it times this;
            the embeddings are below the lowest. The pooler and the head have the full rate.
        skip_nonfinite: leave everything as it is where a gradient is infinite or NaN, as happens in float16. It is the
            global norm that tells, so this needs `global_clipnorm`. Whoever wants to know of it, or to leave out more,
            sets `decide`: from whether the norm is finite to whether the step is taken, both bool [].
    """

    slot_names = ("adam_m", "adam_v")

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        no_decay: tuple[str, ...] = NO_DECAY,
        bias_correction: bool = False,
        global_clipnorm: float | None = 1.0,
        clip_each_replica: bool = False,
        layerwise_lr_decay: float = 1.0,
        skip_nonfinite: bool = False,
        name: str = "adam_weight_decay",
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, global_clipnorm=global_clipnorm, name=name, **kwargs)
        if skip_nonfinite and global_clipnorm is None:
            raise ValueError("skip_nonfinite needs a global_clipnorm: it is the norm that tells.")
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.no_decay = tuple(no_decay)
        self.bias_correction = bias_correction
        self.clip_each_replica = clip_each_replica
        self.layerwise_lr_decay = layerwise_lr_decay
        self.skip_nonfinite = skip_nonfinite
        self.decide = lambda is_finite: is_finite

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.adam_m, self.adam_v = self.add_optimizer_variables(variables, list(self.slot_names))
        self.variable_paths = [variable.path for variable in variables]
        self.decays = [
            not any(re.search(pattern, variable.path) for pattern in self.no_decay) for variable in variables
        ]
        distances = _distances_from_top(self.variable_paths)
        self.rate_scales = [self.layerwise_lr_decay**distance for distance in distances]

    def named_state(self) -> dict[str, keras.Variable]:
        """All that a restart needs, under the names of the original's training checkpoints."""
        state = {"global_step": self.iterations}
        for slot, variables in zip(self.slot_names, (self.adam_m, self.adam_v), strict=True):
            state |= {f"{path}/{slot}": v for path, v in zip(self.variable_paths, variables, strict=True)}
        return state

    def update_step(self, gradient, variable, learning_rate: StepSize):
        index = self._get_variable_index(variable)
        size = self._size_of(index, learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        powers = self._powers(variable.dtype)
        decay = self.weight_decay_rate if self.decays[index] else 0.0
        handles = variable.handle, self.adam_m[index].handle, self.adam_v[index].handle
        if is_compiled_by_xla():
            update = _compiled_adam(tuple(variable.shape), variable.dtype, self.epsilon, decay)
            update(*handles, gradient, size, *powers)
            return
        if decay:
            self.assign(variable, variable * (1.0 - size.rate * decay))
        gradient = tf.math.multiply_no_nan(gradient, size.gradient_scale)
        _adam_without_decay(*handles, gradient, size, *powers, self.epsilon, self.beta_2)

    def _size_of(self, index: int, size: StepSize, dtype) -> StepSize:
        """How far the step goes for one variable."""
        size = StepSize(*(tf.cast(number, dtype) for number in size))
        return size._replace(rate=size.rate * self.rate_scales[index])

    def _powers(self, dtype) -> tuple[tf.Tensor, tf.Tensor]:
        """What moments lack because they started from zero; nothing where that is not corrected."""
        if not self.bias_correction:
            return tf.zeros([], dtype), tf.zeros([], dtype)
        step = tf.cast(self.iterations + 1, dtype)
        return tf.pow(tf.cast(self.beta_1, dtype), step), tf.pow(tf.cast(self.beta_2, dtype), step)

    def apply(self, grads, trainable_variables=None):
        super().apply([_dense(gradient) for gradient in grads], trainable_variables)

    # Keras clips, then sums over replicas, and takes every step. Here the sum is clipped, unless told otherwise, and
    # the norm that this takes says whether to take the step: finding that out costs nothing.

    def _clip_gradients(self, grads):
        return grads

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        variables = [v.value if isinstance(v, keras.Variable) else v for v in trainable_variables]
        if self.clip_each_replica:
            scale, is_finite = self._clipping(grads)
            grads = [tf.math.multiply_no_nan(gradient, tf.cast(scale, gradient.dtype)) for gradient in grads]
            scale, is_finite = 1.0, in_all_replicas(is_finite)
        grads = [gradient for gradient, _ in self._all_reduce_sum_gradients(list(zip(grads, variables, strict=True)))]
        if not self.clip_each_replica:
            scale, is_finite = self._clipping(grads)
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._distributed_tf_update_step,
            self._distribution_strategy,
            list(zip(grads, variables, strict=True)),
            self._step_size(scale, learning_rate, is_finite, variables[0].dtype),
        )

    def _clipping(self, gradients) -> tuple[tf.Tensor | float, tf.Tensor]:
        """What gradients have to be multiplied with, and whether they are finite, bool []. It is done where they are
        used: that goes over them once less."""
        if not self.global_clipnorm:
            return 1.0, tf.constant(True)
        norm = tf.linalg.global_norm(gradients)
        is_finite = tf.math.is_finite(norm)
        scale = self.global_clipnorm * tf.minimum(1.0 / norm, 1.0 / self.global_clipnorm)
        return tf.where(is_finite, scale, 0.0 if self.skip_nonfinite else math.nan), is_finite

    def _step_size(self, scale, learning_rate, is_finite, dtype) -> StepSize:
        whole = StepSize(scale, learning_rate, self.beta_1, self.beta_2, 1.0 - self.beta_1, 1.0 - self.beta_2)
        if not self.skip_nonfinite:
            return whole
        is_taken = self.decide(is_finite)
        nothing = StepSize(0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
        pairs = zip(whole, nothing, strict=True)
        return StepSize(*(tf.where(is_taken, tf.cast(a, dtype), tf.cast(b, dtype)) for a, b in pairs))

    def get_config(self):
        return super().get_config() | {
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "no_decay": self.no_decay,
            "bias_correction": self.bias_correction,
            "clip_each_replica": self.clip_each_replica,
            "layerwise_lr_decay": self.layerwise_lr_decay,
            "skip_nonfinite": self.skip_nonfinite,
        }


@keras.saving.register_keras_serializable(package="bert")
class Lamb(AdamWeightDecay):
    """LAMB: the step of each weight matrix is made as long as the matrix times the learning rate.

    It keeps large batches (thousands of sequences) stable. Moments are corrected for their zero start, as published;
    biases and norms, which have no weight decay, take the step of Adam.
    """

    slot_names = ("lamb_m", "lamb_v")

    def __init__(self, *args, bias_correction: bool = True, name: str = "lamb", **kwargs):
        super().__init__(*args, bias_correction=bias_correction, name=name, **kwargs)

    def update_step(self, gradient, variable, learning_rate: StepSize):
        index = self._get_variable_index(variable)
        adam_m, adam_v = self.adam_m[index], self.adam_v[index]
        size = self._size_of(index, learning_rate, variable.dtype)
        gradient = tf.math.multiply_no_nan(tf.cast(gradient, variable.dtype), size.gradient_scale)
        m = size.beta_1 * adam_m + size.taken_1 * gradient
        v = size.beta_2 * adam_v + size.taken_2 * tf.square(gradient)
        self.assign(adam_m, m)
        self.assign(adam_v, v)
        power_1, power_2 = self._powers(variable.dtype)
        update = m / (1.0 - power_1) / (tf.sqrt(v / (1.0 - power_2)) + self.epsilon)
        if self.decays[index]:
            update += self.weight_decay_rate * variable
            update *= _trust(variable, update)
        self.assign_sub(variable, size.rate * update)


OPTIMIZERS = {"adamw": AdamWeightDecay, "lamb": Lamb}


@keras.saving.register_keras_serializable(package="bert")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Up in a line from 0, then down in a line to 0 at the last step.

    Args:
        learning_rate: the peak that the warm-up aims at.
        num_train_steps: where the rate reaches 0.
        num_warmup_steps: how long it rises; the first step, number 0, moves nothing.
        continuous: descend from the peak. The original counts the descent from step 0, so that the rate drops
            where the warm-up ends, to 0.9 of the peak after a tenth of the steps.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0, continuous: bool = False):
        if num_train_steps < 1 or num_warmup_steps < 0:
            raise ValueError(
                "There must be at least one training step and no fewer than 0 warm-up steps, but num_train_steps is "
                f"{num_train_steps} and num_warmup_steps is {num_warmup_steps}."
            )
        self.peak = learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.continuous = continuous

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        warmup, total = float(self.num_warmup_steps), float(self.num_train_steps)
        left = tf.maximum(total - step, 0.0)
        decayed = self.peak * left / (max(total - warmup, 1.0) if self.continuous else total)
        warming = self.peak * step / max(warmup, 1.0)
        return tf.where(step < warmup, warming, decayed)

    def get_config(self):
        return {
            "learning_rate": self.peak,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
            "continuous": self.continuous,
        }


@functools.cache
def _compiled_adam(shape: tuple[int, ...], dtype, epsilon: float, decay: float):
    """The step of a variable of this shape, with clipping and decay, compiled by XLA: in place, once over memory.

    It takes variables by their handles, so that all of one shape share what is compiled.
    """

    def update(variable, adam_m, adam_v, gradient, size: StepSize, power_1, power_2):
        w, m, v = (
            tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype), shape)
            for handle in (variable, adam_m, adam_v)
        )
        gradient = tf.math.multiply_no_nan(gradient, size.gradient_scale)
        m = size.beta_1 * m + size.taken_1 * gradient
        v = size.beta_2 * v + size.taken_2 * tf.square(gradient)
        direction = m / (1.0 - power_1) / (tf.sqrt(v / (1.0 - power_2)) + epsilon)
        tf.raw_ops.AssignVariableOp(resource=variable, value=w - size.rate * (direction + decay * w))
        tf.raw_ops.AssignVariableOp(resource=adam_m, value=m)
        tf.raw_ops.AssignVariableOp(resource=adam_v, value=v)

    return tf.function(update, jit_compile=True, autograph=False)


def _adam_without_decay(variable, adam_m, adam_v, gradient, size: StepSize, power_1, power_2, epsilon, beta_2) -> None:
    """The step where XLA does not compile, by an op that goes over gradient, moments and weights once. As separate
    operations they are read a dozen times."""
    # The op weighs g^2 with what beta_2 in float32 leaves to 1, which is 0.00099999 and not 0.001. This scales v as a
    # whole, by so little, and is undone where v is used.
    rounded = gradient.dtype.as_numpy_dtype(beta_2)
    lost = float((1.0 - rounded) / (1.0 - beta_2)) ** 0.5
    tf.raw_ops.ResourceApplyAdam(
        var=variable,
        m=adam_m,
        v=adam_v,
        beta1_power=power_1,
        beta2_power=power_2,
        lr=size.rate * lost,
        beta1=size.beta_1,
        beta2=size.beta_2,
        # The op corrects v outside of the sum with epsilon. This is what makes it the published formula again.
        epsilon=epsilon * lost * tf.sqrt(1.0 - power_2),
        grad=gradient,
    )


def _distances_from_top(paths: Sequence[str]) -> list[int]:
    """How many blocks each variable is below the head: 1 for the last block of the encoder, most for embeddings."""
    blocks = [re.search(r"bert/encoder/layer_(\d+)/", path) for path in paths]
    num_blocks = 1 + max((int(block[1]) for block in blocks if block), default=-1)
    return [
        num_blocks - int(block[1]) if block else num_blocks + 1 if path.startswith("bert/embeddings/") else 0
        for path, block in zip(paths, blocks, strict=True)
    ]


def _trust(variable, update):
    """How much longer a matrix is than its update; 1 where either is zero."""
    weight_norm, update_norm = tf.norm(variable), tf.norm(update)
    is_defined = (weight_norm > 0.0) & (update_norm > 0.0)
    return tf.where(is_defined, tf.math.divide_no_nan(weight_norm, update_norm), 1.0)


def in_all_replicas(condition):
    """Whether something, bool [], is so in each replica; asked in each of them."""
    failed = tf.cast(~condition, tf.float32)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, failed) == 0.0


def _dense(gradient):
    """Gathers give gradients row by row; Adam's averages move every row of the table at each step anyway."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
