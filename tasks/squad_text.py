"""The text of an answer as it was written, found again from the pieces that a model chose. Nothing needs TensorFlow.

`logging.getLogger("tasks.squad_text")` tells at level DEBUG where a text could not be recovered, for --verbose_logging.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data.tokenization import split_words

# Words of contexts that are remembered at a time, in some 25 MB. SQuAD's dev set has 41,000.
_WORDS_REMEMBERED = 1 << 17

_log = logging.getLogger(__name__)


class Span(NamedTuple):
    """From a character of one word to the end of a part of another."""

    first_word: int
    start: int
    last_word: int
    end: int


def final_text(pieces: str, text: str, do_lower_case: bool = True, strip_accents: bool | None = None) -> str:
    """The part of a text that its pieces stand for, with capitals, accents and white space as they were written.

    Example:
        >>> final_text("steve smith", "Steve Smith's")
        'Steve Smith'

    Args:
        pieces: tokens joined by spaces, those of one word put together.
        text: words joined by spaces in which to look for them.
        do_lower_case: of the tokenizer.
        strip_accents: of the tokenizer; None does what `do_lower_case` says.
    """
    words = text.split(" ")
    return span_text(recover(pieces, words, 0, len(words) - 1, normal_words(do_lower_case, strip_accents)), words)


def recover(pieces: str, words: Sequence[str], first_word: int, last_word: int, normal_of: Mapping[str, str]) -> Span:
    """Where among the words from first_word to last_word the pieces stand; all of these words where that is not clear.

    Pieces are lower-cased and have no accents, and a word may have become several. So the words are normalized as the
    tokenizer did, the pieces are looked for in that, and found again in the words by counting characters that are no
    space. Where normalizing changed how many there are, they cannot be counted on; where a piece is [UNK], there is
    nothing to be found.
    """
    spanned = words[first_word : last_word + 1]
    everything = Span(first_word, 0, last_word, len(spanned[-1]))
    normal = " ".join(filter(None, map(normal_of.__getitem__, spanned)))
    if pieces == normal:
        return everything
    place = normal.find(pieces)
    if place == -1 or not pieces:
        _log.debug("%r is not found in %r.", pieces, normal)
        return everything
    if len(normal) - normal.count(" ") != sum(map(len, spanned)):
        _log.debug("%r has not as many characters as %r.", normal, " ".join(spanned))
        return everything
    before = place - normal.count(" ", 0, place)
    within = len(pieces) - pieces.count(" ")
    start_word, start = _find_char(words, first_word, before)
    end_word, end = _find_char(words, start_word, start + within - 1)
    return Span(start_word, start, end_word, end + 1)


def _find_char(words: Sequence[str], word: int, count: int) -> tuple[int, int]:
    """The character that has so many others before it, counted from the start of a word: (word, place in it)."""
    while count >= len(words[word]):
        count -= len(words[word])
        word += 1
    return word, count


class _NormalWords(dict):
    """Words as the tokenizer sees them before it cuts pieces: lower-cased, punctuation and ideographs set apart.

    Nothing that is done to a word looks at its neighbours, so each is normalized once and remembered.
    """

    def __init__(self, do_lower_case: bool, strip_accents: bool):
        super().__init__()
        self._options = do_lower_case, strip_accents

    def __missing__(self, word: str) -> str:
        if len(self) >= _WORDS_REMEMBERED:
            self.clear()
        self[word] = normal = " ".join(part.text for part in split_words(word, *self._options))
        return normal


@functools.cache
def normal_words(do_lower_case: bool, strip_accents: bool | None) -> _NormalWords:
    return _NormalWords(do_lower_case, do_lower_case if strip_accents is None else strip_accents)


def span_text(span: Span, words: Sequence[str]) -> str:
    """Words joined by one space, cut at both ends."""
    first_word, start, last_word, end = span
    if first_word == last_word:
        return words[first_word][start:end]
    return " ".join([words[first_word][start:], *words[first_word + 1 : last_word], words[last_word][:end]])
