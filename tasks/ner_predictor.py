"""A trained tagger for people who write code: loaded once, asked as often as wanted, from any thread."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.ner import TaggedText
from data.ner_features import TokenWindow, split_units, windows, words_of
from data.sentence_features import Features
from data.tokenization import FullTokenizer
from tasks.asking import BATCH_SIGNATURE, in_batches, load_trained
from tasks.ner import NerSettings, entities_told, make_model, tag_and_probability


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
        model, tokenizer = load_trained(output_dir, settings.do_lower_case, lambda config: make_model(config, settings))
        return cls(model, tokenizer, settings)

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
        """Of each window the tag and its probability, [T, 2]."""
        rows = [Features(window.input_ids, len(window.input_ids)) for window in made]
        results: list[np.ndarray] = [np.zeros([0, 2])] * len(made)
        for numbers, batch in in_batches(rows, self.settings.max_seq_length, batch_size):
            for number, told in zip(numbers, self._run(batch).numpy(), strict=True):
                results[number] = told
        return results

    @tf.function(input_signature=BATCH_SIGNATURE, autograph=False)
    def _run(self, batch):
        return tag_and_probability(self._model(batch, training=False))  # [B, T, 2]
