"""data.tokenization as TensorFlow ops: the same ids and offsets, in tf.data and in a SavedModel that takes text.

All texts of a batch go through each step together, as one long row of code points:

    texts -> code points -> normalized characters, each with the code points it came from -> words -> pieces

Texts of plain characters, on which tensorflow-text's own BERT ops do as the original does, go through those instead
when only ids are wanted: that is three times as fast.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text

from data import unicode_tables as tables
from data.tokenization import (
    MAX_CHARS_PER_WORD,
    UNKNOWN_TOKEN,
    FullTokenizer,
    is_deleted,
    is_punctuation,
    is_white_space,
)

# The ops that are not TensorFlow's own. Stock TF Serving has these, but not all of tensorflow-text.
SERVING_TEXT_OPS = frozenset({"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"})

# Plain characters, as the inside of a regular expression's brackets. tensorflow-text folds case where the original
# lower-cases, decomposes for compatibility (so do not look for an ellipsis, a sharp s or a superscript here) and makes
# spaces of control characters; a test goes through these to see that none of that touches them. Left out are also
# marks that change places with accents, all of Greek for its sigmas, and scripts that few texts would gain by.
PLAIN_WORD_CHARS = (
    "0-9A-Za-z\u00a2-\u00a6\u00a9\u00ae\u00b0\u00b1\u00c0-\u00de\u00e0-\u0131\u0134-\u013e\u0141-\u0148\u014a-\u017e"
    "\u0180-\u01c3\u01cd-\u01f0\u01f4-\u024f\u1e00-\u1e99\u1ea0-\u1ef9\u20ac"  # Latin
    "\u0300-\u0344\u0346-\u036f"  # accents
    "\u0400-\u052f"  # Cyrillic
    "\u05b0-\u05bd\u05d0-\u05ea"  # Hebrew
    "\u060c\u061b\u061f-\u0669\u066e-\u0674\u0679-\u06d3"  # Arabic
    "\u0900-\u097f"  # Devanagari
    "\u3041-\u3096\u30a1-\u30fe"  # kana
    "\uac00-\ud7a3"  # Hangul
)
PLAIN_WORD_ENDS = (
    "\\t\\n\\r -/:-@\\[-`{-~\u00a0\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf"  # ASCII and Latin-1
    "\u2010\u2012-\u2016\u2018-\u2023\u2030-\u2032\u2039-\u203b\u2e3a\u2e3b\u3000-\u3002\u3008-\u3011"  # punctuation
    "\u3400-\u4dbf\u4e00-\u9fff"  # ideographs
)
# A plain character becomes at most three (Hangul), so no word that this lets through is longer than the limit.
_PLAIN_WORD = f"[{PLAIN_WORD_CHARS}]{{0,{MAX_CHARS_PER_WORD // 3}}}"
_PLAIN_TEXT = f"(?:{_PLAIN_WORD}[{PLAIN_WORD_ENDS}])*{_PLAIN_WORD}"

_SPACE = ord(" ")
_MAX_UTF8_BYTES = 4
# No piece has a bracket behind its first character, so a word of brackets is unknown.
_UNKNOWN_CHAR = ord("[")
# No valid text has this byte, so it can mark places in one.
_MARKER = b"\xff"

_TEXTS = [tf.TensorSpec([None], tf.string, name="texts")]


class _Parts(NamedTuple):
    """Texts cut at tokens that are never split; where there are no such tokens, the texts as they are."""

    strings: tf.Tensor  # [parts]
    splits: tf.Tensor  # [B + 1]: where the parts of each text begin and end
    special: tf.Tensor | None  # [parts]: whether a part is such a token


class _Chars(NamedTuple):
    """Normalized characters without white space. Positions are those of code points in the batch."""

    codes: tf.Tensor  # [characters], with flags
    starts: tf.Tensor  # [characters]: the position that each came from
    ends: tf.Tensor  # [characters]: the position behind that, or behind the last accent it bears
    groups: tf.Tensor  # [characters]: the same number for those that no white space and no side of an ideograph parts


class _Words(NamedTuple):
    """The words of all texts."""

    chars: _Chars
    word_splits: tf.Tensor  # [W + 1]: where the characters of each word begin and end
    text_words: tf.Tensor  # [B + 1]: where the words of each text begin and end
    origins: tf.Tensor  # [N]: of each position in the batch, what to take from it for the position in its text


class GraphTokenizer(tf.Module):
    """Cuts texts into pieces as `tokenizer` does, within a TensorFlow graph.

    Example:
        >>> tokenizer = GraphTokenizer(FullTokenizer("vocab.txt"))
        >>> dataset = dataset.map(tokenizer.tokenize)

    Texts are strings of any bytes; bytes that are not UTF-8 are left out.
    """

    def __init__(self, tokenizer: FullTokenizer):
        super().__init__()
        self._lower_case, self._strip_accents = tokenizer.do_lower_case, tokenizer.strip_accents
        # The Python tokenizer cuts at spaces first, so it finds no token that has a space in it.
        special = [token for token in tokenizer.never_split if " " not in token]
        if misfits := [token for token in special if not 0 < len(token) <= MAX_CHARS_PER_WORD]:
            raise ValueError(f"Tokens of never_split must have 1 to {MAX_CHARS_PER_WORD} characters: {misfits}.")
        self._special_pattern = _pattern_of_any(special) if special else None
        # The op numbers the pieces it is given from 0, and it is not given all of the vocabulary.
        pieces = [UNKNOWN_TOKEN, *filter(_may_be_in_a_word, tokenizer.vocab)]
        if len(pieces) == 1:
            raise ValueError(f"The vocabulary has no pieces to make words of, only {list(tokenizer.vocab)[:5]}.")
        pieces_and_special = list(dict.fromkeys([*pieces, *special]))
        # The normalizer does both or neither of the two.
        self._knows_plain_texts = self._lower_case == self._strip_accents
        forms = tables.normal_forms(self._lower_case, self._strip_accents)
        with tf.init_scope():
            self._ids = tf.constant([tokenizer.vocab[piece] for piece in pieces_and_special], tf.int32)
            self._wordpiece_of_words = _wordpiece(pieces_and_special, no_pretokenization=True)
            self._entries = tuple(map(tf.constant, forms.entries))
            self._pool = tf.constant(forms.pool)
            if self._lower_case:
                self._sigma_neighbours = tuple(map(tf.constant, tables.sigma_neighbours()))
            if self._strip_accents:
                self._combining_classes = tuple(map(tf.constant, tables.combining_classes()))
            if self._knows_plain_texts:
                self._plain_normalizer = tf_text.FastBertNormalizer(self._lower_case)
                self._wordpiece_of_texts = _wordpiece(pieces, no_pretokenization=False)

    @tf.function(input_signature=_TEXTS, autograph=False)
    def tokenize(self, texts):
        """The ids of the pieces of each text: string [B] -> int32 [B, (pieces)]."""
        if not self._knows_plain_texts:
            return self._cut_any_texts(texts)[0]
        is_plain = tf.strings.regex_full_match(texts, _PLAIN_TEXT)
        if self._special_pattern is not None:
            is_plain &= ~tf.strings.regex_full_match(texts, f"(?s).*(?:{self._special_pattern}).*")
        return tf.cond(
            tf.reduce_all(is_plain),
            lambda: self.tokenize_plain(texts),
            lambda: self._cut_mixed_texts(texts, is_plain),
        )

    @tf.function(input_signature=_TEXTS, autograph=False)
    def tokenize_with_offsets(self, texts):
        """(ids, starts, ends), each int32 [B, (pieces)]: a piece came from the characters `text[start:end]`."""
        return self._cut_any_texts(texts)

    @tf.function(input_signature=_TEXTS, autograph=False)
    def split_words(self, texts):
        """(starts, ends), each int32 [B, (words)]: where `data.tokenization.split_words` finds words."""
        found = self._find_words(texts)
        starts = tf.gather(found.chars.starts, found.word_splits[:-1])
        ends = tf.gather(found.chars.ends, found.word_splits[1:] - 1)
        text_words = tf.cast(found.text_words, tf.int64)
        return tuple(
            tf.RaggedTensor.from_row_splits(values - tf.gather(found.origins, starts), text_words, validate=False)
            for values in (starts, ends)
        )

    def tokenize_plain(self, texts):
        """`tokenize` for texts of plain characters only; others may come out in other pieces."""
        pieces = self._wordpiece_of_texts.tokenize(self._plain_normalizer.normalize(texts))
        return pieces.with_values(tf.gather(self._ids, pieces.values))

    def _cut_mixed_texts(self, texts, is_plain):
        plain, other = tf.where(is_plain)[:, 0], tf.where(~is_plain)[:, 0]
        ids_of_plain = self.tokenize_plain(tf.gather(texts, plain))
        ids_of_other = self._cut_any_texts(tf.gather(texts, other))[0]
        places = tf.math.invert_permutation(tf.concat([plain, other], 0))
        return tf.gather(tf.concat([ids_of_plain, ids_of_other], 0), places)

    def _cut_any_texts(self, texts):
        found = self._find_words(texts)
        words, codes = _spell(found.chars, found.word_splits)
        pieces, first_chars, last_chars = self._cut_pieces(words, found.word_splits, codes)
        text_pieces = tf.gather(pieces.row_splits, found.text_words)  # [B + 1]: which pieces are whose
        starts, ends = tf.gather(found.chars.starts, first_chars), tf.gather(found.chars.ends, last_chars)
        origins = tf.gather(found.origins, starts)
        return tuple(
            tf.RaggedTensor.from_row_splits(values, text_pieces, validate=False)
            for values in (tf.gather(self._ids, pieces.values), starts - origins, ends - origins)
        )

    def _find_words(self, texts) -> _Words:
        parts = self._cut_out_special(texts)
        # The space ends the last word of a part.
        decoded = tf.strings.unicode_decode(parts.strings + " ", "UTF-8", errors="ignore")
        codes, splits = decoded.values, tf.cast(decoded.row_splits, tf.int32)  # [N], [parts + 1]
        entries = _look_up(self._entries, codes)
        if parts.special is not None:
            is_special = tf.gather(parts.special, _row_of(tf.range(tf.size(codes)), splits)) & (codes != _SPACE)
            entries = tf.where(is_special, tables.UNCHANGED, entries)
        chars = self._normalize(codes, entries)
        word_splits = _cut_words(chars)
        # Which words are whose, and how far into the batch each text begins.
        text_words = tf.searchsorted(tf.gather(chars.starts, word_splits[:-1]), tf.gather(splits, parts.splits))
        origins = tf.repeat(_origins(parts, splits), splits[1:] - splits[:-1])
        return _Words(chars, word_splits, text_words, origins)

    def _cut_out_special(self, texts) -> _Parts:
        if self._special_pattern is None:
            return _Parts(texts, tf.range(tf.size(texts) + 1), None)
        valid = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        marked = tf.strings.regex_replace(valid, self._special_pattern, _MARKER + rb"\0" + _MARKER)
        parts = tf.strings.split(marked, sep=_MARKER)  # [B, (parts)]: every second one is a token
        splits = tf.cast(parts.row_splits, tf.int32)
        numbers = tf.range(tf.size(parts.values))
        return _Parts(parts.values, splits, (numbers - tf.gather(splits, _row_of(numbers, splits))) % 2 == 1)

    def _normalize(self, codes, entries) -> _Chars:
        is_break = tf.cast(_has(entries, tables.BREAK), tf.int32)
        is_ideograph = tf.cast(_has(entries, tables.IDEOGRAPH), tf.int32)
        groups = tf.cumsum(is_break + is_ideograph) - is_ideograph  # one on at each break, and one behind an ideograph
        counts = tf.bitwise.right_shift(entries, tables.COUNT_SHIFT) & tables.COUNT_MASK
        if self._lower_case:
            # A sigma in a token that is never split stays as it is.
            is_sigma = (codes == tables.SIGMA) & (entries != tables.UNCHANGED)
            codes, entries = tf.cond(
                tf.reduce_any(is_sigma),
                lambda: self._put_final_sigmas(codes, entries, is_sigma, groups, counts),
                lambda: (codes, entries),
            )
        # A slot for each character to be: 8 * the position it comes from + which one it is of those from there.
        first_slots = tf.range(tf.size(codes)) * (tables.COUNT_MASK + 1)
        slots = tf.ragged.range(first_slots, first_slots + counts).values
        starts, nth = slots // (tables.COUNT_MASK + 1), slots & tables.COUNT_MASK
        codes, entries, groups = tf.gather(codes, starts), tf.gather(entries, starts), tf.gather(groups, starts)
        first = entries & tables.FIRST_MASK
        codes = tf.where(first == 0, codes | (entries & tables.FLAGS_MASK), tf.gather(self._pool, first + nth))
        if not self._strip_accents:
            return _Chars(codes, starts, starts + 1, groups)
        codes, starts = tf.cond(
            tf.reduce_any(_has(codes, tables.MOVABLE)),
            lambda: self._order_accents(codes, starts, groups),
            lambda: (codes, starts),
        )
        return _drop_accents(codes, starts, groups)

    def _put_final_sigmas(self, codes, entries, is_sigma, groups, counts):
        kinds = _look_up(self._sigma_neighbours, codes)
        seen = tf.where((kinds != tables.IGNORABLE) & (counts > 0))[:, 0]
        is_cased, groups = tf.gather(kinds, seen) == tables.CASED, tf.gather(groups, seen)
        same_group = groups[1:] == groups[:-1]
        cased_before = tf.concat([[False], same_group & is_cased[:-1]], 0)
        cased_after = tf.concat([same_group & is_cased[1:], [False]], 0)
        final = tf.boolean_mask(seen, tf.gather(is_sigma, seen) & cased_before & ~cased_after)[:, None]
        ones = tf.ones_like(final[:, 0], tf.int32)
        return (
            tf.tensor_scatter_nd_update(codes, final, ones * tables.FINAL_SIGMA),
            tf.tensor_scatter_nd_update(entries, final, ones * tables.UNCHANGED),
        )

    def _order_accents(self, codes, starts, groups):
        """Canonical order: accents on one letter stand in the order of their combining classes."""
        classes = tf.cast(_look_up(self._combining_classes, codes & tables.CODE_MASK), tf.int64)
        runs = tf.cumsum(tf.cast((classes == 0) | _differs_from_previous(groups), tf.int64))
        order = tf.argsort(runs * 256 + classes, stable=True)
        return tf.gather(codes, order), tf.gather(starts, order)

    def _cut_pieces(self, words, word_splits, codes):
        """(pieces [W, (pieces)], first_chars [P], last_chars [P])."""
        pieces, first_bytes, end_bytes = self._wordpiece_of_words.tokenize_with_offsets(words)
        # The op counts bytes from the beginning of a word.
        char_bytes = 1 + sum(tf.cast(codes > last_code, tf.int32) for last_code in (0x7F, 0x7FF, 0xFFFF))
        bytes_before = tf.cumsum(char_bytes, exclusive=True)  # [characters]
        word_of_piece = _row_of(tf.range(tf.size(pieces.values)), tf.cast(pieces.row_splits, tf.int32))
        word_bytes = tf.gather(bytes_before, tf.gather(word_splits, word_of_piece))
        first_chars = tf.searchsorted(bytes_before, word_bytes + tf.cast(first_bytes.values, tf.int32))
        end_chars = tf.searchsorted(bytes_before, word_bytes + tf.cast(end_bytes.values, tf.int32))
        return pieces, first_chars, end_chars - 1


def _may_be_in_a_word(token: str) -> bool:
    """Whether words can have the token as a piece: they are one punctuation mark each, or have none in them."""
    if len(token) == 1:
        return not is_deleted(token) and not is_white_space(token)
    body = token.removeprefix("##")
    return body != "" and not any(is_punctuation(c) or is_deleted(c) or is_white_space(c) for c in body)


def _wordpiece(pieces: list[str], no_pretokenization: bool) -> tf_text.FastWordpieceTokenizer:
    return tf_text.FastWordpieceTokenizer(
        pieces,
        max_bytes_per_word=MAX_CHARS_PER_WORD * _MAX_UTF8_BYTES,
        token_out_type=tf.int32,
        unknown_token=UNKNOWN_TOKEN,
        no_pretokenization=no_pretokenization,
    )


def _pattern_of_any(tokens: list[str]) -> str:
    """A regular expression for any of the tokens, the longest first."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return "|".join("".join(f"\\x{{{ord(char):x}}}" for char in token) for token in longest_first)


def _look_up(table, codes):
    pages, values = table
    page = tf.gather(pages, codes // tables.PAGE_SIZE)
    return tf.gather(values, page * tables.PAGE_SIZE + codes % tables.PAGE_SIZE)


def _has(values, flag: int):
    return values & flag != 0


def _differs_from_previous(values):
    return tf.concat([[True], values[1:] != values[:-1]], 0)[: tf.size(values)]


def _row_of(positions, splits):
    """The row of a ragged tensor that each position of its values lies in."""
    return tf.searchsorted(splits, positions, side="right") - 1


def _origins(parts: _Parts, splits):
    """What to take from a position in the batch for the position in its text: [parts]."""
    if parts.special is None:
        return splits[:-1]
    numbers = tf.range(tf.size(splits) - 1)
    first_parts = tf.gather(parts.splits, _row_of(numbers, parts.splits))
    # Behind each earlier part of the text is a space that is not of the text.
    return tf.gather(splits, first_parts) + numbers - first_parts


def _drop_accents(codes, starts, groups) -> _Chars:
    is_kept = ~_has(codes, tables.ACCENT)
    kept = tf.where(is_kept)[:, 0]
    codes, kept_starts, kept_groups = tf.gather(codes, kept), tf.gather(starts, kept), tf.gather(groups, kept)
    # An accent stands on the last kept character before it, if there is one and nothing parts them.
    kept_so_far = tf.cumsum(tf.cast(is_kept, tf.int32))
    is_borne = tf.gather(tf.concat([[-1], kept_groups], 0), kept_so_far) == groups
    ends = tf.math.segment_max(tf.where(is_borne, starts + 1, 0), tf.maximum(kept_so_far - 1, 0))
    return _Chars(codes, kept_starts, ends, kept_groups)


def _cut_words(chars: _Chars):
    """Where words begin and end: [W + 1]."""
    is_mark = _has(chars.codes, tables.PUNCTUATION)
    after_mark = tf.concat([[True], is_mark], 0)[:-1]
    is_first = _differs_from_previous(chars.groups) | is_mark | after_mark
    return tf.concat([tf.cast(tf.where(is_first)[:, 0], tf.int32), [tf.size(chars.codes)]], 0)


def _spell(chars: _Chars, splits):
    """(words: string [W], codes: [characters] as they are in the words). Words that are too long become unknown."""
    codes = chars.codes & tables.CODE_MASK
    too_long = splits[1:] - splits[:-1] > MAX_CHARS_PER_WORD  # [W]
    codes = tf.cond(
        tf.reduce_any(too_long),
        lambda: tf.where(tf.gather(too_long, _row_of(tf.range(tf.size(codes)), splits)), _UNKNOWN_CHAR, codes),
        lambda: codes,
    )
    words = tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(codes, splits, validate=False), "UTF-8")
    return words, codes
