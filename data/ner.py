"""Texts with named entities, as people have them: CoNLL columns, JSON lines with spans, KLUE's characters.

Entities are spans over the atoms of a text: its words in CoNLL columns, its characters everywhere else.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data.quoting import checked_text, shown
from data.tables import read_table

FORMATS = ("auto", "conll", "jsonl", "klue")
SCHEMES = ("auto", "iob1", "iob2", "bioes")
_OUTSIDE = "O"


class Entity(NamedTuple):
    """A span of atoms, and what it is."""

    start: int
    end: int
    type: str


@dataclasses.dataclass(frozen=True)
class TaggedText:
    """A sentence, or whatever was tagged together."""

    id: str
    text: str
    words: tuple[tuple[int, int], ...] | None  # where words stand in the text; None where characters are tagged
    entities: tuple[Entity, ...] | None  # None where they are not known
    document: int = 0  # texts of one number stand in one document
    place: str = ""

    @property
    def num_atoms(self) -> int:
        return len(self.text) if self.words is None else len(self.words)

    def characters(self, entity: Entity) -> tuple[int, int]:
        """Where an entity stands in the text."""
        if self.words is None:
            return entity.start, entity.end
        return self.words[entity.start][0], self.words[entity.end - 1][1]


def read_tagged(
    path: str | Path,
    file_format: str = "auto",
    scheme: str = "auto",
    word_column: int = 0,
    tag_column: int | None = -1,
) -> list[TaggedText]:
    """Reads a file of tagged texts.

    Args:
        path: of the file.
        file_format: one of `FORMATS`; auto goes by the name and the first lines.
        scheme: how tags in columns mark entities, one of `SCHEMES`; auto finds out.
        word_column, tag_column: of CoNLL columns, from 0, or from the end if negative. No tags if None.

    Raises:
        ValueError: a row without its columns, a tag that breaks the scheme, a span beyond its text; with file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if file_format == "auto":
        file_format = _guess(path)
    if file_format == "jsonl":
        texts = list(_read_spans(path, has_tags=tag_column is not None))
    elif file_format == "klue":
        texts = list(_read_characters(path, scheme))
        if tag_column is None:
            texts = [dataclasses.replace(text, entities=None) for text in texts]
    else:
        texts = list(_read_columns(path, scheme, word_column, tag_column))
    if not texts:
        raise ValueError(f"There is no text in {path}.")
    return texts


def _guess(path: Path) -> str:
    if path.suffix in (".jsonl", ".json"):
        return "jsonl"
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        return "klue" if file.readline().startswith("## ") else "conll"


class _TaggedAtom(NamedTuple):
    word: str
    tag: str | None
    line: int


def _read_columns(path: Path, scheme: str, word_column: int, tag_column: int | None) -> Iterator[TaggedText]:
    """CoNLL: a word a line, columns parted by tabs or spaces; empty lines part sentences, -DOCSTART- documents."""
    sentences, document = [], 0
    for rows in _blocks(path):
        if rows[0][0].startswith("-DOCSTART-"):
            document += 1
            rows = rows[1:]
        if rows:
            sentences.append((document, [_atom(path, *row, word_column, tag_column) for row in rows]))
    tags_of = [[atom.tag for atom in atoms] for _, atoms in sentences]
    scheme = _scheme_of(tags_of) if scheme == "auto" else scheme
    for number, (document, atoms) in enumerate(sentences):
        words, position = [], 0
        for atom in atoms:
            words.append((position, position + len(atom.word)))
            position += len(atom.word) + 1
        yield TaggedText(
            id=str(number),
            text=" ".join(atom.word for atom in atoms),
            words=tuple(words),
            entities=None if tag_column is None else tuple(_entities(atoms, scheme, path)),
            document=document,
            place=f"{path}, line {atoms[0].line}",
        )


def _blocks(path: Path) -> Iterator[list[tuple[str, int]]]:
    """Lines that no empty one parts, each with its number."""
    block: list[tuple[str, int]] = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            block.append((line, number))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: byte {error.object[error.start]:#04x} is not UTF-8.") from None
    return [line.removesuffix("\r") for line in text.split("\n")]


def _atom(path: Path, line: str, number: int, word_column: int, tag_column: int | None) -> _TaggedAtom:
    columns = line.split("\t") if "\t" in line else line.split(" ")
    columns = [column for column in columns if column] if "\t" not in line else columns
    try:
        word = columns[word_column]
        tag = None if tag_column is None else columns[tag_column].strip()
    except IndexError:
        raise ValueError(
            f"{path}, line {number}: {shown(line)} has {len(columns)} columns, too few for --word_column={word_column} "
            f"and --tag_column={tag_column}."
        ) from None
    if not word.strip() or (tag is not None and (len(columns) < 2 or not _is_tag(tag))):
        raise ValueError(
            f"{path}, line {number}: {shown(line)} should be a word and its tag, like O or B-person, parted by a tab "
            "or a space. A file to predict may be without tags: then set --predict_has_tags=false."
        )
    return _TaggedAtom(word, tag, number)


def _is_tag(tag: str) -> bool:
    return tag == _OUTSIDE or (tag[1:2] == "-" and tag[0] in "BIESLU" and len(tag) > 2)


def _scheme_of(tags_of: Iterable[Sequence[str | None]]) -> str:
    """What tags look like: BIOES has ends of its own; in IOB1 an entity may start with I."""
    starts = {"B": 0, "I": 0}  # entities that do not follow one of their own type
    for tags in tags_of:
        before = _OUTSIDE
        for tag in tags:
            if tag and tag[0] in "ESLU":
                return "bioes"
            if tag and tag != _OUTSIDE and before[2:] != tag[2:]:
                starts[tag[0]] += 1
            before = tag or _OUTSIDE
    return "iob1" if starts["I"] and not starts["B"] else "iob2"


def _entities(atoms: Sequence[_TaggedAtom], scheme: str, path: Path) -> Iterator[Entity]:
    """The spans that tags mark."""
    start = None
    before = _OUTSIDE
    for position, atom in enumerate([*atoms, _TaggedAtom("", _OUTSIDE, 0)]):
        problem = _problem(before, atom.tag, scheme)
        if problem:
            line = atom.line or atoms[-1].line
            raise ValueError(
                f"{path}, line {line}: {problem}, which {scheme.upper()} does not allow. Mend the tags, or name their "
                "scheme by --tag_scheme (iob1, iob2 or bioes)."
            )
        if start is not None and not _continues(before, atom.tag, scheme):
            yield Entity(start, position, before[2:])
            start = None
        if start is None and atom.tag != _OUTSIDE:
            start = position
        before = atom.tag


def _continues(before: str, tag: str, scheme: str) -> bool:
    """Whether the entity of the tag before goes on."""
    if tag == _OUTSIDE or tag[2:] != before[2:]:
        return False
    return tag[0] == "I" or (scheme == "bioes" and tag[0] in "EL")


def _problem(before: str, tag: str, scheme: str) -> str | None:
    """What is wrong with a tag after another, if anything."""
    if scheme == "bioes":
        is_open = before[0] in "BI"
        if is_open and not _continues(before, tag, scheme):
            return f"{tag[:40]} follows {before[:40]}, which has no end"
        if not is_open and tag[0] in "IEL":
            return f"{tag[:40]} follows {before[:40]}"
        return None
    if tag[0] in "ESLU":
        return f"there is a tag {tag[:40]}"
    if scheme == "iob2" and tag[0] == "I" and before[2:] != tag[2:]:
        return f"{tag[:40]} follows {before[:40]}"
    if scheme == "iob1" and tag[0] == "B" and before[2:] != tag[2:]:
        return f"{tag[:40]} follows {before[:40]}"
    return None


def _read_characters(path: Path, scheme: str) -> Iterator[TaggedText]:
    """KLUE: a character a line with its tag, white space among them; lines with ## are comments, one has the id."""
    for number, rows in enumerate(_klue_blocks(path)):
        identity, atoms = rows
        text = "".join(atom.word for atom in atoms)
        entities = tuple(_entities(atoms, "iob2" if scheme == "auto" else scheme, path))
        yield TaggedText(identity or str(number), text, None, entities, number, f"{path}, line {atoms[0].line}")


def _klue_blocks(path: Path) -> Iterator[tuple[str, list[_TaggedAtom]]]:
    identity, atoms = "", []
    for number, line in enumerate([*_lines(path), ""], 1):
        if line.startswith("##"):
            identity = line.removeprefix("##").split("\t")[0].strip()
        elif line == "":  # a space that is tagged is no empty line
            if atoms:
                yield identity, atoms
            identity, atoms = "", []
        else:
            character, _, tag = line.rpartition("\t")
            if len(character) != 1 or not _is_tag(tag):
                raise ValueError(f"{path}, line {number}: {shown(line)} should be a character, a tab and its tag.")
            atoms.append(_TaggedAtom(character, tag, number))


def _read_spans(path: Path, has_tags: bool) -> Iterator[TaggedText]:
    """JSON: {"text": …, "entities": [{"start": 0, "end": 5, "type": "person"}, …]}, characters counted from 0."""
    for number, row in enumerate(read_table(path)):
        text = row.values.get("text")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f'{row.place}: there is no text in the key "text".')
        try:
            identity = checked_text(row.values.get("id", number))
            checked_text(text)
        except ValueError as error:
            raise ValueError(f"{row.place}: {error}. Mend the row, or take it out.") from None
        entities = None
        if has_tags:
            if "entities" not in row.values:
                raise ValueError(f'{row.place}: there is no key "entities"; an empty list says that there are none.')
            if not isinstance(row.values["entities"], list):
                raise ValueError(f'{row.place}: "entities" should be a list, and is {shown(row.values["entities"])}.')
            entities = tuple(sorted(_span(span, text, row.place) for span in row.values["entities"]))
            for one, other in zip(entities, entities[1:], strict=False):
                if other.start < one.end:
                    raise ValueError(
                        f"{row.place}: the entities {shown(tuple(one))} and {shown(tuple(other))} overlap."
                    )
        yield TaggedText(identity, text, None, entities, number, row.place)


def _span(span, text: str, place: str) -> Entity:
    try:
        start, end, kind = int(span["start"]), int(span["end"]), checked_text(span["type"])
    except (KeyError, TypeError, ValueError, OverflowError):  # the last one of Infinity
        raise ValueError(
            f'{place}: the entity {shown(span)} should look like {{"start": 0, "end": 5, "type": "person"}}.'
        ) from None
    if not 0 <= start < end <= len(text):
        raise ValueError(f"{place}: the entity {shown(span)} is not within the text, which has {len(text)} characters.")
    return Entity(start, end, kind)


def tags(entities: Iterable[Entity], num_atoms: int) -> list[str]:
    """Entities as IOB2 tags of atoms."""
    result = [_OUTSIDE] * num_atoms
    for entity in entities:
        result[entity.start] = f"B-{entity.type}"
        for atom in range(entity.start + 1, entity.end):
            result[atom] = f"I-{entity.type}"
    return result


def decode(tags_of: Sequence[str]) -> list[Entity]:
    """Entities that tags in IOB2 amount to; what a model says may break the scheme, and an I then starts an entity."""
    found: list[Entity] = []
    start = None
    for position, tag in enumerate([*tags_of, _OUTSIDE]):
        if start is not None and (tag[0] != "I" or tag[2:] != tags_of[position - 1][2:]):
            found.append(Entity(start, position, tags_of[position - 1][2:]))
            start = None
        if start is None and tag != _OUTSIDE:
            start = position
    return found
