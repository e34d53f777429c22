"""Many texts through a model: texts of about the same length together, several batches at once, chunk after chunk."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf

from data.batch_plans import FILLER, BatchSize, evaluation_plan
from data.sentence_features import Features

# Texts of so many batches are sorted by length together. Results wait for the last of them, since they are given in the
# order of the texts; so a chunk ends sooner where its results would be large.
_BATCHES_PER_CHUNK = 64
_CHUNK_BYTES = 128 << 20

# Batches that are computed at the same time, where each has all cores: while one waits for its slowest core, or does
# what only one core can do, the other goes on.
_BATCHES_AT_ONCE = 2

Progress = Callable[[int], object]
Result = TypeVar("Result")


def compute_batches_on_a_core_each() -> None:
    """Has TensorFlow use one core for a batch, and `TextEncoder` compute as many of them at once as there are cores.

    That is the most texts a second on CPUs: no core waits for another one, only the first of them takes longer. To be
    called before TensorFlow computes anything, since its threads are made then; what has to do with other things than
    many texts is slower for it. Where there is a GPU, this does nothing.
    """
    if not tf.config.list_physical_devices("GPU"):
        tf.config.threading.set_intra_op_parallelism_threads(1)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def run_in_chunks(
    rows: Iterable[Features],
    run: Callable[[list[Features], int], Iterable[Result]],
    bytes_of: Callable[[Features], int],
    batch_size: int,
    progress: Progress | None = None,
) -> Iterator[Result]:
    """Runs rows that are about as long as each other together, and gives what came of them in their order.

    Several batches run at the same time, and the rows of the next chunk are made meanwhile. They run in threads of
    their own, to which a `tf.device` of the caller does not come along.
    """

    def run_batch(chunk: list[Features], numbers: np.ndarray):
        # Not rounded up: at twenty pieces a line, multiples of 8 would be a seventh more work.
        length = max(len(chunk[number].input_ids) for number in numbers)
        return list(run([chunk[number] for number in numbers], length))

    def begin(chunk: list[Features]):
        plan = evaluation_plan(np.array([len(row.input_ids) for row in chunk]), BatchSize(batch_size), True)
        batches = [numbers[numbers != FILLER] for numbers in plan]
        return len(chunk), batches, workers.map(functools.partial(run_batch, chunk), batches)

    def results(size: int, batches: list[np.ndarray], found: Iterator[list]) -> list:
        ordered = [None] * size
        for numbers, of_batch in zip(batches, found, strict=True):
            for number, result in zip(numbers, of_batch, strict=True):
                ordered[number] = result
            if progress is not None:
                progress(len(numbers))
        return ordered

    workers, running = ThreadPoolExecutor(_batches_at_once(), "vectors"), None
    try:
        for chunk in _chunks(rows, batch_size * _BATCHES_PER_CHUNK, bytes_of):
            begun = begin(chunk)
            if running:
                yield from results(*running)
            running = begun
        if running:
            yield from results(*running)
    finally:  # whoever stops early, or has an error, waits for no more than what is being computed
        workers.shutdown(cancel_futures=True)


def _batches_at_once() -> int:
    if tf.config.threading.get_intra_op_parallelism_threads() == 1:
        return num_cores() + 1  # so that no core is without one while Python fetches the next
    return _BATCHES_AT_ONCE


def _chunks(rows: Iterable[Features], most_rows: int, bytes_of: Callable[[Features], int]) -> Iterator[list[Features]]:
    chunk, num_bytes = [], 0
    for row in rows:
        chunk.append(row)
        num_bytes += bytes_of(row)
        if len(chunk) == most_rows or num_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk
