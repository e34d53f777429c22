"""Texts into what the network reads: [CLS] a [SEP], or [CLS] a [SEP] b [SEP], cut to a length in one of four ways."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data.tokenization import FullTokenizer

LONG_TEXTS = ("head", "tail", "head_tail", "windows")

# Windows overlap by a quarter, so that what one of them cuts in two stands whole in the other.
_STRIDE = 0.75


class Features(NamedTuple):
    """One sequence: its pieces, and where the second segment starts (at the end, where there is none)."""

    input_ids: list[int]
    second_segment: int


@dataclasses.dataclass(frozen=True)
class SentenceEncoder:
    """Makes features of texts.

    Args:
        tokenizer: of the model.
        max_seq_length: pieces of a sequence, [CLS] and [SEP] among them.
        long_text: what is kept of a text that is too long: its head, as in the original; its tail; its head_tail, a
            quarter from its start and the rest from its end; or windows, all of it in several sequences.
    """

    tokenizer: FullTokenizer
    max_seq_length: int
    long_text: str = "head"

    def __post_init__(self):
        if self.long_text not in LONG_TEXTS:
            raise ValueError(f"long_text is {self.long_text!r}, but should be one of {', '.join(LONG_TEXTS)}.")
        missing = [token for token in ("[CLS]", "[SEP]") if token not in self.tokenizer.vocab]
        if missing:
            raise ValueError(f"The vocabulary has no {' and no '.join(missing)}: it is not one of BERT's.")

    def __call__(self, text_a: str, text_b: str | None = None) -> tuple[list[Features], bool]:
        """The sequences of a text or a pair, more than one only for windows; and whether it was too long for one."""
        a = self.tokenizer.tokenize_to_ids(text_a)
        b = self.tokenizer.tokenize_to_ids(text_b) if text_b else []
        room = self.max_seq_length - (3 if b else 2)
        if room < (2 if b else 1):
            raise ValueError(f"max_seq_length is {self.max_seq_length}: that leaves no room for text.")
        if len(a) + len(b) <= room:
            return [self._features(a, b)], False
        if self.long_text == "windows":
            return [self._features(*window) for window in _windows(a, b, room)], True
        length_a, length_b = _lengths(len(a), len(b), room)
        return [self._features(self._cut(a, length_a), self._cut(b, length_b))], True

    def _cut(self, pieces: list[int], length: int) -> list[int]:
        head = {"head": length, "tail": 0, "head_tail": (length + 3) // 4}[self.long_text]
        return pieces if len(pieces) <= length else pieces[:head] + pieces[len(pieces) - (length - head) :]

    def _features(self, a: Sequence[int], b: Sequence[int]) -> Features:
        start, end = self.tokenizer.vocab["[CLS]"], self.tokenizer.vocab["[SEP]"]
        first = [start, *a, end]
        return Features([*first, *b, end] if b else first, len(first))


def _lengths(a: int, b: int, room: int) -> tuple[int, int]:
    """How much of each text stays: pieces go one by one from the longer, and from the second if both are as long."""
    if b == 0:
        return min(a, room), 0
    shorter = min(a, b)
    if 2 * shorter <= room:  # the shorter stays whole
        return (a, room - a) if a == shorter else (room - b, b)
    return (room + 1) // 2, room // 2


def _windows(a: list[int], b: list[int], room: int) -> Iterator[tuple[list[int], list[int]]]:
    """Parts of the longer text, each with the other one, of which no more than half a sequence is kept."""
    slides_a = len(a) >= len(b)
    long, other = (a, b) if slides_a else (b, a)
    other = other[: room // 2]
    size = room - len(other)
    step = max(1, int(size * _STRIDE))
    for start in range(0, max(len(long) - size, 0) + step, step):
        part = long[start : start + size]
        yield (part, other) if slides_a else (other, part)


def padded(sequences: Sequence[Features], length: int) -> dict[str, np.ndarray]:
    """What the network reads: any number of sequences -> int32 [sequences, length] each."""
    names = ("input_ids", "input_mask", "segment_ids")
    arrays = {name: np.zeros([len(sequences), length], np.int32) for name in names}
    for row, (ids, second) in enumerate(sequences):
        arrays["input_ids"][row, : len(ids)] = ids
        arrays["input_mask"][row, : len(ids)] = 1
        arrays["segment_ids"][row, second : len(ids)] = 1
    return arrays
