"""Examples of sentence tasks as records, and what a model says of records as answers for examples.

Where long texts are cut into windows there are more records than examples, and the windows of an example vote.
Axes in comments: B batch, L labels, N records.
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from data.example_records import ExampleRecords
from data.examples import Example
from data.sentence_features import Features, SentenceEncoder
from data.tfrecord import ExampleEncoder
from tasks import sentence_results
from tasks.sentences import SentenceSettings, label_ids, probabilities, vote


@dataclasses.dataclass(frozen=True)
class EncodedSet:
    """One set of examples in a file of records."""

    settings: SentenceSettings
    examples: Sequence[Example]
    labels: np.ndarray | None  # see `label_ids`; None where they are not known
    records: ExampleRecords
    example_of_record: np.ndarray  # int [N]

    @classmethod
    def write(
        cls,
        path: str | Path,
        examples: Sequence[Example],
        settings: SentenceSettings,
        encoder: SentenceEncoder,
        has_labels: bool = True,
    ) -> "EncodedSet":
        """Writes examples as the original did: its features under its names, padded to the full length.

        Args:
            path: of the TFRecord file.
            examples: one after the other.
            settings: of the task.
            encoder: of the texts.
            has_labels: if not, the labels in the records are 0.
        """
        labels = label_ids(examples, settings) if has_labels else None  # first: a wrong one is found before the work
        make = _RecordMaker(encoder)
        blank = _blank_label(settings)
        example_of_record, cut = [], []

        def records() -> Iterator[tuple[bytes, int]]:
            for number, example in enumerate(tqdm(examples, desc=f"Encoding {Path(path).stem}", unit=" examples")):
                sequences, is_cut = encoder(example.text_a, example.text_b)
                if is_cut:
                    cut.append(number)
                for features in sequences:
                    example_of_record.append(number)
                    yield make(features, blank if labels is None else labels[number]), len(features.input_ids)

        written = ExampleRecords.write(path, records())
        if cut:
            how = (
                "into windows"
                if encoder.long_text == "windows"
                else f"to their {encoder.long_text.replace('_', ' and ')}"
            )
            logging.getLogger(__name__).info(
                "%s: %d of %d texts have more than %d pieces and were cut %s (--long_text, --max_seq_length).",
                Path(path).stem,
                len(cut),
                len(examples),
                encoder.max_seq_length,
                how,
            )
        return cls(settings, examples, labels, written, np.array(example_of_record))

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """What the model says of records, [N, L], as probabilities for examples, [examples, L]."""
        return vote(probabilities(self.settings.kind, logits), self.example_of_record, len(self.examples))

    def figures(self, logits: np.ndarray) -> dict[str, float]:
        """Figures of an evaluation."""
        losses = sentence_results.losses_of(self.settings, logits, self.labels[self.example_of_record])
        return sentence_results.figures(self.settings, self.probabilities(logits), self.labels, losses)


def _blank_label(settings: SentenceSettings) -> np.ndarray:
    if settings.kind == "multi_label":
        return np.zeros(len(settings.labels), np.int32)
    return np.float32(0.0) if settings.kind == "regression" else np.int32(0)


class _RecordMaker:
    """Features and a label -> a serialized tf.Example."""

    def __init__(self, encoder: SentenceEncoder):
        self._length = encoder.max_seq_length
        self._encode = ExampleEncoder(max_number=max(encoder.tokenizer.vocab.values()))

    def __call__(self, features: Features, label: np.ndarray) -> bytes:
        encode, length = self._encode, len(features.input_ids)
        padding, second = self._length - length, features.second_segment
        if label.dtype == np.float32:
            labels = encode.floats("label_ids", [float(label)])
        else:
            labels = encode.numbers("label_ids", np.atleast_1d(label).tolist())
        return encode.example(
            encode.numbers("input_ids", features.input_ids, padding),
            encode.repeated("input_mask", (1, length), (0, padding)),
            encode.repeated("segment_ids", (0, second), (1, length - second), (0, padding)),
            labels,
            encode.repeated("is_real_example", (1, 1)),
        )


def parser(settings: SentenceSettings):
    """A function from serialized examples [B] to features [B, …]."""
    sequence = tf.io.FixedLenFeature([settings.max_seq_length], tf.int64)
    label = {
        "single_label": tf.io.FixedLenFeature([], tf.int64),
        "multi_label": tf.io.FixedLenFeature([len(settings.labels)], tf.int64),
        "regression": tf.io.FixedLenFeature([], tf.float32),
    }[settings.kind]
    features = {"input_ids": sequence, "input_mask": sequence, "segment_ids": sequence, "label_ids": label}

    def parse(records) -> dict[str, tf.Tensor]:
        batch = tf.io.parse_example(records, features)
        return {name: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for name, v in batch.items()}

    return parse
