"""What all fine-tuning scripts share: the way from records to a trained model and to its answers, by their flags."""

import atexit
import dataclasses
import functools
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import command_line
import training_flags
from data.batch_plans import BatchSize, TrainingPlan, evaluation_plan
from data.example_records import SEQUENCES, ExampleRecords, numbered_batches
from data.tokenization import vocab_text
from data.vocabulary_checks import check_casing
from fine_tuning_flags import (
    BATCHING,
    BERT_CONFIG_FILE,
    DECIDING,
    DO_LOWER_CASE,
    DO_TRAIN,
    FREEZE_LAYERS,
    INIT_CHECKPOINT,
    NUM_TRAIN_EPOCHS,
    OUTPUT_DIR,
    TRAIN_BATCH_SIZE,
    TRAIN_BATCH_TOKENS,
    VOCAB_FILE,
    WARMUP_PROPORTION,
    trained_dir,
)
from modeling.checkpoint import Checkpoint, load_checkpoint
from modeling.models import TaskModel
from tasks.pretrained import Pretrained
from tasks.settings import SETTINGS_FILE, TaskSettings
from training.evaluation import load_latest
from training.loop import Trained, check_batch_size, train
from training.prediction import Predictions
from training.state import check_free
from training.step import Task
from training.strategy import is_chief, is_tpu


def find_pretrained(max_seq_length: int, needs_weights: bool = True) -> Pretrained:
    """What --init_checkpoint names; if nothing is to be trained and there is a run in --output_dir, that.

    Where weights are not needed, --vocab_file and --bert_config_file are enough.
    """
    path = INIT_CHECKPOINT.value if DO_TRAIN.value else trained_dir() or INIT_CHECKPOINT.value
    if not needs_weights and VOCAB_FILE.value and BERT_CONFIG_FILE.value:
        path = None
    found = Pretrained.find(path, BERT_CONFIG_FILE.value, VOCAB_FILE.value, DO_LOWER_CASE.value)
    if DO_LOWER_CASE.value is not None and path:
        check_casing(DO_LOWER_CASE.value, path, found.vocab, found.vocab_file)
    if max_seq_length > found.config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={max_seq_length} is longer than what the model has learned: its "
            f"max_position_embeddings is {found.config.max_position_embeddings}."
        )
    if FREEZE_LAYERS.value > found.config.num_hidden_layers:
        raise ValueError(f"--freeze_layers={FREEZE_LAYERS.value}: the model has {found.config.num_hidden_layers}.")
    return found


def check_before_encoding(strategy: tf.distribute.Strategy, *batch_size_flags) -> None:
    """What can be known to be wrong before minutes are spent on the data."""
    if is_chief(strategy):
        command_line.check_output_dir(OUTPUT_DIR.name, OUTPUT_DIR.value)
    if DO_TRAIN.value:
        if not TRAIN_BATCH_TOKENS.value:
            check_batch_size(strategy, TRAIN_BATCH_SIZE.value, training_flags.parts(), TRAIN_BATCH_SIZE.name)
        if is_chief(strategy):
            check_free(OUTPUT_DIR.value)
    for flag in batch_size_flags:
        check_batch_size(strategy, flag.value, parts=1, flag=flag.name)


def end_if_dry_run(
    strategy: tf.distribute.Strategy,
    make_model: Callable,
    found: Pretrained,
    max_seq_length: int,
    num_choices: int = 1,
    **sizes: int,
) -> None:
    """With --dry_run: builds the model, sets its weights, tells what would be done, and ends the script.

    Args:
        make_model: the model, when called.
        found: what to start from.
        max_seq_length: of a sequence.
        num_choices: sequences of an example.
        sizes: how many examples each set has.
    """
    if not command_line.is_dry_run():
        return
    with strategy.scope():
        model = make_model()
    facts = training_flags.facts(strategy, model, found.checkpoint and found.checkpoint.source)
    facts |= {name: f"{size:,} examples" for name, size in sizes.items()}
    if DO_TRAIN.value:
        initialize(model, found)
        rows = TRAIN_BATCH_SIZE.value
        if TRAIN_BATCH_TOKENS.value:
            rows = max(1, TRAIN_BATCH_TOKENS.value // max_seq_length)
        facts |= training_flags.memory(strategy, found.config, rows * num_choices, max_seq_length)
    else:
        load_trained(model, OUTPUT_DIR.value, found)
        facts |= command_line.weights_memory(4 * model.count_params())
    command_line.end_dry_run(facts)


def record_path(strategy: tf.distribute.Strategy, name: str) -> Path:
    """Where records go: into --output_dir; for all workers but the first, who would write the same, out of the way."""
    return Path(OUTPUT_DIR.value if is_chief(strategy) else _directory_aside()) / name


@functools.cache
def _directory_aside() -> str:
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    return directory.name


class FineTuning:
    """A model with its records under a strategy.

    Args:
        strategy: under whose scope the model was made.
        model: to train or to ask.
        parse: see `numbered_batches`.
        max_seq_length: columns of the records.
        labels_of_pieces: features that have something for each piece, besides the inputs of the encoder.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: TaskModel,
        parse: Callable,
        max_seq_length: int,
        labels_of_pieces: Sequence[str] = (),
    ):
        self._strategy = strategy
        self._model = model
        self._parse = parse
        self._max_seq_length = max_seq_length
        self._sequences = (*SEQUENCES, *labels_of_pieces)
        self._jit_compile = training_flags.jit_compile(strategy)
        needs_fixed_shapes = is_tpu(strategy) or self._jit_compile
        self._batching = BATCHING.value
        if self._batching == "auto":
            self._batching = "padded" if needs_fixed_shapes else "trimmed"
        if needs_fixed_shapes and self._batching != "padded":
            logging.info("--batching=%s: every length that occurs is compiled by itself.", self._batching)

    def train(
        self,
        task: Task,
        records: ExampleRecords,
        found: Pretrained,
        output_dir: str,
        seed: int,
        settings: TaskSettings,
        evaluate: Callable[[], dict[str, float]] | None,
        deciding: Mapping[str, Any] | None = None,
        num_examples: int | None = None,
    ) -> Trained:
        """Trains on records, from the weights that were found or from where a run in `output_dir` got to.

        Args:
            task, evaluate: see `training.loop.train`.
            records: what to learn from.
            found: what to start from.
            output_dir: of the run.
            seed: of everything that is random.
            settings: what whoever uses the model has to know; kept beside the weights.
            deciding: flags of the task that decide what is learned, besides the settings and those here.
            num_examples: by which epochs are counted, if not by records.
        """
        plan = self._plan(records, seed, num_examples or len(records))
        num_steps = len(plan)
        self._model.freeze(FREEZE_LAYERS.value)
        with self._strategy.scope():
            optimizer, loss_scale = training_flags.optimizer_for(
                self._model, num_steps, int(num_steps * WARMUP_PROPORTION.value)
            )
        logging.info("***** Training: %d sequences, %d steps *****", len(records), num_steps)
        rows = None if TRAIN_BATCH_TOKENS.value else TRAIN_BATCH_SIZE.value
        own = {flag.name: flag.value for flag in DECIDING} | {
            BATCHING.name: self._batching,  # what auto came to
            "number of steps": num_steps,
            "training data (SHA-256)": records.sha256,
            "bert_config_file": found.config.to_dict(),
        }
        return train(
            self._strategy,
            self._model,
            task,
            optimizer,
            lambda first, worker, workers: self._batches(records, plan, rows, first, worker, workers),
            training_flags.loop_options(
                self._strategy, output_dir, num_steps, plan.mean_rows, float(np.mean(records.lengths)), seed
            ),
            training_flags.deciding(seed) | own | settings.deciding() | dict(deciding or {}),
            {
                "bert_config.json": found.config.to_json_string(),
                "vocab.txt": vocab_text(found.vocab),
                SETTINGS_FILE: settings.to_json(),
            },
            functools.partial(initialize, self._model, found),
            loss_scale,
            evaluate,
        )

    def _plan(self, records: ExampleRecords, seed: int, num_examples: int) -> TrainingPlan:
        size = BatchSize(TRAIN_BATCH_SIZE.value, TRAIN_BATCH_TOKENS.value, training_flags.shares(self._strategy))
        num_steps = int(num_examples / size.rows * NUM_TRAIN_EPOCHS.value)  # the original's count
        plan = TrainingPlan(records.lengths, size, num_steps, seed, self._batching == "bucketed")
        if not len(plan):
            raise ValueError(
                f"{len(records)} examples are less than one batch in {NUM_TRAIN_EPOCHS.value:g} epochs: lower "
                f"--train_batch_size={TRAIN_BATCH_SIZE.value} or raise --num_train_epochs."
            )
        return plan

    def predictions(
        self, records: ExampleRecords, batch_size: int, flag: str, outputs: Callable | None = None
    ) -> Predictions:
        """What the model says of each record, as often as asked; with `outputs`, of each of its pieces."""
        check_batch_size(self._strategy, batch_size, parts=1, flag=flag)
        plan = evaluation_plan(records.lengths, BatchSize(batch_size), by_length=self._batching != "padded")
        return Predictions(
            self._strategy,
            self._model,
            lambda worker, workers: self._batches(records, plan, batch_size, 0, worker, workers),
            len(plan),
            len(records),
            outputs,
            self._max_seq_length if outputs else None,
            self._jit_compile,
        )

    def _batches(self, records, plan, rows: int | None, first: int, worker: int, num_workers: int) -> tf.data.Dataset:
        return numbered_batches(
            records,
            plan,
            self._parse,
            self._max_seq_length,
            first,
            worker,
            num_workers,
            length_step=None if self._batching == "padded" else 8,
            fixed_rows=rows,
            sequences=self._sequences,
        )


def initialize(model: keras.Model, found: Pretrained) -> None:
    """Sets the first weights of a run."""
    if found.checkpoint is None:
        logging.info("There is no --init_checkpoint: training starts from random weights.")
    else:
        logging.info("%s", load_checkpoint(model, _without_other_heads(model, found.checkpoint)))


def _without_other_heads(model: keras.Model, checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint without a head for other labels, which training replaces anyway."""
    shapes = {variable.path: tuple(variable.shape) for variable in model.weights}
    others = [
        name
        for name, value in checkpoint.variables.items()
        if not name.startswith("bert/") and shapes.get(name, value.shape) != value.shape
    ]
    if others:
        logging.info("%s has another head, which is not taken over: %s.", checkpoint.source, ", ".join(others))
    kept = {name: value for name, value in checkpoint.variables.items() if name not in others}
    return dataclasses.replace(checkpoint, variables=kept)


def load_trained(model: keras.Model, output_dir: str, found: Pretrained) -> int:
    """Sets the weights of the run in `output_dir`, else of --init_checkpoint, whose head has to be there, too.

    Returns:
        The step they are of; 0 where nobody knows.
    """
    step = load_latest(model, output_dir)
    if step is not None:
        return step
    if found.checkpoint is None:
        raise ValueError(f"There is no model: no run in {output_dir}, and no --init_checkpoint.")
    report = load_checkpoint(model, found.checkpoint)
    if report.missing:
        raise ValueError(
            f"{found.checkpoint.source} is not trained for this task: it lacks {', '.join(report.missing)}. Use "
            "--do_train."
        )
    return 0
