"""GLUE and XNLI as they are distributed: which file holds what in which column, and what is measured.

Each set of GLUE has its own directory, named as in the download; --data_dir is that directory, as in the original.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from data.examples import Example, Label, number_label
from data.quoting import shown
from data.tables import Row, read_table

_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")

# CoLA's own files have no header.
_COLA_HEADER = ("source", "label", "mark", "sentence")

# The languages of XNLI.
XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


@dataclasses.dataclass(frozen=True)
class BlindSet:
    """A set without labels, and the file that GLUE's server wants for it."""

    file: str
    submission: str
    size: int  # rows that the server counts


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One set of GLUE."""

    text: str
    text_pair: str | None
    label: str
    labels: tuple[str, ...] | None  # None: a number
    metrics: tuple[str, ...]  # the official ones, the first of them decides
    test_sets: tuple[BlindSet, ...]
    dev_files: tuple[str, ...] = ("dev.tsv",)
    header: tuple[str, ...] | None = None  # of files for training and development that have none

    @property
    def is_regression(self) -> bool:
        return self.labels is None


_TEST = "test.tsv"
GLUE_TASKS = {
    "cola": GlueTask(
        "sentence", None, "label", _BINARY, ("matthews",), (BlindSet(_TEST, "CoLA", 1063),), header=_COLA_HEADER
    ),
    "sst-2": GlueTask("sentence", None, "label", _BINARY, ("accuracy",), (BlindSet(_TEST, "SST-2", 1821),)),
    "mrpc": GlueTask(
        "#1 String", "#2 String", "Quality", _BINARY, ("f1", "accuracy"), (BlindSet(_TEST, "MRPC", 1725),)
    ),
    "sts-b": GlueTask(
        "sentence1", "sentence2", "score", None, ("pearson", "spearman"), (BlindSet(_TEST, "STS-B", 1379),)
    ),
    "qqp": GlueTask(
        "question1", "question2", "is_duplicate", _BINARY, ("f1", "accuracy"), (BlindSet(_TEST, "QQP", 390965),)
    ),
    "mnli": GlueTask(
        "sentence1",
        "sentence2",
        "gold_label",
        _NLI,
        ("accuracy",),
        (BlindSet("test_matched.tsv", "MNLI-m", 9796), BlindSet("test_mismatched.tsv", "MNLI-mm", 9847)),
        dev_files=("dev_matched.tsv", "dev_mismatched.tsv"),
    ),
    "qnli": GlueTask("question", "sentence", "label", _ENTAILMENT, ("accuracy",), (BlindSet(_TEST, "QNLI", 5463),)),
    "rte": GlueTask("sentence1", "sentence2", "label", _ENTAILMENT, ("accuracy",), (BlindSet(_TEST, "RTE", 3000),)),
    "wnli": GlueTask("sentence1", "sentence2", "label", _BINARY, ("accuracy",), (BlindSet(_TEST, "WNLI", 146),)),
}

# The diagnostic set, which a model of MNLI answers.
DIAGNOSTIC = BlindSet("diagnostic.tsv", "AX", 1104)

_ALIASES = {"sst2": "sst-2", "sts": "sts-b", "stsb": "sts-b", "mnli-m": "mnli", "diagnostic": "ax"}


def task_name(name: str) -> str:
    """The name of a task as it is used here: lower-cased, as in the original, and without further spellings."""
    name = name.lower()
    return _ALIASES.get(name, name)


def read_split(task: GlueTask, path: Path, has_labels: bool) -> list[Example]:
    """Reads one file of a GLUE set.

    Rows that are short are left out and counted: QQP's training file has some. Text may be empty, as there.
    """
    header = task.header if has_labels else None
    examples, short = [], []
    for number, row in enumerate(read_table(path, header, quotes=False)):
        try:
            examples.append(_example(task, row, number, path.stem, has_labels))
        except KeyError as missing:
            short.append(f"line {row.line} has no {missing}")
    if not examples:
        raise ValueError(f"There is no example in {path}: {short[0] if short else 'it is empty'}.")
    if short:
        logging.getLogger(__name__).warning("%s: %d short rows were left out (%s).", path, len(short), short[0])
    return examples


def _example(task: GlueTask, row: Row, number: int, split: str, has_labels: bool) -> Example:
    values = row.values
    return Example(
        id=values.get("index", values.get("id", str(number))) if not has_labels else f"{split}-{number}",
        text_a=values[task.text],
        text_b=None if task.text_pair is None else values[task.text_pair],
        label=_label(task, row) if has_labels else None,
        place=row.place,
    )


def _label(task: GlueTask, row: Row) -> Label:
    value = row.values[task.label]
    if task.labels is None:
        try:
            return number_label(value)
        except ValueError as error:
            raise ValueError(f"{row.place}: {error}.") from None
    if value not in task.labels:
        raise ValueError(f"{row.place}: the label is {shown(value)}, but should be one of {', '.join(task.labels)}.")
    return value


@dataclasses.dataclass(frozen=True)
class Xnli:
    """XNLI: trained on MultiNLI in one language, by machine translation or as it was written, tested in another.

    Both languages the same is what its authors call translate-train, and what the original did, for Chinese;
    `train_language` "en" and another `language` is zero-shot.
    """

    language: str = "zh"
    train_language: str | None = None  # None: the same

    labels = _NLI
    metrics = ("accuracy",)
    is_regression = False

    def train(self, data_dir: str | Path) -> list[Example]:
        language = self.train_language or self.language
        path = Path(data_dir) / "multinli" / f"multinli.train.{language}.tsv"
        return [
            self._example(row, f"train-{number}", ("premise", "hypo", "label"))
            for number, row in enumerate(read_table(path, quotes=False))
        ]

    def labelled(self, data_dir: str | Path, split: str) -> list[Example]:
        """`split` is "dev" or "test"; both have labels."""
        path = Path(data_dir) / f"xnli.{split}.tsv"
        examples = [
            self._example(row, f"{split}-{number}", ("sentence1", "sentence2", "gold_label"))
            for number, row in enumerate(read_table(path, quotes=False))
            if row.values.get("language") == self.language
        ]
        if not examples:
            raise ValueError(f"{path} has no rows of the language {self.language!r} (--xnli_language).")
        return examples

    def _example(self, row: Row, identity: str, columns: Sequence[str]) -> Example:
        try:
            text_a, text_b, label = (row.values[column] for column in columns)
        except KeyError as missing:
            raise ValueError(f"{row.place}: there is no value for {missing}.") from None
        label = "contradiction" if label == "contradictory" else label  # the spelling of the training files
        if label not in _NLI:
            raise ValueError(f"{row.place}: the label is {shown(label)}, but should be one of {', '.join(_NLI)}.")
        return Example(identity, text_a, text_b, label, row.place)
