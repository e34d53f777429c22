"""Running the scripts as a person does."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path

from tests.warm import ROOT, warm


def write_tiny_model(directory: Path, words: Iterable[str], **changes) -> Path:
    """Writes config.json and vocab.txt of a model that learns in seconds; the directory again."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(words)]
    (directory / "vocab.txt").write_text("\n".join(vocab) + "\n")
    config = {
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        "initializer_range": 0.1,
    }
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory


def spell(**flags) -> list[str]:
    """`spell(do_train=True, seed=1)` -> `["--do_train=True", "--seed=1"]`; None leaves a flag out."""
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def start(script: str, *flags: str, before: str = "", given: str | None = None, **environment: str) -> subprocess.Popen:
    """Starts a script.

    Args:
        before: Python that runs first in its process, to arrange accidents.
        given: what it finds on standard input.
    """
    command = [sys.executable, script, *flags]
    if before:
        runner = (
            f"{textwrap.dedent(before)}\nimport runpy, sys\nsys.argv = sys.argv[1:]\n"
            f"sys.path.insert(0, {str(ROOT)!r})\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        )
        command = [sys.executable, "-c", runner, script, *flags]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if given is not None:  # little enough for the pipe to hold
        process.stdin.write(given)
        process.stdin.close()
        process.stdin = None
    return process


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


def run(script: str, *flags: str, code: int = 0, before: str = "", given: str = "") -> str:
    """Runs a script to its end, in a process that has TensorFlow loaded already."""
    return warm().run(script, *flags, code=code, before=before, given=given)


_COMPLAINTS = """
    import importlib, json, sys
    from absl import flags
    from absl.testing import flagsaver
    import command_line

    script = importlib.import_module(sys.argv[1].removesuffix(".py"))
    flags.FLAGS(sys.argv[:1])
    told = []
    for line in json.load(sys.stdin):
        with flagsaver.flagsaver():
            try:
                flags.FLAGS(sys.argv[:1] + line)
                script.main()
                told.append("")
            except Exception as error:
                told.append(command_line._message(error) or f"Traceback: {error!r}")
    print("\\n" + json.dumps(told))  # below what was said without an end of the line
"""


def complaints(script: str, *lines: list[str]) -> list[str]:
    """What a script says of each of several wrong command lines; "" where it finds nothing wrong. In one process."""
    return answer_of(_COMPLAINTS, script, given=json.dumps(lines))


def answer_of(code: str, argument: str, given: str = ""):
    """Runs Python in a process of its own, which has TensorFlow loaded already; what it prints last, as JSON."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
        file.write(textwrap.dedent(code))
        file.flush()
        return json.loads(warm().run(file.name, argument, given=given).splitlines()[-1])


def wait_for(condition, process: subprocess.Popen, timeout: float = 120) -> None:
    """Waits until something is so while a process runs."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert process.poll() is None, f"It ended first. It said:\n{process.stdout.read()}"
        assert time.monotonic() < deadline, "It did not come to that."
        time.sleep(0.02)


KILLED = -signal.SIGKILL

# For `before`: time enough to do something to a run between two of its steps.
SLOW_STEPS = """
    import time
    from training.reports import Reports
    store = Reports.store
    Reports.store = lambda *arguments, **options: (store(*arguments, **options), time.sleep(0.5))
"""


def last_step(output_dir: Path) -> int:
    """Of metrics.jsonl; 0 while there is nothing in it, or half a line."""
    try:
        return json.loads((output_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (IndexError, ValueError, FileNotFoundError):
        return 0
