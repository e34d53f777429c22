"""A queue that joins requests as TensorFlow Serving does (its BatchingSession), to measure what that is worth."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures

import numpy as np

_Tensors = dict[str, np.ndarray]


class JoiningQueue:
    """Joins requests that wait at the same time, runs them as one, and gives each its rows of the answer.

    Args:
        run: inputs by name, arrays of any number of rows -> outputs by name.
        max_batch_size: rows that run together.
        timeout: seconds that a request waits for others.
        num_threads: batches that run at the same time.
    """

    def __init__(self, run: Callable[[_Tensors], _Tensors], max_batch_size: int, timeout: float, num_threads: int):
        self._run, self._max_batch_size, self._timeout = run, max_batch_size, timeout
        self._waiting: queue.Queue = queue.Queue()
        self._collecting = threading.Lock()  # one thread fills a batch while others compute
        self._left_over = None
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def ask(self, inputs: _Tensors) -> _Tensors:
        """Waits for the outputs of a request."""
        future: futures.Future = futures.Future()
        self._waiting.put((inputs, future))
        return future.result()

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._collecting:
                batch = self._collect()
            if not batch:
                return
            try:
                self._answer(batch)
            except Exception as error:  # of the model: it belongs to whoever asked
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)

    def _collect(self) -> list:
        first, self._left_over = self._left_over or self._waiting.get(), None
        if first is None:
            return []
        batch, rows, deadline = [first], _num_rows(first[0]), time.monotonic() + self._timeout
        while rows < self._max_batch_size:
            try:
                found = self._waiting.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                break
            if found is None:  # the end; but first what is there
                self._waiting.put(None)
                break
            if rows + _num_rows(found[0]) > self._max_batch_size:
                self._left_over = found
                break
            batch.append(found)
            rows += _num_rows(found[0])
        return batch

    def _answer(self, batch) -> None:
        joined = {name: np.concatenate([inputs[name] for inputs, _ in batch]) for name in batch[0][0]}
        outputs = self._run(joined)
        start = 0
        for inputs, future in batch:
            end = start + _num_rows(inputs)
            future.set_result({name: value[start:end] for name, value in outputs.items()})
            start = end


def _num_rows(inputs: _Tensors) -> int:
    return len(next(iter(inputs.values())))
