"""Embeddings as a service: texts in, a vector for each out.

Axes in comments: B texts, D numbers of a vector.
"""

import dataclasses
from pathlib import Path

import tensorflow as tf

from data.graph_packing import SentencePacker
from data.graph_tokenization import GraphTokenizer
from data.tokenization import FullTokenizer
from modeling.encoder import BertEncoder
from serving.service import TEXTS, Service
from tasks.settings import TaskSettings
from tasks.vectors import choose_layers, load_encoder, pool


@dataclasses.dataclass(frozen=True)
class VectorSettings(TaskSettings):
    """Of an encoder of texts; see `TextEncoder`."""

    do_lower_case: bool
    max_seq_length: int
    pooling: str = "mean"
    normalize: bool = False

    script = "extract_features.py"


class VectorService(Service):
    """Gives vectors: what `TextEncoder` does in Python.

    Args:
        model, tokenizer, settings: see `Service`.
    """

    def __init__(self, model: BertEncoder, tokenizer: FullTokenizer, settings: VectorSettings):
        if settings.pooling == "none":
            raise ValueError("Vectors of all tokens are not served: use another pooling, such as mean.")
        super().__init__(model, tokenizer, settings)
        self._pooling, self._layers = choose_layers(model.config, settings.pooling, None)
        self._graph_tokenizer = GraphTokenizer(tokenizer)
        self._pack = SentencePacker(tokenizer.vocab, settings.max_seq_length, pad_to_longest=True)

    @classmethod
    def load(
        cls,
        path: str | Path,
        dtype: str = "float32",
        max_seq_length: int | None = None,
        pooling: str = "mean",
        normalize: bool = False,
    ) -> "VectorService":
        """Loads an encoder, of whatever kind of checkpoint."""
        model, tokenizer = load_encoder(path, dtype=dtype)
        most = model.config.max_position_embeddings
        settings = VectorSettings(tokenizer.do_lower_case, min(max_seq_length or most, most), pooling, normalize)
        return cls(model, tokenizer, settings)

    @property
    def outputs(self):
        return {"vector": tf.TensorSpec([None, len(self._layers) * self.config.hidden_size], tf.float32)}

    def inputs(self):
        return {"text": TEXTS}

    def samples(self):
        return [{"text": "A short text."}, {"text": "A text that is longer than the others, by some words. " * 4}]

    def answer(self, text):
        return self.run_in_parts(self._pack(self._graph_tokenizer.tokenize(text)).batch)

    def run(self, batch):
        layers = self._network(batch)["all_layers"]
        vectors = pool(layers, batch["input_mask"], self._pooling, self._layers)  # [B, D]
        return {"vector": tf.math.l2_normalize(vectors, axis=-1) if self.settings.normalize else vectors}
