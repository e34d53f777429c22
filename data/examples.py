"""Examples of sentence tasks: a text or two, and a label."""

import dataclasses
import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from data.quoting import checked_text, shown
from data.tables import SUFFIXES, Row, read_table

Label = str | float | tuple[str, ...] | None

# Of float32, in which losses are computed.
_LARGEST_NUMBER = 3.4028234e38


@dataclasses.dataclass(frozen=True)
class Example:
    """One or two texts to be judged together.

    `label` is the name of a class, a number (regression), several names (multi-label), or None where it is not known.
    """

    id: str
    text_a: str
    text_b: str | None = None
    label: Label = None
    place: str = ""  # file and line, for errors


class BadRow(ValueError):
    """A row that no example can be made of."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what. A number counts columns from 0, for tables without a header."""

    text: str
    text_pair: str | None = None
    label: str | None = None
    id: str | None = None

    @property
    def header(self) -> list[str] | None:
        """Names for the columns of a table without a header; None if they have names."""
        named = [name for name in (self.text, self.text_pair, self.label, self.id) if name is not None]
        if not all(name.isdigit() for name in named):
            return None
        return [str(number) for number in range(max(map(int, named)) + 1)]


def single_label(value: Any) -> str:
    """The name of a class, as a table tells it."""
    if value is None or (name := checked_text(value).strip()) == "":
        raise ValueError("the label is empty")
    return name


def number_label(value: Any) -> float:
    """A number to predict."""
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    except (TypeError, ValueError):
        raise ValueError(f"the label {shown(value)} is not a number") from None
    if not abs(number) <= _LARGEST_NUMBER:
        raise ValueError(f"the label {shown(value)} is not a finite number")
    return number


def several_labels(separator: str) -> Callable[[Any], tuple[str, ...]]:
    """Names of classes: a list in JSON, else parted by `separator`; none of them is fine."""

    def names(value: Any) -> tuple[str, ...]:
        parts = value if isinstance(value, list) else checked_text("" if value is None else value).split(separator)
        return tuple(dict.fromkeys(name for part in parts if (name := checked_text(part).strip())))

    return names


def read_examples(
    path: str | Path,
    columns: Columns,
    read_label: Callable[[Any], Label] | None,
    quotes: bool | None = None,
    skip_bad_rows: bool = False,
) -> list[Example]:
    """Reads the examples of a table.

    Args:
        path: see `read_table`.
        columns: where to find what.
        read_label: makes a label of a value; None where labels are not needed.
        quotes: see `read_table`.
        skip_bad_rows: count rows that no example can be made of, and go on.

    Raises:
        BadRow: an empty text, a label that is missing or none, a row that is short; with file and line.
    """
    if read_label is None:
        columns = dataclasses.replace(columns, label=None)  # then it has no say in whether there is a header
    return _collect(
        read_table(path, columns.header, quotes),
        lambda row, number: _example(row, number, columns, read_label),
        str(path),
        skip_bad_rows,
    )


def _collect(rows: Iterable[Row], make: Callable[[Row, int], Example], file: str, skip: bool) -> list[Example]:
    examples, bad = [], []
    for number, row in enumerate(rows):
        try:
            examples.append(make(row, number))
        except BadRow as error:
            if not skip:
                raise
            bad.append(str(error))
    if bad:
        logging.getLogger(__name__).warning("%s: %d rows were left out, the first: %s", file, len(bad), bad[0])
    if not examples:
        raise ValueError(f"There is no example in {file}.")
    return examples


def _example(row: Row, number: int, columns: Columns, read_label) -> Example:
    if row.surplus and columns.header is None:
        raise BadRow(
            f"{row.place}: the row has {row.surplus} fields more than the header has columns. Quote fields that hold "
            "the sign that parts them, or leave such rows out with --skip_bad_rows."
        )
    text_a = _text(row, columns.text)
    text_b = None if columns.text_pair is None else _text(row, columns.text_pair)
    label = None
    if read_label is not None:
        label = _made(read_label, _value(row, columns.label), row)
    identity = _made(checked_text, number if columns.id is None else _value(row, columns.id), row)
    return Example(identity, text_a, text_b, label, row.place)


def _made(make: Callable[[Any], Any], value: Any, row: Row) -> Any:
    try:
        return make(value)
    except ValueError as error:
        raise BadRow(f"{row.place}: {error}. Mend the row, or leave such rows out with --skip_bad_rows.") from None


def _text(row: Row, column: str) -> str:
    def make(value: Any) -> str:
        text = "" if value is None else checked_text(value)
        if not text.strip():
            raise ValueError(f"the text in the column {column!r} is empty")
        return text

    return _made(make, _value(row, column), row)


def _value(row: Row, column: str) -> Any:
    try:
        return row.values[column]
    except KeyError:
        found = list(row.values)
    if len(found) == 1 and any(mark in found[0] for mark in ",;\t"):
        raise ValueError(
            f"{row.file} has a single column, called {shown(found[0])}. Its columns seem to be parted by another "
            "sign than the end of its name tells: commas belong to .csv, tabs to .tsv."
        )
    if column.isdigit() or len(found) < 2:
        what = f"there is no column {column}; the row has {len(found)}"
    else:
        what = f"there is no value in the column {column!r}; there are values for {', '.join(map(shown, found[:20]))}"
    raise BadRow(f"{row.place}: {what}. Name other columns (--text_column …), or mend the row.")


def sample(examples: list[Example], count: int | None) -> list[Example]:
    """So many of the examples, in their order; always the same ones. All of them if they are not more, or None."""
    if count is None or count >= len(examples):
        return examples
    chosen = random.Random(12345).sample(range(len(examples)), count)
    return [examples[number] for number in sorted(chosen)]


def find_table(data_dir: str, stems: Sequence[str]) -> str | None:
    """The table of the first of these names in a directory, whatever its kind; None where there is none."""
    for stem in stems:
        for suffix in SUFFIXES:
            if (path := Path(data_dir) / f"{stem}{suffix}").is_file():
                return str(path)
    return None
