"""The functions between the matrix products, with their gradients written by hand.

A matrix product runs at the speed of the processor, all the rest at the speed of memory. What automatic gradients
make of a gelu goes over the widest activations of the network more often than it has to, and keeps more of them.
"""

import math

import tensorflow as tf

_GELU_SCALE = 2.0 * math.sqrt(2.0 / math.pi)


@tf.custom_gradient
def tanh_gelu(x):
    """Google's gelu, x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), by way of 1 + tanh(z) = 2 sigmoid(2z)."""
    gate = tf.sigmoid(_GELU_SCALE * (x + 0.044715 * x * x * x))
    y = x * gate

    def gradient(dy):
        slope = tf.square(x) * (3.0 * 0.044715 * _GELU_SCALE) + _GELU_SCALE
        return dy * (gate + (y - y * gate) * slope)  # the slope of a sigmoid is gate * (1 - gate), and x * gate is y

    return y, gradient


@tf.custom_gradient
def erf_gelu(x):
    """The exact gelu: x times the normal distribution function, by way of the error function."""
    gate = tf.math.erf(x * math.sqrt(0.5)) * 0.5 + 0.5

    def gradient(dy):
        return dy * (gate + x * tf.exp(tf.square(x) * -0.5) * (1.0 / math.sqrt(2.0 * math.pi)))

    return x * gate, gradient


def dropout(x, rate: float, seed):
    """Zeroes elements of `x` with probability `rate` and scales up the rest; `seed=None` leaves `x` as it is.

    The mask depends on nothing but `seed` (int32 [2]) and the shape. A layer whose activations are recomputed in the
    backward pass so meets the same mask again, and a resumed run the masks of the one it continues. An element costs
    16 random bits, so the rate is kept to 1/131072, in half precision, too.
    """
    if seed is None or rate == 0.0:
        return x
    size = tf.size(x)
    pairs = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.int32)
    bits = tf.reshape(tf.bitcast(pairs, tf.uint16), [-1])[:size]
    is_kept = tf.reshape(bits, tf.shape(x)) >= tf.constant(round(rate * 65536), tf.uint16)
    return x * (tf.cast(is_kept, x.dtype) * (1.0 / (1.0 - rate)))
