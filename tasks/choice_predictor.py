"""A trained choice model for people who write code: loaded once, asked as often as wanted, from any thread."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.sentence_features import Features, SentenceEncoder
from modeling.models import ChoiceModel
from tasks.asking import BATCH_SIGNATURE, in_batches, load_trained
from tasks.choices import ChoiceSettings, choice_probabilities, encode_endings


class Chosen(NamedTuple):
    """What the model says of a context with its endings."""

    index: int  # of the likeliest ending
    probabilities: list[float]  # of each ending


class ChoicePredictor:
    """Chooses endings.

    Example:
        >>> predictor = ChoicePredictor.load("out/codah")
        >>> endings = ["opened an umbrella.", "melted.", "read it aloud to the clouds.", "was twelve years old."]
        >>> predictor.predict([("It began to rain. The postman", endings)])[0].index
        0

    Args:
        model: with trained weights.
        encoder: of the texts, as in training.
        settings: of the task.
    """

    def __init__(self, model: ChoiceModel, encoder: SentenceEncoder, settings: ChoiceSettings):
        self.settings = settings
        self._model = model
        self._encoder = encoder

    @classmethod
    def load(cls, output_dir: str | Path) -> "ChoicePredictor":
        """Loads the --output_dir of run_multiple_choice.py."""
        settings = ChoiceSettings.load(output_dir)
        model, tokenizer = load_trained(output_dir, settings.do_lower_case, ChoiceModel)
        return cls(model, SentenceEncoder(tokenizer, settings.max_seq_length), settings)

    def predict(self, questions: Sequence[tuple[str, Sequence[str]]], batch_size: int = 32) -> list[Chosen]:
        """Chooses one of the endings of each context.

        Args:
            questions: contexts, each with its endings, as many as in training.
            batch_size: sequences, one an ending, that run together; those of about the same length do.
        """
        rows: list[Features] = []
        for number, (context, endings) in enumerate(questions):
            if isinstance(endings, str) or len(endings) != self.settings.num_choices:
                raise ValueError(
                    f"Question {number} should have a list of {self.settings.num_choices} endings, as many as in "
                    f"training, but has {endings!r}."
                )
            for text in (context, *endings):
                if not isinstance(text, str) or not text.strip():
                    raise ValueError(f"Question {number} has {text!r} where a text should be.")
            rows += encode_endings(self._encoder, context, endings)[0]
        if not rows:
            return []
        scores = self._scores(rows, batch_size).reshape([len(questions), self.settings.num_choices])
        return [Chosen(int(np.argmax(row)), row.tolist()) for row in choice_probabilities(scores)]

    def _scores(self, rows: list[Features], batch_size: int) -> np.ndarray:
        """One score a sequence. Endings of one context need not be together: none has a say in another's score."""
        scores = np.zeros(len(rows), np.float32)
        for numbers, batch in in_batches(rows, self.settings.max_seq_length, batch_size):
            scores[numbers] = self._run(batch).numpy()
        return scores

    @tf.function(input_signature=BATCH_SIGNATURE, autograph=False)
    def _run(self, batch):
        one_choice_each = {name: tensor[:, tf.newaxis] for name, tensor in batch.items()}  # [B, 1, T]
        return tf.cast(self._model(one_choice_each, training=False), tf.float32)[:, 0]  # [B]
