"""What a conversion to TFLite has cost and gained, measured beside the model it came from."""

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data.example_records import SEQUENCES
from serving.tflite import Batch, LiteModel, Outputs, Run
from training.state import write_text

# From what a model says of all sequences to figures by name, such as the accuracy.
Score = Callable[[Outputs], Mapping[str, float]]

REPORT_JSON, REPORT_MARKDOWN = "report.json", "report.md"
_BATCH_SIZE = 16
_WARM_UP = 3


@dataclasses.dataclass(frozen=True)
class LiteReport:
    """How a converted model does beside the Keras model on the same sequences."""

    mode: str
    max_seq_length: int
    resizable: bool
    size_bytes: int
    num_sequences: int
    largest_difference: dict[str, float]  # by output
    keras_scores: dict[str, float]  # by metric; empty where nothing was scored
    scores: dict[str, float]
    keras_milliseconds: float  # median of one sequence, on one core
    milliseconds: float


def measure(
    content: bytes,
    run: Run,
    features: Batch,
    mode: str,
    score: Score | None = None,
    timed_sequences: int = 50,
) -> LiteReport:
    """Runs both models.

    Args:
        content: the converted model.
        run: the one it came from.
        features: sequences of a dev file, int32 [B, T] each; T is the max_seq_length of the converted model.
        mode: of the conversion.
        score: makes figures of what a model says of all sequences.
        timed_sequences: at most this many are timed; the two models take turns at them.
    """
    count, length = features["input_ids"].shape
    if not count:
        raise ValueError("There is nothing to measure: the dev file has no sequences.")
    lite = LiteModel(content)
    graph = tf.function(lambda **batch: dict(run(batch)), autograph=False)
    expected, told = _run_keras(graph, features), lite(features)
    is_token = features["input_mask"] > 0
    differences = {name: _largest_difference(told[name], expected[name], is_token) for name in told}
    keras_ms, lite_ms = _time_both(graph, lite, {name: features[name][:timed_sequences] for name in SEQUENCES})
    return LiteReport(
        mode=mode,
        max_seq_length=length,
        resizable=lite.resizable,
        size_bytes=len(content),
        num_sequences=count,
        largest_difference=differences,
        keras_scores=dict(score(expected)) if score else {},
        scores=dict(score(told)) if score else {},
        keras_milliseconds=keras_ms,
        milliseconds=lite_ms,
    )


def _run_keras(graph, features: Batch) -> Outputs:
    parts = []
    for start in range(0, len(features["input_ids"]), _BATCH_SIZE):
        batch = {name: tf.constant(features[name][start : start + _BATCH_SIZE]) for name in SEQUENCES}
        parts.append({name: values.numpy() for name, values in graph(**batch).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _largest_difference(told: np.ndarray, expected: np.ndarray, is_token: np.ndarray) -> float:
    """Where there is a value for each token, padding does not count: a resizable model does not run it."""
    differences = np.abs(told - expected)
    if differences.shape[:2] == is_token.shape:
        differences = differences[is_token]
    return float(differences.max(initial=0.0))


def _time_both(graph, lite: LiteModel, features: Batch) -> tuple[float, float]:
    """Median milliseconds of the Keras model and of the converted one, the same sequences by turns."""
    rows = lite.prepared(features)
    tensors = [{name: tf.constant(array) for name, array in row.items()} for row in rows]
    # One shape for Keras too, or it would be timed while it traces.
    signature = {name: tf.TensorSpec([1, None], tf.int32) for name in SEQUENCES}
    function = graph.get_concrete_function(**signature)

    def time_of(call, inputs) -> float:
        start = time.perf_counter()
        call(inputs)
        return 1000 * (time.perf_counter() - start)

    def ask_keras(inputs):
        return [values.numpy() for values in function(**inputs).values()]

    with on_one_core():
        for _ in range(_WARM_UP):
            ask_keras(tensors[0]), lite.invoke(rows[0])
        times = [(time_of(ask_keras, t), time_of(lite.invoke, row)) for t, row in zip(tensors, rows, strict=True)]
    return tuple(statistics.median(column) for column in zip(*times, strict=True))


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """All threads of this process on one core, where the system lets them be put there (Linux does).

    TensorFlow does not change the number of its threads once it has run.
    """
    tasks = Path("/proc/self/task")
    if not hasattr(os, "sched_setaffinity") or not tasks.is_dir():
        yield
        return
    cores = os.sched_getaffinity(0)
    try:
        _pin(tasks, {max(cores)})
        yield
    finally:
        _pin(tasks, cores)


def _pin(tasks: Path, cores: set[int]) -> None:
    for task in tasks.iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores)


def write_reports(reports: Sequence[LiteReport], directory: str | Path) -> None:
    """Writes `report.json`, and `report.md` with a line for each mode."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = [dataclasses.asdict(report) for report in reports]
    write_text(directory / REPORT_JSON, json.dumps(values, indent=2) + "\n")
    write_text(directory / REPORT_MARKDOWN, to_markdown(reports))


def to_markdown(reports: Sequence[LiteReport]) -> str:
    """A table with a line for each mode."""
    metrics = list(dict.fromkeys(name for report in reports for name in report.scores))
    header = ["mode", "length", "MB", "sequences", "largest difference"]
    header += [f"{name} (Keras)" for name in metrics] + ["ms (Keras)"]
    lines = [header, ["---"] * len(header)]
    for report in reports:
        length = f"up to {report.max_seq_length}" if report.resizable else str(report.max_seq_length)
        scores = [f"{report.scores[name]:.4f} ({report.keras_scores[name]:.4f})" for name in metrics]
        lines.append(
            [report.mode, length, f"{report.size_bytes / 1e6:.1f}", str(report.num_sequences)]
            + [f"{max(report.largest_difference.values()):.2g}"]
            + scores
            + [f"{report.milliseconds:.1f} ({report.keras_milliseconds:.1f})"]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
