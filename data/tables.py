"""Rows of tables as people have them: TSV, CSV, JSON and JSONL, with byte-order marks, CRLF, quotes and short rows.

A mistake in a table is told with its file and line, and before anything is made of the table.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.quoting import shown

# What parts the columns, by the end of the file's name.
_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
SUFFIXES = (*_DELIMITERS, ".jsonl", ".json")


class Row(NamedTuple):
    """One row: its values by the name of their column, and where it stands."""

    values: Mapping[str, Any]
    file: str
    line: int
    surplus: int = 0  # fields beyond the last column that are not empty

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"


def read_table(path: str | Path, header: Sequence[str] | None = None, quotes: bool | None = None) -> Iterator[Row]:
    """Reads a table, whichever kind the end of its name says.

    Args:
        path: a file that ends in .tsv, .txt (tabs), .csv, .jsonl (an object a line) or .json (an array of objects).
        header: names of the columns where the first row does not tell them.
        quotes: whether fields may be quoted; if not told, in CSV and nowhere else.

    Yields:
        Rows; one that is short lacks the columns at its end, and empty lines are passed over.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is no table: its name should end in {', '.join(SUFFIXES)}.")
    text = _read_text(path)
    if path.suffix == ".jsonl":
        return _json_lines(text, str(path))
    if path.suffix == ".json":
        return _json_array(text, str(path))
    return _columns(
        text, str(path), _DELIMITERS[path.suffix], header, path.suffix == ".csv" if quotes is None else quotes
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: byte {error.object[error.start]:#04x} is not UTF-8.") from None


def _columns(text: str, file: str, delimiter: str, header: Sequence[str] | None, quotes: bool) -> Iterator[Row]:
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    csv.field_size_limit(2**31 - 1)  # whole documents
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=quotes)
    try:
        first_line = 1
        for fields in reader:
            line, first_line = first_line, reader.line_num + 1
            if not fields or fields == [""]:
                continue
            if header is None:
                header = _checked_header(fields, file)
                continue
            surplus = sum(field != "" for field in fields[len(header) :])
            yield Row(dict(zip(header, fields, strict=False)), file, line, surplus)
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num}: {error}.") from None


def _checked_header(names: Sequence[str], file: str) -> Sequence[str]:
    seen = set()
    for name in filter(None, names):  # spreadsheets leave columns without a name at the end
        if name in seen:
            raise ValueError(f"{file}, line 1: two columns are called {shown(name)}.")
        seen.add(name)
    return names


def _json_lines(text: str, file: str) -> Iterator[Row]:
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {line} is not JSON: {error}.") from None
        yield Row(_checked_object(values, f"{file}, line {line}"), file, line)


def _json_array(text: str, file: str) -> Iterator[Row]:
    try:
        array = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}. A file with an object on each line is called .jsonl.") from None
    if not isinstance(array, list):
        raise ValueError(f"{file} should hold an array of objects, not {type(array).__name__}.")
    for number, values in enumerate(array, 1):  # what can be told: which object, not which line
        yield Row(_checked_object(values, f"{file}, object {number}"), file, number)


def _checked_object(values: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f'{place}: {shown(values)} is not an object like {{"text": …, "label": …}}.')
    return values
