"""Documents into pairs of sentences with masked words, drawing the same random numbers as the original.

The same text, flags and seed give the same instances in the same order. What differs is the cost: a corpus is one flat
array of ids, a sentence is a range of it, and an instance is a few numbers in another array until it is written.
"""

import bisect
import dataclasses
import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data.tokenization import FullTokenizer, to_unicode, vocab_size

_LONGEST = (1 << 16) - 1  # of a sequence: a place in one fits into two bytes


@dataclasses.dataclass(frozen=True)
class InstanceOptions:
    """How instances are made. The names are those of the flags, and so are the defaults."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10  # passes over the corpus, each with other pairs and masks
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1  # of a document whose sequences aim at a shorter length
    do_whole_word_mask: bool = False
    masking: str = "static"  # "dynamic": store the pairs once, unmasked, and mask them while training

    def __post_init__(self):
        if self.max_seq_length < 5:
            raise ValueError(
                f"--max_seq_length must be at least 5, room for two tokens beside [CLS] and two [SEP], but is "
                f"{self.max_seq_length}."
            )
        if self.max_seq_length > _LONGEST:
            raise ValueError(f"--max_seq_length must be at most {_LONGEST}, but is {self.max_seq_length}.")
        if not 1 <= self.max_predictions_per_seq <= self.max_seq_length:
            raise ValueError(
                f"--max_predictions_per_seq must be between 1 and --max_seq_length ({self.max_seq_length}), but is "
                f"{self.max_predictions_per_seq}. About max_seq_length * masked_lm_prob is right."
            )
        if self.dupe_factor < 1:
            raise ValueError(f"--dupe_factor must be at least 1, but is {self.dupe_factor}.")
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"--{name} must be between 0 and 1, but is {getattr(self, name)}.")
        if self.masking not in ("static", "dynamic"):
            raise ValueError(f"--masking must be static or dynamic, but is {self.masking!r}.")


class Pieces(NamedTuple):
    """What instances need to know of a vocabulary."""

    cls: int
    sep: int
    mask: int
    random: list[int]  # what a masked word may be replaced by: every piece, special ones too, as in the original
    continues: bytes  # 1 at the ids of pieces that start with "##"

    @classmethod
    def of(cls, vocab: Mapping[str, int]) -> "Pieces":
        if missing := [token for token in ("[CLS]", "[SEP]", "[MASK]") if token not in vocab]:
            raise ValueError(f"The vocabulary has no {', '.join(missing)}: it is not one of a BERT model.")
        continues = bytearray(vocab_size(vocab))
        for token, index in vocab.items():
            continues[index] = token.startswith("##")
        return cls(vocab["[CLS]"], vocab["[SEP]"], vocab["[MASK]"], list(vocab.values()), bytes(continues))


class Instance(NamedTuple):
    """Two runs of sentences, [CLS] a [SEP] b [SEP], with some pieces masked."""

    tokens: Sequence[int]
    b_start: int  # where the second segment starts
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]


class Corpus:
    """Documents of sentences of ids, in three flat arrays."""

    def __init__(self, num_ids: int):
        self.tokens = _ids_array(num_ids)
        self.sentence_starts = array("Q", [0])  # into tokens; one more than there are sentences
        self.document_starts = array("Q", [0])  # into sentence_starts; one more than there are documents

    @classmethod
    def from_lines(cls, lines: Iterable[str | bytes], tokenizer: FullTokenizer) -> "Corpus":
        """Reads one sentence a line, with an empty line between documents."""
        corpus = cls(vocab_size(tokenizer.vocab))
        for line in lines:
            if line := to_unicode(line).strip():
                corpus.add_sentence(tokenizer.tokenize_to_ids(line))
            else:
                corpus.end_document()
        corpus.end_document()
        return corpus

    def add_sentence(self, ids: list[int]) -> None:
        if ids:
            self.tokens.extend(ids)
            self.sentence_starts.append(len(self.tokens))

    def end_document(self) -> None:
        """Closes the document, if it has any sentence."""
        if self.document_starts[-1] < len(self.sentence_starts) - 1:
            self.document_starts.append(len(self.sentence_starts) - 1)

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1


class InstanceBlock(NamedTuple):
    """Some instances, all of their numbers one behind the other; the other fields have one for each instance."""

    numbers: np.ndarray  # [N]
    b_starts: np.ndarray
    is_random_next: np.ndarray
    tokens: np.ndarray  # where the tokens of an instance begin in `numbers`: they end where its positions do
    positions: np.ndarray
    labels: np.ndarray
    ends: np.ndarray


class Instances:
    """Instances side by side in one array: two or four bytes a number instead of an object."""

    _HEADER = 3  # numbers before the tokens of an instance: how many they are, b_start, is_random_next
    _BLOCK = 1024

    def __init__(self, num_ids: int):
        self._numbers = _ids_array(num_ids)
        self._starts = array("q", [0])
        self._order = array("q")

    def append(self, instance: Instance) -> None:
        tokens, b_start, is_random_next, positions, labels = instance
        numbers = self._numbers
        numbers.extend((len(tokens), b_start, is_random_next))
        numbers.extend(tokens)
        numbers.extend(positions)
        numbers.extend(labels)
        self._order.append(len(self._order))
        self._starts.append(len(numbers))

    def shuffle(self, rng: random.Random) -> None:
        shuffle(self._order, rng)

    def __len__(self) -> int:
        return len(self._order)

    def blocks(self) -> Iterator[InstanceBlock]:
        """All instances in their order, so many at a time that what numpy does to a block costs each of them little."""
        order, all_starts = np.frombuffer(self._order, np.int64), np.frombuffer(self._starts, np.int64)
        stored = memoryview(self._numbers)
        for place in range(0, len(order), self._BLOCK):
            chosen = order[place : place + self._BLOCK]
            first, last = all_starts[chosen], all_starts[chosen + 1]
            joined = b"".join([stored[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)])
            numbers = np.frombuffer(joined, np.dtype(self._numbers.typecode))
            ends = np.cumsum(last - first)
            starts = ends - (last - first)
            tokens = starts + self._HEADER
            positions = tokens + numbers[starts]
            labels = (positions + ends) // 2  # there are as many of them as positions
            yield InstanceBlock(numbers, numbers[starts + 1], numbers[starts + 2], tokens, positions, labels, ends)

    def __iter__(self) -> Iterator[Instance]:
        for block in self.blocks():
            numbers, *parts = (field.tolist() for field in block)
            for b_start, is_random_next, tokens, positions, labels, end in zip(*parts, strict=True):
                yield Instance(
                    numbers[tokens:positions],
                    b_start,
                    bool(is_random_next),
                    numbers[positions:labels],
                    numbers[labels:end],
                )


def create_instances(
    corpus: Corpus, pieces: Pieces, options: InstanceOptions, rng: random.Random, on_document=lambda instances: None
) -> Instances:
    """Makes all instances of a corpus, in the order in which they are to be written.

    Args:
        corpus: the documents.
        pieces: the special pieces of the vocabulary.
        options: how to make them.
        rng: where every random choice comes from.
        on_document: called with the number of instances after each document of each pass, to show progress.
    """
    instances = Instances(len(pieces.continues))
    documents = list(range(corpus.num_documents))
    shuffle(documents, rng)
    for _ in range(1 if options.masking == "dynamic" else options.dupe_factor):
        for place in range(len(documents)):
            before = len(instances)
            for pair in _sentence_pairs(corpus, documents, place, options, rng):
                instances.append(_instance(corpus, pair, pieces, options, rng))
            on_document(len(instances) - before)
    instances.shuffle(rng)
    return instances


class _Pair(NamedTuple):
    """Two ranges of `corpus.tokens`."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    is_random_next: bool


def _sentence_pairs(
    corpus: Corpus, documents: list[int], place: int, options: InstanceOptions, rng: random.Random
) -> Iterator[_Pair]:
    """Cuts a document into pairs of about the target length, half of them with a second part from elsewhere."""
    starts = corpus.sentence_starts
    sentence, document_end = corpus.document_starts[documents[place]], corpus.document_starts[documents[place] + 1]
    max_tokens = options.max_seq_length - 3
    # Drawn once a document, not once a pair: a quirk of the original, kept because it decides every later draw.
    target = randint(2, max_tokens, rng) if rng.random() < options.short_seq_prob else max_tokens

    while sentence < document_end:
        # Sentences up to the target length or the end of the document, whichever comes first.
        chunk_end = min(bisect.bisect_left(starts, starts[sentence] + target, sentence + 1, document_end), document_end)
        a_end = sentence + (randint(1, chunk_end - sentence - 1, rng) if chunk_end - sentence >= 2 else 1)
        is_random_next = chunk_end - sentence == 1 or rng.random() < 0.5
        if is_random_next:
            b_first, b_end = _random_sentences(
                corpus, documents, place, target - (starts[a_end] - starts[sentence]), rng
            )
            next_sentence = a_end  # what was not used is put back
        else:
            b_first, b_end = a_end, chunk_end
            next_sentence = chunk_end
        yield _truncated(
            starts[sentence], starts[a_end], starts[b_first], starts[b_end], is_random_next, max_tokens, rng
        )
        sentence = next_sentence


def _random_sentences(
    corpus: Corpus, documents: list[int], place: int, target: int, rng: random.Random
) -> tuple[int, int]:
    """A run of sentences of the target length from another document: the first, and the one after the last."""
    # Ten tries for another document. With few documents all of them may hit this one; the pair still counts as
    # random, as in the original.
    for _ in range(10):
        other = randint(0, len(documents) - 1, rng)
        if other != place:
            break
    first, end = corpus.document_starts[documents[other]], corpus.document_starts[documents[other] + 1]
    start = first + randint(0, end - first - 1, rng)
    starts = corpus.sentence_starts
    return start, bisect.bisect_left(starts, starts[start] + max(target, 1), start + 1, end)


def _truncated(a_start, a_end, b_start, b_end, is_random_next: bool, max_tokens: int, rng: random.Random) -> _Pair:
    """Takes tokens off the longer side, at its front or its back at random, until the pair fits."""
    draw = rng.random
    length_a, length_b = a_end - a_start, b_end - b_start
    while length_a + length_b > max_tokens:
        from_front = draw() < 0.5
        if length_a > length_b:
            length_a -= 1
            a_start += from_front
        else:
            length_b -= 1
            b_start += from_front
    return _Pair(a_start, a_start + length_a, b_start, b_start + length_b, is_random_next)


def _instance(corpus: Corpus, pair: _Pair, pieces: Pieces, options: InstanceOptions, rng: random.Random) -> Instance:
    # Arrays all the way: a list would make a Python number of each id, and back.
    tokens = _ids_array(len(pieces.continues), (pieces.cls,))
    tokens += corpus.tokens[pair.a_start : pair.a_end]
    tokens.append(pieces.sep)
    tokens += corpus.tokens[pair.b_start : pair.b_end]
    tokens.append(pieces.sep)
    b_start = pair.a_end - pair.a_start + 2
    if options.masking == "dynamic":
        return Instance(tokens, b_start, pair.is_random_next, [], [])
    positions, labels = _mask(tokens, b_start, pieces, options, rng)
    return Instance(tokens, b_start, pair.is_random_next, positions, labels)


def _mask(tokens: array, b_start: int, pieces: Pieces, options: InstanceOptions, rng: random.Random):
    """Hides some of the tokens: 80% behind [MASK], 10% behind a random piece, 10% not at all.

    Returns the positions in rising order, and what stood there.
    """
    num_to_predict = min(options.max_predictions_per_seq, max(1, int(round(len(tokens) * options.masked_lm_prob))))
    candidates = list(range(1, len(tokens) - 1))
    del candidates[b_start - 2]  # the [SEP] between the two
    if options.do_whole_word_mask:
        chosen = _whole_words(_words(tokens, candidates, pieces.continues), num_to_predict, rng)
    else:
        chosen = first_of_shuffled(candidates, num_to_predict, rng)

    positions = sorted(chosen)
    labels = list(map(tokens.__getitem__, positions))
    draw = rng.random
    for position in chosen:  # in the order they were chosen, which is the order of the draws
        if draw() < 0.8:
            tokens[position] = pieces.mask
        elif draw() >= 0.5:
            tokens[position] = pieces.random[randint(0, len(pieces.random) - 1, rng)]
    return positions, labels


def _words(tokens: Sequence[int], candidates: list[int], continues: bytes) -> list[list[int]]:
    """Positions grouped into words.

    A quirk of the original stays: where the front of the second segment was cut inside a word, its first piece
    continues the last word of the first segment.
    """
    words: list[list[int]] = []
    for position in candidates:
        if words and continues[tokens[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def _whole_words(words: list[list[int]], num_to_predict: int, rng: random.Random) -> list[int]:
    """Positions of random words, as many as fit; a word too long for what is left is passed over."""
    shuffle(words, rng)
    positions: list[int] = []
    for word in words:
        if len(positions) >= num_to_predict:
            break
        if len(positions) + len(word) <= num_to_predict:
            positions += word
    return positions


def randint(first: int, last: int, rng: random.Random) -> int:
    """`rng.randint(first, last)`, without the layers around it."""
    count = last - first + 1
    bits = count.bit_length()
    value = rng.getrandbits(bits)
    while value >= count:
        value = rng.getrandbits(bits)
    return first + value


def shuffle(items, rng: random.Random) -> None:
    """`rng.shuffle(items)`, the same draws at three times the speed."""
    draw = rng.getrandbits
    for index, bits in _shuffle_steps(len(items)):
        other = draw(bits)
        while other > index:
            other = draw(bits)
        items[index], items[other] = items[other], items[index]


def first_of_shuffled(items: list, count: int, rng: random.Random) -> list:
    """`rng.shuffle(items); items[:count]`, the same draws; nothing is put into places that nobody looks at."""
    count = min(count, len(items))
    draw = rng.getrandbits
    for index, bits in _shuffle_steps(len(items), count):
        other = draw(bits)
        while other > index:
            other = draw(bits)
        items[other] = items[index]
    first = items[:count]
    shuffle(first, rng)
    return first


# (index, bits of a draw up to it), from the far end to the front.
_SHUFFLE_STEPS = [(index, (index + 1).bit_length()) for index in range(1023, 0, -1)]


def _shuffle_steps(length: int, last: int = 1) -> Iterable[tuple[int, int]]:
    """What a shuffle of so many items goes through, down to the index `last`."""
    if length <= 1024:
        return _SHUFFLE_STEPS[1024 - length : 1024 - last]
    return ((index, (index + 1).bit_length()) for index in range(length - 1, last - 1, -1))


def _ids_array(num_ids: int, values: Iterable[int] = ()) -> array:
    """An array of ids, and of lengths and positions: two bytes each where that is enough."""
    return array("H" if num_ids <= 1 << 16 else "I", values)
