"""What the Python classes of all tasks share: a model from its directory, and sequences through it in batches."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data.batch_plans import FILLER, BatchSize, evaluation_plan, padded_length
from data.example_records import SEQUENCES
from data.sentence_features import Features, padded
from data.tokenization import FullTokenizer
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.models import TaskModel
from tasks.pretrained import Pretrained

_LENGTH_STEP = 16

# What a function that runs a model takes. Traced once, for any shape: threads that come with new shapes at the same
# time would each trace their own.
BATCH_SIGNATURE = [dict.fromkeys(SEQUENCES, tf.TensorSpec([None, None], tf.int32))]


def load_trained(
    output_dir: str | Path, do_lower_case: bool, make_model: Callable[[BertConfig], TaskModel]
) -> tuple[TaskModel, FullTokenizer]:
    """The model of an output directory, with all of its weights, and its tokenizer."""
    found = Pretrained.find(output_dir, do_lower_case=do_lower_case)
    model = make_model(found.config)
    report = load_checkpoint(model, found.checkpoint)
    if report.missing:
        raise ValueError(f"{output_dir} lacks weights of the task: {', '.join(report.missing)}.")
    return model, FullTokenizer(vocab=found.vocab, do_lower_case=do_lower_case)


def in_batches(
    rows: Sequence[Features], max_seq_length: int, batch_size: int
) -> Iterator[tuple[np.ndarray, dict[str, tf.Tensor]]]:
    """Sequences of about the same length together: the numbers of the rows of each batch, and the batch."""
    if not rows:
        return
    lengths = np.array([len(row.input_ids) for row in rows])
    for numbers in evaluation_plan(lengths, BatchSize(min(batch_size, len(rows))), by_length=True):
        numbers = numbers[numbers != FILLER]
        length = min(padded_length(int(lengths[numbers].max()), _LENGTH_STEP), max_seq_length)
        yield numbers, to_batch([rows[number] for number in numbers], length)


def to_batch(rows: Sequence[Features], length: int) -> dict[str, tf.Tensor]:
    """Sequences as the network reads them: int32 [rows, length] each."""
    return {name: tf.constant(array) for name, array in padded(rows, length).items()}
