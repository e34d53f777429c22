"""A trained tagger for people who write code: loaded once, asked as often as wanted, from any thread."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.batch_plans import FILLER, BatchSize, evaluation_plan, padded_length
from data.ner import TaggedText
from data.ner_features import TokenWindow, split_units, windows, words_of
from data.tokenization import FullTokenizer
from modeling.checkpoint import load_checkpoint
from tasks.ner import NerSettings, entities_told, make_model, tag_and_probability
from tasks.pretrained import Pretrained

_LENGTH_STEP = 16


class FoundEntity(NamedTuple):
    """An entity in a text; `text[start:end]` is its name."""

    start: int
    end: int
    type: str
    text: str
    probability: float  # of the least sure of its tags


class NerPredictor:
    """Finds entities.

    Example:
        >>> predictor = NerPredictor.load("out/wnut")
        >>> predictor.predict(["Marta lives in Oslo."])
        [[FoundEntity(start=0, end=5, type='person', text='Marta', probability=0.98), …]]

    Args:
        model: with trained weights.
        tokenizer: of the model.
        settings: of the task.
    """

    def __init__(self, model, tokenizer: FullTokenizer, settings: NerSettings):
        self.settings = settings
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, output_dir: str | Path) -> "NerPredictor":
        """Loads the --output_dir of run_ner.py."""
        settings = NerSettings.load(output_dir)
        found = Pretrained.find(output_dir, do_lower_case=settings.do_lower_case)
        model = make_model(found.config, settings)
        report = load_checkpoint(model, found.checkpoint)
        if report.missing:
            raise ValueError(f"{output_dir} lacks weights of the task: {', '.join(report.missing)}.")
        return cls(model, FullTokenizer(vocab=found.vocab, do_lower_case=settings.do_lower_case), settings)

    def predict(self, texts: Sequence[str], batch_size: int = 32) -> list[list[FoundEntity]]:
        """The entities of each text, in their order. Texts of any length; each stands for itself."""
        tagged = [
            TaggedText(str(number), text, words_of(text) if self.settings.unit == "word" else None, None, number)
            for number, text in enumerate(texts)
        ]
        units = [split_units(text, self._tokenizer) for text in tagged]
        made = list(windows(units, range(len(units)), self._tokenizer, self.settings.max_seq_length, False))
        kept = [(window.text, window.positions, window.units) for window in made]
        told = entities_told(self.settings, units, kept, self._tell(made, batch_size))
        result = []
        for text, of_text in zip(tagged, told, strict=True):
            found = []
            for entity, probability in of_text:
                start, end = text.characters(entity)
                found.append(FoundEntity(start, end, entity.type, text.text[start:end], probability))
            result.append(found)
        return result

    def _tell(self, made: Sequence[TokenWindow], batch_size: int) -> list[np.ndarray]:
        results: list[np.ndarray] = [np.zeros([0, 2])] * len(made)
        lengths = np.array([len(window.input_ids) for window in made], int)
        for numbers in evaluation_plan(lengths, BatchSize(max(1, min(batch_size, len(made)))), by_length=True):
            numbers = numbers[numbers != FILLER]
            length = min(padded_length(int(lengths[numbers].max()), _LENGTH_STEP), self.settings.max_seq_length)
            ids = np.zeros([len(numbers), length], np.int32)
            for row, number in enumerate(numbers):
                ids[row, : lengths[number]] = made[number].input_ids
            mask = (np.arange(length) < lengths[numbers][:, np.newaxis]).astype(np.int32)
            told = self._run({"input_ids": tf.constant(ids), "input_mask": tf.constant(mask)}).numpy()
            for row, number in enumerate(numbers):
                results[number] = told[row]
        return results

    @tf.function(reduce_retracing=True)
    def _run(self, batch):
        return tag_and_probability(self._model(batch, training=False))  # [B, T, 2]
