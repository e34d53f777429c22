"""What all sides share: sizes of models and batches, what a training step of them costs, lines, and fingerprints."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np


def released(layers: int, hidden: int, heads: int | None = None, **changes: Any) -> dict[str, Any]:
    """A config in the keys that all libraries share."""
    return {
        "vocab_size": 30522,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads or hidden // 64,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    } | changes


def pretraining_batch(config, batch_size: int, seq_length: int, predictions: int) -> dict[str, np.ndarray]:
    """Random ids without padding: what a step costs does not depend on them."""
    rng = np.random.default_rng(0)
    shape = (batch_size, seq_length)
    positions = np.sort(rng.permuted(np.tile(np.arange(seq_length), (batch_size, 1)), axis=1)[:, :predictions], axis=1)
    return {
        "input_ids": rng.integers(0, config["vocab_size"], shape, np.int32),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": np.repeat(np.arange(shape[1])[None] >= shape[1] // 2, shape[0], axis=0).astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(0, config["vocab_size"], (batch_size, predictions), np.int32),
        "masked_lm_weights": np.ones((batch_size, predictions), np.float32),
        "next_sentence_labels": rng.integers(0, 2, (batch_size, 1), np.int32),
    }


def training_gflop(config, batch_size: int, seq_length: int, predictions: int) -> float:
    """Of the products of matrices in a step of pre-training; forward once, and backward twice as much.

    Dropout, norms, activations and the optimizer count as nothing, so that a step is always below the products alone.
    """
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    weights_of_block = 4 * hidden**2 + 2 * hidden * config["intermediate_size"]
    blocks = layers * weights_of_block * batch_size * seq_length
    attention = layers * 2 * hidden * batch_size * seq_length**2  # scores, and the sum of values
    masked_words = (hidden**2 + hidden * config["vocab_size"]) * batch_size * predictions
    sentences = (hidden**2 + 2 * hidden) * batch_size
    return 6 * (blocks + attention + masked_words + sentences) / 1e9


def read_lines(file: str) -> list[str]:
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [stripped for line in lines if (stripped := line.strip())]


def ids_fingerprint(ids: Sequence[Sequence[int]]) -> str:
    """Of the pieces of all lines."""
    count, digest = sum(map(len, ids)), hashlib.sha256()
    for row in ids:
        digest.update(np.asarray(row, np.int32).tobytes() + b"|")
    return f"{count} pieces {digest.hexdigest()[:12]}"
