"""Scripts in processes that start at once: forks of one that has imported all that they import.

Importing TensorFlow takes seconds, which is most of what a small run does; and some are killed twenty times. A fork is
safe as long as TensorFlow has computed nothing, since its threads start with its first operation. The fork then runs
the script from its first line on, as `python script.py` does; flags are defined in it, and not before.
"""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

_SERVER = """
    import atexit, gc, json, os, runpy, sys, threading, traceback
    import keras, numpy, tensorflow, tqdm
    import modeling.checkpoint, modeling.models, serving.saved_model, serving.services, tasks.pretraining
    import tasks.sentence_classifier, tasks.sentence_data, tasks.sentence_results, training.evaluation, training.loop

    gc.freeze()  # what is imported stays: nobody need look through it for garbage
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        said = os.open(asked["said"], os.O_WRONLY | os.O_APPEND)
        os.dup2(os.open(asked["given"], os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(asked["directory"])
        os.environ.update(asked["environment"])
        sys.argv = asked["command"]
        exec(asked["before"], {})
        code = 0
        try:
            if sys.argv[0].endswith(".py"):
                runpy.run_path(sys.argv[0], run_name="__main__")
            else:
                runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        except SystemExit as stopped:
            code = stopped.code or 0
            if not isinstance(code, int):
                print(code, file=sys.stderr)
                code = 1
        except Exception:
            traceback.print_exc()
            code = 1
        # What an interpreter does at its end, but for taking thousands of modules apart, which takes it a second. That
        # a script ends even so is seen where `tests.scripts.start` starts it.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os._exit(0)  # nothing was computed here: there is nothing to clear up
"""


class Warm:
    """Starts scripts."""

    def __init__(self):
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
        self._server = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_SERVER)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, question: dict):
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(
        self,
        script: str,
        *flags: str,
        before: str = "",
        given: str = "",
        directory: Path = ROOT,
        **environment: str,
    ) -> "Running":
        """See `tests.scripts.start`. What has no .py at its end is a module; it runs in `directory`."""
        said, stdin = _temporary_file(), _temporary_file(given)
        question = {
            "command": [script, *map(str, flags)],
            "before": textwrap.dedent(before),
            "said": str(said),
            "given": str(stdin),
            "directory": str(directory),
            "environment": environment,
        }
        return Running(self, self.ask(question), said, stdin)

    def run(self, script: str, *flags: str, code: int = 0, **options) -> str:
        return self.start(script, *flags, **options).finish(code)

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


@functools.cache
def warm() -> Warm:
    """One for all tests of a process."""
    started = Warm()
    atexit.register(started.close)
    return started


def _temporary_file(text: str = "") -> Path:
    with tempfile.NamedTemporaryFile("w", delete=False, encoding="utf-8") as file:
        file.write(text)
    return Path(file.name)


class Running:
    """A script that was started."""

    def __init__(self, warm: Warm, pid: int, said: Path, stdin: Path):
        self._warm = warm
        self._pid = pid
        self._said = said
        self._stdin = stdin
        self._code = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self._code is None:
            self._code = self._warm.ask({"poll": self._pid})
        return self._code

    def said(self) -> str:
        return self._said.read_text(encoding="utf-8", errors="replace")

    def send_signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.01)

    def wait_for(self, condition, timeout: float = 120) -> None:
        """Waits until something is so, or it has ended."""
        deadline = time.monotonic() + timeout
        while not condition() and self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"It did not come to that. It said:\n{self.said()}")
            time.sleep(0.01)

    def finish(self, code: int = 0, timeout: float = 300) -> str:
        """Waits for it, sees that it ended with `code`, and gives what it said."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"Still running after {timeout} s. It said:\n{self.said()}")
            time.sleep(0.02)
        said = self.said()
        self._said.unlink()
        self._stdin.unlink()
        assert self._code == code, f"Ended with {self._code} instead of {code}. It said:\n{said}"
        return said
