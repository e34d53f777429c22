"""Where the examples of a sentence task come from: GLUE, XNLI, tables of your own, or tensorflow-datasets.

All four answer the same questions: what is there to train on, to evaluate on, and to predict.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from data.examples import Columns, Example, find_table, number_label, read_examples, several_labels, single_label
from data.glue import DIAGNOSTIC, GLUE_TASKS, BlindSet, GlueTask, Xnli, read_split, task_name


class NamedExamples(NamedTuple):
    """Examples to evaluate on or to predict; the names of files about them get the suffix."""

    suffix: str
    examples: list[Example]
    test_set: BlindSet | None = None  # what GLUE's server wants, if these are for it


class SentenceSets(Protocol):
    """The sets of one task."""

    kind: str  # one of tasks.sentences.KINDS
    labels: tuple[str, ...] | None  # None: what the training examples have
    metrics: tuple[str, ...]  # official ones

    def train(self) -> list[Example]: ...

    def evaluation(self) -> Iterator[NamedExamples]: ...

    def prediction(self) -> Iterator[NamedExamples]: ...


class GlueSets:
    """A set of GLUE in its directory."""

    def __init__(self, name: str, data_dir: str):
        self._name = task_name(name)
        self._directory = Path(data_dir)
        self._task: GlueTask = GLUE_TASKS["mnli" if self._name == "ax" else self._name]
        self.kind = "regression" if self._task.is_regression else "single_label"
        self.labels = self._task.labels or ()
        self.metrics = self._task.metrics

    def train(self) -> list[Example]:
        if self._name == "ax":
            raise ValueError("The diagnostic set has nothing to train on: train on MNLI, then predict.")
        return read_split(self._task, self._directory / "train.tsv", has_labels=True)

    def evaluation(self) -> Iterator[NamedExamples]:
        if self._name == "ax":
            raise ValueError("The diagnostic set has no labels: use --do_predict with --glue_submission.")
        for file in self._task.dev_files:
            yield NamedExamples(_suffix(file), read_split(self._task, self._directory / file, has_labels=True))

    def prediction(self) -> Iterator[NamedExamples]:
        test_sets = () if self._name == "ax" else self._task.test_sets
        has_diagnostic = self._task is GLUE_TASKS["mnli"] and (self._directory / DIAGNOSTIC.file).is_file()
        for test_set in (*test_sets, DIAGNOSTIC) if has_diagnostic or self._name == "ax" else test_sets:
            examples = read_split(self._task, self._directory / test_set.file, has_labels=False)
            yield NamedExamples("" if self._name == "ax" else _suffix(test_set.file), examples, test_set)


def _suffix(file: str) -> str:
    """None for the files that the original read, and the name of the set for those it did not."""
    return {
        "dev_mismatched.tsv": "_mismatched",
        "test_mismatched.tsv": "_mismatched",
        DIAGNOSTIC.file: "_diagnostic",
    }.get(file, "")


class XnliSets:
    """XNLI."""

    kind = "single_label"
    labels = Xnli.labels
    metrics = Xnli.metrics

    def __init__(self, data_dir: str, language: str, train_language: str | None):
        self._xnli = Xnli(language, train_language)
        self._data_dir = data_dir

    def train(self) -> list[Example]:
        return self._xnli.train(self._data_dir)

    def evaluation(self) -> Iterator[NamedExamples]:
        yield NamedExamples("", self._xnli.labelled(self._data_dir, "dev"))

    def prediction(self) -> Iterator[NamedExamples]:
        yield NamedExamples("", self._xnli.labelled(self._data_dir, "test"))


@dataclasses.dataclass(frozen=True)
class Tables:
    """Tables of one's own."""

    kind: str
    columns: Columns
    train_file: str | None
    eval_file: str | None
    predict_file: str | None
    label_separator: str = ","
    quotes: bool | None = None
    skip_bad_rows: bool = False

    labels = None
    metrics = ()

    @classmethod
    def find(cls, data_dir: str | None, files: tuple[str | None, str | None, str | None], **options) -> "Tables":
        """Tables by their names; one that is not named is looked for in `data_dir` as train, dev or test."""
        stems = (("train",), ("dev", "eval", "validation", "valid"), ("test", "predict"))
        found = [
            file or (find_table(data_dir, names) if data_dir else None)
            for file, names in zip(files, stems, strict=True)
        ]
        return cls(**options, train_file=found[0], eval_file=found[1], predict_file=found[2])

    def train(self) -> list[Example]:
        return self._read(self.train_file, "train_file", "train")

    def evaluation(self) -> Iterator[NamedExamples]:
        yield NamedExamples("", self._read(self.eval_file, "eval_file", "dev"))

    def prediction(self) -> Iterator[NamedExamples]:
        yield NamedExamples("", self._read(self.predict_file, "predict_file", "test", has_labels=False))

    def _read(self, path: str | None, flag: str, name: str, has_labels: bool = True) -> list[Example]:
        if path is None:
            raise ValueError(f"--{flag} is missing, and --data_dir has no {name}.tsv, .csv, .jsonl or .json.")
        if has_labels and self.columns.label is None:
            raise ValueError("--label_column is missing.")
        read_label = _label_reader(self.kind, self.label_separator) if has_labels else None
        return read_examples(path, self.columns, read_label, self.quotes, self.skip_bad_rows)


def _label_reader(kind: str, separator: str) -> Callable[[Any], Any]:
    if kind == "multi_label":
        return several_labels(separator)
    return number_label if kind == "regression" else single_label


class TfdsSets:
    """A set of tensorflow-datasets: any with texts and a label.

    Args:
        name: e.g. "imdb_reviews" or "glue/sst2".
        data_dir: where tensorflow-datasets keeps its files.
        kind: "single_label" or "regression".
        columns: names of features.
        splits: to train on, to evaluate on, to predict.
    """

    metrics = ()

    def __init__(self, name: str, data_dir: str | None, kind: str, columns: Columns, splits: tuple[str, str, str]):
        import tensorflow_datasets as tfds

        self.kind = kind
        self._name = name
        self._columns = columns
        self._splits = splits
        self._builder = tfds.builder(name, data_dir=data_dir)
        features = self._builder.info.features
        for column in (columns.text, columns.text_pair, columns.label):
            if column is not None and column not in features:
                raise ValueError(f"{name} has no feature {column!r}. It has: {', '.join(features)}.")
        names = getattr(features[columns.label], "names", None) if columns.label else None
        self.labels = tuple(names) if names and kind == "single_label" else None

    def train(self) -> list[Example]:
        return self._read(self._splits[0])

    def evaluation(self) -> Iterator[NamedExamples]:
        yield NamedExamples("", self._read(self._splits[1]))

    def prediction(self) -> Iterator[NamedExamples]:
        yield NamedExamples("", self._read(self._splits[2], has_labels=False))

    def _read(self, split: str, has_labels: bool = True) -> list[Example]:
        import tensorflow_datasets as tfds

        self._builder.download_and_prepare()
        if split not in self._builder.info.splits and "[" not in split:
            raise ValueError(f"{self._name} has no split {split!r}. It has: {', '.join(self._builder.info.splits)}.")
        rows = tfds.as_numpy(self._builder.as_dataset(split=split))
        return [self._example(row, split, number, has_labels) for number, row in enumerate(rows)]

    def _example(self, row, split: str, number: int, has_labels: bool) -> Example:
        columns, place = self._columns, f"{self._name}, example {number} of {split}"
        pair = columns.text_pair
        label = None
        if has_labels:
            value = row[columns.label]
            if self.labels:
                if not 0 <= int(value) < len(self.labels):
                    raise ValueError(f"{place}: the label is {int(value)}: this split has no labels.")
                label = self.labels[int(value)]
            else:
                text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
                label = number_label(text) if self.kind == "regression" else single_label(text)
        texts = [row[name].decode("utf-8", "replace") for name in (columns.text, pair) if name is not None]
        return Example(f"{split}-{number}", texts[0], texts[1] if pair else None, label, place)
