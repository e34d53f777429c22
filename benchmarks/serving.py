"""What free lengths are worth where a model is served: requests per second of many clients at once.

    python -m benchmarks.serving --saved_model_dir=export/sst2/1 --input_file=lines.txt

Sixteen clients ask for small requests, one after the other, and a queue joins what comes together, as TensorFlow
Serving does. One way is the model as it is exported: texts in, padded to the longest of those that run together. The
other is its signature `tokens` with each row as long as --max_seq_length, which is what a model of fixed length
computes; its rows come ready-made, so nothing is spent on words there. Both have the same model and the same process,
and take turns.
"""

import itertools
import random
import statistics
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

from absl import flags

import command_line
from benchmarks.joining import JoiningQueue
from data.text_files import read_lines
from serving.trust import check_harmless

_SAVED_MODEL_DIR = flags.DEFINE_string("saved_model_dir", None, "A version's directory of an export.", required=True)
_INPUT_FILE = flags.DEFINE_string("input_file", None, "Texts, one a line; blank lines are passed over.", required=True)
_NUM_LINES = flags.DEFINE_integer("num_lines", 2000, "How many lines to ask for, the first ones.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "The length of padded rows: the model's own maximum.")
_NUM_CLIENTS = flags.DEFINE_integer("num_clients", 16, "Clients that ask at the same time.", lower_bound=1)
_ROWS_PER_REQUEST = flags.DEFINE_integer(
    "rows_per_request", 4, "A request has from 1 to this many lines.", lower_bound=1
)
_MAX_BATCH_SIZE = flags.DEFINE_integer("max_batch_size", 512, "As in batching.config.", lower_bound=1)
_BATCH_TIMEOUT = flags.DEFINE_integer("batch_timeout_micros", 2000, "As in batching.config.", lower_bound=0)
_NUM_BATCH_THREADS = flags.DEFINE_integer(
    "num_batch_threads", 1, "Batches at the same time; half as many as there are cores.", lower_bound=1
)
_LINES_PER_TURN = flags.DEFINE_integer("lines_per_turn", 500, "Lines until the other way has its turn.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 1, "Of the sizes of requests.")


@dataclass
class Way:
    """One way to ask the model, and what came of it."""

    name: str
    run: Callable
    requests: Callable[[list[str], list[int]], list]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def ask(self, lines: list[str], sizes: list[int]) -> None:
        """Asks for all lines; each client takes the next request when it has its answer."""
        requests = self.requests(lines, sizes)
        joining = JoiningQueue(self.run, _MAX_BATCH_SIZE.value, _BATCH_TIMEOUT.value / 1e6, _NUM_BATCH_THREADS.value)

        def latency(request) -> float:
            begin = time.perf_counter()
            joining.ask(request)
            return time.perf_counter() - begin

        begin = time.perf_counter()
        with futures.ThreadPoolExecutor(_NUM_CLIENTS.value) as clients:
            self.latencies += clients.map(latency, requests)
        self.seconds += time.perf_counter() - begin
        joining.close()

    def report(self, num_lines: int, padded: "Way") -> str:
        requests, late = len(self.latencies), sorted(self.latencies)[int(0.95 * len(self.latencies))]
        return (
            f"{self.name:15} {requests / self.seconds:8.1f} requests/s  {num_lines / self.seconds:8.1f} lines/s"
            f"  {1000 * statistics.median(self.latencies):7.1f} ms median  {1000 * late:7.1f} ms in 95 of 100"
            f"  {padded.seconds / self.seconds:5.2f}x"
        )


def make_ways(model) -> tuple[Way, Way]:
    """Padded, and as exported."""
    import numpy as np
    import tensorflow as tf

    def runner(signature):
        def run(inputs):
            tensors = {name: tf.constant(value) for name, value in inputs.items()}
            return {name: value.numpy() for name, value in signature(**tensors).items()}

        return run

    texts, tokens = model.signatures["serving_default"], model.signatures["tokens"]
    text_names, token_names = input_names(texts, tf.string, 1), input_names(tokens, tf.int32, 2)

    def padded_requests(lines, sizes):
        # What a row costs depends on its shape alone, as long as the mask leaves nothing out.
        values = {name: int(name != "segment_ids") for name in token_names}
        shapes = [(size, _MAX_SEQ_LENGTH.value) for size in sizes]
        return [{name: np.full(shape, value, np.int32) for name, value in values.items()} for shape in shapes]

    def text_requests(lines, sizes):
        # Where an input is the pair of another, it has the line that follows.
        columns = {name: np.array(lines[at:] + lines[:at], object) for at, name in enumerate(text_names)}
        starts = itertools.accumulate(sizes[:-1], initial=0)
        return [
            {name: column[start : start + size] for name, column in columns.items()}
            for start, size in zip(starts, sizes, strict=True)
        ]

    padded = Way(f"padded to {_MAX_SEQ_LENGTH.value}", runner(tokens), padded_requests)
    return padded, Way("free length", runner(texts), text_requests)


def input_names(signature, dtype, rank: int) -> list[str]:
    """The inputs of a signature, all of one type and rank."""
    specs = signature.structured_input_signature[1]
    for name, spec in specs.items():
        if spec.dtype != dtype or spec.shape.rank != rank:
            raise ValueError(f"The input {name} is {spec.dtype.name} {spec.shape}: such models are not measured here.")
    return sorted(specs)


def request_sizes(num_lines: int, rng: random.Random) -> list[int]:
    sizes: list[int] = []
    while (left := num_lines - sum(sizes)) > 0:
        sizes.append(min(rng.randint(1, _ROWS_PER_REQUEST.value), left))
    return sizes


def main() -> None:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  its ops

    if not (Path(_SAVED_MODEL_DIR.value) / "saved_model.pb").exists():
        raise ValueError(f"{_SAVED_MODEL_DIR.value} has no saved_model.pb. --saved_model_dir is a version's directory.")
    found = (line.decode("utf-8", "ignore").strip() for line in read_lines(_INPUT_FILE.value))
    lines = list(itertools.islice(filter(None, found), _NUM_LINES.value))
    if not lines:
        raise ValueError(f"There is no text in {_INPUT_FILE.value}.")
    check_harmless(_SAVED_MODEL_DIR.value)
    ways = make_ways(tf.saved_model.load(_SAVED_MODEL_DIR.value))
    rng = random.Random(_SEED.value)
    for way in ways:  # allocates
        way.ask(lines[:64], request_sizes(len(lines[:64]), rng))
        way.seconds, way.latencies = 0.0, []
    for start in range(0, len(lines), _LINES_PER_TURN.value):
        turn = lines[start : start + _LINES_PER_TURN.value]
        sizes = request_sizes(len(turn), rng)
        for way in ways:
            way.ask(turn, sizes)
    words = sum(len(line.split()) for line in lines) / len(lines)
    count = len(ways[0].latencies)
    print(f"{_NUM_CLIENTS.value} clients, {count} requests of {len(lines)} lines, {words:.1f} words each")
    for way in ways:
        print(way.report(len(lines), padded=ways[0]))


if __name__ == "__main__":
    command_line.run(main)
