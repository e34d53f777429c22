import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.sentence_features import SentenceEncoder, _lengths
from data.tokenization import FullTokenizer


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(golden / "vocab.txt")


def padded(features, length):
    ids, second = features
    return {
        "input_ids": ids + [0] * (length - len(ids)),
        "input_mask": [1] * len(ids) + [0] * (length - len(ids)),
        "segment_ids": [0] * second + [1] * (len(ids) - second) + [0] * (length - len(ids)),
    }


def test_features_of_the_original(golden, tokenizer):
    lines = (golden / "classifier_features.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 20
    for line in map(json.loads, lines):
        encoder = SentenceEncoder(tokenizer, line["max_seq_length"])
        [features], _ = encoder(line["text_a"], line["text_b"])
        found = padded(features, line["max_seq_length"]) | {"label_id": line["label_list"].index(line["label"])}
        assert found == {name: line[name] for name in found}


@given(st.integers(0, 60), st.integers(1, 60), st.integers(2, 60))
def test_the_longer_text_gives_way(a, b, room):
    """Piece by piece, as the original did it, from the second where both are as long."""
    x, y = a, b
    while x + y > room:
        if x > y:
            x -= 1
        else:
            y -= 1
    if a + b > room:
        assert _lengths(a, b, room) == (x, y)


@pytest.fixture(scope="module")
def pieces(tokenizer):
    """A long text of which every piece is known."""
    words = [piece for piece in tokenizer.vocab if piece.isalpha()][:100]
    text = " ".join(words)
    assert len(tokenizer.tokenize_to_ids(text)) == 100
    return text, tokenizer.tokenize_to_ids(text)


def test_head_tail_and_both(tokenizer, pieces):
    text, ids = pieces
    for long_text, wanted in {"head": ids[:20], "tail": ids[-20:], "head_tail": ids[:5] + ids[-15:]}.items():
        [features], is_cut = SentenceEncoder(tokenizer, 22, long_text)(text)
        assert is_cut and features.input_ids[1:-1] == wanted
    [features], is_cut = SentenceEncoder(tokenizer, 102, "tail")(text)
    assert not is_cut and features.input_ids[1:-1] == ids


@pytest.mark.parametrize("length", [10, 33, 100, 101])
def test_windows_hold_everything(tokenizer, pieces, length):
    text, ids = pieces
    windows, is_cut = SentenceEncoder(tokenizer, length, "windows")(text)
    assert is_cut and all(len(w.input_ids) <= length for w in windows)
    seen = {piece for window in windows for piece in window.input_ids[1:-1]}
    assert seen == set(ids)
    starts = [ids.index(window.input_ids[1]) for window in windows]
    assert all(0 < b - a <= length - 2 for a, b in zip(starts, starts[1:], strict=False))


def test_windows_of_a_pair_keep_the_shorter_text(tokenizer, pieces):
    text, ids = pieces
    short = " ".join(text.split()[:4])
    for pair, which in (((text, short), 0), ((short, text), 1)):
        windows, _ = SentenceEncoder(tokenizer, 30, "windows")(*pair)
        parts = [(w.input_ids[1 : w.second_segment - 1], w.input_ids[w.second_segment : -1]) for w in windows]
        assert all(part[1 - which] == ids[:4] for part in parts)
        assert {piece for part in parts for piece in part[which]} == set(ids)


def test_hangul_is_whole_however_it_is_typed(shared):
    import unicodedata

    vocab = shared / "datasets" / "vocab" / "bert-base-multilingual-cased-vocab.txt"
    encoder = SentenceEncoder(FullTokenizer(vocab, do_lower_case=False), 64)
    [features], _ = encoder("아 더빙.. 진짜 짜증나네요 목소리")
    assert encoder.tokenizer.vocab["[UNK]"] not in features.input_ids
    decomposed, _ = encoder(unicodedata.normalize("NFD", "아 더빙.. 진짜"))
    assert len(decomposed[0].input_ids) > 2


def test_no_room_and_no_marks(tokenizer):
    with pytest.raises(ValueError, match="leaves no room"):
        SentenceEncoder(tokenizer, 2)("a")
    with pytest.raises(ValueError, match="not one of BERT's"):
        SentenceEncoder(FullTokenizer(vocab={"[UNK]": 0, "a": 1}), 8)
    assert np.array(SentenceEncoder(tokenizer, 8)("")[0][0].input_ids).tolist() == [2, 3]
