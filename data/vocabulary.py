"""Learns a WordPiece vocabulary from the counts of words.

    text -> counts of words (data/word_counts.py) -> alphabet -> merges of pieces -> vocab.txt

Two learners stand behind one interface. `learn_wordpiece` grows pieces out of characters, as WordPiece was first
published; `learn_tensorflow_text` asks tensorflow-text, which cuts words down to pieces. Both are functions of the
counts alone: the same text gives the same vocabulary, in whatever order and by however many processes it was counted.
"""

import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.tokenization import MAX_CHARS_PER_WORD, UNKNOWN_TOKEN

# Padding comes first because its id has to be 0; the others are what pre-training and the tasks look up.
SPECIAL_TOKENS = ("[PAD]", UNKNOWN_TOKEN, "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
SCORES = ("likelihood", "ratio")


# What there is to learn from


class Lexicon(NamedTuple):
    """Words with their counts, and the one-character pieces that every one of them can be made of."""

    words: dict[str, int]
    characters: list[str]


def make_lexicon(word_counts: Mapping[str, int], min_count: int = 1, max_alphabet: int = 6000) -> Lexicon:
    """Chooses the alphabet, and the words that are worth learning from.

    The `max_alphabet` most frequent characters are kept. Each becomes a piece in the forms it was seen in: as itself at
    the start of a word, with "##" after it. Words that are seen fewer than `min_count` times are not learned from, but
    do count here: a character that one text has once ("'", in books with typographic quotes) may be common in the next.
    So all words of kept characters can be tokenized, the rare ones too.

    Words of other characters will be [UNK] whatever the pieces are, and so will words too long for the tokenizer:
    nothing is learned from either.
    """
    counts_of_char: Counter[str] = Counter()
    for word, count in word_counts.items():
        for char in word:
            counts_of_char[char] += count
    by_frequency = sorted(counts_of_char, key=lambda char: (-counts_of_char[char], char))
    kept = set(by_frequency[:max_alphabet])
    usable = [word for word in word_counts if len(word) <= MAX_CHARS_PER_WORD and kept.issuperset(word)]
    first = {word[0] for word in usable}
    later = {CONTINUATION + char for word in usable for char in word[1:]}
    # Words in order, because the order in which they were counted depends on files and processes.
    words = {word: word_counts[word] for word in sorted(usable) if word_counts[word] >= min_count}
    return Lexicon(words, sorted(first) + sorted(later))


def reserved_tokens(special_tokens: Sequence[str] = SPECIAL_TOKENS, num_unused: int = 0) -> list[str]:
    """What a vocabulary begins with: special tokens, then slots without a meaning yet, [unused0] and so on."""
    if list(special_tokens[:1]) != list(SPECIAL_TOKENS[:1]):
        raise ValueError(f"special_tokens has to begin with {SPECIAL_TOKENS[0]}: padding has the id 0. Put it first.")
    if missing := [token for token in SPECIAL_TOKENS if token not in special_tokens]:
        raise ValueError(f"special_tokens lacks {', '.join(missing)}, which BERT needs. Add what is missing.")
    if odd := [token for token in special_tokens if token.split() != [token]]:
        raise ValueError(f"special_tokens has {odd}: a token is not empty and has no white space. Mend or drop it.")
    reserved = [*special_tokens, *(f"[unused{i}]" for i in range(num_unused))]
    if twice := [token for token, count in Counter(reserved).items() if count > 1]:
        raise ValueError(f"special_tokens has {', '.join(twice)} more than once. Name each token once.")
    return reserved


def _first_pieces(lexicon: Lexicon, vocab_size: int, reserved: Sequence[str]) -> dict[str, None]:
    """What every vocabulary begins with: reserved tokens, then characters. A dictionary, as a set that keeps order."""
    if not lexicon.words:
        raise ValueError("There are no words to learn from. Give a text with words in it, or lower min_count.")
    pieces = dict.fromkeys([*reserved, *lexicon.characters])
    if len(pieces) > vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {len(reserved)} reserved tokens and {len(lexicon.characters)} "
            f"one-character pieces need {len(pieces)}. Raise vocab_size, or lower max_alphabet or num_unused."
        )
    return pieces


# Learning with tensorflow-text


def learn_tensorflow_text(lexicon: Lexicon, vocab_size: int, reserved: Sequence[str]) -> list[str]:
    """Learns a vocabulary with tensorflow-text: the frequent ones of all beginnings of words and of their rests.

    It searches for the count at which the vocabulary has the size asked for, and is content with 5 % less. It lists
    each character in both forms; here only those that occur are kept, so the result is smaller by the others. A result
    that is larger than asked for, which happens where many pieces share a count, is cut at its rare end.
    """
    pieces = _first_pieces(lexicon, vocab_size, reserved)
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    learned = learner.learn(
        lexicon.words,
        vocab_size=vocab_size,
        reserved_tokens=list(reserved),
        # Its own defaults suit large corpora: no piece that is seen fewer than ten times, no more than 1000 characters.
        lower_thresh=None,
        max_unique_chars=len(lexicon.characters),
    )
    pieces.update(dict.fromkeys(piece for piece in learned if len(piece.removeprefix(CONTINUATION)) > 1))
    return list(pieces)[:vocab_size]


# Learning by merges


def learn_wordpiece(
    lexicon: Lexicon,
    vocab_size: int,
    reserved: Sequence[str],
    score: str = "likelihood",
    min_pair_count: int = 2,
    min_gain: float = 0.0,
    show_progress: bool = False,
) -> list[str]:
    """Learns a vocabulary by merging, time and again, the best pair of neighbouring pieces into one.

    Words start as characters. A text of pieces x that are drawn independently has the log-likelihood
    sum(count(x) * log(count(x) / N)), N being the number of pieces. What is the best pair (a, b) says `score`:

    - "likelihood": the one whose union raises that sum most. To first order the gain is
      count(ab) * log(count(ab) * N / (count(a) * count(b))); here it is exact, see `likelihood_gain`.
    - "ratio": the one with the highest count(ab) / (count(a) * count(b)), as WordPiece is often described. That is
      the gain of *one* occurrence, which is highest for pairs that are rare: it fills the vocabulary with parts of rare
      names while frequent words stay in pieces. `min_pair_count` has to keep it away from the rarest.

    docs/vocabulary.md has the figures that made "likelihood" the default. Equal scores go to the higher count, then
    to the piece that comes first in the order of strings.

    A piece of which nothing is left ("##uchamp", once every "##uchamp" is part of a "beauchamp") gives its place to
    another, for a model would hardly see it. It is kept only if the text gives out before the vocabulary is full. A
    pair whose union is a piece already ("##in" + "##g" after "##i" + "##ng") is scored as if it were not, waits for its
    turn, and then takes no place.

    Args:
        vocab_size: stop at this many pieces, reserved tokens and characters included.
        reserved: what the vocabulary begins with, e.g. "[PAD]".
        min_pair_count: a pair seen fewer times is never merged.
        min_gain: stop when the best merge raises the log-likelihood of the text (in nats) by no more than this.
    """
    first = _first_pieces(lexicon, vocab_size, reserved)
    learned: dict[str, None] = {}
    used_up: set[str] = set()
    text = _TextOfPieces(lexicon, score, min_pair_count)
    with tqdm(
        total=vocab_size, initial=len(first), desc="Learning", unit="piece", disable=not show_progress
    ) as progress:
        while len(first) + len(learned) - len(used_up) < vocab_size and (pair := text.best_pair()) is not None:
            gain = text.gain_of(pair)
            if gain <= min_gain:
                break
            union, used_up_now = text.merge(pair)
            if union not in first:
                learned[union] = None
            used_up |= used_up_now - first.keys()
            used_up.discard(union)
            progress.update(len(first) + len(learned) - len(used_up) - progress.n)
            progress.set_postfix_str(f"gain {gain:.3g}", refresh=False)
    room = vocab_size - len(first) - len(learned) + len(used_up)
    dropped = set([piece for piece in learned if piece in used_up][room:])
    return [*first, *(piece for piece in learned if piece not in dropped)]


def likelihood_gain(pair_count, left_count, right_count, is_twin, total):
    """What the merge of a pair adds to the log-likelihood of a text, elementwise.

    The log-likelihood is sum(h(count(x))) - h(N) with h(n) = n log n. A merge of n = count(ab) pairs takes n from the
    counts of a, b and N, and adds a piece with count n. Of a twin (a, a) it takes 2n from the count of a.
    """
    gain = _h(pair_count) + _h(total) - _h(total - pair_count)
    gain += _h(left_count - np.where(is_twin, 2, 1) * pair_count) - _h(left_count)
    return gain + np.where(is_twin, 0.0, _h(right_count - pair_count) - _h(right_count))


def _h(count):
    # The maximum stands for the limit: h(0) = 0.
    return count * np.log(np.maximum(count, 1))


class _TextOfPieces:
    """A text as words made of pieces, with the counts of pieces and of neighbouring pairs, all exact after each merge.

    A piece is a number, the index of its string. A pair of pieces has a number too; its count and score stand in numpy
    arrays under that number. A merge of (a, b) changes the counts of a, of b, of the new piece and of pairs that one of
    them is part of: exactly those pairs are scored anew, as vectors. Other pairs keep their pieces' counts; their score
    depends on the merge only through N, and since N never grows a score that was not computed anew is never too low.

    To find the highest score without a look at all of them, scores lie in blocks, each with an upper bound of its
    scores. `best_pair` looks into the block with the highest bound, makes bound and scores there exact, and is done
    when what it found still is the highest. So every merge is the best one under the counts of its moment.
    """

    _BLOCK = 1024

    def __init__(self, lexicon: Lexicon, score: str, min_pair_count: int):
        if score not in SCORES:
            raise ValueError(f"score={score!r} is none of {', '.join(SCORES)}.")
        self._by_ratio = score == "ratio"
        self._min_pair_count = max(1, min_pair_count)

        self._strings = list(lexicon.characters)
        self._piece_of_string = {string: piece for piece, string in enumerate(self._strings)}
        self._pairs_of_piece = [array("i") for _ in self._strings]
        self._words = [self._characters_of(word) for word in lexicon.words]
        self._word_counts = list(lexicon.words.values())
        counts = Counter()
        for word, count in zip(self._words, self._word_counts, strict=True):
            for piece in word:
                counts[piece] += count
        self._piece_count = np.array([counts[piece] for piece in range(len(self._strings))], np.int64)
        self._total = int(self._piece_count.sum())

        self._num_pairs = 0
        self._pair_of_key: dict[int, int] = {}
        self._words_of_pair: list[list[int]] = []
        self._left = np.zeros(self._BLOCK, np.int32)
        self._right = np.zeros(self._BLOCK, np.int32)
        self._pair_count = np.zeros(self._BLOCK, np.int64)
        self._score = np.full(self._BLOCK, -np.inf)
        self._bound_of_block = np.full(1, -np.inf)

        changes: dict[int, int] = defaultdict(int)
        for index, (word, count) in enumerate(zip(self._words, self._word_counts, strict=True)):
            for key in _keys_of_pairs(word):
                changes[key] += count
                self._words_of_pair[self._pair(key)].append(index)
        self._change_pair_counts(changes)
        self._rescore(np.arange(self._num_pairs))

    def best_pair(self) -> int | None:
        """The pair to merge next, or None if there is no pair that was seen often enough."""
        while (best := self._bound_of_block.max()) > -np.inf:
            blocks = np.flatnonzero(self._bound_of_block == best)
            scores = self._score.reshape(-1, self._BLOCK)[blocks]
            rows, columns = np.nonzero(scores == best)
            candidates = blocks[rows] * self._BLOCK + columns
            self._score[candidates] = self._scores(candidates)
            self._bound_of_block[blocks] = self._score.reshape(-1, self._BLOCK)[blocks].max(axis=1)
            equals = candidates[self._score[candidates] == best]
            if len(equals) > 0:
                return self._first_of_equals(equals)
        return None

    def gain_of(self, pair: int) -> float:
        return float(self._gains(np.array([pair]))[0])

    def merge(self, pair: int) -> tuple[str, set[str]]:
        """Makes one piece of the pair, wherever it stands. Returns that piece, and those of the pair now used up."""
        left, right = int(self._left[pair]), int(self._right[pair])
        string = self._union(pair)
        union = self._piece(string)
        changes: dict[int, int] = defaultdict(int)
        merges = 0
        # A word may be listed twice, or have lost the pair to another merge: then there is nothing to do in it.
        for index in self._words_of_pair[pair]:
            old = self._words[index]
            new = _merged(old, left, right, union)
            if len(new) == len(old):
                continue
            self._words[index] = new
            count = self._word_counts[index]
            merges += count * (len(old) - len(new))
            for key in _keys_of_pairs(old):
                changes[key] -= count
            for key in _keys_of_pairs(new):
                changes[key] += count
                if key >> 32 == union or key & 0xFFFFFFFF == union:
                    self._words_of_pair[self._pair(key)].append(index)
        self._piece_count[left] -= merges
        self._piece_count[right] -= merges
        self._piece_count[union] += merges
        self._total -= merges
        self._change_pair_counts(changes)
        self._rescore(np.concatenate([self._living_pairs(piece) for piece in {left, right, union}]))
        return string, {self._strings[piece] for piece in (left, right) if self._piece_count[piece] == 0}

    def _scores(self, pairs: np.ndarray) -> np.ndarray:
        counts = self._pair_count[pairs]
        if self._by_ratio:
            lefts, rights = self._piece_count[self._left[pairs]], self._piece_count[self._right[pairs]]
            scores = counts / (lefts.astype(np.float64) * rights)
        else:
            scores = self._gains(pairs)
        return np.where(counts >= self._min_pair_count, scores, -np.inf)

    def _gains(self, pairs: np.ndarray) -> np.ndarray:
        left, right = self._left[pairs], self._right[pairs]
        counts = self._pair_count[pairs], self._piece_count[left], self._piece_count[right]
        return likelihood_gain(*counts, left == right, self._total)

    def _rescore(self, pairs: np.ndarray):
        scores = self._score[pairs] = self._scores(pairs)
        np.maximum.at(self._bound_of_block, pairs // self._BLOCK, scores)

    def _first_of_equals(self, pairs: np.ndarray) -> int:
        if len(pairs) == 1:
            return int(pairs[0])
        counts = self._pair_count[pairs]
        most_frequent = pairs[counts == counts.max()].tolist()
        return min(most_frequent, key=lambda pair: (self._union(pair), self._strings[self._left[pair]]))

    def _union(self, pair: int) -> str:
        return self._strings[self._left[pair]] + self._strings[self._right[pair]].removeprefix(CONTINUATION)

    def _characters_of(self, word: str) -> list[int]:
        return [self._piece_of_string[char if i == 0 else CONTINUATION + char] for i, char in enumerate(word)]

    def _piece(self, string: str) -> int:
        """The number of a piece, which is made if there is none."""
        piece = self._piece_of_string.setdefault(string, len(self._strings))
        if piece == len(self._strings):
            self._strings.append(string)
            self._pairs_of_piece.append(array("i"))
            if piece == len(self._piece_count):
                self._piece_count = np.concatenate([self._piece_count, np.zeros_like(self._piece_count)])
        return piece

    def _pair(self, key: int) -> int:
        """The number of a pair, which is made if there is none."""
        pair = self._pair_of_key.setdefault(key, self._num_pairs)
        if pair == self._num_pairs:
            self._num_pairs += 1
            if pair == len(self._left):
                self._double_room_for_pairs()
            self._left[pair], self._right[pair] = left, right = key >> 32, key & 0xFFFFFFFF
            self._words_of_pair.append([])
            for piece in {left, right}:
                self._pairs_of_piece[piece].append(pair)
        return pair

    def _double_room_for_pairs(self):
        def doubled(values, filler):
            return np.concatenate([values, np.full_like(values, filler)])

        self._left, self._right = doubled(self._left, 0), doubled(self._right, 0)
        self._pair_count = doubled(self._pair_count, 0)
        self._score, self._bound_of_block = doubled(self._score, -np.inf), doubled(self._bound_of_block, -np.inf)

    def _change_pair_counts(self, changes: Mapping[int, int]):
        pairs = np.fromiter(map(self._pair_of_key.__getitem__, changes), np.int64, len(changes))
        self._pair_count[pairs] += np.fromiter(changes.values(), np.int64, len(changes))
        # A pair that is gone gives up its number and its memory. Should it come back, it gets a new number.
        for pair in pairs[self._pair_count[pairs] == 0].tolist():
            del self._pair_of_key[int(self._left[pair]) << 32 | int(self._right[pair])]
            self._words_of_pair[pair] = ()
            self._score[pair] = -np.inf

    def _living_pairs(self, piece: int) -> np.ndarray:
        pairs = np.array(self._pairs_of_piece[piece], np.int64)
        living = pairs[self._pair_count[pairs] > 0]
        if 2 * len(living) < len(pairs):
            self._pairs_of_piece[piece] = array("i", living.tolist())
        return living


def _keys_of_pairs(word: list[int]) -> list[int]:
    """Neighbours in a word, each as one number. In a run of equal pieces, only pairs that do not overlap."""
    keys, previous = [], None
    for left, right in zip(word, word[1:], strict=False):
        key = left << 32 | right
        if left == right and key == previous:
            previous = None
            continue
        keys.append(key)
        previous = key
    return keys


def _merged(word: list[int], left: int, right: int, union: int) -> list[int]:
    """The word with each neighbouring (left, right) made one, from its start to its end."""
    result, i = [], 0
    while i < len(word):
        if word[i] == left and word[i + 1 : i + 2] == [right]:
            result.append(union)
            i += 2
        else:
            result.append(word[i])
            i += 1
    return result


# Writing


def write_vocab(path: str | Path, pieces: Sequence[str]):
    """Writes one piece a line. The file appears when it is complete: a reader never sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8", newline="\n")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
