"""Functions with gradients by hand, beside the plain formulas and their automatic gradients in float64."""

import contextlib
import math

import numpy as np
import pytest
import tensorflow as tf

from modeling.functions import (
    attention,
    compiled_by_xla,
    dropout,
    erf_gelu,
    layer_norm,
    plain_erf_gelu,
    plain_tanh_gelu,
    residual_norm,
    tanh_gelu,
    widening_product,
)


def values_and_gradients(function, *inputs):
    """The value of a function, and the gradients of a weighted sum of it."""
    inputs = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = function(*inputs)
        weights = tf.cast(tf.reshape(tf.range(tf.size(y)) % 7 - 3, tf.shape(y)), y.dtype)
        total = tf.reduce_sum(y * weights)
    return [y.numpy(), *(gradient.numpy() for gradient in tape.gradient(total, inputs))]


def tanh_formula(x):
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def erf_formula(x):
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


GELUS = {tanh_gelu: tanh_formula, plain_tanh_gelu: tanh_formula, erf_gelu: erf_formula, plain_erf_gelu: erf_formula}


@pytest.mark.parametrize(("function", "formula"), GELUS.items())
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_gelu(function, formula, dtype, tolerance):
    x = np.linspace(-12.0, 12.0, 2001)
    expected = values_and_gradients(formula, x)
    for ours, theirs in zip(values_and_gradients(function, x.astype(dtype)), expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * 12)


def test_gelu_does_not_overflow_in_float16():
    x = np.float16([-250, -100, 0, 100, 250])  # 250 to the third is infinite
    for function in GELUS:
        y, gradient = values_and_gradients(function, x)
        np.testing.assert_array_equal(y, np.float16([0, 0, 0, 100, 250]))
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("mode", ["graph", "fused"])
@pytest.mark.parametrize("rows", [5, 2048, None])
def test_widening_product(rows, mode):
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(rows or 7, 3)), rng.normal(size=(3, 8))

    @tf.function(input_signature=[tf.TensorSpec([rows, 3], tf.float64)], autograph=False)
    def run(x):
        weights = tf.constant(kernel)
        with contextlib.ExitStack() as stack:
            if mode == "fused":
                stack.enter_context(compiled_by_xla(of_many_lengths=False))
            tape = stack.enter_context(tf.GradientTape())
            tape.watch([x, weights])
            y = widening_product(x, weights)
            return y, *tape.gradient(y, [x, weights], output_gradients=tf.cos(y))

    y = x @ kernel
    expected = (y, np.cos(y) @ kernel.T, x.T @ np.cos(y))
    for ours, theirs in zip(run(x), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    turned = [op for op in run.get_concrete_function().graph.get_operations() if op.type == "Transpose"]
    assert len(turned) == (mode == "fused" and rows != 2048)


def plain_layer_norm(x, gamma, beta):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-3) * gamma + beta


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_layer_norm(shape, dtype, tolerance, mode):
    rng = np.random.default_rng(4)
    x, gamma, beta = rng.normal(2.0, 3.0, size=shape), rng.normal(size=7), rng.normal(size=7)

    def ours(x, gamma, beta):
        return layer_norm(x, gamma, beta, 1e-3)

    run = ours if mode == "eager" else tf.function(ours, jit_compile=mode == "xla")
    expected = values_and_gradients(plain_layer_norm, x, gamma, beta)
    found = values_and_gradients(run, *(array.astype(dtype) for array in (x, gamma, beta)))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_layer_norm_keeps_its_epsilon_where_weights_are_constants():
    """As in a model that was frozen, which TensorFlow optimizes further."""
    x = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32) * 0.03

    @tf.function(input_signature=[tf.TensorSpec([None, 32])])
    def run(x):
        return layer_norm(
            x * 1.0, tf.constant(np.ones(32, np.float32)), tf.constant(np.full(32, 0.5, np.float32)), 1e-12
        )

    np.testing.assert_allclose(run(x).numpy().std(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "graph", "fused"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_residual_norm(dtype, tolerance, rate, mode):
    """Beside its parts, one after the other."""
    rng, seed = np.random.default_rng(4), tf.constant([3, 4])
    x, residual, gamma, beta = (rng.normal(size=size) for size in ((6, 7), (6, 7), 7, 7))

    def parts(x, residual, gamma, beta):
        return plain_layer_norm(dropout(x, rate, seed) + residual, gamma, beta)

    def run(*inputs):
        with compiled_by_xla(of_many_lengths=False) if mode == "fused" else contextlib.nullcontext():
            return residual_norm(*inputs, 1e-3, rate, seed)

    expected = values_and_gradients(parts, x, residual, gamma, beta)
    narrow = [array.astype(dtype) for array in (x, residual, gamma, beta)]
    found = values_and_gradients(run if mode == "eager" else tf.function(run, autograph=False), *narrow)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def plain_attention(query, key, value, penalty, rate, seed):
    """Written out, with the mask that `dropout` draws for the same shape."""
    probabilities = tf.nn.softmax(tf.einsum("BNFD,BNTD->BNFT", query, key) + penalty)
    return tf.einsum("BNFT,BNTD->BNFD", dropout(probabilities, rate, seed), value)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_attention(rate, mode):
    rng = np.random.default_rng(3)
    query, key, value = rng.normal(size=(3, 2, 3, 5, 4))
    key, value = (np.concatenate([x, x[:, :, ::-1] * 0.7], axis=2) for x in (key, value))  # attends to 10 from 5
    penalty = np.where(np.arange(10) < np.array([10, 6])[:, None], 0.0, -10000.0)[:, None, None]
    seed = tf.constant([5, 6])

    def ours(query, key, value):
        return attention(query, key, value, penalty, rate, seed)[0]

    def plain(query, key, value):
        return plain_attention(query, key, value, penalty, rate, seed)

    run = ours if mode == "eager" else tf.function(ours, jit_compile=mode == "xla")
    expected = values_and_gradients(plain, query, key, value)
    for found, wanted in zip(values_and_gradients(run, query, key, value), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    narrow = [x.astype(np.float32) for x in (query, key, value)]
    for found, wanted in zip(values_and_gradients(run, *narrow), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_attention_tells_its_probabilities():
    x = tf.random.stateless_normal([2, 3, 4, 8], [1, 2])
    probabilities = attention(x, x, x, 0.0, rate=0.5, seed=tf.constant([1, 2]))[1]
    np.testing.assert_allclose(tf.reduce_sum(probabilities, -1), np.ones((2, 3, 4)), rtol=1e-6)


def test_dropout_of_any_shape_has_its_rate():
    for shape in ([999, 1001], [7, 11, 13, 17]):
        dropped = dropout(tf.ones(shape), 0.25, tf.constant([1, 2])).numpy()
        np.testing.assert_allclose(np.unique(dropped), [0.0, 1.0 / 0.75])
        assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.01)


def dropped_places(seed, shape=(1000, 1001)):
    return (dropout(tf.ones(shape), 0.1, tf.constant(seed)).numpy() == 0).astype(np.float64).ravel()


def correlation(a, b):
    """In deviations of what independent places would have: beyond 4 once in 16,000 times."""
    return np.mean((a - 0.1) * (b - 0.1)) / 0.09 * math.sqrt(len(a))


def test_dropout_of_a_place_tells_nothing_of_others():
    dropped = dropped_places([1, 2])
    for distance in (1, 2, 3, 4, 8, 16, 64, 256, 768, 1001, 4096, 65536):
        assert abs(correlation(dropped[distance:], dropped[:-distance])) < 4, distance
    for seed in ([1, 3], [2, 2], [0, 2], [2, 1], [1, 2 + 2**16], [-(2**31), 2], [-1, -1]):
        assert abs(correlation(dropped, dropped_places(seed))) < 4, seed
    # Rows and columns are as even as rows and columns of coins.
    table = dropped.reshape(1000, 1001)
    for axis, count in ((0, 1000), (1, 1001)):
        deviations = (table.mean(axis) - 0.1) / math.sqrt(0.09 / count)
        assert 0.8 < deviations.std() < 1.2 and abs(deviations).max() < 5


def test_dropout_is_the_same_in_every_mode():
    seed = tf.constant([5, -6])
    query = tf.random.stateless_normal([2, 3, 5, 4], [1, 2])

    def run(query):
        return dropout(query, 0.3, seed), attention(query, query, query, 0.0, 0.3, seed)[0]

    def run_fused(query):
        with compiled_by_xla(of_many_lengths=False):
            return run(query)

    expected = run(query)
    for function in (tf.function(run), tf.function(run_fused), tf.function(run, jit_compile=True)):
        for found, wanted in zip(function(query), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("of_many_lengths", [False, True])
def test_batches_of_many_lengths(of_many_lengths):
    """What is traced once, for any length, gives what each length gives by itself; and is compiled if it shall be."""
    seed, (gamma, beta) = tf.constant([5, -6]), tf.random.stateless_normal([2, 4], [3, 4])

    def run(x):
        x = x + attention(x, x, x, 0.0, 0.3, seed)[0]
        x = residual_norm(tanh_gelu(x), x, gamma, beta, 1e-3, 0.3, seed)
        return dropout(x, 0.3, seed)

    def values(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = run(x)
        return outputs, tape.gradient(outputs, x, output_gradients=tf.cos(x))

    @tf.function(input_signature=[tf.TensorSpec([None, 3, None, 4])], autograph=False)
    def fused(x):
        with compiled_by_xla(of_many_lengths):
            return values(x)

    called = {function.name for function in fused.get_concrete_function().graph._functions.values()}
    assert any("scores_gradient" in name for name in map(str, called)) == of_many_lengths
    for length in (5, 8, 6):
        x = tf.random.stateless_normal([2, 3, length, 4], [1, length])
        for found, wanted in zip(fused(x), values(x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
