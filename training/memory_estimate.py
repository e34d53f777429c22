"""How much memory a training step takes, without taking it."""

from typing import NamedTuple

from modeling.config import BertConfig

# What a block keeps of each token for the backward pass: vectors of the hidden size, vectors of the intermediate size,
# and rows of attention, one a head. Fitted to what `python -m benchmarks.memory` measures (docs/memory.md).
_HIDDEN_VECTORS = 8.5
_WIDE_VECTORS = 2.0
_ATTENTION_ROWS = 1.5
_COPIES_WHILE_RECOMPUTING = 1.7  # of the one block that is computed again: with its gradients
_BUFFERS = 325e6  # of everything else


class Estimate(NamedTuple):
    """Bytes on one device."""

    total: float
    activations: float


def estimate(
    config: BertConfig,
    batch_size: int,
    seq_length: int,
    predictions: int = 0,
    dtype: str = "float32",
    recompute: bool = False,
    parts: int = 1,
    on_one_cpu: bool = False,
) -> Estimate:
    """What the weights, gradients, Adam's two averages and the activations of one device come to.

    Args:
        config: the model.
        batch_size: sequences of this device in a step, all parts together.
        seq_length: their length.
        predictions: masked words a sequence; 0 where there is no masked LM.
        dtype: float32, mixed_bfloat16 or mixed_float16.
        recompute: whether blocks keep only their input.
        parts: in how many parts the device goes through its sequences.
        on_one_cpu: whether that is all there is, so that a clipped gradient is never kept (training/optimizer.py).
    """
    width = 4 if dtype == "float32" else 2
    tokens = -(-batch_size // parts) * seq_length
    vectors = tokens * (_HIDDEN_VECTORS * config.hidden_size + _WIDE_VECTORS * config.intermediate_size)
    block = vectors + _ATTENTION_ROWS * tokens * config.num_attention_heads * seq_length
    if recompute:
        blocks = config.num_hidden_layers * tokens * config.hidden_size + _COPIES_WHILE_RECOMPUTING * block
    else:
        blocks = config.num_hidden_layers * block
    # Scores of the vocabulary, their softmax and their gradient are float32 in any case.
    vocabulary = 3 * 4 * (tokens // seq_length) * predictions * config.vocab_size
    activations = width * blocks + vocabulary
    # Weights, gradients, clipped gradients and two averages; sums of gradients before and after a part; a narrow copy
    # in half precision.
    copies = 4 * (4 if on_one_cpu else 5) + (8 if parts > 1 else 0) + (0 if width == 4 else width)
    return Estimate(num_parameters(config) * copies + activations + _BUFFERS, activations)


def num_parameters(config: BertConfig) -> int:
    """Weights of the encoder; those of heads are few."""
    hidden, wide = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    block = 4 * hidden * (hidden + 1) + hidden * (wide + 1) + wide * (hidden + 1) + 4 * hidden
    return rows * hidden + 2 * hidden + config.num_hidden_layers * block + hidden * (hidden + 1)
