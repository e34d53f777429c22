"""Onnxruntime's side of inference, with the model that torch exports. Runs in the environment of the peers."""

import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.peers.hugging_face_inference import load, make_tokenizer, measured
from benchmarks.peers.shapes import read_lines


class _Encoder(torch.nn.Module):
    """Ids and mask to the vectors of the last layer, and nothing besides."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, input_ids, attention_mask):
        return self.network(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def export(network, path: Path) -> None:
    """Writes a model of any batch size and length."""
    ids = torch.ones([2, 16], dtype=torch.int64)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=512)
    shape = {0: batch, 1: length}
    torch.onnx.export(
        _Encoder(network),
        (ids, torch.ones_like(ids)),
        str(path),
        input_names=["input_ids", "attention_mask"],
        output_names=["vectors"],
        dynamic_shapes={"input_ids": shape, "attention_mask": shape},
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def session(path: Path, num_threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def vectors(lines_file: str, vocab_file: str, max_seq_length: int, model: str | None = None, config=None):
    """Text in, vectors out, in float32 on both cores."""
    network = load(model, config)
    with tempfile.TemporaryDirectory() as directory:
        export(network, Path(directory) / "model.onnx")
        loaded = session(Path(directory) / "model.onnx", num_threads=2)

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return loaded.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    tokenizer = make_tokenizer(vocab_file, max_seq_length)
    return measured(run, tokenizer, read_lines(lines_file), network.config.hidden_size, bool(model))


def quantized_sentence(model: str, length: int):
    """Sentences a second, one after the other: dynamic int8 on one thread, from ids to vectors."""
    with tempfile.TemporaryDirectory() as directory:
        whole, small = (Path(directory) / name for name in ("model.onnx", "int8.onnx"))
        export(load(model, None), whole)
        quantize_dynamic(whole, small, weight_type=QuantType.QInt8)
        megabytes = small.stat().st_size / 1e6
        loaded = session(small, num_threads=1)
    ids = np.arange(2000, 2000 + length, dtype=np.int64)[None]
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    loaded.run(None, inputs)

    def measure(count: int) -> dict:
        begin = time.perf_counter()
        for _ in range(count):
            loaded.run(None, inputs)
        seconds = time.perf_counter() - begin
        return {"value": count / seconds, "ms": 1e3 * seconds / count, "megabytes": megabytes}

    return measure
