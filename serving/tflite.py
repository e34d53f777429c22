"""Trained models as TFLite (LiteRT) flatbuffers, for phones and other small machines.

A model takes one sequence at a time, `input_ids`, `input_mask` and `segment_ids`, int32 [1, T] each, or one text (see
serving.tflite_text), and its weights are of one of four kinds:

    float32       as they were trained.
    float16       half the size; computed in float32 where the machine has nothing else.
    dynamic_int8  a quarter of the size: weights are int8, and what they are multiplied with is made int8 on the way,
                  in a range that fits each row. This is the one to take.
    int8          a quarter of the size, with ranges that were measured beforehand on representative sequences. Loses
                  more, since one range has to fit all rows; for machines that cannot do it on the way. Norms, softmax
                  and activations stay in float32.

What is lost and gained is in the report (serving.tflite_report).

Axes in comments: B batch, T sequence length.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import InterpreterWithCustomOps

from data.example_records import SEQUENCES
from modeling.config import BertConfig

MODES = ("float32", "float16", "dynamic_int8", "int8")

Batch = Mapping[str, np.ndarray]  # int32 [B, T] by the names of SEQUENCES
Outputs = dict[str, np.ndarray]  # float32 [B, ...]
Run = Callable[[Mapping[str, tf.Tensor]], Mapping[str, tf.Tensor]]

# What stays in float32 when ranges are measured beforehand. With all of it in int8, 56 % of answers were right of 79 (a
# linear probe on MiniLM, 300 rows of SST-2), 70 with a penalty for padding of -30 in place of -10000, and 74 this way.
# All in int8, the interpreters of tf.lite and of LiteRT gave different answers, too; this way, the same.
_KEPT_IN_FLOAT = (
    *("ADD", "SUB", "MUL", "DIV", "SUM", "MEAN", "SQUARED_DIFFERENCE", "RSQRT"),
    *("SOFTMAX", "GELU", "LOGISTIC", "TANH", "BATCH_MATMUL", "TRANSPOSE", "RESHAPE"),
)


def convert(
    run: Run,
    config: BertConfig,
    max_seq_length: int,
    mode: str = "float32",
    resizable: bool = False,
    representative: Iterable[Batch] | None = None,
) -> bytes:
    """Converts a trained network.

    Example:
        >>> content = convert(lambda batch: {"logits": model(batch, training=False)}, model.config, max_seq_length=128)
        >>> LiteModel(content)(batch)["logits"]

    Args:
        run: from the inputs of the encoder to float32 tensors by name, each [B, ...].
        config: of the encoder in it.
        max_seq_length: the length of every sequence, or of the longest one if `resizable`.
        mode: one of `MODES`.
        resizable: take sequences of any length up to that; the interpreter is told which one by `resize_tensor_input`.
            Nothing is computed for padding then. Not for int8.
        representative: batches of features from a training file, for the mode int8 and only for it.
    """
    check_mode(mode)
    check_length(config, max_seq_length)
    length = None if resizable else max_seq_length
    rows = None
    if mode == "int8":
        if resizable:
            raise ValueError(
                "The ranges of int8 are measured at one length: make the length fixed, or use dynamic_int8, which "
                "takes any."
            )
        rows = _rows(representative, max_seq_length)
    elif representative is not None:
        raise ValueError(f"The mode {mode} measures nothing beforehand: leave out representative, or use int8.")
    specs = {name: tf.TensorSpec([1, length], tf.int32, name=name) for name in SEQUENCES}
    concrete = tf.function(lambda **batch: dict(run(batch)), autograph=False).get_concrete_function(**specs)
    if mode == "int8" and any("While" in op.type for op in concrete.graph.get_operations()):
        # What measures ranges does not know loops: it crashes.
        raise ValueError("A BiLSTM has no int8 form, since it is a loop: use dynamic_int8.")
    content = to_flatbuffer(concrete, mode, rows)
    sample = {name: np.ones([1, max_seq_length], np.int32) for name in ("input_ids", "input_mask")}
    check_finite(LiteModel(content)(sample | {"segment_ids": np.zeros([1, max_seq_length], np.int32)}), mode)
    return content


def to_flatbuffer(concrete, mode: str, rows: list[Batch] | None = None, custom_ops: bool = False) -> bytes:
    """Converts a function whose arguments and results have names.

    Args:
        concrete: a concrete function.
        mode: one of `MODES`.
        rows: to measure ranges on, for int8; arguments by name.
        custom_ops: leave ops that TFLite does not have to whoever runs the model.
    """
    holder = tf.Module()
    # What nobody holds is not saved, and becomes NaN without a word. A Keras variable is no variable of TensorFlow's,
    # so holding the model would not do.
    holder.held = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
    converter.allow_custom_ops = custom_ops
    if mode != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if mode == "float16":
        converter.target_spec.supported_types = [tf.float16]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an interpreter that is on its way out, and that only measures here
            return _with_measured_ranges(converter, rows) if mode == "int8" else converter.convert()
    except Exception as error:  # of many types
        first_line = next(filter(None, str(error).splitlines()), "")
        raise ValueError(
            f"TFLite has no {mode} form of this model: {first_line} Try a fixed length, or the mode float32."
        ) from error


def _with_measured_ranges(converter, rows: list[Batch]) -> bytes:
    def dataset() -> Iterator[Batch]:
        yield from rows

    converter.representative_dataset = dataset
    options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=list(_KEPT_IN_FLOAT))
    debugger = tf.lite.experimental.QuantizationDebugger(
        converter=converter, debug_dataset=dataset, debug_options=options
    )
    return bytes(debugger.get_nondebug_quantized_model())


def _rows(representative: Iterable[Batch] | None, max_seq_length: int) -> list[Batch]:
    """The sequences of some batches, one by one, padded."""
    if representative is None:
        raise ValueError("The mode int8 needs representative sequences: batches of features from a training file.")
    rows = []
    for batch in representative:
        if missing := [name for name in SEQUENCES if name not in batch]:
            raise ValueError(f"A representative batch has no {' and no '.join(missing)}.")
        length = batch["input_ids"].shape[1]
        if length > max_seq_length:
            raise ValueError(f"Representative sequences of {length} are longer than max_seq_length={max_seq_length}.")
        padding = [[0, 0], [0, max_seq_length - length]]
        arrays = {name: np.pad(np.asarray(batch[name], np.int32), padding) for name in SEQUENCES}
        rows += [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(len(arrays["input_ids"]))]
    if not rows:
        raise ValueError("The mode int8 needs representative sequences, and there are none in what was given.")
    return rows


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"The mode {mode!r} is not known: {', '.join(MODES)}.")


def check_length(config: BertConfig, max_seq_length: int) -> None:
    most = config.max_position_embeddings
    if not 1 <= max_seq_length <= most:
        raise ValueError(
            f"max_seq_length={max_seq_length} should be from 1 to {most}, the model's max_position_embeddings."
        )


def check_finite(outputs: Outputs, mode: str) -> None:
    """Conversion can go wrong without an error."""
    if broken := [name for name, values in outputs.items() if not np.isfinite(values).all()]:
        raise ValueError(f"The {mode} model answers NaN or infinity for {', '.join(broken)}: are the weights finite?")


class LiteModel:
    """A converted model, asked as the one it came from: a batch in, arrays out. For one thread at a time.

    Args:
        model: the flatbuffer, or a file of it.
        num_threads: that the interpreter may use.
        custom_ops: what registers ops that are not TFLite's own.
    """

    def __init__(self, model: bytes | str | Path, num_threads: int = 1, custom_ops=None):
        content = model if isinstance(model, bytes) else Path(model).read_bytes()
        self._interpreter = InterpreterWithCustomOps(
            model_content=content, num_threads=num_threads, custom_op_registerers=custom_ops
        )
        self._inputs, self._outputs = _details(self._interpreter)
        self.resizable = any(-1 in details["shape_signature"] for details in self._inputs.values())
        self._length = None if self.resizable else int(next(iter(self._inputs.values()))["shape"][-1])
        self._interpreter.allocate_tensors()

    def __call__(self, batch: Batch) -> Outputs:
        """Runs sequences one after the other.

        Returns:
            By name, [B, ...]. Where there is a value for each token, there are zeros for padding that was not run.
        """
        width = batch["input_ids"].shape[1]
        told = [self.invoke(row) for row in self.prepared(batch)]
        return {name: np.stack([self._widened(name, row[name][0], width) for row in told]) for name in self._outputs}

    def prepared(self, batch: Batch) -> list[Batch]:
        """The sequences of a batch one by one, without padding or with as much as the model wants."""
        ids, mask = batch["input_ids"], batch["input_mask"]
        if not self.resizable and ids.shape[1] > self._length:
            raise ValueError(f"The sequences have {ids.shape[1]} tokens, but the model takes {self._length}: cut them.")
        rows = []
        for i in range(len(ids)):
            length = max(int(np.flatnonzero(mask[i]).max(initial=0)) + 1, 1) if self.resizable else ids.shape[1]
            row = {name: np.asarray(batch[name][i : i + 1, :length], np.int32) for name in SEQUENCES}
            padding = [[0, 0], [0, 0 if self.resizable else self._length - length]]
            rows.append({name: np.pad(array, padding) for name, array in row.items()})
        return rows

    def invoke(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Runs inputs that have the shape of the model."""
        if self.resizable and (length := inputs["input_ids"].shape[1]) != self._length:
            for details in self._inputs.values():
                self._interpreter.resize_tensor_input(details["index"], [1, length], strict=True)
            self._interpreter.allocate_tensors()
            self._length = length
        for name, details in self._inputs.items():
            self._interpreter.set_tensor(details["index"], inputs[name])
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(details["index"]) for name, details in self._outputs.items()}

    def _widened(self, name: str, values: np.ndarray, width: int) -> np.ndarray:
        """Zeros behind values of tokens, so that all rows are as wide as their batch: [t, ...] -> [T, ...]."""
        if -1 not in self._outputs[name]["shape_signature"][1:2]:
            return values
        return np.pad(values, [[0, width - len(values)]] + [[0, 0]] * (values.ndim - 1))


def _details(interpreter) -> tuple[dict, dict]:
    """Inputs and outputs by name. In a function of its own, since no tensor can be set while a runner is around."""
    runner = interpreter.get_signature_runner()
    return runner.get_input_details(), runner.get_output_details()
