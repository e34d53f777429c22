"""Sentence tasks: one label, several labels or a number for a text or a pair of texts.

Axes in comments: B batch, L labels, N records.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from data.examples import Example
from modeling.losses import cross_entropy
from tasks.settings import TaskSettings

KINDS = ("single_label", "multi_label", "regression")


@dataclasses.dataclass(frozen=True)
class SentenceSettings(TaskSettings):
    """Of a sentence task."""

    kind: str
    labels: tuple[str, ...]  # empty for regression
    do_lower_case: bool
    max_seq_length: int
    long_text: str = "head"
    bilstm_head: bool = False
    metrics: tuple[str, ...] = ()  # the official ones of the task; without them, what its kind usually has
    has_pairs: bool = False  # whether it was trained on pairs of texts

    script = "run_classifier.py"

    @property
    def num_outputs(self) -> int:
        return len(self.labels) or 1


def find_labels(examples: Iterable[Example], kind: str, source: str) -> tuple[str, ...]:
    """The labels that occur in training data, sorted: numbers by their value, names by their letters."""
    if kind == "regression":
        return ()
    found = {label for e in examples for label in (e.label if kind == "multi_label" else [e.label])}
    if len(found) < (1 if kind == "multi_label" else 2):
        raise ValueError(
            f"All of {source} has the label {next(iter(found), None)!r}: there is nothing to tell apart. Is it the "
            "right column (--label_column), or is the file sorted and cut?"
        )
    is_number = all(re.fullmatch("-?[0-9]+", label) for label in found)
    return tuple(sorted(found, key=(lambda label: (int(label), label)) if is_number else None))


def label_ids(examples: Sequence[Example], settings: SentenceSettings) -> np.ndarray:
    """Labels as numbers: int [N], for several labels int [N, L] of 0 and 1, for regression float [N].

    Raises:
        ValueError: a label that training data does not have.
    """
    if settings.kind == "regression":
        return np.array([example.label for example in examples], np.float32)
    ids = {label: number for number, label in enumerate(settings.labels)}

    def known(label: str, example: Example) -> int:
        if label not in ids:
            raise ValueError(
                f"{example.place}: the label {label!r} does not occur in the training data, which has "
                f"{', '.join(map(repr, settings.labels))}."
            )
        return ids[label]

    if settings.kind == "single_label":
        return np.array([known(example.label, example) for example in examples], np.int32)
    result = np.zeros([len(examples), len(settings.labels)], np.int32)
    for row, example in enumerate(examples):
        for label in example.label:
            result[row, known(label, example)] = 1
    return result


class SentenceTask:
    """The loss of training, and what is shown of it; see `training.step.Task`.

    Args:
        kind: one of `KINDS`.
        label_smoothing: how much of each target is spread over all labels.
        class_weights: [L], how much an example of a class counts; None for all the same.
    """

    def __init__(self, kind: str, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        self._kind = kind
        self._label_smoothing = label_smoothing
        self._class_weights = class_weights
        self.measures = ("example_count", "example_loss") + (() if kind == "regression" else ("example_correct",))

    def counts(self, batch) -> dict[str, tf.Tensor]:
        return {"example_count": tf.reduce_sum(batch["row_weights"])}

    def sums(self, logits, batch) -> dict[str, tf.Tensor]:
        logits, labels = tf.cast(logits, tf.float32), batch["label_ids"]  # [B, L], and [B] or [B, L]
        weights = batch["row_weights"]  # [B]
        losses = sentence_losses(self._kind, logits, labels, self._label_smoothing)  # [B]
        if self._class_weights is not None:
            losses *= tf.gather(tf.constant(self._class_weights, tf.float32), labels)
        sums = {"example_loss": tf.reduce_sum(losses * weights)}
        if self._kind == "single_label":
            is_right = tf.argmax(logits, axis=-1, output_type=tf.int32) == tf.cast(labels, tf.int32)
        elif self._kind == "multi_label":
            is_right = tf.reduce_all((logits > 0.0) == (labels > 0), axis=-1)
        if self._kind != "regression":
            sums["example_correct"] = tf.reduce_sum(tf.cast(is_right, tf.float32) * weights)
        return sums

    def loss(self, sums, counts) -> tf.Tensor:
        return tf.math.divide_no_nan(sums["example_loss"], counts["example_count"])

    def figures(self, totals) -> dict[str, float]:
        if self._kind == "regression":
            return {}
        return {"accuracy": totals["example_correct"] / max(totals["example_count"], 1.0)}


def sentence_losses(kind: str, logits, labels, label_smoothing: float = 0.0):
    """One loss an example: logits float [B, L], labels [B] or [B, L] -> [B]."""
    if kind == "regression":
        return tf.square(logits[:, 0] - tf.cast(labels, tf.float32))
    if kind == "multi_label":
        targets = tf.cast(labels, tf.float32) * (1.0 - label_smoothing) + label_smoothing / 2.0
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits), axis=-1)
    losses = cross_entropy(logits, labels)
    if label_smoothing:
        evenly = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * evenly
    return losses


def balanced_weights(labels: np.ndarray, num_labels: int) -> list[float]:
    """Weights by which each class counts as much as the others: labels int [N] -> [L], one on average over examples."""
    counts = np.bincount(labels, minlength=num_labels)
    return [float(len(labels) / (num_labels * count)) if count else 0.0 for count in counts]


def probabilities(kind: str, logits: np.ndarray) -> np.ndarray:
    """[N, L] -> [N, L]: of each label; for regression the number itself."""
    if kind == "regression":
        return logits
    if kind == "multi_label":
        return 1.0 / (1.0 + np.exp(-np.clip(logits, -80.0, 80.0)))
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def vote(of_records: np.ndarray, example_of_record: np.ndarray, num_examples: int) -> np.ndarray:
    """Means over the windows of each example: [N, L] -> [examples, L]."""
    totals = np.zeros([num_examples, of_records.shape[-1]])
    np.add.at(totals, example_of_record, of_records)
    return totals / np.bincount(example_of_record, minlength=num_examples)[:, np.newaxis]


def verdict(settings: SentenceSettings, probabilities_of: np.ndarray) -> Any:
    """The label, the labels or the number that probabilities [L] amount to."""
    if settings.kind == "regression":
        return float(probabilities_of[0])
    if settings.kind == "multi_label":
        return [label for label, p in zip(settings.labels, probabilities_of, strict=True) if p > 0.5]
    return settings.labels[int(np.argmax(probabilities_of))]


def by_label(settings: SentenceSettings, probabilities_of: np.ndarray) -> Mapping[str, float]:
    """Probabilities [L] by the names of labels; empty for regression."""
    return {label: float(p) for label, p in zip(settings.labels, probabilities_of, strict=False)}
