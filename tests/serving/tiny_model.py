"""A SavedModel that is made in a second, has the signatures of a real one, and answers what a test can foretell."""

from pathlib import Path

import numpy as np
import tensorflow as tf

LONG, SHORT = "길다 📏", "short"
_TEXTS = tf.TensorSpec([None], tf.string)
_IDS = tf.TensorSpec([None, None], tf.int32)


class TinyModel(tf.Module):
    """Texts of more than 8 characters are long."""

    def __init__(self):
        super().__init__()
        self.slope = tf.Variable(0.25)

    def _probabilities(self, lengths: tf.Tensor) -> tf.Tensor:
        long = tf.sigmoid((tf.cast(lengths, tf.float32) - 8.5) * self.slope)
        return tf.stack([1 - long, long], axis=-1)

    @tf.function
    def texts(self, text):
        probabilities = self._probabilities(tf.strings.length(text, unit="UTF8_CHAR"))
        label = tf.where(probabilities[:, 1] > 0.5, LONG, SHORT)
        return {"label": label, "probabilities": probabilities, "text_bytes": tf.identity(text)}

    @tf.function
    def pairs(self, text, text_pair):
        return {"same": tf.cast(tf.equal(text, text_pair), tf.float32)}

    @tf.function
    def tokens(self, input_ids, input_mask, segment_ids):
        counts = tf.reduce_sum(tf.cast(input_ids > 0, tf.int32) * input_mask, axis=1)
        return {"probabilities": self._probabilities(counts), "num_segments": tf.reduce_max(segment_ids, axis=1) + 1}

    @tf.function
    def total(self, text):
        return {"count": tf.size(text), "text": text}

    @tf.function
    def labels(self, text):
        return {"label": tf.where(tf.strings.length(text) > 0, LONG, SHORT)}


def export(directory: Path) -> Path:
    """Writes a version's directory."""
    model = TinyModel()
    signatures = {
        "serving_default": model.texts.get_concrete_function(text=_TEXTS),
        "pairs": model.pairs.get_concrete_function(text=_TEXTS, text_pair=_TEXTS),
        "tokens": model.tokens.get_concrete_function(input_ids=_IDS, input_mask=_IDS, segment_ids=_IDS),
        "total": model.total.get_concrete_function(text=_TEXTS),
        "slow": model.labels.get_concrete_function(text=_TEXTS),
    }
    tf.saved_model.save(model, str(directory), signatures=signatures)
    return directory


def long_probability(length: int) -> float:
    return float(1 / (1 + np.exp(-0.25 * (length - 8.5))))
