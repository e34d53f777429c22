"""Our side of training: the product's own step, model and input, as run_pretraining.py puts them together."""

import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.peers.shapes import pretraining_batch, training_gflop
from benchmarks.peers.worker import best_gflops
from data.pretraining_input import PretrainingInput
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tasks.pretraining import PretrainingTask
from training.evaluation import Evaluator
from training.memory import keep_freed_memory
from training.optimizer import AdamWeightDecay, WarmupLinearDecay
from training.step import TrainStep, distributed
from training.strategy import make_strategy


class Training:
    """A model with all that trains it."""

    def __init__(self, config: dict, jit_compile: bool, rate=1e-4, bias_correction: bool = False):
        keep_freed_memory()
        self.strategy, self.task = make_strategy("one_device"), PretrainingTask()
        with self.strategy.scope():
            self.model = PretrainingModel(BertConfig.from_dict(config), seed=1)
            self.optimizer = AdamWeightDecay(rate, bias_correction=bias_correction)
            self.optimizer.build(self.model.trainable_variables)
        self.step = TrainStep(self.strategy, self.model, self.task, self.optimizer, seed=1, jit_compile=jit_compile)

    def run(self, iterator, num_steps: int) -> float:
        """Takes steps as a script does, one call each; gives the seconds until the last is done."""
        begin = time.perf_counter()
        for _ in range(num_steps):
            measured = self.step.run(iterator, tf.constant(1))
        float(measured["loss"])
        return time.perf_counter() - begin


def pretraining_step(config: dict, batch_size: int, seq_length: int, predictions: int, jit_compile: bool):
    """Sequences a second of training steps on one batch."""
    training = Training(config, jit_compile)
    batch = pretraining_batch(config, batch_size, seq_length, predictions)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    training.run(batches, 3)
    gflop = training_gflop(config, batch_size, seq_length, predictions)
    matrix = tf.random.stateless_normal([2048, 2048], seed=[1, 1])

    def product() -> float:
        return best_gflops(lambda: tf.matmul(matrix, matrix).numpy(), rounds=5)

    def measure(count: int) -> dict:
        before = product()
        seconds = training.run(batches, count)
        matmul, gflops = max(before, product()), gflop * count / seconds
        return {
            "value": batch_size * count / seconds,
            "gflops": gflops,
            "matmul_gflops": matmul,
            "of_matmul": gflops / matmul,
        }

    return measure


def open_records(records: list[str], seq_length: int, predictions: int) -> PretrainingInput:
    return PretrainingInput.open(records, seq_length, predictions)


def input_pipeline(records: list[str], batch_size: int, seq_length: int, predictions: int):
    """Sequences a second of the input alone, with nobody who uses them."""
    opened = open_records(records, seq_length, predictions)
    batches = iter(opened.training_batches(batch_size, 1, 0, 0, 1))
    next(batches)

    def measure(count: int) -> dict:
        begin = time.perf_counter()
        for _ in range(count):
            next(batches)
        return {"value": batch_size * count / (time.perf_counter() - begin)}

    return measure


def fed_step(config: dict, records: list[str], batch_size: int, seq_length: int, predictions: int, jit_compile: bool):
    """Sequences a second of training that reads records, and how long its steps waited for their batches."""
    training = Training(config, jit_compile)
    opened = open_records(records, seq_length, predictions)
    batches = iter(opened.training_batches(batch_size, 1, 0, 0, 1))
    step = tf.function(training.step.replica_step, jit_compile=jit_compile, autograph=False)
    for _ in range(3):
        step(next(batches))

    def measure(count: int) -> dict:
        waits, begin = [], time.perf_counter()
        for _ in range(count):
            asked = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - asked)
            measured = step(batch)
        float(next(iter(measured.values())))
        seconds = time.perf_counter() - begin
        return {
            "value": batch_size * count / seconds,
            "wait_share": sum(waits) / seconds,
            "wait_ms_median": 1e3 * float(np.median(waits)),
            "wait_ms_largest": 1e3 * max(waits),
        }

    return measure


def pretraining_run(
    config: dict,
    start: str,
    records: list[str],
    heldout: str,
    batch_size: int,
    seq_length: int,
    predictions: int,
    learning_rate: float,
    evaluate_every: int,
    jit_compile: bool,
):
    """Held-out loss of masked words against seconds of training, from the weights in `start` on."""
    opened = open_records(records, seq_length, predictions)
    evaluated = open_records([heldout], seq_length, predictions)
    num_evaluations = min(20, evaluated.num_evaluation_batches(batch_size))

    def prepared(num_steps: int) -> tuple[Training, Evaluator]:
        rate = WarmupLinearDecay(learning_rate, num_steps, num_steps // 10, continuous=True)
        # Corrected as torch does it, so that both learn by the same rule.
        training = Training(config, jit_compile, rate, bias_correction=True)
        load_checkpoint(training.model, Path(start))
        evaluator = Evaluator(
            training.strategy,
            training.model,
            training.task,
            lambda worker, workers: evaluated.evaluation_batches(batch_size, worker, workers),
            num_evaluations,
        )
        return training, evaluator

    def measure(count: int) -> dict:
        training, evaluate = prepared(count)
        compile_batches = distributed(
            training.strategy, lambda *worker: opened.training_batches(batch_size, 1, 0, *worker)
        )
        # Compiled before the clock runs, and back to where it started.
        training.run(compile_batches, 1)
        load_checkpoint(training.model, Path(start))
        for variable in training.optimizer.variables:
            variable.assign(tf.zeros_like(variable))
        batches = distributed(training.strategy, lambda *worker: opened.training_batches(batch_size, 1, 0, *worker))
        curve, seconds = [[0.0, evaluate()["masked_lm_loss"]]], 0.0
        for _ in range(0, count, evaluate_every):
            seconds += training.run(batches, evaluate_every)
            curve.append([seconds, float(evaluate()["masked_lm_loss"])])
        return {
            "value": seconds,
            "curve": curve,
            "last_loss": curve[-1][1],
            "sequences_per_second": batch_size * count / seconds,
        }

    return measure
