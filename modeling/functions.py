"""The functions between the matrix products, with their gradients written by hand.

A matrix product runs at the speed of the processor, all the rest at the speed of memory. What automatic gradients
make of a gelu goes over the widest activations of the network more often than it has to, and keeps more of them.
"""

import contextlib
import contextvars
import enum
import functools
import math

import tensorflow as tf

_GELU_SCALE = 2.0 * math.sqrt(2.0 / math.pi)


class _Compiling(enum.Enum):
    NOTHING, KNOWN_SHAPES, ALL = range(3)


_compiling = contextvars.ContextVar("compiling", default=_Compiling.NOTHING)


@contextlib.contextmanager
def compiled_by_xla(of_many_lengths: bool):
    """What is traced in here has the functions below compiled.

    XLA goes over memory once for each of them. For whole models it is slower on a CPU than TensorFlow, whose matrix
    products are better; so it gets what lies between the products.

    Args:
        of_many_lengths: also where shapes are not known before it runs. For each of them it is then compiled anew,
            which takes about a second: a model has to be large, and a run long, to earn that back.
    """
    token = _compiling.set(_Compiling.ALL if of_many_lengths else _Compiling.KNOWN_SHAPES)
    try:
        yield
    finally:
        _compiling.reset(token)


def is_compiled_by_xla() -> bool:
    """Whether this is traced inside of `compiled_by_xla`."""
    return _compiling.get() is not _Compiling.NOTHING


def _fused(function):
    """A function of tensors, compiled inside of `compiled_by_xla`.

    A gradient may compute again what its function has computed: XLA does so in passing, and TensorFlow sees that it has
    it already.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def run(*tensors):
        are_shapes_known = all(tensor is None or tensor.shape.is_fully_defined() for tensor in tensors)
        return compiled(*tensors) if _is_to_compile(are_shapes_known) else function(*tensors)

    return run


def _is_to_compile(are_shapes_known: bool) -> bool:
    compiling = _compiling.get()
    return compiling is _Compiling.ALL or (compiling is _Compiling.KNOWN_SHAPES and are_shapes_known)


# Rows from which oneDNN multiplies with a transposed matrix as fast as with another.
_MANY_ROWS = 2048


def widening_product(x, kernel):
    """The product of rows [R, H] and a wider matrix [H, I].

    The gradient of `x` multiplies with the matrix transposed. For less than `_MANY_ROWS` oneDNN takes a quarter longer
    for that than if somebody else has transposed it before.
    """
    rows = x.shape[0]
    if not is_compiled_by_xla() or (rows is not None and rows >= _MANY_ROWS):
        return tf.matmul(x, kernel)

    @tf.custom_gradient
    def product(x, kernel):
        def gradient(dy):
            # In three dimensions, or TensorFlow would see a transposed side of a product, and leave it to oneDNN.
            turned = tf.transpose(kernel[tf.newaxis], [0, 2, 1])[0]  # [I, H]
            return tf.matmul(dy, turned), tf.matmul(x, dy, transpose_a=True)

        return tf.matmul(x, kernel), gradient

    return product(x, kernel)


@tf.custom_gradient
def tanh_gelu(x):
    """Google's gelu, x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), by way of 1 + tanh(z) = 2 sigmoid(2z)."""
    return _tanh_gelu(x), lambda dy: _tanh_gelu_gradient(x, dy)


@_fused
def _tanh_gelu(x):
    return x * _tanh_gate(x)


@_fused
def _tanh_gelu_gradient(x, dy):
    gate = _tanh_gate(x)
    y = x * gate
    slope = tf.square(x) * (3.0 * 0.044715 * _GELU_SCALE) + _GELU_SCALE
    return dy * (gate + (y - y * gate) * slope)  # the slope of a sigmoid is gate * (1 - gate)


def _tanh_gate(x):
    return tf.sigmoid(_GELU_SCALE * (x + 0.044715 * x * x * x))


def plain_tanh_gelu(x):
    """The same in terms in which TensorFlow sees that it is a gelu and computes it within the product before it, and
    TFLite that it has an operation for it. Both need that nobody else looks at x: so this is for outside of training.
    """
    with tf.name_scope("gelu"):  # TensorFlow does not look for it across scopes of different depth
        return 0.5 * x * (1.0 + tf.tanh(0.5 * _GELU_SCALE * (x + 0.044715 * tf.pow(x, 3))))


@tf.custom_gradient
def erf_gelu(x):
    """The exact gelu: x times the normal distribution function, by way of the error function."""
    return _erf_gelu(x), lambda dy: _erf_gelu_gradient(x, dy)


def plain_erf_gelu(x):
    """The same outside of training, see `plain_tanh_gelu`."""
    # In this order, TFLite sees that it is a gelu. It has that, but no error function.
    return 0.5 * x * _twice_erf_gate(x)


_erf_gelu = _fused(plain_erf_gelu)


@_fused
def _erf_gelu_gradient(x, dy):
    density = tf.exp(tf.square(x) * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return dy * (0.5 * _twice_erf_gate(x) + x * density)


def _twice_erf_gate(x):
    return 1.0 + tf.math.erf(x * math.sqrt(0.5))


def layer_norm(x, gamma, beta, epsilon: float):
    """Vectors shifted and scaled to mean 0 and variance 1, then by `gamma` and `beta`.

    Computed as the original did, `x * scale + (beta - mean * scale)`: other orders of the same arithmetic drift away
    from its numbers two to three times as fast.

    Args:
        x: float [..., H].
        gamma, beta: float [H].
        epsilon: keeps the variance from 0.
    """
    epsilon = tf.constant(epsilon, x.dtype)

    @tf.custom_gradient
    def norm(x, gamma, beta):
        y, mean, inverse = _layer_norm(x, gamma, beta, epsilon)
        return y, lambda dy: _layer_norm_gradient(x, gamma, mean, inverse, dy)

    return norm(x, gamma, beta)


@_fused
def _layer_norm(x, gamma, beta, epsilon):
    # Were the axis counted from the front, TensorFlow 2.21 would see a LayerNorm where weights are constants, and take
    # an epsilon of its own for it, 0.001.
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)  # [..., 1]
    inverse = tf.math.rsqrt(variance + epsilon)  # [..., 1]
    scale = inverse * gamma  # [..., H]
    return x * scale + (beta - mean * scale), mean, inverse


@_fused
def _layer_norm_gradient(x, gamma, mean, inverse, dy):
    normed = (x - mean) * inverse
    d_normed = dy * gamma
    # What would change mean and variance is taken out again: the parts along 1 and along normed.
    along_one = tf.reduce_mean(d_normed, axis=-1, keepdims=True)  # [..., 1]
    along_normed = tf.reduce_mean(d_normed * normed, axis=-1, keepdims=True)  # [..., 1]
    dx = inverse * (d_normed - along_one - normed * along_normed)
    leading = list(range(x.shape.rank - 1))
    return dx, tf.reduce_sum(dy * normed, leading), tf.reduce_sum(dy, leading)


def residual_norm(x, residual, gamma, beta, epsilon: float, rate: float, seed):
    """`layer_norm` of `residual` and `x`, dropped out: what closes each half of a block, in one pass over memory.

    Args:
        x, residual: float [..., H], in half precision, too; so is what comes out.
        gamma, beta, epsilon: see `layer_norm`. They have the precision of the norm.
        rate, seed: see `dropout`.
    """
    epsilon, scale = tf.constant(epsilon, gamma.dtype), tf.constant(1.0 / (1.0 - rate), x.dtype)
    is_kept = _is_kept(tf.shape(x), rate, seed) if rate > 0.0 else None

    @tf.custom_gradient
    def norm(x, residual, gamma, beta):
        y, total, mean, inverse = _residual_norm(x, residual, gamma, beta, epsilon, is_kept, scale)
        return y, lambda dy: _residual_norm_gradient(total, gamma, mean, inverse, dy, _again(is_kept, dy), scale)

    return norm(x, residual, gamma, beta)


@_fused
def _residual_norm(x, residual, gamma, beta, epsilon, is_kept, scale):
    total = (x if is_kept is None else _scaled(x, is_kept, scale)) + residual
    y, mean, inverse = _layer_norm(tf.cast(total, gamma.dtype), gamma, beta, epsilon)
    return tf.cast(y, x.dtype), total, mean, inverse


@_fused
def _residual_norm_gradient(total, gamma, mean, inverse, dy, is_kept, scale):
    wide, d_wide = tf.cast(total, gamma.dtype), tf.cast(dy, gamma.dtype)
    d_total, d_gamma, d_beta = _layer_norm_gradient(wide, gamma, mean, inverse, d_wide)
    d_total = tf.cast(d_total, total.dtype)
    return d_total if is_kept is None else _scaled(d_total, is_kept, scale), d_total, d_gamma, d_beta


def attention(query, key, value, mask_penalty, rate: float = 0.0, seed=None):
    """The attention of all heads: softmax(query key + mask_penalty), dropped out, times value.

    The scores are the largest tensors of the network at a length of 512. This goes over them half as often as automatic
    gradients do, and keeps the probabilities and a bool for each, instead of three floats: the sum in the gradient of
    the softmax, over all that is attended to, is also that of `d_context * context`, over the size of a head.

    Args:
        query: [B, N, F, D], already divided by the square root of D. Heads come before positions, since products of
            batches of matrices need that, and would otherwise transpose their sides each time.
        key, value: [B, N, T, D].
        mask_penalty: float, broadcast to [B, N, F, T], added to the scores. Gets no gradient.
        rate, seed: of dropout, see `dropout`.

    Returns:
        The context [B, N, F, D], and the probabilities before dropout [B, N, F, T], which pass no gradient on.
    """
    is_dropping = seed is not None and rate > 0.0
    # Known while it is traced wherever it can be, so that XLA can have it.
    shape = query.shape[:3] + key.shape[2:3]  # B, N, F, T
    shape = shape if shape.is_fully_defined() else tf.concat([tf.shape(query)[:3], tf.shape(key)[2:3]], axis=0)
    is_kept = _is_kept(tf.convert_to_tensor(shape), rate, seed) if is_dropping else None
    scale = 1.0 / (1.0 - rate) if is_dropping else 1.0

    @tf.custom_gradient
    def attend(query, key, value):
        scores = tf.matmul(query, key, transpose_b=True)  # [B, N, F, T]
        probabilities, dropped = _probabilities(scores, mask_penalty, is_kept)
        # What is kept is scaled up here and not among the probabilities, which are many more.
        context = tf.matmul(dropped, value) * scale  # [B, N, F, D]

        def gradient(d_context, _):
            sums = tf.reduce_sum(_wide(d_context) * _wide(context), axis=-1, keepdims=True)  # [B, N, F, 1]
            sums = tf.cast(sums, query.dtype)
            d_context = d_context * scale
            kept = _again(is_kept, d_context)
            d_value = tf.matmul(_dropped(probabilities, kept), d_context, transpose_a=True)  # [B, N, T, D]
            d_dropped = tf.matmul(d_context, value, transpose_b=True)  # [B, N, F, T]
            d_scores = _scores_gradient(probabilities, d_dropped, kept, sums)
            return tf.matmul(d_scores, key), tf.matmul(d_scores, query, transpose_a=True), d_value

        return (context, probabilities), gradient

    context, probabilities = attend(query, key, value)
    return context, tf.stop_gradient(probabilities)


def _probabilities(scores, mask_penalty, is_kept):
    # Not compiled: the sums of a softmax take one core of XLA and all of oneDNN.
    # The softmax sums up to 512 terms: in half precision that sum needs the range and the digits of float32.
    wide = _wide(scores)
    probabilities = tf.cast(tf.nn.softmax(wide + tf.cast(mask_penalty, wide.dtype)), scores.dtype)
    return probabilities, _dropped(probabilities, is_kept)


@_fused
def _scores_gradient(probabilities, d_dropped, is_kept, sums):
    return probabilities * (_dropped(d_dropped, is_kept) - sums)


@_fused
def _dropped(x, is_kept):
    return x if is_kept is None else x * tf.cast(is_kept, x.dtype)


def _again(is_kept, after):
    """The same mask for the backward pass. Without this, TensorFlow would see that it has the mask as floats already,
    and keep those up to there: four times the bytes."""
    if is_kept is None:
        return None
    with tf.control_dependencies([after]):
        return tf.identity(is_kept)


def _wide(x):
    """Half precision as float32."""
    return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def dropout(x, rate: float, seed):
    """Zeroes elements of `x` with probability `rate` and scales up the rest; `seed=None` leaves `x` as it is.

    The mask depends on nothing but `seed` (int32 [2]) and the shape. A layer whose activations are recomputed in the
    backward pass so meets the same mask again, and a resumed run the masks of the one it continues. An element costs
    16 random bits, so the rate is kept to 1/131072, in half precision, too.
    """
    if seed is None or rate == 0.0:
        return x
    is_kept, scale = _is_kept(tf.shape(x), rate, seed), tf.constant(1.0 / (1.0 - rate), x.dtype)

    @tf.custom_gradient
    def drop(x):
        return _scaled(x, is_kept, scale), lambda dy: _scaled(dy, _again(is_kept, dy), scale)

    return drop(x)


@_fused
def _scaled(x, is_kept, scale):
    return x * (tf.cast(is_kept, x.dtype) * scale)


def _is_kept(shape, rate: float, seed):
    """bool of a shape, True with probability 1 - rate."""
    threshold, is_shape_known = round(rate * 65536), tf.get_static_value(shape) is not None
    is_no_less = _compiled_is_no_less if _is_to_compile(is_shape_known) else _is_no_less
    return is_no_less(shape, threshold, seed)


def _is_no_less(shape, threshold: int, seed):
    """Whether 16 random bits, as a number, are no less than a threshold: bool of a shape.

    The bits of a place are a hash of its number and the seed. Compiled by XLA, that takes a sixth of the time of
    TensorFlow's generator, and otherwise as long; and it gives the same bits in both ways.
    """
    size = tf.reduce_prod(shape)
    places = tf.bitcast(tf.range((size + 1) // 2), tf.uint32)  # two of them share 32 bits
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    hashed = _mixed(_mixed(places ^ first) ^ second)
    bits = tf.reshape(tf.bitcast(hashed, tf.uint16), [-1])[:size]
    return tf.reshape(bits, shape) >= tf.constant(threshold, tf.uint16)


_compiled_is_no_less = tf.function(_is_no_less, jit_compile=True, autograph=False)


def _mixed(x):
    """uint32 to uint32, one to one: two rounds of xorshift and product. Each bit of `x` flips half of the others."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32))) * tf.constant(factor, tf.uint32)
    return x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))
