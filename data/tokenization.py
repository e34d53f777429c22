"""WordPiece tokenization, character for character as in the original release, with offsets and a cache.

A text is first cut at spaces. Nothing the tokenizer does looks across a space, so each of these chunks is tokenized
once and remembered: in running text nearly every chunk has been seen before, and most of the time goes into one
dictionary look-up a word.

    text -> chunks (at spaces) -> words (cleaned, CJK characters apart, lower-cased, accents off, punctuation apart)
         -> pieces (the longest ones of the vocabulary, greedily)
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

UNKNOWN_TOKEN = "[UNK]"
MAX_CHARS_PER_WORD = 200

# Chunks remembered at a time. A quarter of a million covers a library of English novels, in some 60 MB.
_CACHE_SIZE = 1 << 18
_LONGEST_CACHED = 32

# Blocks of ideographs, each of which is a word. Hangul and kana are not among them: those languages use spaces or long
# words, and the original left them whole.
CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class Piece(NamedTuple):
    """A token and the characters it came from: `text[start:end]`, accents and deleted characters within included."""

    token: str
    start: int
    end: int


class _Pieces(NamedTuple):
    """What a chunk becomes: ids of pieces, and where each starts and ends in the chunk."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class FullTokenizer:
    """Cuts text into pieces of a vocabulary.

    Example:
        >>> tokenizer = FullTokenizer(vocab_file="vocab.txt")
        >>> tokenizer.tokenize("Unwanted running")
        ['un', '##want', '##ed', 'running']

    Args:
        vocab_file: one piece a line; the number of the line, from 0, is the id of the piece.
        do_lower_case: lower-case the text first, for uncased models.
        strip_accents: take accents off; None does what `do_lower_case` says, as the original does.
        never_split: tokens that stay whole wherever they stand in a text, e.g. `("[MASK]",)`. The original has no
            such tokens: "[MASK]" in a text becomes "[", "mask", "]".
        vocab: a vocabulary in memory, instead of a file.
    """

    def __init__(
        self,
        vocab_file: str | Path | None = None,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        never_split: Sequence[str] = (),
        vocab: Mapping[str, int] | None = None,
    ):
        if (vocab_file is None) == (vocab is None):
            raise ValueError("A tokenizer needs either vocab_file or vocab.")
        self.vocab = dict(vocab) if vocab_file is None else load_vocab(vocab_file)
        if UNKNOWN_TOKEN not in self.vocab:
            raise ValueError(
                f"{vocab_file or 'The vocabulary'} has no {UNKNOWN_TOKEN}, which stands for unknown words."
            )
        if missing := [token for token in never_split if token not in self.vocab]:
            raise ValueError(f"Tokens of never_split are not in the vocabulary: {', '.join(missing)}.")
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.do_lower_case = do_lower_case
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        self.never_split = tuple(never_split)
        longest_first = sorted(self.never_split, key=len, reverse=True)
        self._never_split_pattern = re.compile("|".join(map(re.escape, longest_first))) if never_split else None
        self._max_piece_chars = max(map(len, self.vocab))
        self._ids_of_chunk = _Cache(self._chunk_ids)
        self._pieces_of_chunk = _Cache(self._cut_chunk)
        self._pieces_of_word = _Cache(self._cut_word)

    def tokenize(self, text: str | bytes) -> list[str]:
        """The pieces of a text, as strings."""
        return self.convert_ids_to_tokens(self.tokenize_to_ids(text))

    def tokenize_to_ids(self, text: str | bytes) -> list[int]:
        """The pieces of a text, as ids: the fastest way."""
        ids: list[int] = []
        for chunk_ids in map(self._ids_of_chunk.__getitem__, to_unicode(text).split(" ")):
            ids += chunk_ids
        return ids

    def tokenize_with_offsets(self, text: str | bytes) -> list[Piece]:
        """The pieces of a text with the characters each of them came from."""
        result, chunk_start = [], 0
        for chunk in to_unicode(text).split(" "):
            pieces = self._pieces_of_chunk[chunk]
            for piece_id, start, end in zip(*pieces, strict=True):
                result.append(Piece(self.inv_vocab[piece_id], chunk_start + start, chunk_start + end))
            chunk_start += len(chunk) + 1
        return result

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.inv_vocab[index] for index in ids]

    def _chunk_ids(self, chunk: str) -> tuple[int, ...]:
        """`_cut_chunk(chunk).ids`; sooner for nearly all of English, where nobody asks for offsets."""
        if self._never_split_pattern or not _PLAIN_TEXT.fullmatch(chunk):
            return self._cut_chunk(chunk).ids
        ids: list[int] = []
        for word in _PLAIN_WORD.findall(chunk.lower() if self.do_lower_case else chunk):
            ids += self._pieces_of_word[word].ids
        return tuple(ids)

    def _cut_chunk(self, chunk: str) -> _Pieces:
        ids, starts, ends = [], [], []
        for part, part_start, is_special in self._special_parts(chunk):
            if is_special:
                ids.append(self.vocab[part])
                starts.append(part_start)
                ends.append(part_start + len(part))
                continue
            for word in split_words(part, self.do_lower_case, self.strip_accents):
                pieces = self._pieces_of_word[word.text]
                ids += pieces.ids
                starts += [part_start + word.starts[first] for first in pieces.starts]
                ends += [part_start + word.ends[last - 1] for last in pieces.ends]
        return _Pieces(tuple(ids), tuple(starts), tuple(ends))

    def _special_parts(self, chunk: str):
        """The chunk cut at tokens that are never split: (text, start, whether it is such a token)."""
        if self._never_split_pattern is None:
            yield chunk, 0, False
            return
        position = 0
        for match in self._never_split_pattern.finditer(chunk):
            yield chunk[position : match.start()], position, False
            yield match.group(), match.start(), True
            position = match.end()
        yield chunk[position:], position, False

    def _cut_word(self, word: str) -> _Pieces:
        """The longest piece the word starts with, then the longest the rest starts with, and so on."""
        unknown = _Pieces((self.vocab[UNKNOWN_TOKEN],), (0,), (len(word),))
        if len(word) > MAX_CHARS_PER_WORD:
            return unknown
        ids, bounds = [], [0]
        while (start := bounds[-1]) < len(word):
            for end in range(min(len(word), start + self._max_piece_chars), start, -1):
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self.vocab:
                    ids.append(self.vocab[piece])
                    bounds.append(end)
                    break
            else:
                return unknown
        return _Pieces(tuple(ids), tuple(bounds[:-1]), tuple(bounds[1:]))


class _Cache(dict):
    """A dictionary that computes what it lacks and starts afresh when it is full.

    Long keys are not kept: they do not come again, as lines of a script without spaces, which are one chunk each.
    """

    def __init__(self, compute):
        super().__init__()
        self._compute = compute

    def __missing__(self, key):
        if len(self) >= _CACHE_SIZE:
            self.clear()
        value = self._compute(key)
        if len(key) <= _LONGEST_CACHED:
            self[key] = value
        return value


class Word(NamedTuple):
    """A word as the vocabulary sees it. Its i-th character came from `chunk[starts[i]:ends[i]]`."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


# Nearly all of English: printable ASCII and typographic quotes, dashes and ellipses. It needs no look at each of its
# characters: a word is a punctuation mark, or a run of letters and digits.
_PLAIN_TEXT = re.compile("[ -~\u2013\u2014\u2018-\u201f\u2026]*")
_PLAIN_WORD = re.compile("[!-/:-@\\[-`{-~\u2013\u2014\u2018-\u201f\u2026]|[0-9A-Za-z]+")


def split_words(text: str, do_lower_case: bool, strip_accents: bool) -> list[Word]:
    """Cleans a text and cuts it into words: at white space, around ideographs, and around punctuation."""
    if _PLAIN_TEXT.fullmatch(text):
        return [
            Word(match.group(), range(match.start(), match.end()), range(match.start() + 1, match.end() + 1))
            for match in _PLAIN_WORD.finditer(text.lower() if do_lower_case else text)
        ]
    words = []
    for chars, positions in _white_space_words(text):
        chars, starts, ends = _normalize(chars, positions, do_lower_case, strip_accents)
        first = 0
        for i, char in enumerate(chars):
            if _PUNCTUATION[char]:
                words.append(Word(chars[first:i], starts[first:i], ends[first:i]))
                words.append(Word(char, starts[i : i + 1], ends[i : i + 1]))
                first = i + 1
        words.append(Word(chars[first:], starts[first:], ends[first:]))
    return [word for word in words if word.text]


def _white_space_words(text: str):
    """Yields runs of characters that no white space parts, without deleted ones, ideographs alone: (str, positions)."""
    chars, positions = [], []
    for position, char in enumerate(text):
        kind = _KINDS[char]
        if kind == "letter":
            chars.append(char)
            positions.append(position)
        elif kind != "deleted":
            if chars:
                yield "".join(chars), positions
                chars, positions = [], []
            if kind == "ideograph":
                yield char, [position]
    if chars:
        yield "".join(chars), positions


def _normalize(chars: str, positions: Sequence[int], do_lower_case: bool, strip_accents: bool):
    """Lower-cases and takes accents off: (text, starts, ends), an accent counted to the character it stood on."""
    if do_lower_case:
        # One character may become two (U+0130), so positions follow the lengths. The text is lowered as a whole: what
        # becomes of a capital sigma depends on its neighbours.
        lowered = chars.lower()
        if len(lowered) != len(chars):
            positions = [position for char, position in zip(chars, positions, strict=True) for _ in char.lower()]
        chars = lowered
    plain = unicodedata.is_normalized("NFD", chars) and not any(map(_ACCENTS.__getitem__, chars))
    if plain or not strip_accents:
        return chars, positions, [position + 1 for position in positions]
    kept, starts, ends = [], [], []
    for char, position in _decompose(chars, positions):
        if not _ACCENTS[char]:
            kept.append(char)
            starts.append(position)
            ends.append(position + 1)
        elif ends:
            ends[-1] = max(ends[-1], position + 1)
    return "".join(kept), starts, ends


def _decompose(chars: str, positions: Sequence[int]) -> list[tuple[str, int]]:
    """NFD, with the position that each character of the result came from."""
    pairs = [
        (part, position)
        for char, position in zip(chars, positions, strict=True)
        for part in unicodedata.normalize("NFD", char)
    ]
    # Marks on one letter stand in the order of their combining class, whatever order they were typed in.
    run_start = 0
    for i in range(len(pairs) + 1):
        if i == len(pairs) or unicodedata.combining(pairs[i][0]) == 0:
            pairs[run_start:i] = sorted(pairs[run_start:i], key=lambda pair: unicodedata.combining(pair[0]))
            run_start = i + 1
    return pairs


def is_deleted(char: str) -> bool:
    """NUL, the replacement character, and control and format characters: gone without leaving a space."""
    if char in "\t\n\r":
        return False
    return char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


def is_white_space(char: str) -> bool:
    """What parts words: space separators, tabs and line ends, and the two separators of lines and paragraphs."""
    return char in "\t\n\r\u2028\u2029" or unicodedata.category(char) == "Zs"


def is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and all of ASCII that is neither letter, digit nor space, e.g. "$" and "^"."""
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def is_ideograph(char: str) -> bool:
    code = ord(char)
    return any(first <= code <= last for first, last in CJK_BLOCKS)


def _kind(char: str) -> str:
    if is_deleted(char):
        return "deleted"
    if is_white_space(char):
        return "white space"
    return "ideograph" if is_ideograph(char) else "letter"


# What is known of each character, filled in as characters are met.
_KINDS = _Cache(_kind)
_PUNCTUATION = _Cache(is_punctuation)
_ACCENTS = _Cache(lambda char: unicodedata.category(char) == "Mn")


def vocab_size(vocab: Mapping[str, int]) -> int:
    """Rows that an embedding of the vocabulary has. More than pieces where a line of its file stands twice."""
    return max(vocab.values()) + 1


def to_unicode(text: str | bytes) -> str:
    """Text as it is; bytes as UTF-8, with what is not UTF-8 left out."""
    return text if isinstance(text, str) else text.decode("utf-8", "ignore")


def load_vocab(vocab_file: str | Path) -> dict[str, int]:
    """Reads a vocabulary, one piece a line. A line ends at "\\n" and nowhere else; white space around it is no part of
    it. A `tokenizer.json` of Hugging Face's is taken, too."""
    path = Path(vocab_file)
    if path.suffix == ".json":
        return _load_tokenizer_json(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no vocabulary file {path}.") from None
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise ValueError(f"The vocabulary file {path} is empty.")
    return {to_unicode(line).strip(): index for index, line in enumerate(lines)}


def pieces_by_id(vocab: Mapping[str, int]) -> list[str]:
    """The lines of a vocab.txt. Where one piece stood twice, its first line becomes an unused slot."""
    pieces = [f"[unused_line_{index}]" for index in range(vocab_size(vocab))]
    for token, index in vocab.items():
        pieces[index] = token
    return pieces


def vocab_text(vocab: Mapping[str, int]) -> str:
    """A vocabulary as vocab.txt holds it."""
    return "".join(f"{piece}\n" for piece in pieces_by_id(vocab))


def _load_tokenizer_json(path: Path) -> dict[str, int]:
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        return dict(sorted(vocab.items(), key=lambda item: item[1]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} holds no WordPiece vocabulary: {type(error).__name__}: {error}.") from error
