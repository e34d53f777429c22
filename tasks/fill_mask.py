"""What stands at [MASK]: text in, words and their probabilities out.

Axes in comments: B batch, T sequence length, P masked positions of the row that has most.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data.tokenization import FullTokenizer
from modeling.checkpoint import load_checkpoint
from modeling.losses import cross_entropy
from modeling.models import PretrainingModel
from tasks.pretrained import Pretrained

_HEAD = "cls/predictions/output_bias"
_NEXT_SENTENCE_HEAD = "cls/seq_relationship/output_weights"
MASK = "[MASK]"

Text = str | tuple[str, str]


class Candidate(NamedTuple):
    """A piece that may stand at a mask."""

    token: str
    probability: float


class Score(NamedTuple):
    """How likely a text is."""

    pseudo_perplexity: float  # each piece hidden in turn: exp of the mean of what the model loses on it
    num_pieces: int
    follows: float | None  # of a pair: the probability that the second text follows the first


class FillMask:
    """Loads a model once and fills in as often as asked.

    Example:
        >>> fill_mask = FillMask.load("uncased_L-12_H-768_A-12")
        >>> [[candidates]] = fill_mask(["She opened the [MASK] and looked out."], top_k=1)

    Args:
        model: with trained weights.
        tokenizer: with `never_split=("[MASK]",)`.
        max_seq_length: longer texts are refused, since what is cut could be a mask.
        knows_next_sentence: whether the weights have a trained head for next sentences.
    """

    def __init__(
        self,
        model: PretrainingModel,
        tokenizer: FullTokenizer,
        max_seq_length: int | None = None,
        knows_next_sentence: bool = True,
    ):
        self.config = model.config
        self._model = model
        self._knows_next_sentence = knows_next_sentence
        self._tokenizer = tokenizer
        self._max_seq_length = max_seq_length or model.config.max_position_embeddings
        self._ids = {token: tokenizer.vocab[token] for token in ("[CLS]", "[SEP]", MASK)}

    @classmethod
    def load(
        cls,
        path: str | Path,
        vocab_file: str | None = None,
        bert_config_file: str | None = None,
        do_lower_case: bool | None = None,
    ) -> "FillMask":
        """Loads whatever a person has, as `read_checkpoint` does; what lies beside the weights need not be named."""
        model, tokenizer, knows_next_sentence = load_masked_lm(path, vocab_file, bert_config_file, do_lower_case)
        return cls(model, tokenizer, knows_next_sentence=knows_next_sentence)

    def __call__(self, texts: Sequence[Text], top_k: int = 5, batch_size: int = 32) -> list[list[list[Candidate]]]:
        """For each text, and each mask in it: the `top_k` likeliest pieces, the likeliest first.

        Args:
            texts: sentences, or pairs of them.
            top_k: how many pieces.
            batch_size: texts that run together, padded to the longest of them.
        """
        rows = list(map(self._row_to_fill, texts))
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
        results: list[list[list[Candidate]]] = [[] for _ in rows]
        for start in range(0, len(rows), batch_size):
            numbers = by_length[start : start + batch_size]
            for number, result in zip(numbers, self._fill([rows[i] for i in numbers], top_k), strict=True):
                results[number] = result
        return results

    def score(self, texts: Sequence[Text], batch_size: int = 32) -> list[Score]:
        """How likely each text is, and of each pair, whether its second text follows the first."""
        scores = []
        for text in texts:
            ids, second = self._row(text)
            places = self._places_to_score(ids, text)
            losses = []
            for start in range(0, len(places), batch_size):
                some = places[start : start + batch_size]
                hidden = [(ids[:place] + [self._ids[MASK]] + ids[place + 1 :], second) for place in some]
                batch = self._batch(hidden, [[place] for place in some])
                right = tf.constant([[ids[place]] for place in some])
                losses += self._losses(batch, right).numpy()[:, 0].tolist()
            follows = None
            if not isinstance(text, str) and self._knows_next_sentence:
                follows = float(self._follows(self._batch([(ids, second)], [[0]])).numpy()[0])
            scores.append(Score(float(np.exp(np.mean(losses))), len(places), follows))
        return scores

    def check(self, texts: Sequence[Text], for_score: bool = False) -> None:
        """Refuses texts that could not be filled in, or scored: too long, or with nothing in them to do so with."""
        for text in texts:
            if for_score:
                self._places_to_score(self._row(text)[0], text)
            else:
                self._row_to_fill(text)

    def _row_to_fill(self, text: Text) -> tuple[list[int], int]:
        ids, second = self._row(text)
        if self._ids[MASK] not in ids:
            raise ValueError(f"There is no {MASK} in {text!r}.")
        return ids, second

    def _places_to_score(self, ids: list[int], text: Text) -> list[int]:
        special = (self._ids["[CLS]"], self._ids["[SEP]"])
        places = [place for place, piece in enumerate(ids) if piece not in special]
        if not places:
            raise ValueError(f"There is nothing to score in {text!r}.")
        return places

    def _row(self, text: Text) -> tuple[list[int], int]:
        """Ids of [CLS] a [SEP] b [SEP], and where the second segment starts."""
        parts = (text,) if isinstance(text, str) else tuple(text)
        ids = [self._ids["[CLS]"]]
        starts = []
        for part in parts:
            starts.append(len(ids))
            ids += [*self._tokenizer.tokenize_to_ids(part), self._ids["[SEP]"]]
        if len(ids) > self._max_seq_length:
            raise ValueError(f"{parts[0][:60]!r}… has {len(ids)} pieces, but the model takes {self._max_seq_length}.")
        return ids, starts[1] if len(starts) > 1 else len(ids)

    def _fill(self, rows: list[tuple[list[int], int]], top_k: int) -> list[list[list[Candidate]]]:
        masked = [[i for i, piece in enumerate(ids) if piece == self._ids[MASK]] for ids, _ in rows]
        batch = self._batch(rows, masked)
        values, pieces = (array.numpy() for array in self._run(batch, tf.constant(top_k)))  # [B, P, top_k]
        return [
            [
                [
                    Candidate(self._tokenizer.inv_vocab.get(int(pieces[row, p, k]), "[UNK]"), float(values[row, p, k]))
                    for k in range(values.shape[-1])
                ]
                for p in range(len(masked[row]))
            ]
            for row in range(len(rows))
        ]

    def _batch(self, rows: list[tuple[list[int], int]], positions: list[list[int]]) -> dict[str, tf.Tensor]:
        length = max(len(ids) for ids, _ in rows)
        return {
            "input_ids": _padded([ids for ids, _ in rows], length),
            "input_mask": _padded([[1] * len(ids) for ids, _ in rows], length),
            "segment_ids": _padded([[0] * b + [1] * (len(ids) - b) for ids, b in rows], length),
            "masked_lm_positions": _padded(positions, max(map(len, positions))),
        }

    @tf.function(reduce_retracing=True, autograph=False)
    def _losses(self, batch, right):
        return cross_entropy(self._model(batch, training=False)["masked_lm_logits"], right)  # [B, P]

    @tf.function(reduce_retracing=True, autograph=False)
    def _follows(self, batch):
        logits = self._model(batch, training=False)["next_sentence_logits"]
        return tf.nn.softmax(tf.cast(logits, tf.float32))[:, 0]  # 0 = the next sentence

    @tf.function(reduce_retracing=True, autograph=False)
    def _run(self, batch, top_k):
        logits = self._model(batch, training=False)["masked_lm_logits"]
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))  # [B, P, V]
        return tf.math.top_k(probabilities, tf.minimum(top_k, tf.shape(probabilities)[-1]))


def load_masked_lm(
    path: str | Path,
    vocab_file: str | None = None,
    bert_config_file: str | None = None,
    do_lower_case: bool | None = None,
    dtype: str | None = None,
) -> tuple[PretrainingModel, FullTokenizer, bool]:
    """A model that can fill in, its tokenizer, and whether it has a trained head for next sentences."""
    found = Pretrained.find(path, bert_config_file, vocab_file, do_lower_case)
    if _HEAD not in found.checkpoint.variables:
        raise ValueError(
            f"{path} has no masked LM head ({_HEAD} is missing): it cannot fill in words. Fine-tuned models and "
            "sentence encoders have lost it; use a pre-trained checkpoint."
        )
    if found.config.attention == "causal":
        raise ValueError(f"{path} was trained from left to right: it tells the next word, and does not fill in.")
    model = PretrainingModel(found.config, dtype=dtype)
    load_checkpoint(model, found.checkpoint)
    tokenizer = FullTokenizer(vocab=found.vocab, do_lower_case=found.do_lower_case, never_split=(MASK,))
    return model, tokenizer, _NEXT_SENTENCE_HEAD in found.checkpoint.variables


def _padded(rows: list[list[int]], length: int) -> tf.Tensor:
    return tf.constant(np.array([row + [0] * (length - len(row)) for row in rows], np.int32))
