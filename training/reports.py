"""What a run tells: a bar for whoever watches, metrics.jsonl for programs, TensorBoard for both."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from training.state import write_bytes

METRICS = "metrics.jsonl"


class Reports:
    """Shows and stores the figures of a run.

    Args:
        output_dir: gets `metrics.jsonl`, and TensorBoard events in `train/` and `eval/`.
        first_step: where the run starts or goes on. Lines of metrics.jsonl after it are from steps that were lost and
            will be done again, so they are taken out.
        num_train_steps: where it ends.
        sequences_per_step, tokens_per_step: to compute speeds.
        write: whether this process writes files and shows a bar; only the first of several workers does.
    """

    def __init__(
        self,
        output_dir: str | Path,
        first_step: int,
        num_train_steps: int,
        sequences_per_step: float,
        tokens_per_step: float,
        write: bool = True,
    ):
        self._output_dir = Path(output_dir)
        self._write = write
        self._per_step = {"sequences_per_second": sequences_per_step, "tokens_per_second": tokens_per_step}
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        if write:
            self._output_dir.mkdir(parents=True, exist_ok=True)
            _cut(self._output_dir / METRICS, first_step)
        self._bar = tqdm(
            total=num_train_steps, initial=first_step, unit=" steps", desc="Training", disable=not write, smoothing=0.1
        )
        self._step = first_step
        self._clock = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()
        for writer in self._writers.values():
            writer.close()

    def show(self, step: int, figures: Mapping[str, float]) -> None:
        """Moves the bar."""
        self._bar.set_postfix({_short(name): _rounded(value) for name, value in figures.items()}, refresh=False)
        self._bar.update(step - self._bar.n)

    def store(self, step: int, figures: Mapping[str, float], kind: str = "train") -> None:
        """Adds a line to metrics.jsonl and points to the curves of TensorBoard."""
        if not self._write:
            return
        if kind not in self._writers:
            self._writers[kind] = tf.summary.create_file_writer(str(self._output_dir / kind))
        _store(self._output_dir, self._writers[kind], step, figures, kind)

    def speeds(self, step: int) -> dict[str, float]:
        """Per second, since `restart_clock`; nothing when no step was made since."""
        if step == self._step:
            return {}
        seconds = max(time.monotonic() - self._clock, 1e-9)
        return {name: count * (step - self._step) / seconds for name, count in self._per_step.items()}

    def restart_clock(self, step: int) -> None:
        """Starts to measure anew: after a report, and after whatever was not training."""
        self._step = step
        self._clock = time.monotonic()

    def say(self, message: str) -> None:
        """A line above the bar."""
        if self._write:
            self._bar.write(message)


def store_once(output_dir: str | Path, step: int, figures: Mapping[str, float], kind: str) -> None:
    """Adds figures to those of a run, outside of its loop, if that step has none of this kind yet."""
    path = Path(output_dir) / METRICS
    if path.exists():
        _drop_half_line(path)
        if any(line["step"] == step for line in read_metrics(output_dir, kind)):
            return
    writer = tf.summary.create_file_writer(str(Path(output_dir) / kind))
    _store(Path(output_dir), writer, step, figures, kind)
    writer.close()


def _store(output_dir: Path, writer, step: int, figures: Mapping[str, float], kind: str) -> None:
    with writer.as_default():
        for name, value in figures.items():
            tf.summary.scalar(name, value, step=step)
    writer.flush()
    with open(output_dir / METRICS, "a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, "step": step, **figures}) + "\n")


def read_metrics(output_dir: str | Path, kind: str | None = None) -> list[dict[str, float]]:
    """The lines of metrics.jsonl, or those of one kind ("train" or "eval")."""
    return [line for line, _ in _read(Path(output_dir) / METRICS) if kind in (None, line["kind"])]


def _read(path: Path) -> Iterator[tuple[dict[str, float], bytes]]:
    """Each line, parsed and as it is; but for one that was not written to its end, where a process was killed."""
    *whole, _ = path.read_bytes().split(b"\n")
    for number, text in enumerate(whole, 1):
        try:
            line = json.loads(text)
            if not (isinstance(line, dict) and isinstance(line.get("kind"), str) and isinstance(line.get("step"), int)):
                raise ValueError('it is no object with "kind" and "step"')
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is damaged ({error}). Remove that line.") from error
        yield line, text + b"\n"


def _cut(path: Path, last_step: int) -> None:
    """Takes out lines of later steps, and one that was not written to its end."""
    if path.exists():
        write_bytes(path, b"".join([text for line, text in _read(path) if line["step"] <= last_step]))


def _drop_half_line(path: Path) -> None:
    """Takes out what a killed process has left at the end, and touches nothing else: a run may be going on."""
    content = path.read_bytes()
    if (end := content.rfind(b"\n") + 1) < len(content):
        os.truncate(path, end)


def _short(name: str) -> str:
    for long, short in (
        ("masked_lm", "mlm"),
        ("next_sentence", "nsp"),
        ("accuracy", "acc"),
        ("sequences_per_second", "seq/s"),
        ("tokens_per_second", "tok/s"),
        ("learning_rate", "lr"),
    ):
        name = name.replace(long, short)
    return name


def _rounded(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
