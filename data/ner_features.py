"""Tagged texts into what the network reads: a tag for each unit, and every unit in one window that answers for it.

A unit is what gets a tag: a word, on its first piece as in the paper, where words were tagged; a piece where characters
were, since in Korean and its like an entity ends in the middle of a word.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from data.ner import Entity, TaggedText, decode
from data.tokenization import FullTokenizer, split_words


@dataclasses.dataclass(frozen=True)
class UnitText:
    """A text in pieces and units."""

    ids: list[int]
    units: list[int]  # number of the first piece of each unit
    atoms: list[tuple[int, int]]  # which atoms of the text each unit is


class TokenWindow(NamedTuple):
    """A sequence, and the units that it answers for."""

    input_ids: list[int]
    text: int  # number of the text
    positions: list[int]  # in the sequence
    units: list[int]  # numbers of units of the text, one for each position


def split_units(text: TaggedText, tokenizer: FullTokenizer) -> UnitText:
    """Cuts a text into pieces. What leaves no piece, like a zero-width space for a word, is an unknown one."""
    if text.words is None:
        pieces = tokenizer.tokenize_with_offsets(text.text)
        ids = tokenizer.convert_tokens_to_ids(piece.token for piece in pieces)
        return UnitText(ids, list(range(len(ids))), [(piece.start, piece.end) for piece in pieces])
    ids, units = [], []
    for start, end in text.words:
        units.append(len(ids))
        ids += tokenizer.tokenize_to_ids(text.text[start:end]) or [tokenizer.vocab["[UNK]"]]
    return UnitText(ids, units, [(number, number + 1) for number in range(len(units))])


def unit_tags(units: UnitText, entities: Sequence[Entity]) -> list[str]:
    """The tag of each unit: of the first entity that it shares an atom with."""
    ends = [entity.end for entity in entities]
    result, begun = [], -1  # the last entity that has begun
    for start, end in units.atoms:
        number = bisect.bisect_right(ends, start)
        if number == len(entities) or entities[number].start >= end:
            result.append("O")
        else:
            # One character may have become several pieces: only the first of them begins the entity.
            result.append(f"{'I' if number == begun else 'B'}-{entities[number].type}")
            begun = number
    return result


def entities_of(units: UnitText, tags: Sequence[str]) -> list[Entity]:
    """What tags of units amount to, as spans of atoms."""
    return [
        # Accents may have changed places, so the first unit need not be the one that begins first.
        Entity(min(start for start, _ in atoms), max(end for _, end in atoms), entity.type)
        for entity, atoms in ((entity, units.atoms[entity.start : entity.end]) for entity in decode(tags))
    ]


def windows(
    texts: Sequence[UnitText],
    documents: Sequence[int],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    document_context: bool,
) -> Iterator[TokenWindow]:
    """Sequences for all texts, in which each unit is answered for once, where it has most around it.

    Args:
        texts: in their order.
        documents: of each text, the number of its document.
        tokenizer: of the model.
        max_seq_length: pieces of a sequence, [CLS] and [SEP] among them.
        document_context: whether what is left of a sequence is filled with the texts before and after in the document.
    """
    room = max_seq_length - 2
    if room < 1:
        raise ValueError(f"max_seq_length is {max_seq_length}: that leaves no room for text.")
    missing = [token for token in ("[CLS]", "[SEP]") if token not in tokenizer.vocab]
    if missing:
        raise ValueError(f"The vocabulary has no {' and no '.join(missing)}: it is not one of BERT's.")
    first, last = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    for number, text in enumerate(texts):
        before, after = [], []
        if document_context:
            before, after = _neighbours(texts, documents, number, room)
        stream = before + text.ids + after
        for start, answers in _answers(len(before), text, len(stream), room):
            ids = [first, *stream[start : start + room], last]
            positions = [1 + len(before) + text.units[unit] - start for unit in answers]
            yield TokenWindow(ids, number, positions, answers)


def _neighbours(texts: Sequence[UnitText], documents: Sequence[int], number: int, room: int):
    """Up to `room` pieces before a text and after it, of its own document."""
    before: list[int] = []
    index = number - 1
    while index >= 0 and documents[index] == documents[number] and len(before) < room:
        before = texts[index].ids + before
        index -= 1
    after: list[int] = []
    index = number + 1
    while index < len(texts) and documents[index] == documents[number] and len(after) < room:
        after = after + texts[index].ids
        index += 1
    return before[-room:], after[:room]


def _answers(offset: int, text: UnitText, length: int, room: int) -> Iterator[tuple[int, list[int]]]:
    """Where windows start in the stream, and which units each answers for."""
    end = offset + len(text.ids)
    if len(text.ids) <= room:  # one window, with as much on its left as on its right
        start = max(0, min(offset - (room - len(text.ids)) // 2, length - room))
        if text.units:
            yield start, list(range(len(text.units)))
        return
    # Windows over a text that is too long overlap by half; no unit is answered for from the rim of one.
    starts = list(range(offset, end - room, max(1, room // 2))) + [end - room]
    answers: list[list[int]] = [[] for _ in starts]
    for unit, piece in enumerate(text.units):
        at = offset + piece
        holding = [i for i, start in enumerate(starts) if start <= at < start + room]
        answers[max(holding, key=lambda i: (min(at - starts[i], starts[i] + room - 1 - at), -i))].append(unit)
    for start, units in zip(starts, answers, strict=True):
        if units:
            yield start, units


def words_of(text: str) -> tuple[tuple[int, int], ...]:
    """Where words stand in a text that nobody has cut: parted by white space, punctuation by itself."""
    words = split_words(text, do_lower_case=False, strip_accents=False)
    return tuple((word.starts[0], word.ends[-1]) for word in words)
