"""Running the scripts as a person does."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def spell(**flags) -> list[str]:
    """`spell(do_train=True, seed=1)` -> `["--do_train=True", "--seed=1"]`; None leaves a flag out."""
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def start(script: str, *flags: str, before: str = "", **environment: str) -> subprocess.Popen:
    """Starts a script; `before` is Python that runs first in its process, to arrange accidents."""
    command = [sys.executable, script, *flags]
    if before:
        runner = (
            f"{textwrap.dedent(before)}\nimport runpy, sys\nsys.argv = sys.argv[1:]\n"
            f"sys.path.insert(0, {str(ROOT)!r})\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        )
        command = [sys.executable, "-c", runner, script, *flags]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen, code: int = 0, timeout: float = 300) -> str:
    """Waits for a script, sees that it ended with `code`, and gives what it said."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"Still running after {timeout} s. It said:\n{output}") from None
    assert process.returncode == code, f"Ended with {process.returncode} instead of {code}. It said:\n{output}"
    return output


def run(script: str, *flags: str, code: int = 0, before: str = "", **environment: str) -> str:
    return finish(start(script, *flags, before=before, **environment), code)


def wait_for(condition, process: subprocess.Popen, timeout: float = 120) -> None:
    """Waits until something is so while a process runs."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert process.poll() is None, f"It ended first. It said:\n{process.stdout.read()}"
        assert time.monotonic() < deadline, "It did not come to that."
        time.sleep(0.02)


KILLED = -signal.SIGKILL
