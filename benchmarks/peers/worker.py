"""A process that prepares one way of doing a work, and measures it whenever it is told to; and the one who tells it.

Both sides of a pair stay alive and warm, and take turns: while one is measured, the other waits for a line. The worker
reads "prepare" and "measure N" from standard input, and answers each with a line of JSON. Nothing of ours is imported
here, since the peers live in an environment of their own.
"""

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_REFERENCE_SIZE = 2048


class WorkerError(RuntimeError):
    """A way that cannot be measured, with what its process said last."""


class Worker:
    """A way of doing a work, in a process of its own.

    Args:
        python: the interpreter of its environment.
        function: `module:function` in benchmarks.peers. It prepares everything, and gives a function `measure(count)`
            that does the work and tells figures by name, `value` among them.
        settings: arguments of the function.
        log: where what it says on standard error goes.
        environment: variables besides those of this process.
    """

    def __init__(
        self,
        python: str | Path,
        function: str,
        settings: Mapping[str, Any],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ):
        self._log = log
        command = [str(python), "-m", "benchmarks.peers.worker", function, json.dumps(settings)]
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"} | dict(environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def prepare(self) -> dict[str, Any]:
        """Builds, compiles and warms up; gives the versions of what it uses."""
        return self._ask("prepare")

    def measure(self, count: int) -> dict[str, Any]:
        """Does the work once, at a size of `count`.

        Returns:
            Its figures, `reference` (GFLOP/s before and after it), `others` (the share of the machine that other
            processes used meanwhile) and `peak_mb` (the most memory it has had so far).
        """
        return self._ask(f"measure {count}")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def _ask(self, line: str) -> dict[str, Any]:
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise WorkerError(f"ended with {self._process.wait()}: {said[-1] if said else 'it said nothing'}")
        return json.loads(answer)


class Reference:
    """A plain product of two float32 matrices: how fast the machine is at this moment. numpy is the same everywhere."""

    def __init__(self):
        import numpy as np

        rng = np.random.default_rng(0)
        self._left, self._right = (
            rng.standard_normal((_REFERENCE_SIZE, _REFERENCE_SIZE), dtype=np.float32) for _ in range(2)
        )
        self._multiply = np.matmul

    def gflops(self, rounds: int = 3) -> float:
        """The best of some products: a single one is too short to be told apart from an interruption."""
        return best_gflops(lambda: self._multiply(self._left, self._right), rounds)


def best_gflops(multiply, rounds: int = 3) -> float:
    """GFLOP/s of a product of two matrices of the reference's size."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        multiply()
        seconds.append(time.perf_counter() - begin)
    return 2 * _REFERENCE_SIZE**3 / min(seconds) / 1e9


class OtherProcesses:
    """How much of the machine others use, from now on. A load that does not change does not move the reference, but it
    hurts libraries whose threads wait for each other far more than those that share out small parts of the work."""

    def __init__(self):
        self._begin = time.perf_counter(), self._seconds_of_others()

    def share(self) -> float:
        """Of all cores, from 0 to 1."""
        begin, used = self._begin
        cores = (time.perf_counter() - begin) * (os.cpu_count() or 1)
        return max(0.0, min(1.0, (self._seconds_of_others() - used) / cores))

    @staticmethod
    def _seconds_of_others() -> float:
        """Seconds of CPU of all processes but this one and its children; 0 where the system does not tell."""
        stat = Path("/proc/stat")
        if not stat.is_file():
            return 0.0
        user, nice, system, _, _, irq, soft_irq, steal = map(int, stat.read_text().split("\n")[0].split()[1:9])
        busy = (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return busy - sum(usage.ru_utime + usage.ru_stime for usage in usages)


def serve(function: str, settings: Mapping[str, Any], commands, answers) -> None:
    """Answers commands until there are no more."""
    module, name = function.split(":")
    measure = reference = None
    for line in commands:
        command, *arguments = line.split()
        if command == "prepare":
            measure = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)(**settings)
            reference = Reference()
            reference.gflops()
            answer = {"versions": versions()}
        else:
            before, others = reference.gflops(), OtherProcesses()
            answer = dict(measure(int(arguments[0])))
            answer["others"] = others.share()
            answer["reference"] = [before, reference.gflops()]
            answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=answers, flush=True)


def versions() -> dict[str, str]:
    """Of the libraries that this process has loaded."""
    names = ("tensorflow", "keras", "keras_hub", "torch", "transformers", "onnxruntime", "tokenizers", "numpy")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {"python": sys.version.split()[0]} | {name: version for name, version in found.items() if version}


def main() -> None:
    # Libraries print whatever they like: only answers go where the other side reads.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], json.loads(sys.argv[2]), sys.stdin, answers)
    answers.close()
    # Threads of input pipelines would keep the process from ending.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
