import pytest

from data.tokenization import load_vocab
from data.vocabulary_checks import add_tokens, casing_of_name, casing_of_vocab, check_casing, check_size

UNCASED = {"[UNK]": 0, "the": 1, "##s": 2}
CASED = {"[UNK]": 0, "The": 1, "the": 2}


@pytest.mark.parametrize(
    ("pieces", "vocab_size", "fits"), [(100, 100, True), (100, 99, False), (100, 128, True), (100, 300, False)]
)
def test_size(pieces, vocab_size, fits):
    vocab = {f"w{i}": i for i in range(pieces)}
    if fits:
        check_size(vocab, "vocab.txt", vocab_size)
    else:
        with pytest.raises(
            ValueError, match=rf"vocab\.txt has {pieces} pieces, but the model has vocab_size {vocab_size}"
        ):
            check_size(vocab, "vocab.txt", vocab_size)


SMALL = [
    f"uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
]


@pytest.mark.parametrize(
    ("names", "lower"),
    [
        (["uncased_L-24_H-1024_A-16", "multilingual_L-12_H-768_A-12", "chinese_L-12_H-768_A-12", *SMALL], True),
        (["wwm_uncased_L-24_H-1024_A-16", "bert-base-uncased", "google/bert_uncased_L-2_H-128_A-2"], True),
        (["bert-large-uncased-whole-word-masking", "bert-base-chinese"], True),
        (["cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12"], False),
        (["wwm_cased_L-24_H-1024_A-16", "bert-base-cased", "bert-base-multilingual-cased"], False),
        (["my-model", "showcased"], None),
    ],
)
def test_casing_of_all_released_names(names, lower):
    for name in names:
        assert casing_of_name(f"models/{name}/bert_model.ckpt") is lower, name
        if lower is not None:
            vocab = UNCASED if lower else CASED
            check_casing(lower, f"models/{name}", vocab, "vocab.txt")
            with pytest.raises(ValueError, match=f"use --do_lower_case={lower}"):
                check_casing(not lower, f"models/{name}", vocab, "vocab.txt")


def test_casing_of_a_vocabulary(caplog):
    assert casing_of_vocab(UNCASED) is True
    assert casing_of_vocab(CASED) is False
    assert casing_of_vocab({"[CLS]": 0, "漢": 1}) is None
    check_casing(False, "my-model", UNCASED, "v.txt")
    assert "the pieces of v.txt look otherwise" in caplog.text
    caplog.clear()
    check_casing(False, "my-model", {"漢": 0}, "v.txt")
    assert not caplog.text
    assert casing_of_name("exp/uncased_vs_cased/cased_L-12_H-768_A-12") is False


def test_casing_of_the_released_vocabularies(shared):
    directory = shared / "datasets" / "vocab"
    for name, lower in (("uncased", True), ("cased", False), ("multilingual-cased", False), ("chinese", True)):
        assert casing_of_vocab(load_vocab(directory / f"bert-base-{name}-vocab.txt")) is lower


def test_further_tokens_take_unused_slots_first():
    vocab = ["[PAD]", "[unused0]", "a", "[unused1]"]
    assert add_tokens(vocab, ["a", "x"]) == ["[PAD]", "x", "a", "[unused1]"]
    assert add_tokens(vocab, ["x", "y", "z"]) == ["[PAD]", "x", "a", "y", "z"]
    with pytest.raises(ValueError, match="Token 2, 'b c', is empty or has white space"):
        add_tokens(vocab, ["x", "b c"])
    with pytest.raises(ValueError, match="Given twice: x"):
        add_tokens(vocab, ["x", "x"])
