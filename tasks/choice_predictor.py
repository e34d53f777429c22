"""A trained choice model for people who write code: loaded once, asked as often as wanted, from any thread."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.batch_plans import FILLER, BatchSize, evaluation_plan, padded_length
from data.example_records import SEQUENCES
from data.sentence_features import Features, SentenceEncoder
from data.tokenization import FullTokenizer
from modeling.checkpoint import load_checkpoint
from modeling.models import ChoiceModel
from tasks.choices import ChoiceSettings, choice_probabilities, encode_endings, padded
from tasks.pretrained import Pretrained

_LENGTH_STEP = 16


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
        found = Pretrained.find(output_dir, do_lower_case=settings.do_lower_case)
        model = ChoiceModel(found.config)
        report = load_checkpoint(model, found.checkpoint)
        if report.missing:
            raise ValueError(f"{output_dir} lacks weights of the task: {', '.join(report.missing)}.")
        tokenizer = FullTokenizer(vocab=found.vocab, do_lower_case=settings.do_lower_case)
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
        lengths = np.array([len(row.input_ids) for row in rows])
        scores = np.zeros(len(rows), np.float32)
        for numbers in evaluation_plan(lengths, BatchSize(min(batch_size, len(rows))), by_length=True):
            numbers = numbers[numbers != FILLER]
            length = min(padded_length(int(lengths[numbers].max()), _LENGTH_STEP), self.settings.max_seq_length)
            batch = padded([rows[i] for i in numbers], length)
            scores[numbers] = self._run({name: tf.constant(array) for name, array in batch.items()}).numpy()
        return scores

    # Traced once, for any shape: threads that come with new shapes at the same time would each trace their own.
    @tf.function(input_signature=[dict.fromkeys(SEQUENCES, tf.TensorSpec([None, None], tf.int32))])
    def _run(self, batch):
        one_choice_each = {name: tensor[:, tf.newaxis] for name, tensor in batch.items()}  # [B, 1, T]
        return tf.cast(self._model(one_choice_each, training=False), tf.float32)[:, 0]  # [B]
