"""Multiple choice: each ending gets a score together with its context, and a softmax over the scores decides.

Axes in comments: B batch, C choices, T sequence length, N examples.
"""

import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from data.choices import Choice
from data.example_records import SEQUENCES, ExampleRecords
from data.sentence_features import Features, SentenceEncoder, padded
from data.tfrecord import ExampleEncoder
from modeling.losses import cross_entropy
from tasks.sentences import SentenceTask, probabilities
from tasks.settings import TaskSettings
from training.state import write_text

METRIC_NAMES = ("eval_accuracy", "eval_loss")


@dataclasses.dataclass(frozen=True)
class ChoiceSettings(TaskSettings):
    """Of a choice model."""

    num_choices: int
    do_lower_case: bool
    max_seq_length: int

    script = "run_multiple_choice.py"


class ChoiceTask(SentenceTask):
    """The loss of training, and what is shown of it: those of one label, with the choices for labels.

    Args:
        label_smoothing: how much of each target is spread over all choices.
    """

    def __init__(self, label_smoothing: float = 0.0):
        super().__init__("single_label", label_smoothing)


def encode_endings(encoder: SentenceEncoder, context: str, endings: Sequence[str]) -> tuple[list[Features], bool]:
    """[CLS] context [SEP] ending [SEP] for each ending; and whether any of them was too long and had to be cut."""
    encoded = [encoder(context, ending) for ending in endings]
    return [features for [features], _ in encoded], any(is_cut for _, is_cut in encoded)


@dataclasses.dataclass(frozen=True)
class EncodedChoices:
    """One set of examples in a file of records."""

    choices: Sequence[Choice]
    labels: np.ndarray | None  # int32 [N]; None where they are not known
    records: ExampleRecords

    @classmethod
    def write(
        cls,
        path: str | Path,
        choices: Sequence[Choice],
        settings: ChoiceSettings,
        encoder: SentenceEncoder,
        has_labels: bool = True,
    ) -> "EncodedChoices":
        """Writes a record an example, with the sequences of its choices one behind the other, each of full length.

        Args:
            path: of the TFRecord file.
            choices: one after the other.
            settings: of the task.
            encoder: of the texts.
            has_labels: if not, the labels in the records are 0.
        """
        labels = np.array([choice.label for choice in choices], np.int32) if has_labels else None
        encode = ExampleEncoder(max_number=max(encoder.tokenizer.vocab.values()))
        cut = []

        def records() -> Iterator[tuple[bytes, int]]:
            for number, choice in enumerate(tqdm(choices, desc=f"Encoding {Path(path).stem}", unit=" examples")):
                sequences, is_cut = encode_endings(encoder, choice.context, choice.endings)
                if is_cut:
                    cut.append(number)
                arrays = padded(sequences, settings.max_seq_length)  # [C, T]
                example = encode.example(
                    *(encode.numbers(name, array.ravel().tolist()) for name, array in arrays.items()),
                    encode.numbers("label_ids", [0 if labels is None else int(labels[number])]),
                )
                yield example, max(len(features.input_ids) for features in sequences)

        written = ExampleRecords.write(path, records())
        if cut:
            logging.getLogger(__name__).info(
                "%s: %d of %d examples have an ending that makes more than %d pieces with its context, and were cut "
                "(--max_seq_length).",
                Path(path).stem,
                len(cut),
                len(choices),
                settings.max_seq_length,
            )
        return cls(choices, labels, written)

    def figures(self, logits: np.ndarray) -> dict[str, float]:
        """Figures of an evaluation, from logits [N, C]."""
        return {
            "eval_accuracy": float(np.mean(np.argmax(logits, axis=-1) == self.labels)),
            "eval_loss": float(np.mean(cross_entropy(logits, self.labels))),
        }


def parser(settings: ChoiceSettings):
    """A function from serialized examples [B] to features: [B, C, T] each, and label_ids [B]."""
    sequences = tf.io.FixedLenFeature([settings.num_choices, settings.max_seq_length], tf.int64)
    features = dict.fromkeys(SEQUENCES, sequences) | {"label_ids": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records) -> dict[str, tf.Tensor]:
        return {name: tf.cast(v, tf.int32) for name, v in tf.io.parse_example(records, features).items()}

    return parse


def choice_probabilities(logits: np.ndarray) -> np.ndarray:
    """How likely each choice is the right one: [N, C] -> [N, C]."""
    return probabilities("single_label", logits)


def write_predictions(output_dir: str | Path, choices: Sequence[Choice], probabilities_of: np.ndarray) -> None:
    """Writes test_results.tsv, probabilities [N, C] without header or names, and predictions.jsonl."""
    rows = ("\t".join(str(float(p)) for p in row) + "\n" for row in probabilities_of)
    write_text(Path(output_dir) / "test_results.tsv", "".join(rows))
    predictions = (
        {"id": choice.id, "label": int(np.argmax(row)), "probabilities": [float(p) for p in row]}
        for choice, row in zip(choices, probabilities_of, strict=True)
    )
    lines = (json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
    write_text(Path(output_dir) / "predictions.jsonl", "".join(lines))
