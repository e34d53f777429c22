import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from modeling import models
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.losses import masked_lm_loss, next_sentence_loss
from modeling.models import ChoiceModel, PretrainingModel, SentenceModel, SpanModel, TokenModel

TINY = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
    type_vocab_size=2,
    initializer_range=0.5,
)
INPUTS = {
    "input_ids": tf.constant([[2, 5, 9, 3], [2, 7, 3, 0]]),
    "input_mask": tf.constant([[1, 1, 1, 1], [1, 1, 1, 0]]),
}
CHOICE_INPUTS = {name: tf.stack([tensor, tensor[::-1]], axis=1) for name, tensor in INPUTS.items()}  # [B, C, T]


@pytest.fixture(scope="module")
def golden_model(golden):
    model = PretrainingModel(BertConfig.from_json_file(golden / "model" / "bert_config.json"))
    load_checkpoint(model, golden / "model")
    return model


def golden_outputs(model, batch):
    encoded = model.encoder(batch)
    logits = model(batch)
    return {
        "embedding_output": encoded["embedding_output"],
        "sequence_output": encoded["sequence_output"],
        "pooled_output": encoded["pooled_output"],
        "all_layers": tf.stack(encoded["all_layers"]),
        "mlm_log_probs": tf.nn.log_softmax(tf.reshape(logits["masked_lm_logits"], [-1, model.config.vocab_size])),
        "nsp_log_probs": tf.nn.log_softmax(logits["next_sentence_logits"]),
        "mlm_loss": masked_lm_loss(logits["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"]),
        "nsp_loss": next_sentence_loss(logits["next_sentence_logits"], batch["next_sentence_labels"]),
    }


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_reproduces_the_original(golden, golden_model, golden_batch, mode):
    """Every array of the original's forward pass to the rounding of float32, which differs from CPU to CPU.

    `test_the_network_is_the_original` tells a mistake from rounding; this sees that float32 is no farther from the
    original, in any mode, than the original itself is from exact arithmetic (1.6e-5).
    """
    expected = np.load(golden / "model" / "forward.npz")
    run = golden_outputs if mode == "eager" else tf.function(golden_outputs, jit_compile=mode == "xla")
    for name, array in run(golden_model, golden_batch).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-5, err_msg=name)


def test_the_network_is_the_original(golden, golden_batch):
    """In float64 there is no rounding of ours: what remains is that of the original, and the same on every CPU."""
    exact = PretrainingModel(BertConfig.from_json_file(golden / "model" / "bert_config.json"), dtype="float64")
    load_checkpoint(exact, golden / "model")
    expected = np.load(golden / "model" / "forward.npz")
    rounding = {"pooled_output": 1.1e-5, "nsp_log_probs": 1.12e-5, "mlm_log_probs": 1.62e-5}
    for name, array in golden_outputs(exact, golden_batch).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=rounding.get(name, 1e-5), err_msg=name)


def test_masked_lm_gathers_before_the_vocabulary(golden_model, golden_batch):
    """The product with the vocabulary sees the masked positions only."""
    graph = tf.function(golden_model).get_concrete_function(golden_batch).graph
    width = golden_model.config.vocab_size
    largest = max(np.prod(t.shape) for op in graph.get_operations() for t in op.outputs if t.shape[-1:] == [width])
    assert largest == golden_batch["masked_lm_positions"].size * width


def test_masked_lm_shares_the_word_embeddings():
    model = PretrainingModel(TINY)
    batch = dict(INPUTS, masked_lm_positions=tf.constant([[1], [2]]))
    before = model(batch)["masked_lm_logits"].numpy()
    table = model.encoder.embedding_table.numpy()
    table[20] *= 2.0  # a word that no input has
    model.encoder.embedding_table.assign(table)
    changed = model(batch)["masked_lm_logits"].numpy() != before
    assert changed[..., 20].all()
    assert not np.delete(changed, 20, axis=-1).any()


@pytest.mark.parametrize(
    ("model", "inputs", "shapes", "names"),
    [
        (SentenceModel(TINY, num_labels=3), INPUTS, [(2, 3)], {"output_weights": (3, 8), "output_bias": (3,)}),
        (TokenModel(TINY, num_labels=5), INPUTS, [(2, 4, 5)], {"output_weights": (5, 8), "output_bias": (5,)}),
        (ChoiceModel(TINY), CHOICE_INPUTS, [(2, 2)], {"output_weights": (1, 8), "output_bias": (1,)}),
        (
            SpanModel(TINY),
            INPUTS,
            [(2, 4), (2, 4)],
            {"cls/squad/output_weights": (2, 8), "cls/squad/output_bias": (2,)},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, keras.Model) else "",
)
class TestHeads:
    def test_shapes_and_the_originals_names(self, model, inputs, shapes, names):
        outputs = model(inputs)
        outputs = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
        assert [tuple(output.shape) for output in outputs] == shapes
        head = {v.path: tuple(v.shape) for v in model.weights if not v.path.startswith("bert/")}
        assert head == names

    def test_saves_and_loads_as_keras_file(self, model, inputs, shapes, names, tmp_path):
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        for a, b in zip(tf.nest.flatten(model(inputs)), tf.nest.flatten(again(inputs)), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_trains_under_mixed_precision(self, model, inputs, shapes, names):
        del shapes, names
        mixed = type(model).from_config(model.get_config() | {"dtype": "mixed_bfloat16"})
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(tf.cast(x, tf.float32) ** 2) for x in tf.nest.flatten(mixed(inputs, training=True))]
            )
        gradients = tape.gradient(loss, [variable.value for variable in mixed.trainable_variables])
        for variable, gradient in zip(mixed.trainable_variables, gradients, strict=True):
            unused = variable.path.startswith("bert/pooler") and isinstance(mixed, (TokenModel, SpanModel))
            assert (gradient is None) == unused, variable.path


def test_choices_do_not_see_each_other():
    model = ChoiceModel(TINY)
    swapped = {name: tensor[:, ::-1] for name, tensor in CHOICE_INPUTS.items()}
    np.testing.assert_allclose(model(swapped)[:, ::-1], model(CHOICE_INPUTS), atol=1e-6)


def test_the_classifier_drops_out_and_the_span_does_not():
    quiet = BertConfig.from_dict(TINY.to_dict() | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    classifier, span = SentenceModel(quiet, num_labels=3), SpanModel(quiet)
    seed = tf.constant([1, 2])
    assert np.abs(classifier(INPUTS, training=True, dropout_seed=seed) - classifier(INPUTS)).max() > 1e-3
    trained, still = span(INPUTS, training=True, dropout_seed=seed), span(INPUTS)
    # Not the same bits: outside of training, gelu is computed in other terms.
    np.testing.assert_allclose(trained["start_logits"], still["start_logits"], rtol=0, atol=1e-6)


def test_head_and_encoder_start_differently_from_one_seed():
    model = models.SentenceModel(TINY, num_labels=30, seed=4)
    head, table = model.classifier.output_weights.numpy(), model.encoder.embedding_table.numpy()
    assert (head != table).all()


def test_left_to_right_the_last_token_stands_for_the_sequence():
    """Only that one has seen all the others; what follows it is padding and changes nothing."""
    causal = dataclasses.replace(TINY, attention="causal")
    model = SentenceModel(causal, num_labels=2, seed=1)
    longer = {name: tf.pad(tensor, [[0, 0], [0, 3]]) for name, tensor in INPUTS.items()}
    np.testing.assert_allclose(model(INPUTS), model(longer), atol=1e-5)
    other_last = INPUTS | {"input_ids": tf.constant([[2, 5, 9, 4], [2, 7, 4, 0]])}
    assert np.abs(model(INPUTS) - model(other_last)).min() > 1e-3


def test_a_bilstm_reads_all_tokens_but_no_padding():
    model = SentenceModel(TINY, num_labels=3, bilstm=True, seed=1)
    assert {v.path.split("/")[0] for v in model.weights} == {"bert", "bilstm", "output_weights", "output_bias"}
    longer = {name: tf.pad(tensor, [[0, 0], [0, 3]]) for name, tensor in INPUTS.items()}
    np.testing.assert_allclose(model(INPUTS), model(longer), atol=1e-5)
    copy = SentenceModel.from_config(model.get_config())
    assert [v.path for v in copy.weights] == [v.path for v in model.weights]


def test_frozen_layers_stay_as_they_are():
    model = SentenceModel(TINY, num_labels=2, seed=1)
    model.freeze(1)
    trained = {variable.path for variable in model.trainable_variables}
    assert not any(path.startswith(("bert/embeddings", "bert/encoder/layer_0")) for path in trained)
    assert any(path.startswith("bert/encoder/layer_1") for path in trained) and "output_weights" in trained
    with pytest.raises(ValueError, match="3 layers cannot be frozen: the encoder has 2"):
        model.freeze(3)
