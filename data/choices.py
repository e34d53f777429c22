"""Multiple choice: a context, several endings, and which of them is right. From SWAG, CODAH and JSON lines."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

from data.quoting import shown
from data.tables import Row, read_table

FORMATS = ("auto", "swag", "codah", "jsonl")

# Which format a file has, by the end of its name, where nobody tells: SWAG and CODAH are published so.
_USUAL_FORMATS = {".csv": "swag", ".tsv": "codah", ".jsonl": "jsonl", ".json": "jsonl"}

# CODAH's files have no header. What is too much for a row goes to the last of these, to be noticed.
_CODAH_COLUMNS = ("category", "prompt", "ending 0", "ending 1", "ending 2", "ending 3", "label")
_CODAH_HEADER = (*_CODAH_COLUMNS, "more")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A context with its endings; `label` is the index of the right one, or None where it is not known."""

    id: str
    context: str
    endings: tuple[str, ...]
    label: int | None = None
    place: str = ""  # file and line, for errors


def read_choices(
    path: str | Path, format: str = "auto", has_labels: bool = True, num_choices: int | None = None
) -> list[Choice]:
    """Reads a file in which every row has the same number of endings.

    Args:
        path: see `read_table`.
        format: one of `FORMATS`; auto goes by the end of the file's name.
        has_labels: if not, nobody looks for labels.
        num_choices: endings of a row, where a model has been trained on so many; if None, as many as the first has.

    Raises:
        ValueError: a row lacks something, or has another number of endings; with file, line and what to do.
    """
    format = _format_of(path) if format == "auto" else format
    read = {"swag": _read_swag, "codah": _read_codah, "jsonl": _read_json}[format]
    choices: list[Choice] = []
    others, first = "the model is trained on", None
    for number, row in enumerate(read_table(path, _CODAH_HEADER if format == "codah" else None)):
        first = first or row
        if format == "swag" and len(row.values) != len(first.values):  # else a label might pass for the last ending
            raise ValueError(
                f"{row.place}: the row has {len(row.values)} columns, but line {first.line} has {len(first.values)}. "
                "Is an ending missing? Mend the row, or take it out."
            )
        choice = read(row, number, has_labels)
        if num_choices is None:
            num_choices, others = len(choice.endings), f"line {first.line} has"
        if len(choice.endings) != num_choices:
            raise ValueError(
                f"{row.place}: the row has {len(choice.endings)} endings, but {others} {num_choices}. All need the "
                "same number: mend the row, or take it out."
            )
        choices.append(choice)
    if not choices:
        raise ValueError(f"There is no row with endings in {path}.")
    return choices


def _format_of(path: str | Path) -> str:
    try:
        return _USUAL_FORMATS[Path(path).suffix]
    except KeyError:
        raise ValueError(
            f"The name of {path} does not tell its format: SWAG's files end in .csv, CODAH's in .tsv, others in "
            f".jsonl. Set --format to {', '.join(FORMATS[1:])}."
        ) from None


def _read_swag(row: Row, number: int, has_labels: bool) -> Choice:
    """A row of train.csv, val.csv or test.csv: each choice goes on from `sent2`, the start of the second sentence."""
    for column in ("sent1", "sent2", "ending0", *(["label"] if has_labels else [])):
        if column not in row.values:
            raise ValueError(
                f"{row.place}: there is no value in the column {column!r}. SWAG has sent1, sent2, ending0 to ending3 "
                "and label: mend the row if it is short, or set --format if the file is not SWAG's."
            )
    columns = itertools.takewhile(row.values.__contains__, (f"ending{count}" for count in itertools.count()))
    endings = [row.values[column] for column in columns]
    choice = _choice(row, number, row.values["sent1"], endings, row.values.get("label"), has_labels)
    start = str(row.values["sent2"] or "").strip()
    return dataclasses.replace(choice, endings=tuple(f"{start} {ending}".strip() for ending in choice.endings))


def _read_codah(row: Row, number: int, has_labels: bool) -> Choice:
    if len(row.values) != len(_CODAH_COLUMNS):
        count = "too many" if "more" in row.values else len(row.values)
        raise ValueError(
            f"{row.place}: the row has {count} columns, but CODAH has {len(_CODAH_COLUMNS)}: category, prompt, four "
            "endings and the index of the right one (empty where it is not known). Is an ending missing? Mend the row, "
            "or set --format if the file is not CODAH's."
        )
    _, prompt, *endings, label = row.values.values()
    return _choice(row, number, prompt, endings, label, has_labels)


def _read_json(row: Row, number: int, has_labels: bool) -> Choice:
    endings = row.values.get("endings")
    if not isinstance(endings, list):
        raise ValueError(
            f'{row.place}: "endings" should be a list, but is {shown(endings)}. The shape of a line is {{"context": '
            '"…", "endings": ["…", "…"], "label": 0}.'
        )
    choice = _choice(row, number, row.values.get("context"), endings, row.values.get("label"), has_labels)
    return dataclasses.replace(choice, id=str(row.values.get("id", number)))


def _choice(row: Row, number: int, context: Any, endings: list[Any], label: Any, has_labels: bool) -> Choice:
    if len(endings) < 2:
        raise ValueError(f"{row.place}: the row should have two endings or more, but has {len(endings)}. Add them.")
    return Choice(
        str(number),
        _checked_text(context, "the context", row),
        tuple(_checked_text(ending, f"ending {count}", row) for count, ending in enumerate(endings)),
        _checked_label(label, len(endings), row) if has_labels else None,
        row.place,
    )


def _checked_text(value: Any, what: str, row: Row) -> str:
    if value is None or not str(value).strip():
        raise ValueError(f"{row.place}: {what} is empty. Mend the row, or take it out.")
    if not isinstance(value, str):
        raise ValueError(f"{row.place}: {what} should be a text, but is {shown(value)}. Mend the row.")
    return value


def _checked_label(value: Any, num_endings: int, row: Row) -> int:
    text = "" if value is None else str(value).strip()
    if not text:
        raise ValueError(f"{row.place}: there is no label, the index of the right ending. Add it, or take the row out.")
    if not (text.isascii() and text.isdigit() and int(text) < num_endings):
        raise ValueError(
            f"{row.place}: the label {shown(value)} is not the index of an ending, which go from 0 to "
            f"{num_endings - 1}. Is an ending missing? Mend the row."
        )
    return int(text)
