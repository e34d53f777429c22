"""Inference of the peers: transformers on torch, and onnxruntime, with the same fast tokenizer and batches by length.

Runs in the environment of the peers.
"""

import time

import numpy as np
import tokenizers
import torch
import transformers

from benchmarks.peers.hugging_face_training import use_both_cores
from benchmarks.peers.shapes import read_lines

BATCH_SIZE = 32


def load(model: str | None, config: dict | None, attention: str = "sdpa") -> transformers.BertModel:
    """The encoder of a checkpoint, or one of a config with random weights."""
    if model:
        return transformers.BertModel.from_pretrained(model, attn_implementation=attention).eval()
    return transformers.BertModel(transformers.BertConfig(**config, attn_implementation=attention)).eval()


def make_tokenizer(vocab_file: str, max_seq_length: int) -> tokenizers.BertWordPieceTokenizer:
    """What transformers' fast tokenizer is inside."""
    tokenizer = tokenizers.BertWordPieceTokenizer(vocab_file, lowercase=True)
    tokenizer.enable_truncation(max_seq_length)
    return tokenizer


def by_length(run, tokenizer, lines: list[str], hidden_size: int) -> np.ndarray:
    """Vectors [lines, H]: the mean of all tokens. `run` takes ids and mask, int64 [B, T], and gives [B, T, H]."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    vectors = np.empty([len(rows), hidden_size], np.float32)
    for first in range(0, len(rows), BATCH_SIZE):
        numbers = order[first : first + BATCH_SIZE]
        ids = np.zeros([len(numbers), len(rows[numbers[-1]])], np.int64)
        mask = np.zeros_like(ids)
        for place, number in enumerate(numbers):
            ids[place, : len(rows[number])] = rows[number]
            mask[place, : len(rows[number])] = 1
        values, weights = run(ids, mask), mask[..., None].astype(np.float32)
        vectors[numbers] = (values * weights).sum(axis=1) / weights.sum(axis=1)
    return vectors


def measured(run, tokenizer, lines: list[str], hidden_size: int, is_trained: bool):
    """Lines a second, from text to vectors."""
    by_length(run, tokenizer, lines[:256], hidden_size)

    def measure(count: int) -> dict:
        chosen = lines[:count]
        begin = time.perf_counter()
        vectors = by_length(run, tokenizer, chosen, hidden_size)
        seconds = time.perf_counter() - begin
        sample = {"sample": vectors[:: max(1, count // 8), :4].ravel().tolist()} if is_trained else {}
        return {"value": len(chosen) / seconds, "lines": len(chosen)} | sample

    return measure


def vectors(lines_file: str, vocab_file: str, max_seq_length: int, model: str | None = None, config=None):
    """Text in, vectors out, by transformers."""
    use_both_cores()
    network = load(model, config)

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            outputs = network(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
        return outputs.last_hidden_state.numpy()

    tokenizer = make_tokenizer(vocab_file, max_seq_length)
    return measured(run, tokenizer, read_lines(lines_file), network.config.hidden_size, bool(model))
