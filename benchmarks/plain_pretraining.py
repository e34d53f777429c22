"""Pre-training records by the plain rules: lists of strings, one random call at a time, a protobuf object a record.

This is how the original works and what it costs. It is here to be measured against, and as a second opinion: the fast
way in data/ must give the same records on any text.
"""

import collections
import random
import unicodedata
from collections.abc import Iterable, Iterator

from data.pretraining import InstanceOptions
from data.tokenization import CJK_BLOCKS, to_unicode


def tokenize(text: str, vocab: dict[str, int], do_lower_case: bool = True) -> list[str]:
    """Every step over the whole text, nothing remembered."""
    pieces = []
    for word in _words(text, do_lower_case):
        pieces.extend(_pieces(word, vocab))
    return pieces


def _words(text: str, do_lower_case: bool) -> list[str]:
    cleaned = []
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned.append(" ")
        elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
            is_ideograph = any(first <= ord(char) <= last for first, last in CJK_BLOCKS)
            cleaned.append(f" {char} " if is_ideograph else char)
    split = []
    for token in "".join(cleaned).split():
        if do_lower_case:
            decomposed = unicodedata.normalize("NFD", token.lower())
            token = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        for char in token:
            is_symbol = char.isascii() and not char.isalnum()
            split.append(f" {char} " if is_symbol or unicodedata.category(char).startswith("P") else char)
        split.append(" ")
    return "".join(split).split()


def _pieces(word: str, vocab: dict[str, int]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start:
            piece = ("##" if start else "") + "".join(word[start:end])
            if piece in vocab:
                break
            end -= 1
        if end == start:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


Instance = collections.namedtuple("Instance", "tokens segment_ids is_random_next positions labels")


def create_instances(
    lines: Iterable[bytes], vocab: dict[str, int], options: InstanceOptions, rng: random.Random
) -> list[Instance]:
    documents: list[list[list[str]]] = [[]]
    for line in lines:
        line = to_unicode(line).strip()
        if not line:
            documents.append([])
        if tokens := tokenize(line, vocab):
            documents[-1].append(tokens)
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    words = list(vocab)
    instances = []
    for _ in range(options.dupe_factor):
        for index in range(len(documents)):
            for a, b, is_random_next in _pairs(documents, index, options, rng):
                tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
                segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
                masked, positions, labels = _mask(tokens, words, options, rng)
                instances.append(Instance(masked, segment_ids, is_random_next, positions, labels))
    rng.shuffle(instances)
    return instances


def _pairs(documents, index: int, options: InstanceOptions, rng: random.Random) -> Iterator:
    document, max_tokens = documents[index], options.max_seq_length - 3
    target = max_tokens
    if rng.random() < options.short_seq_prob:
        target = rng.randint(2, max_tokens)
    chunk, i = [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            b = []
            if is_random_next:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(a) + len(b) > max_tokens:
                longer = a if len(a) > len(b) else b
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            yield a, b, is_random_next
            chunk = []
        i += 1


def _mask(tokens: list[str], words: list[str], options: InstanceOptions, rng: random.Random):
    candidates = []
    for i, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if options.do_whole_word_mask and candidates and token.startswith("##"):
            candidates[-1].append(i)
        else:
            candidates.append([i])
    rng.shuffle(candidates)
    wanted = min(options.max_predictions_per_seq, max(1, int(round(len(tokens) * options.masked_lm_prob))))
    masked, positions = list(tokens), []
    for word in candidates:
        if len(positions) >= wanted:
            break
        if len(positions) + len(word) > wanted:
            continue
        for i in word:
            if rng.random() < 0.8:
                masked[i] = "[MASK]"
            elif rng.random() >= 0.5:
                masked[i] = words[rng.randint(0, len(words) - 1)]
            positions.append(i)
    positions.sort()
    return masked, positions, [tokens[i] for i in positions]


def serialize(instance: Instance, vocab: dict[str, int], options: InstanceOptions) -> bytes:
    """By way of a protobuf object."""
    import tensorflow as tf

    def numbers(values, length):
        padded = list(values) + [0] * (length - len(values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=padded))

    length, predictions = options.max_seq_length, options.max_predictions_per_seq
    weights = [1.0] * len(instance.positions) + [0.0] * (predictions - len(instance.positions))
    features = {
        "input_ids": numbers([vocab[token] for token in instance.tokens], length),
        "input_mask": numbers([1] * len(instance.tokens), length),
        "segment_ids": numbers(instance.segment_ids, length),
        "masked_lm_positions": numbers(instance.positions, predictions),
        "masked_lm_ids": numbers([vocab[token] for token in instance.labels], predictions),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        "next_sentence_labels": numbers([int(instance.is_random_next)], 1),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
