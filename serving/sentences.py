"""Sentences as a service: a text or a pair of texts in, a label, labels or a number out.

Axes in comments: B texts, R sequences, L labels.
"""

from pathlib import Path

import tensorflow as tf

from data.graph_packing import SentencePacker
from data.graph_tokenization import GraphTokenizer
from data.tokenization import FullTokenizer
from modeling.models import SentenceModel
from serving.service import TEXTS, Service
from tasks.asking import load_trained
from tasks.sentences import SentenceSettings


class SentenceService(Service):
    """Labels texts: what `SentenceClassifier` does in Python.

    Args:
        model, tokenizer, settings: see `Service`.
    """

    def __init__(self, model: SentenceModel, tokenizer: FullTokenizer, settings: SentenceSettings):
        super().__init__(model, tokenizer, settings)
        self._labels = tf.constant(settings.labels, tf.string)  # [L]
        self._graph_tokenizer = GraphTokenizer(tokenizer)
        self._pack = SentencePacker(tokenizer.vocab, settings.max_seq_length, settings.long_text, pad_to_longest=True)

    @classmethod
    def load(cls, output_dir: str | Path, dtype: str = "float32") -> "SentenceService":
        """Loads the --output_dir of run_classifier.py."""
        settings = SentenceSettings.load(output_dir)
        model, tokenizer = load_trained(
            output_dir,
            settings.do_lower_case,
            lambda config: SentenceModel(config, settings.num_outputs, settings.bilstm_head, dtype=dtype),
        )
        return cls(model, tokenizer, settings)

    @property
    def outputs(self):
        rows = tf.TensorSpec([None, self.settings.num_outputs], tf.float32)
        return {"logits": rows, "probabilities": rows} if self.settings.labels else {"logits": rows}

    def inputs(self):
        return {"text": TEXTS, "text_pair": TEXTS} if self.settings.has_pairs else {"text": TEXTS}

    def samples(self):
        rows = [{"text": "A short text."}, {"text": "A text that is longer than the others, by some words. " * 4}]
        return [row | {"text_pair": "And another one."} for row in rows] if self.settings.has_pairs else rows

    def answer(self, text, text_pair=None):
        if text_pair is not None:
            tf.debugging.assert_equal(tf.size(text), tf.size(text_pair), "text and text_pair need as many rows.")
        pieces = [self._graph_tokenizer.tokenize(texts) for texts in (text, text_pair) if texts is not None]
        rows = self._pack(*pieces)
        told = self.run_in_parts(rows.batch)
        votes = {name: tf.math.segment_mean(values, rows.text_of_row) for name, values in told.items()}  # [B, L]
        if self.settings.kind == "regression":
            return {"value": votes["logits"][:, 0]}
        probabilities = votes["probabilities"]
        labels = tf.tile(self._labels[tf.newaxis], [tf.shape(probabilities)[0], 1])  # [B, L]
        answers = {"labels": labels, "probabilities": probabilities}
        if self.settings.kind == "multi_label":
            return answers | {"is_label": probabilities > 0.5}
        best = tf.argmax(probabilities, axis=-1)
        return answers | {"label": tf.gather(self._labels, best), "probability": tf.reduce_max(probabilities, axis=-1)}

    def run(self, batch):
        logits = tf.cast(self._network(batch), tf.float32)  # [B, L]
        if self.settings.kind == "regression":
            return {"logits": logits}
        to_probabilities = tf.nn.sigmoid if self.settings.kind == "multi_label" else tf.nn.softmax
        return {"logits": logits, "probabilities": to_probabilities(logits)}
