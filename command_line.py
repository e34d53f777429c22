"""What every script shares on the command line: errors that a person can read, and an exit code."""

import logging
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from absl import app, flags
from absl import logging as absl_logging

from flag_help import by_heading, heading, help_text, nearest
from training.stopping import RUN_AGAIN_EXIT_CODE, RunAgain

# TensorFlow tells a page about its start before the first line of ours. Set here, since it reads it when imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Bars move ten times a second for whoever watches; in a log, twice a minute is enough. tqdm reads this when imported.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_MININTERVAL", "30")

heading("Running")
_DEBUG = flags.DEFINE_bool("debug", False, "Whether an error shows where in the code it happened.")

# What a script that has one of these flags can do about memory.
_TAKES_LESS_MEMORY = {
    "train_batch_size": "Lower --train_batch_size, or keep it and go through it in parts with "
    "--gradient_accumulation_steps; set --recompute_activations; lower --max_seq_length; or set "
    "--dtype=mixed_bfloat16.",
    "eval_batch_size": "If it was in evaluation, lower --eval_batch_size.",
    "predict_batch_size": "If it was in prediction, lower --predict_batch_size.",
    "batch_size": "Lower --batch_size.",
    "shard_by_file": "Set --shard_by_file, so that only one text is held at a time.",
}

_arguments: list[str] = []  # the name of the script and what else is no flag, once flags are set


class DryRunEnds(Exception):
    """Everything was checked, and nothing else was asked for."""


def run(main) -> None:
    """Runs a script: `main()` without arguments, its flags parsed.

    Exit codes are in flag_help.py, which tells them to whoever asks for --help.
    """

    def guarded(arguments: list[str]) -> None:
        absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(message)s"))
        absl_logging.set_verbosity(absl_logging.INFO)
        # Our own messages have loggers by the names of their files. These two are TensorFlow's, and talk while saving.
        # By filters, since TensorFlow sets levels anew on the way.
        logging.getLogger("absl").addFilter(lambda record: record.levelno >= logging.WARNING)
        logging.getLogger("tensorflow").addFilter(lambda record: record.levelno >= logging.ERROR)
        if len(arguments) > 1:
            raise app.UsageError(f"Not a flag: {arguments[1]!r}. Flags start with --.")
        try:
            main()
        except DryRunEnds:
            pass
        except RunAgain as stopped:
            _leave(f"{arguments[0]}: {stopped}", RUN_AGAIN_EXIT_CODE)
        except KeyboardInterrupt:
            _leave(f"{arguments[0]}: stopped at once; what was saved before is there.", 130)
        except app.UsageError:
            raise
        except Exception as error:
            message = _message(error)
            if _DEBUG.value or not message:
                traceback.print_exc()
            _leave(f"{arguments[0]}: {message or 'that should not have happened.'}", 1)

    parse_flags(sys.modules[main.__module__].__doc__)
    app.run(guarded, flags_parser=lambda _: _arguments)


def parse_flags(description: str) -> None:
    """Sets the flags of a script, if that has not been done; answers --help with its description, and wrong flags.

    `run` does it. A script that loads TensorFlow does it before, as soon as its flags are defined.
    """
    if not _arguments:
        _arguments.extend(_parse(sys.argv, description))


def load_tensorflow() -> None:
    """Imports TensorFlow and lets it look for GPUs, without the page that it writes about that.

    Where it fails, or finds no GPU on a machine that has one, the page is shown: it tells why.
    """
    sys.stderr.flush()
    kept, is_told = os.dup(2), True
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)  # it is C++ that writes
        try:
            import keras  # noqa: F401
            import tensorflow as tf

            is_told = not tf.config.list_physical_devices("GPU") and os.path.exists("/dev/nvidiactl")
        finally:
            os.dup2(kept, 2)
            if is_told:
                said.seek(0)
                os.write(2, said.read())
            os.close(kept)


def offer_dry_run() -> None:
    """Gives a script --dry_run, which it then has to heed before it writes. Called above the first of its headings."""
    heading("Running")
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Whether to check everything that can be checked (flags, files, shapes), tell what would be done and how much "
        "memory it takes, as far as that is known before, and stop.",
    )


def is_dry_run() -> bool:
    return "dry_run" in flags.FLAGS and flags.FLAGS.dry_run


def end_dry_run(facts: Mapping[str, str]) -> NoReturn:
    """Tells what would be done, and ends the script."""
    print("Dry run: everything was checked, and nothing was written.")
    for name, fact in facts.items():
        print(f"  {name:<12}{fact}")
    raise DryRunEnds


def weights_memory(num_bytes: float) -> dict[str, str]:
    """For --dry_run where nothing is trained: what is taken at least."""
    return {"memory": f"about {num_bytes / 1e6:,.1f} MB for weights; what is done with them comes on top"}


def check_output_file(flag: str, path: str) -> None:
    """Refuses a file that cannot be written, before any work is spent on what goes into it."""
    if os.path.isdir(path):
        raise ValueError(f"--{flag}={path} is a directory. Name a file in it.")
    _check_writable(flag, path)


def check_output_dir(flag: str, path: str) -> None:
    """Refuses a directory that can be neither written to nor made."""
    if os.path.isfile(path):
        raise ValueError(f"--{flag}={path} is a file. Name a directory.")
    _check_writable(flag, path)


def _check_writable(flag: str, path: str) -> None:
    from data.text_files import check_writable  # late: it loads tqdm, which is set up above

    check_writable(path, flag)


def _parse(arguments: list[str], description: str) -> list[str]:
    """Sets the flags, and gives what is left of the arguments."""
    if {"--help", "-help", "-h", "--h"} & set(arguments[1:]):
        print(help_text(description))
        sys.exit(0)
    try:
        return flags.FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        known = [flag.name for members in by_heading().values() for flag in members]
        meant = " or ".join(f"--{name}" for name in nearest(error.flagname, known))
        advice = f"Did you mean {meant}?" if meant else "See --help."
        _leave(f"{arguments[0]}: There is no flag --{error.flagname}. {advice}", 1)
    except flags.Error as error:
        _leave(f"{arguments[0]}: {error}", 1)


def _leave(message: str, code: int) -> None:
    """Ends the process at once. Threads of an input pipeline that call into Python would keep it from ending."""
    print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _message(error: Exception) -> str | None:
    """What to tell a person; None for what must be a mistake of ours, and shows where it happened."""
    if _is_out_of_memory(error):
        return _out_of_memory(error)
    if re.search("No space left on device|Disk quota exceeded|os error 28", str(error)):
        return _disk_full(error)
    if isinstance(error, (ValueError, OSError, RuntimeError)) and "\n\nArguments received by" not in str(error):
        return str(error)
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        if isinstance(error, tf.errors.OpError):
            # An error of ours that passed through TensorFlow is the last of those it quotes.
            quoted = re.findall(r"^[\w.]+Error: (.+)$|assertion failed: \[(.+?)\]", str(error), re.MULTILINE)
            quoted = [own or asserted for own, asserted in quoted]
            return quoted[-1] if quoted else str(error).split("\n")[0]
    return None


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    if isinstance(error, tf.errors.InternalError):
        return "Dst tensor is not initialized" in str(error)  # a copy to a GPU that is full
    # The same name stands for a disk that is full.
    is_memory = re.search(r"OOM|out of memory|allocat|MemoryError", str(error), re.IGNORECASE)
    return isinstance(error, tf.errors.ResourceExhaustedError) and bool(is_memory)


def _disk_full(error: Exception) -> str:
    """Names the place that is full: an error of writing often does not."""
    named = {f"--{name}": flags.FLAGS[name].value for name in ("output_dir", "output_file") if name in flags.FLAGS}
    places = {flag: Path(value.split(",")[0]) for flag, value in named.items() if value}
    places["TMPDIR"] = Path(tempfile.gettempdir())
    free = {name: shutil.disk_usage(_existing(path)).free for name, path in places.items()}
    name = min(free, key=free.get)
    return (
        f"The disk of {name}={places[name]} is full: {free[name] / 1e6:.1f} MB are free "
        f"({str(error).strip().splitlines()[-1]}). What was written before is whole: make room there, and run the same "
        "command again."
    )


def _existing(path: Path) -> Path:
    """The path, or what there is of it."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _out_of_memory(error: Exception) -> str:
    """Names the flags of this script that make it need less, and the page that tells more."""
    shape = re.search(r"tensor with shape\s?\[([\d,]+)\]", str(error))
    told = f"Out of memory{f' at a tensor of shape [{shape[1]}]' if shape else ''}."
    advice = [text for flag, text in _TAKES_LESS_MEMORY.items() if flag in flags.FLAGS]
    return " ".join([told, *advice, "docs/memory.md tells what takes how much, and what fits."])
