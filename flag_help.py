"""`--help`: the flags of a script under headings, each with what it takes, its range and its default."""

import difflib
import re
import sys
import textwrap
from collections.abc import Iterable

from absl import flags

# In this order; a module may have flags under any of them.
HEADINGS = ("Required", "Model", "Data", "Training", "Devices", "Output", "Running")

_EXIT_CODES = {
    0: "All went well.",
    1: "A mistake in flags or files, told in one message; nothing that was there before is lost.",
    130: "Stopped at once by Ctrl-C; what was written before is whole.",
    143: "Ended by SIGTERM, as shells count it; what was written before is whole.",
}
_EXIT_CODES_OF_TRAINING = _EXIT_CODES | {
    75: "Told to stop while it trained (SIGTERM, Ctrl-C), or another worker died: the same command continues.",
    130: "Stopped at once: by a second Ctrl-C, or by one when nothing was trained. What was saved before is whole.",
    143: "Ended by SIGTERM when nothing was trained; what was saved before is whole.",
}

# What people type from habit, and what it may be called here.
_ABBREVIATIONS = {
    "lr": ("learning_rate",),
    "bs": ("train_batch_size", "batch_size"),
    "batch_size": ("train_batch_size",),
    "epochs": ("num_train_epochs",),
    "max_len": ("max_seq_length",),
    "model": ("init_checkpoint", "model_dir"),
    "model_dir": ("init_checkpoint", "output_dir"),
    "model_name_or_path": ("init_checkpoint", "model_dir"),
    "steps": ("num_train_steps",),
    "train_data": ("train_file", "input_file"),
}

_started: list[tuple[str, str, frozenset[str]]] = []  # headings, the modules they are in, the flags before them


def heading(name: str) -> None:
    """Flags that are defined from here on, up to the next heading, stand under this one in `--help`."""
    if name not in HEADINGS:
        raise ValueError(f"{name!r} is not a heading: {', '.join(HEADINGS)}.")
    module = sys._getframe(1).f_globals["__name__"]
    module = sys.argv[0] if module == "__main__" else module  # as absl calls it
    _started.append((name, module, frozenset(flags.FLAGS)))


def by_heading() -> dict[str, list[flags.Flag]]:
    """All flags that stand below a heading in its module; those of libraries that are loaded in between do not.

    A small program needs no headings: what stands below none in the module that is run are its data.
    """
    ends = [names for *_, names in _started[1:]] + [frozenset(flags.FLAGS)]
    found = {name: [] for name in HEADINGS}
    modules = flags.FLAGS.flags_by_module_dict()
    for (name, module, before), after in zip(_started, ends, strict=True):
        found[name] += [flag for flag in modules.get(module, ()) if flag.name in after - before]
    placed = {flag.name for members in found.values() for flag in members}
    found["Data"] += [flag for flag in modules.get(sys.argv[0], ()) if flag.name not in placed]
    return found


def help_text(description: str) -> str:
    """What `--help` prints below the description of a script."""
    parts = [description.strip()]
    for name, members in by_heading().items():
        if members:
            parts.append("\n".join([name, *map(_described, members)]))
    codes = _EXIT_CODES_OF_TRAINING if "save_checkpoints_steps" in flags.FLAGS else _EXIT_CODES
    parts.append("\n".join(["Exit codes", *(f"  {code:<5}{codes[code]}" for code in sorted(codes))]))
    return "\n\n".join(parts)


def _described(flag: flags.Flag) -> str:
    # absl puts choices before the help, and what it means to be a list behind it.
    told = re.sub(r"^<[^>]*>: |; repeat this option to specify a list of values$", "", " ".join(flag.help.split()))
    text = " ".join(filter(None, [told, _range(flag), _default(flag)]))
    return f"  {_spelled(flag)}\n" + textwrap.indent(textwrap.fill(text, 96, break_on_hyphens=False), " " * 6)


def _spelled(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--[no]{flag.name}"
    kinds = {"int": "N", "float": "X", "comma separated list of strings": "A,B,…"}
    choices = getattr(flag.parser, "enum_values", None)
    return f"--{flag.name}={'|'.join(choices) if choices else kinds.get(flag.flag_type(), '…')}"


def _range(flag: flags.Flag) -> str:
    low, high = (getattr(flag.parser, name, None) for name in ("lower_bound", "upper_bound"))
    if low is not None and high is not None:
        return f"From {_number(low)} to {_number(high)}."
    return f"At least {_number(low)}." if low is not None else f"At most {_number(high)}." if high is not None else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _default(flag: flags.Flag) -> str:
    if flag.default in (None, [], ""):
        return ""
    if flag.boolean:
        return f"Default: {'yes' if flag.default else 'no'}."
    default = ",".join(flag.default) if isinstance(flag.default, list) else str(flag.default)
    return f"Default: {default if any(map(str.isalnum, default)) else repr(default)}."


def nearest(unknown: str, known: Iterable[str]) -> list[str]:
    """Flags that somebody may have meant: known by this abbreviation, spelled alike, or with the same words in them."""
    known = sorted(known)
    if meant := [name for name in _ABBREVIATIONS.get(unknown, ()) if name in known]:
        return meant
    alike = difflib.get_close_matches(unknown, known, n=3, cutoff=0.7)
    return alike or [name for name in known if unknown in name or name in unknown][:3]
