"""Many clients at once against an exported model: every answer right, no memory lost, and how late the late ones are.

    python -m benchmarks.load --num_requests=10000 --num_clients=32

A tiny classifier is made and exported, and served by the stand-in of the tests, which speaks TensorFlow Serving's
protocols over real sockets (half of the clients REST, half gRPC). Requests have 1 to 32 rows, and rows 1 to 512 pieces
of several scripts. Each answer is compared with that of `SentenceClassifier`, asked beforehand in this process. It is
the model, the protocol and our client that are tried here: the stand-in has neither the queue nor the speed of the
server.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from pathlib import Path

import numpy as np
from absl import flags

import command_line

_NUM_REQUESTS = flags.DEFINE_integer("num_requests", 10_000, "Of all clients together.", lower_bound=10)
_NUM_CLIENTS = flags.DEFINE_integer("num_clients", 32, "At the same time.", lower_bound=2)
_WORDS = re.findall(r"\S+", "the naïve café 猫 は 眠る 한국어 문장 привет мир שלום مرحبا ประเทศ हिन्दी 🙂 x1 don't ...")
_NUM_TEXTS, _MAX_PIECES, _MAX_ROWS = 300, 512, 32


def make_model(directory: Path) -> Path:
    """The --output_dir of a classifier with random weights."""
    import keras

    from data.tokenization import split_words
    from modeling.checkpoint import save_checkpoint
    from modeling.config import BertConfig
    from modeling.models import SentenceModel
    from tasks.sentences import SentenceSettings

    keras.utils.set_random_seed(1)
    words = split_words(" ".join(_WORDS), do_lower_case=True, strip_accents=True)
    characters = sorted({char for word in words for char in word.text})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{char}" for char in characters)]
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=_MAX_PIECES,
        type_vocab_size=2,
        initializer_range=0.5,
    )
    directory.mkdir(parents=True)
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (directory / "bert_config.json").write_text(config.to_json_string(), encoding="utf-8")
    settings = SentenceSettings("single_label", ("no", "yes"), do_lower_case=True, max_seq_length=_MAX_PIECES)
    (directory / "bert_task.json").write_text(settings.to_json(), encoding="utf-8")
    save_checkpoint(SentenceModel(config, 2), directory / "bert_model.ckpt")
    return directory


def make_texts(rng: random.Random) -> list[str]:
    """Mostly short ones, up to more than a sequence holds; the empty one among them."""
    lengths = [int(2 ** rng.uniform(0, 8.5)) for _ in range(_NUM_TEXTS - 1)]  # words
    return ["", *(" ".join(rng.choices(_WORDS, k=length)) for length in lengths)]


class Server:
    """The stand-in, in a process of its own."""

    def __init__(self, base: Path):
        start = "import runpy, sys, tensorflow_text; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, "tests/serving/stand_in.py", f"--model=load={base}"],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> dict[str, int]:
        print(file=self._process.stdin, flush=True)
        self.ports = json.loads(self._process.stdout.readline())
        return self

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()


class Load:
    """Requests of all clients, and what came of them."""

    def __init__(self, server: Server, texts: list[str], expected: np.ndarray, num_requests: int):
        self._server, self._texts, self._expected, self._num_requests = server, texts, expected, num_requests
        self._lock = threading.Lock()
        self.seconds: list[float] = []
        self.largest_difference = 0.0
        self.megabytes: dict[int, float] = {}  # by number of answers

    def run(self, num_clients: int) -> None:
        with futures.ThreadPoolExecutor(num_clients) as clients:
            for done in [clients.submit(self._client, number) for number in range(num_clients)]:
                done.result()

    def _client(self, number: int) -> None:
        from serving.client import ServingClient

        rng = random.Random(number)
        ports = self._server.ports
        address = {"grpc": f"127.0.0.1:{ports['grpc']}"} if number % 2 else {"url": f"http://127.0.0.1:{ports['rest']}"}
        with ServingClient("load", **address, timeout=120.0) as client:
            while len(self.seconds) < self._num_requests:
                self._ask(client, [rng.randrange(len(self._texts)) for _ in range(rng.randint(1, _MAX_ROWS))])

    def _ask(self, client, rows: list[int]) -> None:
        begin = time.monotonic()
        answer = client.predict({"text": [self._texts[row] for row in rows]})
        seconds = time.monotonic() - begin
        difference = float(np.abs(np.array(answer["probabilities"]) - self._expected[rows]).max())
        with self._lock:
            self.seconds.append(seconds)
            self.largest_difference = max(self.largest_difference, difference)
            if len(self.seconds) % (self._num_requests // 5) == 0:
                self.megabytes[len(self.seconds)] = self._server.megabytes()


def measure(num_requests: int, num_clients: int) -> Load:
    """Makes a model, serves it and asks it."""
    from serving.saved_model import save
    from serving.services import load_service
    from tasks.sentence_classifier import SentenceClassifier

    with tempfile.TemporaryDirectory() as directory:
        model_dir = make_model(Path(directory) / "model")
        save(load_service(model_dir), Path(directory) / "load" / "1", model_name="load")
        texts = make_texts(random.Random(0))
        predictions = SentenceClassifier.load(model_dir).predict(texts)
        expected = np.array([list(prediction.probabilities.values()) for prediction in predictions])
        with Server(Path(directory) / "load") as server:
            load = Load(server, texts, expected, num_requests)
            load.run(num_clients)
    return load


def main() -> None:
    load = measure(_NUM_REQUESTS.value, _NUM_CLIENTS.value)
    late = np.percentile(load.seconds, [50, 99])
    memory = ", ".join(f"{megabytes:.0f} MB after {count:,}" for count, megabytes in load.megabytes.items())
    print(
        f"{len(load.seconds):,} requests of {_NUM_CLIENTS.value} clients: all answered, {late[0]:.2f} s in the middle, "
    )
    print(f"{late[1]:.2f} s in 99 of 100; largest difference {load.largest_difference:.1e}; server {memory}")


if __name__ == "__main__":
    command_line.run(main)
