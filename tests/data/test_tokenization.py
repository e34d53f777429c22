import gzip
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenization import FullTokenizer, load_vocab, split_words


@pytest.fixture(scope="module")
def vocab_file(golden):
    return golden / "vocab.txt"


def vocab_of(*tokens):
    return {token: index for index, token in enumerate(("[UNK]", *tokens))}


def test_tokens_of_the_original(golden, vocab_file):
    tokenizers = {"uncased": FullTokenizer(vocab_file), "cased": FullTokenizer(vocab_file, do_lower_case=False)}
    for line in (golden / "tokenization.jsonl").read_text(encoding="utf-8").strip().split("\n"):
        case = json.loads(line)
        for casing, tokenizer in tokenizers.items():
            assert tokenizer.tokenize(case["text"]) == case[casing], (casing, case["text"])


def test_tokens_of_the_original_in_380_languages(shared):
    vocab_file = shared / "datasets" / "vocab" / "bert-base-uncased-vocab.txt"
    tokenizers = {"uncased": FullTokenizer(vocab_file), "cased": FullTokenizer(vocab_file, do_lower_case=False)}
    with gzip.open(shared / "golden" / "extended" / "tokenization_udhr.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            for casing in tokenizers.keys() & case.keys():
                assert tokenizers[casing].tokenize(case["text"]) == case[casing], (casing, case["text"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\u200bb a\u00adb", ["ab", "ab"]),  # format characters vanish without a trace
        ("a\u2028b\tc\u00a0d\x0be", ["a", "b", "c", "de"]),
        ("Straße ½ ﬁ", ["straße", "½", "ﬁ"]),  # no case folding, no compatibility forms
        ("ΟΔΟΣ ΣΑΣ", ["οδος", "σας"]),
        ("İ", ["i"]),
        ("[MASK]", ["[", "mask", "]"]),
        ("漢字かな", ["漢", "字", "かな"]),
        ("한국어", [unicodedata.normalize("NFD", "한국어")]),
        ("don't—stop$", ["don", "'", "t", "—", "stop", "$"]),
    ],
)
def test_words(text, words):
    assert [word.text for word in split_words(text, do_lower_case=True, strip_accents=True)] == words


def test_accents_are_a_switch_of_their_own():
    vocab = vocab_of("café", "cafe", "Café", "Cafe")

    def tokens(**switches):
        return FullTokenizer(vocab=vocab, **switches).tokenize("Café")

    assert tokens() == ["cafe"]
    assert tokens(do_lower_case=False) == ["Café"]
    assert tokens(strip_accents=False) == ["café"]
    assert tokens(do_lower_case=False, strip_accents=True) == ["Cafe"]


def test_never_split_tokens_stay_whole_wherever_they_stand():
    vocab = vocab_of("[MASK]", "[unused1]", "[", "]", "mask", "the", ".", "un", "##used", "##1")
    text = "the [MASK]. the[MASK][unused1]"
    plain = FullTokenizer(vocab=vocab)
    assert plain.tokenize("[MASK]") == ["[", "mask", "]"]
    keeping = FullTokenizer(vocab=vocab, never_split=("[MASK]", "[unused1]"))
    assert keeping.tokenize(text) == ["the", "[MASK]", ".", "the", "[MASK]", "[unused1]"]
    for piece in keeping.tokenize_with_offsets(text):
        assert text[piece.start : piece.end] == piece.token
    with pytest.raises(ValueError, match=r"not in the vocabulary: \[X\]"):
        FullTokenizer(vocab=vocab, never_split=("[X]",))


def test_words_beyond_two_hundred_characters_are_unknown():
    tokenizer = FullTokenizer(vocab=vocab_of("a", "##a"))
    assert tokenizer.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]


def test_offsets_of_marks_ideographs_and_unknown_words():
    tokenizer = FullTokenizer(vocab=vocab_of("cafe", "##s", "漢", "naive"))
    text = "cafe\u0301s x\u200by 漢 nai\u0308\u200bve!"
    pieces = [(piece.token, text[piece.start : piece.end]) for piece in tokenizer.tokenize_with_offsets(text)]
    assert pieces == [
        ("cafe", "cafe\u0301"),
        ("##s", "s"),
        ("[UNK]", "x\u200by"),
        ("漢", "漢"),
        ("naive", "nai\u0308\u200bve"),
        ("[UNK]", "!"),
    ]


# Characters that make trouble, more often than chance would bring them.
TEXT = st.text(st.characters() | st.sampled_from("aAéÉ\u0301\u0308ΣσςİŞ\u200b\u00ad\u00a0\u2028漢한ﬁ½.,' \t\n\0\ufffd𝅥𝅭"))


def tokenizer_of_characters(text, do_lower_case, strip_accents):
    """A vocabulary of all single characters of the text, with which nothing hides in [UNK]."""
    chars = {char for word in split_words(text, do_lower_case, strip_accents) for char in word.text}
    vocab = vocab_of(*(prefix + char for char in sorted(chars) for prefix in ("", "##")))
    return FullTokenizer(vocab=vocab, do_lower_case=do_lower_case, strip_accents=strip_accents)


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@settings(derandomize=True, deadline=None, max_examples=250)
@given(text=TEXT)
def test_offsets_give_back_the_text_they_came_from(do_lower_case, strip_accents, text):
    tokenizer = tokenizer_of_characters(text, do_lower_case, strip_accents)
    pieces = tokenizer.tokenize_with_offsets(text)
    assert [piece.token for piece in pieces] == tokenizer.tokenize(text)
    for piece in pieces:
        source = text[piece.start : piece.end]
        made = "".join(word.text for word in split_words(source, do_lower_case, strip_accents))
        # A sigma knows that it ends a word only as long as it stands in one.
        assert piece.token.removeprefix("##").replace("ς", "σ") in made.replace("ς", "σ"), (piece, source)
    if not strip_accents:  # with accents off, marks may change places
        assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(text=TEXT)
def test_agrees_with_a_plain_reading_of_the_rules(text):
    """The original's steps one after the other over the whole text, without chunks, positions and caches."""
    for lower in (True, False):
        expected = []
        cleaned = ""
        for char in text:
            category = unicodedata.category(char)
            if char in "\t\n\r " or category == "Zs":
                cleaned += " "
            elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
                ideograph = any(
                    first <= ord(char) <= last
                    for first, last in ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF))
                    + ((0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F))
                )
                cleaned += f" {char} " if ideograph else char
        for token in cleaned.split():
            if lower:
                token = "".join(
                    c for c in unicodedata.normalize("NFD", token.lower()) if unicodedata.category(c) != "Mn"
                )
            for char in token:
                punctuation = unicodedata.category(char).startswith("P") or (char.isascii() and not char.isalnum())
                expected.append(f" {char} " if punctuation else char)
            expected.append(" ")
        words = [word.text for chunk in text.split(" ") for word in split_words(chunk, lower, lower)]
        assert words == "".join(expected).split()


@settings(derandomize=True, deadline=None, max_examples=300)
@given(data=st.binary(max_size=60))
def test_bytes_are_utf8_with_the_rest_left_out(vocab_file, data):
    tokenizer = FullTokenizer(vocab_file)
    assert tokenizer.tokenize(data) == tokenizer.tokenize(data.decode("utf-8", "ignore"))


def test_ids_and_tokens(vocab_file):
    tokenizer = FullTokenizer(vocab_file)
    ids = tokenizer.tokenize_to_ids("the lighthouse")
    assert tokenizer.convert_ids_to_tokens(ids) == tokenizer.tokenize("the lighthouse")
    assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize("the lighthouse")) == ids
    with pytest.raises(KeyError):
        tokenizer.convert_tokens_to_ids(["no such piece"])


def test_vocabulary_files(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[UNK]\r\n a \n\u2028b\n\nc".encode())
    assert load_vocab(path) == {"[UNK]": 0, "a": 1, "b": 2, "": 3, "c": 4}
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"vocab\.txt is empty"):
        load_vocab(path)
    with pytest.raises(FileNotFoundError, match=r"no vocabulary file .*none\.txt"):
        load_vocab(tmp_path / "none.txt")
    path.write_bytes(b"a\nb\n")
    with pytest.raises(ValueError, match=r"has no \[UNK\]"):
        FullTokenizer(path)


def test_lines_of_scripts_without_spaces_are_not_remembered(golden):
    tokenizer = FullTokenizer(golden / "vocab.txt")
    for number in range(100):
        tokenizer.tokenize("漢字" * 30 + str(number))
    assert len(tokenizer._ids_of_chunk) == len(tokenizer._pieces_of_chunk) == 0


def test_a_full_cache_changes_nothing(vocab_file, monkeypatch, golden):
    text = (golden / "sample_text.txt").read_text(encoding="utf-8")
    expected = FullTokenizer(vocab_file).tokenize(text)
    monkeypatch.setattr("data.tokenization._CACHE_SIZE", 3)
    assert FullTokenizer(vocab_file).tokenize(text) == expected
