"""Our side of inference: vectors of texts, in Keras, as a SavedModel and as TFLite."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.peers.shapes import read_lines
from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from serving import saved_model, tflite
from serving.vectors import VectorService, VectorSettings
from tasks.many_texts import compute_batches_on_a_core_each, num_cores
from tasks.vectors import TextEncoder, load_encoder
from training.memory import keep_freed_memory

_LINES_PER_REQUEST = 256


def load(model: str | None, config: dict | None, vocab_file: str) -> tuple[BertEncoder, FullTokenizer]:
    """The encoder of a checkpoint, or one of a config with random weights."""
    if model:
        return load_encoder(model)
    return BertEncoder(BertConfig.from_dict(config), seed=1), FullTokenizer(vocab_file)


def _measured(encode, lines: list[str], is_trained: bool):
    """Lines a second of `encode`, which gives vectors [lines, D]."""
    encode(lines[:256])

    def measure(count: int) -> dict:
        chosen = lines[:count]
        begin = time.perf_counter()
        vectors = encode(chosen)
        seconds = time.perf_counter() - begin
        sample = {"sample": vectors[:: max(1, count // 8), :4].ravel().tolist()} if is_trained else {}
        return {"value": len(chosen) / seconds, "lines": len(chosen)} | sample

    return measure


def keras_vectors(lines_file: str, vocab_file: str, max_seq_length: int, model: str | None = None, config=None):
    """Text in, vectors out, by the class that extract_features.py uses, and set up as it does."""
    keep_freed_memory()
    compute_batches_on_a_core_each()
    encoder = TextEncoder(*load(model, config, vocab_file), max_seq_length)
    return _measured(lambda lines: encoder.encode(lines), read_lines(lines_file), bool(model))


def saved_model_vectors(lines_file: str, vocab_file: str, max_seq_length: int, model: str | None = None, config=None):
    """Text in, vectors out, by what export_model.py writes; in requests of many lines, which it sorts by itself.

    As many requests at once as a server takes for whom throughput counts: one more than there are cores, a core each.
    """
    keep_freed_memory()
    compute_batches_on_a_core_each()
    encoder, tokenizer = load(model, config, vocab_file)
    service = VectorService(encoder, tokenizer, VectorSettings(tokenizer.do_lower_case, max_seq_length))
    with tempfile.TemporaryDirectory() as directory:
        loaded = tf.saved_model.load(str(saved_model.save(service, Path(directory) / "1")))
    answer = loaded.signatures["serving_default"]

    def encode(lines: list[str]) -> np.ndarray:
        # Neighbours in length share a request, as the peers' batches are sorted before they start.
        order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
        vectors = np.empty([len(lines), encoder.config.hidden_size], np.float32)
        requests = [order[first : first + _LINES_PER_REQUEST] for first in range(0, len(lines), _LINES_PER_REQUEST)]

        def ask(numbers: list[int]) -> None:
            vectors[numbers] = answer(text=tf.constant([lines[number] for number in numbers]))["vector"].numpy()

        with ThreadPoolExecutor(num_cores() + 1) as pool:
            list(pool.map(ask, requests))
        return vectors

    return _measured(encode, read_lines(lines_file), bool(model))


def lite_sentence(model: str, length: int):
    """Sentences a second, one after the other: dynamic int8 on one thread, from ids to a vector."""
    encoder, tokenizer = load_encoder(model)
    service = VectorService(encoder, tokenizer, VectorSettings(True, length))
    content = tflite.convert(service.run, encoder.config, length, "dynamic_int8")
    lite = tflite.LiteModel(content, num_threads=1)
    ids = np.arange(2000, 2000 + length, dtype=np.int32)[None]
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    lite.invoke(inputs)

    def measure(count: int) -> dict:
        begin = time.perf_counter()
        for _ in range(count):
            lite.invoke(inputs)
        seconds = time.perf_counter() - begin
        return {"value": count / seconds, "ms": 1e3 * seconds / count, "megabytes": len(content) / 1e6}

    return measure
