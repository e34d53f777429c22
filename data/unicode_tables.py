"""What data.tokenization does to single characters, as arrays that a TensorFlow graph can look code points up in.

A table has a number for each of the 1.1 million code points. It is kept in pages of 256 code points, and as most pages
are alike (all of private use, most of the ideographs), each different one is kept once.
"""

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data.tokenization import CJK_BLOCKS, is_deleted, is_punctuation, is_white_space

CODE_POINTS = 0x110000
PAGE_SIZE = 256
PAGES = CODE_POINTS // PAGE_SIZE

# An entry of `NormalForms.entries` says what becomes of a character: `count` others, which stand in the pool from
# `first` on; where `first` is 0, it stays itself. White space and deleted characters have a count of 0.
FIRST_MASK = 0xFFFF
COUNT_SHIFT = 16
COUNT_MASK = 0x7
UNCHANGED = 1 << COUNT_SHIFT
# Flags of a character as it was.
BREAK = 1 << 24  # white space and ideographs: the word before ends here
IDEOGRAPH = 1 << 25  # and its own word, right behind it
# Flags of a character as it becomes: in the pool, and in entries of characters that stay themselves.
CODE_MASK = 0x1FFFFF
PUNCTUATION = 1 << 21
ACCENT = 1 << 22  # is to be dropped
MOVABLE = 1 << 23  # is not, but may change places with accents beside it when those are put in order
FLAGS_MASK = PUNCTUATION | ACCENT | MOVABLE

# A capital sigma becomes a final one if a cased character is before it and none behind it, ignorable ones left out.
SIGMA = 0x3A3
FINAL_SIGMA = 0x3C2
CASED, IGNORABLE = 1, 2


class PagedTable(NamedTuple):
    """The number of code point c is `values[pages[c // 256] * 256 + c % 256]`."""

    pages: np.ndarray  # int32 [PAGES]
    values: np.ndarray  # [distinct pages * PAGE_SIZE]


class NormalForms(NamedTuple):
    entries: PagedTable
    pool: np.ndarray  # int32: code points with flags


@lru_cache(maxsize=4)
def normal_forms(do_lower_case: bool, strip_accents: bool) -> NormalForms:
    """How each character is classed, lower-cased and decomposed."""
    pool, first_of_form = [0], {}

    def entry(char: str) -> int:
        if is_deleted(char):
            return 0
        if is_white_space(char):
            return BREAK
        form = char.lower() if do_lower_case else char
        form = unicodedata.normalize("NFD", form) if strip_accents else form
        if form == char:
            return UNCHANGED | _flags(char, strip_accents)
        if form not in first_of_form:
            first_of_form[form] = len(pool)
            pool.extend(ord(part) | _flags(part, strip_accents) for part in form)
        return first_of_form[form] | len(form) << COUNT_SHIFT

    values = _for_each_assigned(entry, default=UNCHANGED)
    for first, last in CJK_BLOCKS:
        values[first : last + 1] |= BREAK | IDEOGRAPH
    if len(pool) > FIRST_MASK:
        raise OverflowError(f"{len(pool)} decomposed characters need more than the {COUNT_SHIFT} bits of an entry.")
    return NormalForms(_paged(values), np.array(pool, np.int32))


@lru_cache(maxsize=1)
def sigma_neighbours() -> PagedTable:
    """CASED, IGNORABLE, or 0 for neither: properties that Python does not tell, but that `str.lower` goes by."""

    def kind(char: str) -> int:
        if (char + "\u03a3").lower().endswith("\u03c2"):
            return CASED
        return IGNORABLE if ("A" + char + "\u03a3").lower().endswith("\u03c2") else 0

    return _paged(_for_each_assigned(kind, default=0).astype(np.uint8))


@lru_cache(maxsize=1)
def combining_classes() -> PagedTable:
    """The order in which marks on one letter stand; 0 for letters, which stay where they are."""
    return _paged(_for_each_assigned(unicodedata.combining, default=0).astype(np.uint8))


def _flags(char: str, strip_accents: bool) -> int:
    if is_punctuation(char):
        return PUNCTUATION
    if not strip_accents:
        return 0
    if unicodedata.category(char) == "Mn":
        return ACCENT
    return MOVABLE if unicodedata.combining(char) else 0


def _for_each_assigned(number_of: Callable[[str], int], default: int) -> np.ndarray:
    values = np.full(CODE_POINTS, default, np.int32)
    chars = _assigned_chars()
    values[[ord(char) for char in chars]] = [number_of(char) for char in chars]
    return values


@lru_cache(maxsize=1)
def _assigned_chars() -> str:
    """The characters there are. The other code points, seven in eight, have no properties."""
    return "".join(
        char for char in map(chr, range(CODE_POINTS)) if unicodedata.category(char) not in ("Cn", "Co", "Cs")
    )


def _paged(values: np.ndarray) -> PagedTable:
    number_of_page: dict[bytes, int] = {}
    pages = [number_of_page.setdefault(page.tobytes(), len(number_of_page)) for page in np.split(values, PAGES)]
    return PagedTable(np.array(pages, np.int32), np.frombuffer(b"".join(number_of_page), values.dtype))
