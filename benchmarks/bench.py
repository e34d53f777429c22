"""Measures us beside the peers: transformers on torch, KerasHub, onnxruntime, tokenizers, and the original's way.

    python -m benchmarks.bench --quick
    python -m benchmarks.bench --only=training_128,int8
    python -m benchmarks.bench --books_dir=books --glue_dir=glue --lines_file=books/heldout.txt

Each side of a pair is a process that stays warm, and they take turns; docs/performance.md tells how to read what comes
of it. `make bench` builds the environment of the peers first. The works:

{works}
"""

import contextlib
import dataclasses
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

from absl import flags

import command_line
from benchmarks.peers import report
from benchmarks.peers.running import Row, Run
from benchmarks.peers.texts import Inputs
from benchmarks.peers.worker import ROOT, Worker
from benchmarks.peers.works import PEERS_PYTHON, QUICK, WORKS, Way, described
from flag_help import heading

__doc__ = __doc__.replace("{works}", described())

_RESULTS, _DOCUMENT, _PICTURE = (
    Path("benchmarks/results.json"),
    Path("docs/performance.md"),
    Path("docs/performance.png"),
)

command_line.offer_dry_run()

heading("Running")
_QUICK = flags.DEFINE_bool(
    "quick", False, "Whether to take a few minutes: small models, few turns; docs/ is left as it is."
)
_TURNS = flags.DEFINE_integer(
    "turns", None, "This many turns have to count, instead of what each work has: usually three.", lower_bound=1
)
_ONLY = flags.DEFINE_list("only", [], "Names of works, separated by commas; all of them if not set.")

heading("Data")
_BOOKS_DIR = flags.DEFINE_string(
    "books_dir", None, "Texts of pre-training: *.txt, one sentence a line, and heldout.txt. Words at random if not set."
)
_GLUE_DIR = flags.DEFINE_string("glue_dir", None, "GLUE, with MRPC in it. Pairs of words at random if not set.")
_LINES_FILE = flags.DEFINE_string("lines_file", None, "Texts to encode, one a line. Words at random if not set.")

heading("Output")
_WORK_DIR = flags.DEFINE_string("work_dir", ".bench", "Keeps what is made for the moment, and what workers say.")
_ADD = flags.DEFINE_bool("add", False, "Whether rows of other works stay in the results, so that a run can be split.")


def chosen_works() -> list[str]:
    if unknown := [name for name in _ONLY.value if name not in WORKS]:
        raise ValueError(f"--only={','.join(unknown)} is no work. The works are: {', '.join(WORKS)}.")
    if _ONLY.value:
        return [name for name in WORKS if name in _ONLY.value]
    return [name for name in WORKS if not _QUICK.value or name in QUICK]


def python_of(way: Way) -> Path:
    # Not resolved: an environment is found by the link's own place.
    return ROOT / PEERS_PYTHON if way.is_peer else Path(sys.executable)


def check_peers() -> None:
    if not (ROOT / PEERS_PYTHON).is_file():
        raise ValueError(f"There is no {PEERS_PYTHON}: `make bench` builds the environment of the peers.")


def earlier(results: Path) -> dict:
    """What another run has found, if it is to be kept."""
    if not _ADD.value or not results.is_file():
        return {"rows": [], "versions": {}, "stand_ins": []}
    found = json.loads(results.read_text(encoding="utf-8"))
    return found | {"rows": [Row(**row) for row in found["rows"]]}


def show(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def commit() -> str:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return ""


def main() -> None:
    names = chosen_works()
    check_peers()
    work_dir = Path(_WORK_DIR.value).resolve()
    sizes = {"book_megabytes": 0.4, "num_books": 10} if _QUICK.value else {}
    inputs = Inputs(work_dir, _BOOKS_DIR.value, _GLUE_DIR.value, _LINES_FILE.value, **sizes)
    if command_line.is_dry_run():
        command_line.end_dry_run({name: f"  {WORKS[name].__doc__}" for name in names})
    work_dir.mkdir(parents=True, exist_ok=True)
    results = ROOT / (_RESULTS.with_name("quick.json") if _QUICK.value else _RESULTS)
    about = {"date": f"{datetime.date.today()}", "commit": commit(), "quick": _QUICK.value, "machine": report.machine()}
    before = earlier(results)
    rows, versions = [row for row in before["rows"] if row.work not in names], before["versions"]
    for name in names:
        work = WORKS[name](inputs, _QUICK.value)
        if _TURNS.value:
            work = dataclasses.replace(work, turns=dataclasses.replace(work.turns, wanted=_TURNS.value))

        def start(way: Way, work=work) -> Worker:
            log = work_dir / f"{re.sub(r'[^a-z0-9]+', '_', f'{work.name} {way.name}'.lower())}.log"
            return Worker(python_of(way), way.function, way.settings, log, way.environment)

        run = Run(work, start, show)
        measured = {"date": about["date"], "commit": about["commit"]}
        rows += [dataclasses.replace(row, details=row.details | measured) for row in run.rows()]
        rows.sort(key=lambda row: list(WORKS).index(row.work))
        versions |= run.versions
        stand_ins = sorted({*before["stand_ins"], *inputs.stand_ins})
        # After each work, so that a run that is stopped has told what it knows.
        page = report.write(rows, about | {"versions": versions, "stand_ins": stand_ins}, results)
    print(page)
    if not _QUICK.value:
        report.draw(rows, ROOT / _PICTURE)
        report.write_into(ROOT / _DOCUMENT, f"{page}\n![how many times better than each peer]({_PICTURE.name})\n")
    if failed := [row for row in rows if row.found is None]:
        raise ValueError(f"{len(failed)} of {len(rows)} rows could not be measured: the table tells why.")


if __name__ == "__main__":
    command_line.run(main)
