"""Vectors of texts and of their tokens, and what is asked of them.

Axes in comments: B batch, T sequence length, H hidden size, L chosen layers, D numbers of a text's vector (L * H),
N attention heads.
"""

import functools
import heapq
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.stats
import tensorflow as tf

from data.sentence_features import Features, SentenceEncoder
from data.tokenization import FullTokenizer
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from tasks.asking import BATCH_SIGNATURE, to_batch
from tasks.many_texts import Progress, run_in_chunks
from tasks.pretrained import Pretrained

POOLINGS = ("none", "cls", "mean", "max", "second_to_last", "concat_last_4")

# Poolings that are a mean of certain layers under a name of their own.
_MEANS_OF_LAYERS = {"second_to_last": (-2,), "concat_last_4": (-1, -2, -3, -4)}

Text = str | tuple[str, str]


class TokenVectors(NamedTuple):
    """The tokens of a text, [CLS] and [SEP] among them, and their vectors."""

    tokens: list[str]
    values: np.ndarray  # float32 [L, tokens, H]


class TokenAttention(NamedTuple):
    """The tokens of a text, [CLS] and [SEP] among them, and how much each of them attends to each."""

    tokens: list[str]
    layers: tuple[int, ...]  # their numbers, from 0
    probabilities: np.ndarray  # float32 [L, N, tokens that attend, tokens attended to]; each row sums to 1


class Match(NamedTuple):
    """A text that was found."""

    number: int  # of the text, from 0
    cosine: float
    text: Text


class TextEncoder:
    """Loads a model once and gives vectors as often as asked, from any thread.

    Texts are strings, or pairs of strings. They may come from a generator and be more than fit into memory: they are
    taken in chunks, those of about the same length run together, and results come in the order of the texts. A text
    that is too long is cut, as the original does it; how many were is logged when the last one is done.

    Poolings, which make one vector of a text's tokens. All of them pass over padding, and none over [CLS] and [SEP]:
        cls: the vector of [CLS] in the last layer. Of little use in a model that was not fine-tuned for it.
        mean: the mean of all tokens in the last layer, as sentence-transformers have it.
        max: the largest value of all tokens in the last layer, for each of the H dimensions by itself.
        second_to_last: the mean of all tokens in the last but one layer.
        concat_last_4: the mean of all tokens, each of which is its last four layers joined, the last one first: 4 H.
        none: no pooling. A text keeps the vectors of its tokens; these come from `token_vectors`.

    Example:
        >>> encoder = TextEncoder.load("uncased_L-12_H-768_A-12")
        >>> encoder.encode(["The lamp was lit.", "Somebody had lit the lamp."]).shape
        (2, 768)
        >>> encoder.nearest(["a light"], ["The lamp was lit.", "It rained."], top_k=1)[0][0].number
        0

    Args:
        encoder: with trained weights.
        tokenizer: of the model.
        max_seq_length: pieces of a sequence, [CLS] and [SEP] among them; None for as many as the model takes.
    """

    def __init__(self, encoder: BertEncoder, tokenizer: FullTokenizer, max_seq_length: int | None = None):
        most = encoder.config.max_position_embeddings
        if max_seq_length is not None and max_seq_length > most:
            raise ValueError(
                f"max_seq_length={max_seq_length} is longer than what the model has learned: its "
                f"max_position_embeddings is {most}."
            )
        self.config = encoder.config
        self.max_seq_length = max_seq_length or most
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._features = SentenceEncoder(tokenizer, self.max_seq_length)
        self._graph = functools.lru_cache(maxsize=None)(self._make_graph)
        self._attention_graph = functools.lru_cache(maxsize=None)(self._make_attention_graph)

    @classmethod
    def load(
        cls,
        path: str | Path,
        vocab_file: str | None = None,
        bert_config_file: str | None = None,
        do_lower_case: bool | None = None,
        max_seq_length: int | None = None,
    ) -> "TextEncoder":
        """Loads whatever a person has, as `read_checkpoint` does; what lies beside the weights need not be named."""
        return cls(*load_encoder(path, vocab_file, bert_config_file, do_lower_case), max_seq_length)

    def encode(
        self,
        texts: Iterable[Text],
        pooling: str = "mean",
        layers: Sequence[int] | None = None,
        normalize: bool = False,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """One vector a text: float32 [texts, D].

        Args:
            texts: sentences, or pairs of them.
            pooling: one of `POOLINGS` but none, see above.
            layers: for cls, mean and max: other layers than the last one, their vectors joined in this order. 0 is the
                first one and -1 the last one.
            normalize: give each vector the length 1, so that the product of two is their cosine.
            batch_size: texts that run together.
            progress: is called after each batch with the number of its texts.
        """
        size = len(choose_layers(self.config, pooling, layers)[1]) * self.config.hidden_size
        vectors = self.vectors(texts, pooling, layers, normalize, batch_size, progress)
        return np.fromiter(vectors, np.dtype((np.float32, size)))

    def vectors(
        self,
        texts: Iterable[Text],
        pooling: str = "mean",
        layers: Sequence[int] | None = None,
        normalize: bool = False,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray]:
        """What `encode` gives, one vector after the other, float32 [D]: for more of them than fit into memory."""
        pooling, chosen = choose_layers(self.config, pooling, layers)
        if pooling == "none":
            raise ValueError("Without pooling a text has a vector for each token: ask for token_vectors.")
        graph = self._graph(chosen, pooling)

        def run(rows: Sequence[Features], length: int) -> Iterator[np.ndarray]:
            vectors = graph(to_batch(rows, length)).numpy()  # [B, D]
            return iter(_normalized(vectors) if normalize else vectors)

        num_bytes = 4 * len(chosen) * self.config.hidden_size
        return run_in_chunks(self.rows(texts), run, lambda row: num_bytes, batch_size, progress)

    def token_vectors(
        self,
        texts: Iterable[Text],
        layers: Sequence[int] = (-1,),
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Iterator[TokenVectors]:
        """For each text its tokens and, in each of the layers, the vector of each token; arguments as in `encode`."""
        return self.vectors_of_rows(self.rows(texts), layers, batch_size, progress)

    def vectors_of_rows(
        self,
        rows: Iterable[Features],
        layers: Sequence[int] = (-1,),
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Iterator[TokenVectors]:
        """What `token_vectors` gives, for sequences that somebody else has made."""
        _, chosen = choose_layers(self.config, "none", layers)
        graph = self._graph(chosen, "none")

        def run(rows: Sequence[Features], length: int) -> Iterator[TokenVectors]:
            values = graph(to_batch(rows, length)).numpy()  # [B, L, T, H]
            for (ids, _), of_row in zip(rows, values, strict=True):
                # A copy, so that the padding does not live as long as the vectors.
                yield TokenVectors(self._tokenizer.convert_ids_to_tokens(ids), of_row[:, : len(ids)].copy())

        bytes_of_token = 4 * len(chosen) * self.config.hidden_size
        return run_in_chunks(rows, run, lambda row: len(row.input_ids) * bytes_of_token, batch_size, progress)

    def attention(
        self,
        texts: Iterable[Text],
        layers: Sequence[int] | None = None,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Iterator[TokenAttention]:
        """For each text its tokens and, in each head of all layers or of some, how much each attends to each.

        Arguments as in `encode`. There is no padding in what comes out.
        """
        return self.attention_of_rows(self.rows(texts), layers, batch_size, progress)

    def attention_of_rows(
        self,
        rows: Iterable[Features],
        layers: Sequence[int] | None = None,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Iterator[TokenAttention]:
        """What `attention` gives, for sequences that somebody else has made."""
        count = self.config.num_hidden_layers
        _, chosen = choose_layers(self.config, "none", range(count) if layers is None else layers)
        chosen = tuple(layer % count for layer in chosen)
        graph = self._attention_graph(chosen)

        def run(rows: Sequence[Features], length: int) -> Iterator[TokenAttention]:
            probabilities = graph(to_batch(rows, length)).numpy()  # [B, L, N, T, T]
            for (ids, _), of_row in zip(rows, probabilities, strict=True):
                # A copy, so that the padding does not live as long as the rest.
                tokens, kept = self._tokenizer.convert_ids_to_tokens(ids), of_row[..., : len(ids), : len(ids)].copy()
                yield TokenAttention(tokens, chosen, kept)

        bytes_of_pair = 4 * len(chosen) * self.config.num_attention_heads
        return run_in_chunks(rows, run, lambda row: len(row.input_ids) ** 2 * bytes_of_pair, batch_size, progress)

    def nearest(
        self,
        queries: Sequence[Text],
        texts: Iterable[Text],
        top_k: int = 5,
        pooling: str = "mean",
        layers: Sequence[int] | None = None,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> list[list[Match]]:
        """For each query the `top_k` texts whose vectors point most nearly the same way, the nearest first.

        Blank texts are passed over. Texts may be more than fit into memory; other arguments as in `encode`.
        """
        wanted = self.encode(queries, pooling, layers, normalize=True, batch_size=batch_size)  # [queries, D]
        best: list[list[tuple[float, int, Text]]] = [[] for _ in wanted]  # heaps: the worst of the best comes first
        texts, kept = itertools.tee(_several(texts))  # keeps two chunks of them
        vectors = self.vectors(texts, pooling, layers, True, batch_size, progress)
        for number, (text, vector) in enumerate(zip(kept, vectors, strict=True)):
            if not "".join(text).strip():
                continue
            for heap, cosine in zip(best, (wanted @ vector).tolist(), strict=True):
                found = (cosine, -number, text)  # of equal ones the first is better
                if len(heap) < top_k:
                    heapq.heappush(heap, found)
                elif found > heap[0]:
                    heapq.heapreplace(heap, found)
        return [[Match(-number, cosine, text) for cosine, number, text in sorted(heap, reverse=True)] for heap in best]

    def similarities(
        self,
        pairs: Sequence[tuple[str, str]],
        pooling: str = "mean",
        layers: Sequence[int] | None = None,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """The cosine of the two texts of each pair, each of them encoded by itself: float32 [pairs]."""
        texts = (text for pair in pairs for text in pair)
        vectors = self.encode(texts, pooling, layers, True, batch_size, progress)  # [2 * pairs, D]
        return np.sum(vectors[0::2] * vectors[1::2], axis=-1)

    def rows(self, texts: Iterable[Text]) -> Iterator[Features]:
        """Texts as the encoder takes them, cut where they are too long."""
        number, cut = -1, 0
        for number, text in enumerate(_several(texts)):
            pair = (text, None) if isinstance(text, str) else text
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
                raise ValueError(f"Text {number} is neither a string nor a pair of strings: {text!r}.")
            [row], is_cut = self._features(*pair)
            cut += is_cut
            yield row
        if cut:
            logging.getLogger(__name__).warning(
                "%d of %d texts have more than %d pieces; what follows those was cut off (max_seq_length).",
                cut,
                number + 1,
                self.max_seq_length,
            )

    def run(self, batch: dict[str, tf.Tensor], layers: tuple[int, ...], pooling: str) -> tf.Tensor:
        """One batch: [B, L, T, H] for the pooling none, [B, D] for cls, mean and max."""
        return self._graph(layers, pooling)(batch)

    def _make_graph(self, layers: tuple[int, ...], pooling: str):
        """For batches of any size and length, so that it is traced once.

        Layers above those that are asked for are not computed: nothing in the graph needs them.
        """
        return tf.function(
            lambda batch: self._vectors_of_batch(batch, layers, pooling),
            input_signature=BATCH_SIGNATURE,
            autograph=False,
        )

    def _vectors_of_batch(self, batch, layers, pooling):
        return pool(self._encoder(batch, training=False)["all_layers"], batch["input_mask"], pooling, layers)

    def _make_attention_graph(self, layers: tuple[int, ...]):
        """A function of its own: whoever wants vectors need not keep what attention was."""
        return tf.function(
            lambda batch: self._attention_of_batch(batch, layers), input_signature=BATCH_SIGNATURE, autograph=False
        )

    def _attention_of_batch(self, batch, layers):
        attention = self._encoder(batch, training=False, return_attention=True)["attention_probs"]
        return tf.stack([tf.cast(attention[layer], tf.float32) for layer in layers], axis=1)  # [B, L, N, T, T]


def load_encoder(
    path: str | Path,
    vocab_file: str | None = None,
    bert_config_file: str | None = None,
    do_lower_case: bool | None = None,
    dtype: str | None = None,
) -> tuple[BertEncoder, FullTokenizer]:
    """The encoder of whatever checkpoint a person has, and its tokenizer."""
    found = Pretrained.find(path, bert_config_file, vocab_file, do_lower_case)
    encoder = BertEncoder(found.config, dtype=dtype)
    report = load_checkpoint(encoder, found.checkpoint)
    # No vector here comes from the pooler, and not every model has one.
    if missing := [name for name in report.missing if not name.startswith("bert/pooler/")]:
        raise ValueError(f"{path} lacks weights of the encoder: {', '.join(missing)}.")
    return encoder, FullTokenizer(vocab=found.vocab, do_lower_case=found.do_lower_case)


def choose_layers(config: BertConfig, pooling: str, layers: Sequence[int] | None) -> tuple[str, tuple[int, ...]]:
    """What to compute: none, cls, mean or max, and of which layers."""
    if pooling not in POOLINGS:
        raise ValueError(f"The pooling {pooling!r} is not known: {', '.join(POOLINGS)}.")
    if pooling in _MEANS_OF_LAYERS:
        if layers is not None:
            raise ValueError(f"The pooling {pooling} has its own layers. Name others with mean, cls or max.")
        pooling, layers = "mean", _MEANS_OF_LAYERS[pooling]
    if pooling == "cls" and config.attention == "causal":
        raise ValueError("The model was trained from left to right, so [CLS] has seen no text: use mean or max.")
    layers = (-1,) if layers is None else tuple(layers)
    if not layers:
        raise ValueError("No layer is named: the last one is -1.")
    count = config.num_hidden_layers
    for layer in layers:
        if not -count <= layer < count:
            raise ValueError(
                f"There is no layer {layer}: the model has {count}, from 0 to {count - 1}, or from -1, the last one, "
                f"to {-count}."
            )
    return pooling, layers


def pool(all_layers: Sequence[tf.Tensor], input_mask, pooling: str, layers: Sequence[int]) -> tf.Tensor:
    """Outputs of all layers, [B, T, H] each -> [B, L, T, H] for the pooling none, [B, D] for cls, mean and max."""
    chosen = [tf.cast(all_layers[layer], tf.float32) for layer in layers]
    if pooling == "none":
        return tf.stack(chosen, axis=1)
    joined = tf.concat(chosen, axis=-1)  # [B, T, D]
    if pooling == "cls":
        return joined[:, 0]
    is_token = input_mask[..., tf.newaxis] > 0  # [B, T, 1]
    if pooling == "max":
        return tf.reduce_max(tf.where(is_token, joined, joined.dtype.min), axis=1)
    weights = tf.cast(is_token, joined.dtype)
    return tf.reduce_sum(joined * weights, axis=1) / tf.reduce_sum(weights, axis=1)


def correlations(cosines: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """How well cosines [pairs] fit what people said, [pairs]; 0 where all of one side are the same."""
    if np.ptp(cosines) == 0 or np.ptp(scores) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(scipy.stats.pearsonr(cosines, scores)[0]),
        "spearman": float(scipy.stats.spearmanr(cosines, scores)[0]),
    }


def _several(texts: Iterable[Text]) -> Iterable[Text]:
    if isinstance(texts, str):
        raise ValueError(f"A list of texts is wanted, not one text: write [{texts[:40]!r}].")
    return texts


def _normalized(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(vectors.dtype).tiny)
