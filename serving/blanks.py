"""Fill-mask as a service: texts with [MASK] in, what may stand there out.

Axes in comments: B texts, T sequence length, P masks of the text that has most, K candidates, V vocabulary.
"""

import dataclasses
from pathlib import Path

import tensorflow as tf

from data.graph_packing import SentencePacker
from data.graph_tokenization import GraphTokenizer
from data.tokenization import FullTokenizer, pieces_by_id
from modeling.models import PretrainingModel
from serving.service import TEXTS, Service
from tasks.fill_mask import MASK, load_masked_lm
from tasks.settings import TaskSettings


@dataclasses.dataclass(frozen=True)
class BlankSettings(TaskSettings):
    """Of a model that fills in."""

    do_lower_case: bool
    max_seq_length: int
    top_k: int = 5

    script = "run_fill_mask.py"


class BlankService(Service):
    """Fills in: what `FillMask` does in Python. Masks in what is cut off a long text get no answer.

    Args:
        model, tokenizer, settings: see `Service`.
    """

    def __init__(self, model: PretrainingModel, tokenizer: FullTokenizer, settings: BlankSettings):
        super().__init__(model, tokenizer, settings)
        pieces = pieces_by_id(tokenizer.vocab)
        self._tokens = tf.constant(pieces + ["[UNK]"] * (model.config.vocab_size - len(pieces)), tf.string)  # [V]
        self._graph_tokenizer = GraphTokenizer(tokenizer)
        self._pack = SentencePacker(tokenizer.vocab, settings.max_seq_length, pad_to_longest=True)

    @classmethod
    def load(
        cls, path: str | Path, dtype: str = "float32", max_seq_length: int | None = None, top_k: int = 5
    ) -> "BlankService":
        """Loads a pre-trained checkpoint, of whatever kind."""
        model, tokenizer, _ = load_masked_lm(path, dtype=dtype)
        most = model.config.max_position_embeddings
        settings = BlankSettings(tokenizer.do_lower_case, min(max_seq_length or most, most), top_k)
        return cls(model, tokenizer, settings)

    @property
    def outputs(self):
        # As many places as tokens, of which the first are used: how many masks there are differs from part to part.
        shape = [None, None, self.settings.top_k]
        return {"token_ids": tf.TensorSpec(shape, tf.int32), "probabilities": tf.TensorSpec(shape, tf.float32)}

    def inputs(self):
        return {"text": TEXTS}

    def samples(self):
        return [{"text": f"It was a {MASK} day."}, {"text": f"{MASK} and {MASK}, as it says in the book. " * 3}]

    def answer(self, text):
        return self.answer_tokens(**self._pack(self._graph_tokenizer.tokenize(text)).batch)

    def answer_tokens(self, **batch):
        batch = self.without_padding_of_server(batch)
        told = self.run_in_parts(batch)
        counts = tf.reduce_sum(tf.cast(self._is_mask(batch), tf.int32), axis=1)  # [B]
        most = tf.reduce_max(tf.concat([counts, [0]], axis=0))
        is_there = tf.sequence_mask(counts, most)[..., tf.newaxis]  # [B, P, 1]
        tokens = tf.gather(self._tokens, told["token_ids"][:, :most])
        return {
            "count": counts,
            "tokens": tf.where(is_there, tokens, ""),
            "probabilities": tf.where(is_there, told["probabilities"][:, :most], 0.0),
        }

    def run(self, batch):
        is_mask = self._is_mask(batch)
        positions = tf.ragged.boolean_mask(
            tf.broadcast_to(tf.range(tf.shape(is_mask)[1]), tf.shape(is_mask)), is_mask
        ).to_tensor()  # [B, P]
        logits = self._network({**batch, "masked_lm_positions": positions})["masked_lm_logits"]  # [B, P, V]
        values, pieces = tf.math.top_k(tf.nn.softmax(tf.cast(logits, tf.float32)), self.settings.top_k)
        return {"token_ids": pieces, "probabilities": values}

    def _is_mask(self, batch):
        return (batch["input_ids"] == self.tokenizer.vocab[MASK]) & (batch["input_mask"] > 0)
