"""A step on one device. Several replicas need a process each, and are tested through the scripts."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.tpu_ops import of_unknown_shape, operations, training_graphs, without_kernel
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tasks.pretraining import PretrainingTask
from training.loss_scale import DynamicLossScale
from training.optimizer import OPTIMIZERS
from training.step import TrainStep

CONFIG = BertConfig.preset("tiny", vocab_size=60, hidden_dropout_prob=0.1)


@pytest.fixture
def batches():
    """Two batches of four, some rows with one masked word and some with three."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 60, (2, 4, 12)).astype(np.int32)
    features = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": rng.integers(0, 12, (2, 4, 3)).astype(np.int32),
        "masked_lm_ids": rng.integers(5, 60, (2, 4, 3)).astype(np.int32),
        "masked_lm_weights": np.tile(np.float32([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]]), (2, 1, 1)),
        "next_sentence_labels": rng.integers(0, 2, (2, 4, 1)).astype(np.int32),
    }
    return tf.data.Dataset.from_tensor_slices(features).repeat()


def make(config=CONFIG, optimizer="adamw", dtype=None, task=None, loss_scale=None, rate=1e-2, **options):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = PretrainingModel(config, seed=1, dtype=dtype)
        built = OPTIMIZERS[optimizer](rate, skip_nonfinite=loss_scale is not None)
        built.build(model.trainable_variables)
    return TrainStep(strategy, model, task or PretrainingTask(), built, 7, loss_scale=loss_scale, **options), model


def weights_of(model):
    return {variable.path: variable.numpy() for variable in model.weights}


def test_several_steps_in_one_call_are_the_same_steps(batches):
    one, model_of_one = make()
    many, model_of_many = make()
    iterator = iter(batches)
    losses = [one.run(iterator, tf.constant(1))["loss"].numpy() for _ in range(4)]
    totals = many.run(iter(batches), tf.constant(4))
    assert totals["steps"].numpy() == 4
    np.testing.assert_allclose(totals["loss"], sum(losses), rtol=1e-6)
    for name, value in weights_of(model_of_one).items():
        np.testing.assert_array_equal(value, weights_of(model_of_many)[name], err_msg=name)


def test_dropout_depends_on_the_seed_and_the_step_alone(batches):
    def losses(first, count):
        step, _ = make(rate=0.0)
        step._optimizer.iterations.assign(first)
        iterator = iter(batches.skip(first))
        return [float(step.run(iterator, tf.constant(1))["loss"]) for _ in range(count)]

    assert losses(0, 4)[2:] == losses(2, 2)
    same_batch = losses(0, 3)
    assert same_batch[0] != same_batch[2]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_it_learns(batches, optimizer, jit_compile):
    step, _ = make(optimizer=optimizer, jit_compile=jit_compile, parts=2, rate=1e-3 if optimizer == "adamw" else 3e-2)
    iterator = iter(batches.take(1).repeat())
    first = step.run(iterator, tf.constant(1))
    step.run(iterator, tf.constant(40))
    last = step.run(iterator, tf.constant(1))
    assert float(last["loss"]) < 0.7 * float(first["loss"])


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_follows_float32(batches, dtype):
    scale = DynamicLossScale() if dtype == "mixed_float16" else None
    plain, half = make(rate=1e-3)[0], make(rate=1e-3, dtype=dtype, loss_scale=scale)[0]
    totals = [float(step.run(iter(batches), tf.constant(10))["loss"]) for step in (plain, half)]
    np.testing.assert_allclose(*totals, rtol=0.02)


def test_an_overflow_in_float16_is_skipped_and_halves_the_scale(batches):
    scale = DynamicLossScale(initial=2.0**40, growth_steps=3)
    step, model = make(dtype="mixed_float16", loss_scale=scale)
    before = weights_of(model)
    iterator = iter(batches)
    step.run(iterator, tf.constant(1))
    assert float(scale._factor) == 2.0**39
    for name, value in weights_of(model).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    step.run(iterator, tf.constant(30))
    assert float(scale._factor) < 2.0**30
    after = weights_of(model)
    assert all(np.isfinite(value).all() for value in after.values())
    assert any((after[name] != before[name]).any() for name in after)


def test_without_next_sentence_its_weights_are_left_alone(batches):
    step, model = make(task=PretrainingTask(use_next_sentence=False))
    before = weights_of(model)
    totals = step.run(iter(batches), tf.constant(2))
    assert "next_sentence_loss" not in totals
    changed = {name for name, value in weights_of(model).items() if (value != before[name]).any()}
    untouched = {name for name in before if name.startswith(("bert/pooler", "cls/seq_relationship"))}
    assert changed == before.keys() - untouched


@pytest.mark.parametrize(
    "options",
    [{}, {"parts": 2}, {"optimizer": "lamb"}, {"recompute": True}, {"dtype": "mixed_bfloat16", "attention": "causal"}],
    ids=["plain", "parts", "lamb", "recompute", "bfloat16"],
)
def test_a_tpu_could_compile_it(options):
    """There is none here. What can be known: every operation has a kernel in XLA, and every shape is fixed."""
    graphs = training_graphs(**options)
    names = operations(graphs)
    assert "SparseSoftmaxCrossEntropyWithLogits" in names
    assert ("ResourceApplyAdam" in names) == ("optimizer" not in options)  # Adam as it is on TPUs, not as on CPUs
    assert without_kernel(names) == []
    assert of_unknown_shape(graphs) == []


def test_the_look_for_what_a_tpu_lacks_would_find_it():
    @tf.function
    def bad(x):
        return tf.py_function(lambda x: x, [x], tf.float32), tf.boolean_mask(x, x > 0)

    graph = bad.get_concrete_function(tf.TensorSpec([4])).graph
    assert "EagerPyFunc" in without_kernel(operations([graph]))
    assert of_unknown_shape([graph])
