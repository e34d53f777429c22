"""A trained sentence model for people who write code: loaded once, asked as often as wanted, from any thread."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.sentence_features import Features, SentenceEncoder
from modeling.models import SentenceModel
from tasks.asking import BATCH_SIGNATURE, in_batches, load_trained
from tasks.sentences import SentenceSettings, by_label, probabilities, verdict, vote

Text = str | tuple[str, str]


class Prediction(NamedTuple):
    """What the model says of a text."""

    label: str | list[str] | float  # several for multi-label, a number for regression
    probabilities: dict[str, float]  # by label; empty for regression


class SentenceClassifier:
    """Labels texts.

    Example:
        >>> classifier = SentenceClassifier.load("out/sst-2")
        >>> classifier.predict(["A charming film.", "A waste of time."])[0].label
        '1'
        >>> SentenceClassifier.load("out/mrpc").predict([("He came.", "He arrived.")])

    Args:
        model: with trained weights.
        encoder: of the texts, as in training.
        settings: of the task.
    """

    def __init__(self, model: SentenceModel, encoder: SentenceEncoder, settings: SentenceSettings):
        self.settings = settings
        self._model = model
        self._encoder = encoder

    @classmethod
    def load(cls, output_dir: str | Path) -> "SentenceClassifier":
        """Loads the --output_dir of run_classifier.py."""
        settings = SentenceSettings.load(output_dir)
        model, tokenizer = load_trained(
            output_dir,
            settings.do_lower_case,
            lambda config: SentenceModel(config, settings.num_outputs, settings.bilstm_head),
        )
        return cls(model, SentenceEncoder(tokenizer, settings.max_seq_length, settings.long_text), settings)

    def predict(self, texts: Sequence[Text], batch_size: int = 32) -> list[Prediction]:
        """Says of each text, or pair of texts, what it is.

        Args:
            texts: sentences, or pairs of them.
            batch_size: sequences that run together; those of about the same length do.
        """
        rows: list[Features] = []
        text_of_row: list[int] = []
        for number, text in enumerate(texts):
            pair = (text, None) if isinstance(text, str) else tuple(text)
            if len(pair) != 2:
                raise ValueError(f"Text {number} is neither a string nor a pair of strings: {text!r}.")
            sequences, _ = self._encoder(*pair)
            rows += sequences
            text_of_row += [number] * len(sequences)
        if not rows:
            return []
        of_texts = vote(self._probabilities(rows, batch_size), np.array(text_of_row), len(texts))
        return [Prediction(verdict(self.settings, row), dict(by_label(self.settings, row))) for row in of_texts]

    @property
    def num_parameters(self) -> int:
        return self._model.count_params()

    def _probabilities(self, rows: list[Features], batch_size: int) -> np.ndarray:
        results = np.zeros([len(rows), self.settings.num_outputs], np.float32)
        for numbers, batch in in_batches(rows, self.settings.max_seq_length, batch_size):
            results[numbers] = probabilities(self.settings.kind, self._run(batch).numpy())
        return results

    @tf.function(input_signature=BATCH_SIGNATURE, autograph=False)
    def _run(self, batch):
        return tf.cast(self._model(batch, training=False), tf.float32)  # [B, L]
