import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from modeling import keras_hub
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.functions import dropout

TINY = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
    type_vocab_size=2,
    # Strong weights, so that every part of the network shows in its output.
    initializer_range=0.5,
)
NO_DROPOUT = dataclasses.replace(TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def batch(rows=3, length=10, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, size=(rows, 1))
    mask = (np.arange(length) < lengths).astype(np.int32)
    return {
        "input_ids": tf.constant(rng.integers(1, 30, size=(rows, length)).astype(np.int32) * mask),
        "input_mask": tf.constant(mask),
        "segment_ids": tf.constant((np.arange(length) > lengths // 2).astype(np.int32) * mask),
    }


def gradients(encoder, inputs, seed):
    """Of a sum that reaches every variable, as one flat vector."""
    with tf.GradientTape() as tape:
        outputs = encoder(inputs, training=True, dropout_seed=tf.constant([seed, 1]))
        weights = tf.random.stateless_normal(tf.shape(outputs["sequence_output"]), [3, 4])
        loss = tf.reduce_sum(tf.cast(outputs["sequence_output"], tf.float32) * weights)
        loss += tf.reduce_sum(tf.cast(outputs["pooled_output"], tf.float32))
    variables = [variable.value for variable in encoder.trainable_variables]
    return np.concatenate([tf.convert_to_tensor(g).numpy().ravel() for g in tape.gradient(loss, variables)])


@pytest.mark.parametrize(("name", "parameters"), [("base", 109_482_240), ("large", 335_141_888), ("tiny", 4_385_920)])
def test_parameter_counts_of_the_released_sizes(name, parameters):
    assert BertEncoder(BertConfig.preset(name)).count_params() == parameters


def test_variables_start_as_the_original_starts_them():
    config = dataclasses.replace(TINY, hidden_size=128, intermediate_size=256, initializer_range=0.02)
    encoder = BertEncoder(config, seed=1)
    kernels = [v for v in encoder.weights if v.path.endswith("kernel")]
    values = np.concatenate([kernel.numpy().ravel() for kernel in kernels])
    assert np.abs(values).max() <= 0.04  # cut off at two deviations
    assert values.std() == pytest.approx(0.02 * 0.87962566, rel=0.02)  # which narrows them by this much
    assert len({kernel.numpy().tobytes() for kernel in kernels}) == len(kernels)  # no two alike
    for variable in encoder.weights:
        if variable.path.endswith(("bias", "beta")):
            assert not variable.numpy().any()
        if variable.path.endswith("gamma"):
            assert (variable.numpy() == 1).all()


def test_the_seed_decides_the_weights():
    first, second, other = (BertEncoder(TINY, seed=seed) for seed in (7, 7, 8))
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert (first.embedding_table.numpy() != other.embedding_table.numpy()).all()


def test_missing_mask_and_segments_mean_all_tokens_and_the_first_segment():
    encoder = BertEncoder(TINY)
    ids = batch()["input_ids"]
    full = encoder({"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)})
    np.testing.assert_array_equal(encoder({"input_ids": ids})["sequence_output"], full["sequence_output"])


def test_padding_changes_nothing():
    encoder = BertEncoder(TINY)
    inputs = batch()
    padded = {name: tf.pad(tensor, [[0, 0], [0, 2]], constant_values=0) for name, tensor in inputs.items()}
    padded["input_ids"] += 5 * (1 - padded["input_mask"])  # whatever stands there
    expected, found = encoder(inputs), encoder(padded)
    np.testing.assert_allclose(found["pooled_output"], expected["pooled_output"], atol=1e-6)
    kept = inputs["input_mask"].numpy().astype(bool)
    np.testing.assert_allclose(
        found["sequence_output"][:, :10].numpy()[kept], expected["sequence_output"].numpy()[kept], atol=2e-6
    )


def test_attention_probabilities_on_request():
    encoder = BertEncoder(TINY)
    inputs = batch()
    outputs = encoder(inputs, return_attention=True)
    assert [p.shape for p in outputs["attention_probs"]] == [(3, 2, 10, 10)] * 2
    for probabilities in outputs["attention_probs"]:
        np.testing.assert_allclose(tf.reduce_sum(probabilities, -1), 1.0, rtol=1e-6)
        padding = tf.cast(1 - inputs["input_mask"], tf.float32)[:, None, None, :]
        assert tf.reduce_max(probabilities * padding) == 0.0
    assert "attention_probs" not in encoder(inputs)
    np.testing.assert_array_equal(outputs["sequence_output"], encoder(inputs)["sequence_output"])


def test_dropout_only_in_training_and_by_its_seed():
    encoder = BertEncoder(TINY, seed=3)
    inputs = batch()
    quiet = encoder(inputs)["sequence_output"].numpy()
    np.testing.assert_array_equal(encoder(inputs)["sequence_output"], quiet)
    seeded = [
        encoder(inputs, training=True, dropout_seed=tf.constant(seed))["sequence_output"].numpy()
        for seed in ([1, 2], [1, 2], [1, 3])
    ]
    np.testing.assert_array_equal(seeded[0], seeded[1])
    assert np.abs(seeded[0] - seeded[2]).max() > 0.01
    drawn = [encoder(inputs, training=True)["sequence_output"].numpy() for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.01


def test_dropout_keeps_its_rate_and_its_mean():
    for dtype in (tf.float32, tf.bfloat16, tf.float16):
        dropped = dropout(tf.ones([1000, 1000], dtype), 0.1, tf.constant([1, 2])).numpy().astype(np.float64)
        assert (dropped == 0).mean() == pytest.approx(0.1, abs=1e-3)
        np.testing.assert_allclose(dropped[dropped != 0], 1 / 0.9, rtol=5e-3)


def test_a_sequence_beyond_the_learned_positions_is_refused():
    encoder = BertEncoder(TINY)
    assert encoder({"input_ids": tf.ones([1, 12], tf.int32)})["sequence_output"].shape == (1, 12, 8)
    with pytest.raises(ValueError, match="13 tokens, but this model has learned positions for 12"):
        encoder({"input_ids": tf.ones([1, 13], tf.int32)})
    any_length = tf.function(lambda ids: encoder({"input_ids": ids})["pooled_output"])
    any_length = any_length.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    assert any_length(tf.ones([2, 5], tf.int32)).shape == (2, 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="learned positions for 12"):
        any_length(tf.ones([1, 13], tf.int32))


def test_saves_and_loads_as_keras_file(tmp_path):
    config = dataclasses.replace(TINY, hidden_act="gelu_erf", extra={"kept": 1})
    encoder = BertEncoder(config, recompute=True)
    encoder.save(tmp_path / "encoder.keras")
    again = keras.saving.load_model(tmp_path / "encoder.keras")
    assert again.config == config
    assert again.config.extra == {"kept": 1}
    assert again.recompute
    assert [v.path for v in again.weights] == [v.path for v in encoder.weights]
    np.testing.assert_array_equal(again(batch())["pooled_output"], encoder(batch())["pooled_output"])


def test_is_a_layer_of_a_functional_model():
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in ("input_ids", "input_mask")}
    encoder = BertEncoder(TINY)
    model = keras.Model(inputs, keras.layers.Dense(3)(encoder(inputs)["pooled_output"]))
    features = {name: tensor for name, tensor in batch().items() if name in inputs}
    assert model.predict(features, verbose=0).shape == (3, 3)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_recomputation_gives_the_same_gradients(mode):
    kept, recomputed = BertEncoder(TINY, seed=1), BertEncoder(TINY, seed=1, recompute=True)
    inputs = batch()

    def run(encoder):
        with tf.GradientTape() as tape:
            outputs = encoder(inputs, training=True, dropout_seed=tf.constant([5, 6]))
            loss = tf.reduce_sum(outputs["sequence_output"][..., :3] ** 2) + tf.reduce_sum(outputs["pooled_output"])
        return tape.gradient(loss, [variable.value for variable in encoder.trainable_variables])

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "xla")
    for variable, a, b in zip(kept.trainable_variables, run(kept), run(recomputed), strict=True):
        a, b = tf.convert_to_tensor(a).numpy(), tf.convert_to_tensor(b).numpy()
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5 * max(1.0, np.abs(a).max()), err_msg=variable.path)


# Half precision keeps 8 (bfloat16) or 11 (float16) digits of a binary number; two layers add up a few roundings.
@pytest.mark.parametrize(("policy", "tolerance"), [("mixed_bfloat16", 0.05), ("mixed_float16", 0.006)])
@pytest.mark.parametrize("recompute", [False, True])
def test_mixed_precision_gives_the_gradients_within_its_precision(policy, tolerance, recompute):
    exact = BertEncoder(NO_DROPOUT, seed=1)
    mixed = BertEncoder(NO_DROPOUT, seed=1, dtype=policy, recompute=recompute)
    inputs = batch(rows=8)
    outputs = mixed(inputs)
    assert outputs["sequence_output"].dtype == mixed.compute_dtype
    assert {variable.dtype for variable in mixed.weights} == {"float32"}
    expected, found = gradients(exact, inputs, 1), gradients(mixed, inputs, 1)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < tolerance


@pytest.mark.parametrize(("dtype", "deviation", "tolerance"), [("float32", 0.02, 1e-5), ("float64", 0.5, 1e-8)])
def test_agrees_with_keras_nlp(dtype, deviation, tolerance):
    """A second witness, KerasHub's backbone with the same weights: of usual size in float32, and so large that every
    mistake shows in float64, where no rounding hides it."""
    config = dataclasses.replace(BertConfig.preset("tiny", vocab_size=500), initializer_range=deviation)
    encoder = BertEncoder(config, dtype=dtype, seed=1)
    rng = np.random.default_rng(0)
    for variable in encoder.weights:  # biases and norms too
        variable.assign(variable.numpy() + rng.normal(scale=deviation, size=variable.shape))
    backbone = keras_hub.build(config, dtype=dtype)
    keras_hub.set_weights(backbone, {variable.path: variable.numpy() for variable in encoder.weights})
    assert len(backbone.weights) == len(encoder.weights)

    inputs = batch(rows=4, length=40)
    outputs = encoder(inputs)
    witness = backbone(
        {
            "token_ids": inputs["input_ids"],
            "padding_mask": inputs["input_mask"],
            "segment_ids": inputs["segment_ids"],
        }
    )
    np.testing.assert_allclose(outputs["pooled_output"], witness["pooled_output"], rtol=0, atol=tolerance)
    real = inputs["input_mask"].numpy().astype(bool)  # nobody reads what stands at padding, and KerasHub's differs
    np.testing.assert_allclose(
        outputs["sequence_output"].numpy()[real], witness["sequence_output"].numpy()[real], rtol=0, atol=tolerance
    )


def test_causal_attention_sees_nothing_to_its_right():
    config = BertConfig.preset("tiny", vocab_size=50, attention="causal")
    encoder = BertEncoder(config, seed=1)
    ids = np.arange(1, 9, dtype=np.int32)[np.newaxis]
    changed = ids.copy()
    changed[0, 5] = 30
    before, after = (encoder({"input_ids": x})["sequence_output"].numpy() for x in (ids, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(axis=-1).all()
    attention = encoder({"input_ids": ids}, return_attention=True)["attention_probs"]
    for probabilities in attention:
        assert np.triu(probabilities.numpy(), k=1).max() == 0.0
        np.testing.assert_allclose(probabilities.numpy().sum(axis=-1), 1.0, rtol=1e-5)
