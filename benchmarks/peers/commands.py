"""Whole commands, each a process that starts cold: how long they take, and how much memory."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

_PLACE = "OUTPUT_DIR"  # stands in a command for a directory that is new each time


def _start(command: list[str], directory: str) -> subprocess.Popen:
    words = [word.replace(_PLACE, directory) for word in command]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _wait(process: subprocess.Popen):
    """What the process has used; an error where it failed."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(process.args)} ended with {process.returncode}")
    return usage


def whole(command: list[str]):
    """Seconds from the start of a process to its end; with the scores that it left in eval_results.txt."""

    def measure(count: int) -> dict:
        with tempfile.TemporaryDirectory() as directory:
            begin = time.perf_counter()
            _wait(_start(command, directory))
            seconds = time.perf_counter() - begin
            results = Path(directory) / "eval_results.txt"
            lines = results.read_text().splitlines() if results.is_file() else []
            scores = dict(line.split(" = ") for line in lines)
        return {"value": seconds} | {name: float(score) for name, score in scores.items()}

    return measure


def first_step(command: list[str]):
    """Seconds from the start of a process until it has told of its first training step; then it is ended."""

    def measure(count: int) -> dict:
        with tempfile.TemporaryDirectory() as directory:
            begin = time.perf_counter()
            process, metrics = _start(command, directory), Path(directory) / "metrics.jsonl"
            while not (metrics.is_file() and metrics.stat().st_size):
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} before its first step")
                time.sleep(0.01)
            seconds = time.perf_counter() - begin
            process.kill()
            process.wait()
        return {"value": seconds}

    return measure


def peak_memory(command: list[str]):
    """The largest resident size of a command in MB, imports included; of its largest process, if there are more."""

    def measure(count: int) -> dict:
        with tempfile.TemporaryDirectory() as directory:
            usage = _wait(_start(command, directory))
        return {"value": usage.ru_maxrss / 1024}

    return measure
