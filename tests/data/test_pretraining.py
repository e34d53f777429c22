import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import plain_pretraining
from data import pretraining
from data.pretraining import Corpus, InstanceOptions, Pieces, create_instances
from data.tokenization import FullTokenizer, load_vocab

VOCAB = {
    token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "##d", "e"])
}
PIECES = Pieces.of(VOCAB)


def corpus_of(*documents):
    """Documents of sentences of ids."""
    corpus = Corpus(len(VOCAB))
    for document in documents:
        for sentence in document:
            corpus.add_sentence(sentence)
        corpus.end_document()
    return corpus


@settings(derandomize=True, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(0, 3000), count=st.integers(0, 40))
def test_draws_are_those_of_python(seed, size, count):
    ours, python = random.Random(seed), random.Random(seed)
    items, expected = list(range(size)), list(range(size))
    pretraining.shuffle(items, ours)
    python.shuffle(expected)
    assert items == expected
    python.shuffle(expected)
    assert pretraining.first_of_shuffled(items, max(count, 1), ours) == expected[: max(count, 1)]
    assert pretraining.randint(3, 3 + size, ours) == python.randint(3, 3 + size)
    assert ours.getstate() == python.getstate()


def test_documents_end_at_empty_lines_and_files_do_not_end_them(golden):
    tokenizer = FullTokenizer(golden / "vocab.txt")
    lines = [b"the\n", b"\xff\n", b"the the\n", b" \x1c\t\r\n", b"\n", b"the\n", "\u200b\n".encode(), b"the"]
    corpus = Corpus.from_lines(lines, tokenizer)
    assert corpus.num_documents == 3  # a line of bytes that are no UTF-8 is empty, and ends a document
    assert corpus.num_sentences == 4  # one of format characters only leaves nothing
    assert len(corpus.tokens) == 5


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    documents=st.lists(
        st.lists(st.lists(st.integers(5, 9), min_size=1, max_size=12), min_size=1, max_size=8), min_size=1, max_size=5
    ),
    seed=st.integers(0, 10**6),
    length=st.integers(5, 40),
    whole_word=st.booleans(),
)
def test_instances_are_whole(documents, seed, length, whole_word):
    options = InstanceOptions(
        max_seq_length=length,
        max_predictions_per_seq=min(length, 4),
        dupe_factor=2,
        do_whole_word_mask=whole_word,
        short_seq_prob=0.3,
    )
    instances = create_instances(corpus_of(*documents), PIECES, options, random.Random(seed))
    assert len(instances) >= 2 * len(documents)
    for instance in instances:
        tokens = list(instance.tokens)
        for position, label in zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True):
            tokens[position] = label  # the sequence before it was masked
        assert 5 <= len(tokens) <= length
        assert tokens[0] == PIECES.cls
        assert [i for i, token in enumerate(tokens) if token == PIECES.sep] == [instance.b_start - 1, len(tokens) - 1]
        assert instance.b_start >= 3
        assert len(tokens) - 1 > instance.b_start
        assert instance.masked_lm_positions == sorted(set(instance.masked_lm_positions))
        assert len(instance.masked_lm_positions) <= 4
        if not whole_word:
            wanted = min(4, max(1, round(len(tokens) * 0.15)))
            assert len(instance.masked_lm_positions) == min(wanted, len(tokens) - 3)


def test_one_document_of_one_sentence():
    """There is no other document to draw from: its own sentence is the random one, as in the original."""
    (instance,) = create_instances(
        corpus_of([[5, 6]]), PIECES, InstanceOptions(dupe_factor=1, short_seq_prob=0.0), random.Random(1)
    )
    assert instance.is_random_next
    assert len(instance.tokens) == 7


def test_dynamic_instances_are_made_once_and_not_masked():
    options = InstanceOptions(masking="dynamic", dupe_factor=10, short_seq_prob=0.0)
    instances = list(create_instances(corpus_of([[5, 6]], [[9]]), PIECES, options, random.Random(1)))
    assert len(instances) == 2
    assert all(PIECES.mask not in instance.tokens and not instance.masked_lm_ids for instance in instances)


def test_a_vocabulary_of_more_than_65536_pieces(golden):
    vocab = VOCAB | {f"w{i}": len(VOCAB) + i for i in range(70_000)}
    tokenizer = FullTokenizer(vocab=vocab)
    corpus = Corpus.from_lines(["w69999 w1", "w2"], tokenizer)
    options = InstanceOptions(masking="dynamic", short_seq_prob=0.0)
    instances = create_instances(corpus, Pieces.of(vocab), options, random.Random(1))
    assert any(vocab["w69999"] in instance.tokens for instance in instances)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 4}, "--max_seq_length must be at least 5, .* is 4"),
        ({"max_seq_length": 10, "max_predictions_per_seq": 11}, r"--max_predictions_per_seq .*\(10\), but is 11"),
        ({"dupe_factor": 0}, "--dupe_factor"),
        ({"masked_lm_prob": 1.5}, "--masked_lm_prob"),
        ({"masking": "none"}, "--masking"),
    ],
)
def test_wrong_options_name_the_flag(changes, message):
    with pytest.raises(ValueError, match=message):
        InstanceOptions(**changes)


def test_a_vocabulary_without_special_pieces():
    with pytest.raises(ValueError, match=r"no \[CLS\], \[SEP\], \[MASK\]"):
        Pieces.of({"a": 0})


WORDS = st.sampled_from(["the", "lamp", "Keeper", "qzx", "naïve", "don't", "漢字", "\u200b", "...", "ΟΔΟΣ", "", "\x1c"])
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=30)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(lines=TEXTS, seed=st.integers(0, 10**6), length=st.integers(8, 40), whole_word=st.booleans())
def test_any_text_gives_the_records_of_the_plain_rules(golden, lines, seed, length, whole_word):
    vocab = load_vocab(golden / "vocab.txt")
    options = InstanceOptions(
        max_seq_length=length, max_predictions_per_seq=4, dupe_factor=2, do_whole_word_mask=whole_word
    )
    text = [line.encode() for line in lines]
    expected = plain_pretraining.create_instances(text, vocab, options, random.Random(seed))
    corpus = Corpus.from_lines(text, FullTokenizer(vocab=vocab))
    found = list(create_instances(corpus, Pieces.of(vocab), options, random.Random(seed)))
    assert len(found) == len(expected)
    for instance, plain in zip(found, expected, strict=True):
        assert instance.tokens == [vocab[token] for token in plain.tokens]
        assert instance.b_start == plain.segment_ids.index(1)
        assert instance.is_random_next == plain.is_random_next
        assert instance.masked_lm_positions == plain.positions
        assert instance.masked_lm_ids == [vocab[token] for token in plain.labels]
