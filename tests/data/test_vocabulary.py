"""The learners against hand-made numbers and a slow learner that counts everything anew before each merge."""

import gzip
import math
import os
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import vocabulary, word_counts
from data.tokenization import UNKNOWN_TOKEN, FullTokenizer, load_vocab, split_words
from data.vocabulary import learn_tensorflow_text, learn_wordpiece, likelihood_gain, make_lexicon

RESERVED = vocabulary.reserved_tokens()


def learned(word_counts, num_merges, **options):
    """The first longer pieces of a vocabulary learned without limits."""
    lexicon = make_lexicon(word_counts)
    size = len(RESERVED) + len(lexicon.characters) + num_merges
    return learn_wordpiece(lexicon, size, RESERVED, min_pair_count=1, **options)[size - num_merges :]


# Counting


def count_simply(paths, do_lower_case=True, strip_accents=True):
    counts = Counter()
    for path in paths:
        for line in path.read_bytes().decode("utf-8", "ignore").split("\n"):
            counts.update(word.text for word in split_words(line, do_lower_case, strip_accents))
    return counts


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.text(st.characters(codec="utf-8"), max_size=12)), span_bytes=st.integers(1, 40))
def test_counts_are_those_of_the_tokenizers_words_however_files_are_cut(tmp_path_factory, lines, span_bytes):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes("\n".join(lines).encode())
    zipped = path.with_suffix(".gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    with (
        mock.patch.object(word_counts, "_SPAN_BYTES", span_bytes),
        mock.patch.object(word_counts, "_GZIP_BLOCK_LINES", span_bytes),
    ):
        assert word_counts.count_words([path], True, True) == count_simply([path])
        assert word_counts.count_words([zipped], True, True) == count_simply([path])


def test_counts_do_not_depend_on_the_number_of_processes(golden, monkeypatch):
    path = golden / "sample_text.txt"
    monkeypatch.setattr(word_counts, "_SPAN_BYTES", 500)
    assert word_counts.count_words([path], True, True, num_workers=2) == count_simply([path])


def test_bytes_that_are_not_utf8_are_left_out(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"caf\xff\xc3 tea\xc3\n\x80\xe2\x82 tea")
    assert word_counts.count_words([path], True, True) == {"caf": 1, "tea": 2}


@pytest.mark.parametrize(
    ("do_lower_case", "strip_accents", "words"),
    [
        (True, True, {"cafe": 2}),
        (True, False, {"café": 2}),
        (False, True, {"Cafe": 1, "cafe": 1}),
        (False, False, {"Café": 1, "café": 1}),
    ],
)
def test_casing_and_accents(tmp_path, do_lower_case, strip_accents, words):
    path = tmp_path / "text.txt"
    path.write_text("Café café")
    assert word_counts.count_words([path], do_lower_case, strip_accents) == words


# Alphabet


def test_a_character_is_a_piece_in_the_forms_it_was_seen_in():
    lexicon = make_lexicon({"ab": 2, "b": 1, ",": 5, "中": 1})
    assert lexicon.characters == [",", "a", "b", "中", "##b"]
    assert lexicon.words == {",": 5, "ab": 2, "b": 1, "中": 1}


def test_rare_characters_go_and_words_that_have_them_go_along():
    counts = {"aa": 5, "ab": 4, "bc": 3, "x": 1}
    assert make_lexicon(counts, max_alphabet=2) == ({"aa": 5, "ab": 4}, ["a", "##a", "##b"])


def test_rare_words_are_not_learned_from_but_can_be_tokenized():
    lexicon = make_lexicon({"ab": 2, "ba": 1, "'": 1}, min_count=2)
    assert lexicon == ({"ab": 2}, ["'", "a", "b", "##a", "##b"])


def test_equally_frequent_characters_are_kept_in_order_of_strings():
    assert make_lexicon({"c": 1, "b": 1, "a": 1}, max_alphabet=2).characters == ["a", "b"]


def test_words_the_tokenizer_gives_up_on_are_not_learned_from():
    assert make_lexicon({"a" * 201: 9, "b": 1}) == ({"b": 1}, ["b"])


# Merges

# Pieces: a 5, d 1, ##b 5, ##c 1, 12 in all. Pairs: a ##b 4, a ##c 1, d ##b 1.
HAND_MADE = {"ab": 4, "ac": 1, "db": 1}


def test_likelihood_gain_by_hand():
    # h(4) + h(12) - h(8) + 2 (h(1) - h(5)) and h(1) + h(12) - h(11) + h(4) - h(5) + h(0) - h(1)
    expected = [
        4 * math.log(4) + 12 * math.log(12) - 8 * math.log(8) - 2 * 5 * math.log(5),
        12 * math.log(12) - 11 * math.log(11) + 4 * math.log(4) - 5 * math.log(5),
    ]
    counts = np.array([4, 1]), np.array([5, 5]), np.array([5, 1])
    np.testing.assert_allclose(likelihood_gain(*counts, np.array([False, False]), 12), expected, rtol=1e-12)
    np.testing.assert_allclose(expected, [2.634, 0.940], atol=1e-3)


def test_likelihood_merges_what_is_frequent_and_ratio_what_is_rare():
    # By likelihood 2.634 for ab, 0.940 for ac and db. By ratio 4/25 for ab, 1/5 for ac and db: the first in order.
    assert learned(HAND_MADE, 1, score="likelihood") == ["ab"]
    assert learned(HAND_MADE, 1, score="ratio") == ["ac"]


def test_a_minimum_count_keeps_the_ratio_from_rare_pairs():
    lexicon = make_lexicon(HAND_MADE)
    assert learn_wordpiece(lexicon, 100, RESERVED, score="ratio", min_pair_count=2)[-1] == "ab"


def test_equal_scores_go_to_the_higher_count_then_to_the_first_string():
    # zb: 2 / (2 * 4), cd: 1 / (2 * 2), the others less.
    counts = {"zb": 2, "xb": 2, "x": 2, "cd": 1, "c": 1, "yd": 1, "y": 3}
    assert learned(counts, 1, score="ratio") == ["zb"]
    for score in vocabulary.SCORES:
        assert learned({"cd": 3, "ab": 3}, 2, score=score) == ["ab", "cd"]


def test_minimum_gain_stops_the_learner():
    # xy gains h(104) - h(54) - h(50) = 72, and then ab h(54) - h(52) - h(2) = 8.6.
    counts = {"xy": 50, "ab": 2}
    assert learned(counts, 9, min_gain=73) == []
    assert learned(counts, 9, min_gain=10) == ["xy"]
    assert learned(counts, 9, min_gain=8) == ["xy", "ab"]


def test_a_piece_that_is_used_up_gives_its_place_to_another():
    # Merges are "##bc", then "abc", which leaves no "##bc", then "de".
    counts = {"abc": 10, "de": 2}
    assert learned(counts, 1) == ["##bc"]
    assert learned(counts, 2) == ["abc", "de"]
    assert learned(counts, 3) == ["##bc", "abc", "de"]


class SlowLearner:
    """WordPiece without any book-keeping."""

    def __init__(self, lexicon, score):
        self.words = {word: [char if i == 0 else "##" + char for i, char in enumerate(word)] for word in lexicon.words}
        self.counts = lexicon.words
        self.score = score

    def pieces(self):
        counts = Counter()
        for word, pieces in self.words.items():
            for piece in pieces:
                counts[piece] += self.counts[word]
        return counts

    def pairs(self):
        counts = Counter()
        for word, pieces in self.words.items():
            for pair in set(zip(pieces, pieces[1:], strict=False)):
                counts[pair] += (len(pieces) - len(self.merged(pieces, pair))) * self.counts[word]
        return counts

    @staticmethod
    def merged(pieces, pair):
        result = []
        for piece in pieces:
            if result and (result[-1], piece) == pair:
                result[-1] = pair[0] + pair[1][2:]
            else:
                result.append(piece)
        return result

    def log_likelihood(self):
        counts = self.pieces()
        return sum(count * math.log(count / counts.total()) for count in counts.values())

    def best(self):
        pieces = self.pieces()

        def key(item):
            (left, right), count = item
            if self.score == "ratio":
                score = count / (pieces[left] * pieces[right])
            else:
                # The formula of the learner, lest two ways of rounding break a tie in two ways. That it is the gain of
                # likelihood is another test.
                numbers = [np.array([number]) for number in (count, pieces[left], pieces[right], left == right)]
                score = float(likelihood_gain(*numbers, pieces.total())[0])
            return -score, -count, left + right[2:], left

        candidates = sorted(self.pairs().items(), key=key)
        return candidates[0][0] if candidates else None

    def merge(self, pair):
        self.words = {word: self.merged(pieces, pair) for word, pieces in self.words.items()}


word_counts_strategy = st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 20), min_size=1)


@settings(max_examples=150, deadline=None)
@given(word_counts=word_counts_strategy, score=st.sampled_from(vocabulary.SCORES), block=st.integers(1, 8))
def test_each_merge_is_the_best_one_under_the_counts_of_its_moment(word_counts, score, block):
    lexicon = make_lexicon(word_counts)
    with (
        mock.patch.object(vocabulary._TextOfPieces, "_BLOCK", block),
        np.errstate(all="raise"),
    ):
        slow, text = SlowLearner(lexicon, score), vocabulary._TextOfPieces(lexicon, score, min_pair_count=1)
        while (best := slow.best()) is not None:
            pair = text.best_pair()
            before = slow.log_likelihood()
            is_new_piece = text._union(pair) not in slow.pieces()
            gain = text.gain_of(pair)
            slow.merge(best)
            union, used_up = text.merge(pair)
            assert union == best[0] + best[1][2:]
            assert used_up == {piece for piece in best if piece not in slow.pieces()}
            if is_new_piece:
                assert gain == pytest.approx(slow.log_likelihood() - before, abs=1e-6)
        assert text.best_pair() is None


@settings(max_examples=40, deadline=None)
@given(word_counts=word_counts_strategy, score=st.sampled_from(vocabulary.SCORES), data=st.data())
def test_the_order_of_words_does_not_matter(word_counts, score, data):
    shuffled = dict(data.draw(st.permutations(list(word_counts.items()))))
    assert learned(word_counts, 20, score=score) == learned(shuffled, 20, score=score)


@settings(max_examples=60, deadline=None)
@given(word_counts=word_counts_strategy, vocab_size=st.integers(11, 60), score=st.sampled_from(vocabulary.SCORES))
def test_a_vocabulary_has_the_size_asked_for_unless_the_text_gives_out(word_counts, vocab_size, score):
    lexicon = make_lexicon(word_counts)
    options = {"score": score, "min_pair_count": 1, "min_gain": -math.inf}
    pieces = learn_wordpiece(lexicon, vocab_size, RESERVED, **options)
    everything = learn_wordpiece(lexicon, 10_000, RESERVED, **options)
    assert len(pieces) == len(set(pieces)) == min(vocab_size, len(everything))
    assert pieces[: len(RESERVED)] == RESERVED


def test_a_reserved_token_that_is_a_word_stays_where_it_is():
    assert learn_wordpiece(make_lexicon({"ab": 2}), 100, [*RESERVED, "ab"]) == [*RESERVED, "ab", "a", "##b"]


# The vocabulary at work


def tokens_of(text, pieces, **options):
    return FullTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, **options).tokenize(text)


def learn_from_text(text, tmp_path, do_lower_case=True, vocab_size=200, min_count=1, learn=learn_wordpiece):
    path = tmp_path / "text.txt"
    path.write_text(text)
    counts = word_counts.count_words([path], do_lower_case, do_lower_case)
    return learn(make_lexicon(counts, min_count), vocab_size, RESERVED)


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=30),
    do_lower_case=st.booleans(),
    min_count=st.integers(1, 2),
    max_alphabet=st.integers(1, 100),
)
def test_only_words_with_characters_left_out_are_unknown(words, do_lower_case, min_count, max_alphabet):
    text = " ".join(words)
    counts = Counter(word.text for word in split_words(text, do_lower_case, do_lower_case))
    lexicon = make_lexicon(counts, min_count, max_alphabet)
    if not lexicon.words:
        return
    pieces = learn_wordpiece(lexicon, 10_000, RESERVED)
    kept = {piece.removeprefix("##") if len(piece) > 1 else piece for piece in lexicon.characters}
    unknown = sum(count for word, count in counts.items() if not kept.issuperset(word))
    assert tokens_of(text, pieces, do_lower_case=do_lower_case).count(UNKNOWN_TOKEN) == unknown


@pytest.mark.parametrize("learn", [learn_wordpiece, learn_tensorflow_text])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_training_text_has_no_unknown_words(golden, tmp_path, learn, do_lower_case):
    text = (golden / "sample_text.txt").read_text()
    pieces = learn_from_text(text, tmp_path, do_lower_case, 300, learn=learn)
    tokens = tokens_of(text, pieces, do_lower_case=do_lower_case)
    assert UNKNOWN_TOKEN not in tokens
    assert any(piece[0].isupper() for piece in pieces if not piece.startswith("[")) == (not do_lower_case)
    assert "the" in tokens


def test_korean_is_learned_in_the_form_the_tokenizer_sees(tmp_path):
    text = "한국어 한국 한국어를 " * 3
    uncased = learn_from_text(text, tmp_path)
    assert "한국" not in uncased
    assert "\u1112\u1161\u11ab\u1100\u116e\u11a8" in uncased  # 한국 in Jamo
    assert UNKNOWN_TOKEN not in tokens_of(text, uncased)
    cased = learn_from_text(text, tmp_path, do_lower_case=False)
    assert "한국" in cased
    assert UNKNOWN_TOKEN not in tokens_of(text, cased, do_lower_case=False)


def test_ideographs_are_pieces_of_their_own(tmp_path):
    pieces = learn_from_text("中国中 国", tmp_path)
    assert pieces == [*RESERVED, "中", "国"]


def test_tensorflow_text_never_gives_more_than_asked_for(golden, tmp_path):
    text = (golden / "sample_text.txt").read_text()
    for size in (100, 150, 500):
        pieces = learn_from_text(text, tmp_path, vocab_size=size, learn=learn_tensorflow_text)
        assert pieces[: len(RESERVED)] == RESERVED
        assert 0.7 * size < len(pieces) == len(set(pieces)) <= size


# What goes wrong


@pytest.mark.parametrize("learn", [learn_wordpiece, learn_tensorflow_text])
def test_errors_of_learning(learn):
    with pytest.raises(ValueError, match="vocab_size=6 is too small: 5 reserved tokens and 2 .* need 7. Raise"):
        learn(make_lexicon({"ab": 2}), 6, RESERVED)
    with pytest.raises(ValueError, match="no words to learn from.*lower min_count"):
        learn(make_lexicon({"ab": 2}, min_count=3), 100, RESERVED)


@pytest.mark.parametrize(
    ("special_tokens", "message"),
    [
        (["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"], "has to begin with \\[PAD\\]"),
        (["[PAD]", "[UNK]"], "lacks \\[CLS\\], \\[SEP\\], \\[MASK\\]"),
        ([*RESERVED, "[SEP]"], "has \\[SEP\\] more than once"),
        ([*RESERVED, "[unused0]"], "has \\[unused0\\] more than once"),
        ([*RESERVED, "a b"], "has \\['a b'\\]: .* no white space"),
        ([*RESERVED, ""], "has \\[''\\]: a token is not empty"),
    ],
)
def test_errors_of_special_tokens(special_tokens, message):
    with pytest.raises(ValueError, match=message):
        vocabulary.reserved_tokens(special_tokens, num_unused=1)


def test_an_unknown_score_is_named():
    with pytest.raises(ValueError, match="score='entropy' is none of likelihood, ratio"):
        learned(HAND_MADE, 1, score="entropy")


# Writing


def test_a_vocabulary_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "made" / "vocab.txt"
    pieces = [*RESERVED, "a", "##é", "中"]
    vocabulary.write_vocab(path, pieces)
    assert load_vocab(path) == {piece: i for i, piece in enumerate(pieces)}


def test_a_vocabulary_that_was_not_written_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "vocab.txt"
    path.write_text("old\n")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        vocabulary.write_vocab(path, ["new"])
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["vocab.txt"]
