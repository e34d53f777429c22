"""The tokenizer in the graph against the one in Python, which tests of its own hold against the original."""

import gzip
import json
import re
import subprocess
import sys
import unicodedata
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data import graph_tokenization, unicode_tables
from data.graph_packing import SentencePacker
from data.graph_tokenization import SERVING_TEXT_OPS, GraphTokenizer
from data.sentence_features import SentenceEncoder, padded
from data.tokenization import (
    CJK_BLOCKS,
    FullTokenizer,
    is_deleted,
    is_ideograph,
    is_punctuation,
    is_white_space,
    split_words,
)

MODES = {"uncased": (True, True), "cased": (False, False), "lower": (True, False), "strip": (False, True)}
any_mode = pytest.mark.parametrize("mode", MODES)
quickly = settings(max_examples=40, derandomize=True, deadline=None, database=None)

CONTROLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Characters that the tokenizers treat in ways of their own, or that differ between Unicode's ways to lower-case.
NASTY = (
    "aZ .,'[]^ \t\n\r\0\x01\x7f\x85\xa0\xad\u2028\u2029\u200b\u200d\ufeff\ufffd\ufffe\uffff\U0010ffff\u3000"
    "\u00df\u00bd\u2126\u212a\u0130\u0131\u03a3\u03c3\u03c2\u03a3\u0391\u0345\u2160\u24d0\ufb01\uff21"
    "\u00e9\u0301\u0323\u0344\u034f\u1fef\u226e\u2260\u037e\uac01\ud7a3\u1100\u1161\u11a8"
    "\u4e00\uf900\ufa6e\U0002f800\U00030000\u0cc0\u0b48\u1b44\u302e\U0001d165\U0001d16d\U0001d15e\U0001d160\U00016ff0"
)
PLAIN = re.compile(f"[{graph_tokenization.PLAIN_WORD_CHARS}{graph_tokenization.PLAIN_WORD_ENDS}]")


@cache
def _all_chars() -> str:
    return "".join(char for char in map(chr, range(0x110000)) if unicodedata.category(char) not in ("Cn", "Co", "Cs"))


@cache
def _vocab_of_characters() -> dict[str, int]:
    """Every character, alone and as a later piece: what a normalization makes of a text shows in its ids."""
    pieces = [prefix + char for char in _all_chars() for prefix in ("", "##")]
    return {token: i for i, token in enumerate([*CONTROLS, *pieces])}


@cache
def _tokenizers(mode: str, never_split: tuple[str, ...] = ()):
    vocab = _vocab_of_characters()
    if never_split:  # a smaller one will do
        tokens = [token for token in vocab if token in CONTROLS or ord(token[-1]) < 0x400 or token[-1] == "一"]
        vocab = {token: i for i, token in enumerate(dict.fromkeys([*tokens, *never_split]))}
    lower, strip = MODES[mode]
    tokenizer = FullTokenizer(vocab=vocab, do_lower_case=lower, strip_accents=strip, never_split=never_split)
    return tokenizer, GraphTokenizer(tokenizer)


def _assert_agree(tokenizer, graph, texts):
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    ids_alone = graph.tokenize(tf.constant(texts, tf.string, [len(texts)])).to_list()
    ids, starts, ends = (x.to_list() for x in graph.tokenize_with_offsets(tf.constant(texts, tf.string, [len(texts)])))
    for i, text in enumerate(texts):
        expected = tokenizer.tokenize_to_ids(text)
        assert ids_alone[i] == expected, text
        assert ids[i] == expected, text
        pieces = tokenizer.tokenize_with_offsets(text)
        assert list(zip(starts[i], ends[i], strict=True)) == [(start, end) for _, start, end in pieces], text


@pytest.mark.parametrize("mode", ["uncased", "cased"])
def test_golden_texts_of_the_original(golden, mode):
    lower, strip = MODES[mode]
    tokenizer = FullTokenizer(golden / "vocab.txt", lower, strip)
    cases = [json.loads(line) for line in (golden / "tokenization.jsonl").open(encoding="utf-8")]
    texts = [case["text"] for case in cases]
    graph = GraphTokenizer(tokenizer)
    expected = [tokenizer.convert_tokens_to_ids(case[mode]) for case in cases]
    assert graph.tokenize(texts).to_list() == expected
    _assert_agree(tokenizer, graph, texts)


@pytest.mark.parametrize("mode", ["uncased", "cased"])
def test_declaration_of_human_rights_in_all_its_languages(shared, mode):
    lower, strip = MODES[mode]
    tokenizer = FullTokenizer(shared / "datasets" / "vocab" / "bert-base-uncased-vocab.txt", lower, strip)
    with gzip.open(shared / "golden" / "extended" / "tokenization_udhr.jsonl.gz", "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    expected = [tokenizer.convert_tokens_to_ids(case[mode]) for case in cases]
    graph = GraphTokenizer(tokenizer)
    assert graph.tokenize([case["text"] for case in cases]).to_list() == expected
    _assert_agree(tokenizer, graph, [case["text"] for case in cases])


def _words_in_python(text, mode):
    return [(word.starts[0], word.ends[-1]) for word in split_words(text, *MODES[mode])]


@any_mode
def test_finds_the_same_words_in_any_text(mode):
    _, graph = _tokenizers(mode)
    text = st.text() | st.text(st.sampled_from(NASTY))

    @quickly
    @given(st.lists(text, max_size=30))
    def agrees(texts):
        texts = [*texts, *SINGLE_CASES.values()]
        starts, ends = graph.split_words(tf.constant(texts, tf.string))
        assert starts.dtype == ends.dtype == tf.int32
        for text, of_text in zip(texts, zip(starts.to_list(), ends.to_list(), strict=True), strict=True):
            assert list(zip(*of_text, strict=True)) == _words_in_python(text, mode), text

    agrees()
    assert graph.split_words(tf.constant([], tf.string))[0].to_list() == []


@any_mode
def test_agrees_on_any_text(mode):
    plain_chars = [char for char in _all_chars() if PLAIN.match(char)]
    text = st.text() | st.text(st.sampled_from(NASTY)) | st.text(st.sampled_from(plain_chars))

    @quickly
    @given(st.lists(text, max_size=30))
    def agrees(texts):
        _assert_agree(*_tokenizers(mode), texts)

    agrees()


@pytest.mark.parametrize("never_split", [(), ("[MASK]", "a")], ids=["plain", "never_split"])
def test_agrees_on_any_bytes(never_split):
    cuts = [b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xbf"]
    whole = [b"a", b" ", b"\xc3\xa9", b"\xce\xa3", b"[MASK]", b"\xcc\x81", b"\0"]
    broken = st.lists(st.sampled_from(cuts + whole)).map(b"".join)

    @quickly
    @given(st.lists(st.binary() | broken, max_size=30))
    def agrees(texts):
        _assert_agree(*_tokenizers("uncased", never_split), texts)

    agrees()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["uncased", "cased"])
def test_agrees_on_every_character(mode):
    """Within a word and as one. Of code points that are no characters, each 61st."""
    others = [chr(code) for code in range(0, 0x110000, 61) if unicodedata.category(chr(code)) in ("Cn", "Co")]
    is_plain = {True: [], False: []}
    for char in [*_all_chars(), *others]:
        is_plain[bool(PLAIN.match(char))].append(f"a{char}b {char}")
    # Nothing looks across a space, so a text may as well have many. A line with plain ones only goes the fast way.
    lines = [" ".join(texts[i : i + 30]) for texts in is_plain.values() for i in range(0, len(texts), 30)]
    for first in range(0, len(lines), 512):
        _assert_agree(*_tokenizers(mode), lines[first : first + 512])


@any_mode
def test_agrees_beside_sigma(mode):
    """The characters of the first planes of alphabets, and all that a sigma's form may depend on."""
    chars = [char for char in _all_chars() if ord(char) < 0x600 or ord(char) in range(0x1E00, 0x2200)]
    forms = ["A{}\u03a3", "\u03a3{}", "A\u03a3{}", "A\u03a3{}A", "A{}\u03a3 {}A"]
    _assert_agree(*_tokenizers(mode), [form.format(char, char) for char in chars for form in forms])


SINGLE_CASES = {
    "final sigma": "ΑΣ ΣΑΣ Σ ΑΣ. ΑΣ.Α ΑΣ'Α 1Σ Α\u00adΣ\u00ad ΑΣ\u200bΑ ΑΣ一Α ΑΣ\u0301 ΑΣ\u0301Α ΣΣ ΑΣ\0 ΑΣ\u2028Α",
    "dotted I": "İstanbul I\u0307 İ",
    "Hangul": "한국어 각 갂 ᄒ\u1161ᆫ",
    "reordered marks": "\U0001d16d\U0001d165 a\U0001d16d\U0001d165\u0301\U0001d165b \u302e\u0301 a\u0301\u302e\u0323",
    "marks moved to the front": "\u0301\u0323\U0001d16d\u0e38a",
    "marks in front": "\u0301a \u0301 \u0301\u0301b !\u0301 一\u0301a a \u0301",
    "200 characters": "x" * 200 + " " + "é" * 200 + " " + "e\u0301" * 200,
    "201 characters": "x" * 201 + " " + "é" * 201 + "!" + "e\u0301" * 201 + " " + "\U00010400" * 201 + " ok",
    "199 and 201 of Hangul": "각" * 66 + " " + "각" * 67 + " " + "가" * 100 + " " + "가" * 101,
    "200 ideographs": "一" * 300 + "!" * 300,
    "deleted": "a\0b \ufffd c\u200bd \u00ad \ufeff",
    "separators": "a\u2028b\u2029c\u00a0d\u3000e\u1680f\x0bg\x0ch\x85i",
    "punctuation by decomposition": "a\u1fefb a\u226eb a\u037eb a\u2260b",
    "two letters": "Ǆ ǅ ﬁ ŉ ẖ ß ẞ",
    "empty": "",
    "spaces": " \t\n ",
}


@any_mode
def test_single_cases(mode):
    _assert_agree(*_tokenizers(mode), list(SINGLE_CASES.values()))
    for text in SINGLE_CASES.values():
        _assert_agree(*_tokenizers(mode), [text])


def test_single_cases_come_out_as_they_should():
    tokenizer, graph = _tokenizers("uncased")
    texts = ["ΑΣ", "ΑΣΑ", "\U0001d16d\U0001d165", "x" * 201, b"a\xffb\xe2\x82"]
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in graph.tokenize(texts).to_list()]
    assert tokens == [
        ["α", "##ς"],
        ["α", "##σ", "##α"],
        ["\U0001d165", "##\U0001d16d"],
        ["[UNK]"],
        ["a", "##b"],
    ]
    _, starts, ends = graph.tokenize_with_offsets(["é e\u0301\u200b\u0301x", "\U0001d16d\U0001d165"])
    assert starts.to_list() == [[0, 2, 6], [1, 0]]
    assert ends.to_list() == [[1, 6, 7], [2, 1]]


@any_mode
def test_empty_batch_and_empty_texts(mode):
    _, graph = _tokenizers(mode)
    for texts in ([], [""], ["", " ", "\0"]):
        for result in (
            graph.tokenize(tf.constant(texts, tf.string)),
            *graph.tokenize_with_offsets(tf.constant(texts, tf.string)),
        ):
            assert result.dtype == tf.int32
            assert result.to_list() == [[] for _ in texts]


@pytest.mark.parametrize(
    "never_split",
    [
        ("[MASK]",),
        ("[MASK]", "[MASK]s", "[MA"),
        ("aa", "a", "ba"),
        ("##a", "##", "é", "Σ", "ΑΣ", "一", "[UNK]"),
        ("a b", "a\tb"),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["uncased", "cased"])
def test_agrees_where_tokens_are_never_split(mode, never_split):
    part = st.sampled_from(
        [*never_split, *never_split, "[MASK]", "[MA", "SK]", *"ab #s\u03a3\u0391\u0301\u4e00\t\0\u00e9"]
    )
    texts = ["[MASK]", "x[MASK][MASK]s.[MA [MASK", "aaa baa", "a##ab ### \u03a3A\u03a3", "a b a\tb", ""]

    @settings(quickly, max_examples=10)
    @given(st.lists(st.lists(part, max_size=12).map("".join), max_size=20))
    def agrees(more_texts):
        _assert_agree(*_tokenizers(mode, never_split), texts + more_texts)

    agrees()


def test_agrees_with_any_vocabulary():
    letters = st.text(st.sampled_from("abc,é一#"), min_size=1, max_size=4)
    token = letters | letters.map("##".__add__) | st.sampled_from(["", "##", "#", "###", "a b", "[MASK]", "a\0", "\0"])
    vocabulary = st.lists(token, max_size=30).map(
        # As a file has it: a token may have several lines, of which the last counts.
        lambda tokens: {token: i for i, token in enumerate(["[UNK]", "a", *tokens])}
    )

    @quickly
    @given(
        vocabulary, st.lists(st.text(st.sampled_from("aaabbc,é一# \u0301\0"), max_size=30), min_size=20, max_size=20)
    )
    def agrees(vocab, texts):
        tokenizer = FullTokenizer(vocab=vocab, do_lower_case=False)
        _assert_agree(tokenizer, GraphTokenizer(tokenizer), texts)

    tf.config.run_functions_eagerly(True)  # tracing a graph for each vocabulary would take longer
    try:
        agrees()
    finally:
        tf.config.run_functions_eagerly(False)


def test_plain_characters_are_what_the_fast_way_takes_them_for():
    """Ends of words are that; no character of a word becomes more than three; none needs a look at its neighbours."""
    words, ends = (
        [char for char in map(chr, range(0x20000)) if re.match(f"[{chars}]", char)]
        for chars in (graph_tokenization.PLAIN_WORD_CHARS, graph_tokenization.PLAIN_WORD_ENDS)
    )
    assert all(is_white_space(char) or is_punctuation(char) or is_ideograph(char) for char in ends)
    assert not any(is_deleted(char) or is_white_space(char) or is_ideograph(char) for char in words)
    decomposed = [unicodedata.normalize("NFD", char.lower()) for char in words]
    assert max(sum(unicodedata.category(part) != "Mn" for part in form) for form in decomposed) == 3
    movable = [
        part
        for form in decomposed
        for part in form
        if unicodedata.combining(part) and unicodedata.category(part) != "Mn"
    ]
    assert not movable
    assert "\u03a3" not in words + ends


@pytest.mark.parametrize("mode", ["uncased", "cased"])
def test_plain_characters_agree(mode):
    """The fast way, alone and beside texts that cannot take it. (All of Hangul and the ideographs: the slow test.)"""
    chars = [char for char in map(chr, range(0x3400)) if PLAIN.match(char)] + ["一", "\u9fff", "가", "\ud7a3"]
    texts = [f"a{char}b {char} {char}{char.upper()}" for char in chars]
    _assert_agree(*_tokenizers(mode), texts)
    for place in range(3):
        _assert_agree(*_tokenizers(mode), texts[:place] + ["\u03a3\0"] + texts[place:3])


def test_tables_are_small():
    forms = unicode_tables.normal_forms(True, True)
    arrays = [*forms.entries, forms.pool, *unicode_tables.sigma_neighbours(), *unicode_tables.combining_classes()]
    assert sum(array.nbytes for array in arrays) < 500_000


def test_ideographs_without_a_name_are_ideographs(mode="uncased"):
    """The blocks have code points that Unicode has not assigned, which the original splits at all the same."""
    _assert_agree(*_tokenizers(mode), [f"a{chr(last)}b" for _, last in CJK_BLOCKS])


# Packing.

VOCAB = {token: i for i, token in enumerate([*CONTROLS, *"abcdefghij", *("##" + char for char in "abcdefghij")])}
SMALL = FullTokenizer(vocab=VOCAB)


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match="no pieces"):
        GraphTokenizer(FullTokenizer(vocab={"[UNK]": 0, "": 1}))
    with pytest.raises(ValueError, match="never_split"):
        GraphTokenizer(FullTokenizer(vocab={"[UNK]": 0, "x" * 201: 1}, never_split=("x" * 201,)))


# In pipelines and in files.

TEXTS = ["ab [MASK] cde", "a\u0301b\u0301", "", "J!ai \u03a3", "b" * 30]


class _Server(tf.Module):
    def __init__(self, tokenizer: GraphTokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.packer = SentencePacker(VOCAB, 16)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def serve(self, first, second):
        return self.packer(self.tokenizer.tokenize(first), self.tokenizer.tokenize(second)).batch


def test_works_in_a_dataset():
    graph, packer = GraphTokenizer(SMALL), SentencePacker(VOCAB, 16)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS * 3).batch(4)
    dataset = dataset.map(lambda texts: packer(graph.tokenize(texts)).batch, num_parallel_calls=2)
    assert all(spec.shape.as_list() == [None, 16] for spec in dataset.element_spec.values())
    rows = np.concatenate([batch["input_ids"] for batch in dataset])
    expected = padded([SentenceEncoder(SMALL, 16)(text)[0][0] for text in TEXTS * 3], 16)["input_ids"]
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("never_split", [(), ("[MASK]",)], ids=["plain", "never_split"])
def test_graph_has_only_ops_that_tf_serving_has(never_split):
    server = _Server(GraphTokenizer(FullTokenizer(vocab=VOCAB, never_split=never_split)))
    graph = server.serve.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    ops = {node.op for node in nodes}
    own_functions = {function.signature.name for function in graph.library.function}
    assert ops - set(dir(tf.raw_ops)) - own_functions == SERVING_TEXT_OPS
    assert not [op for op in ops if "PyFunc" in op or "Table" in op]


@pytest.mark.slow
def test_saved_model_runs_where_only_tensorflow_is(tmp_path):
    tokenizer = FullTokenizer(vocab=VOCAB, never_split=("[MASK]",))
    server = _Server(GraphTokenizer(tokenizer))
    tf.saved_model.save(server, str(tmp_path / "model"), signatures=server.serve)
    script = """
import json, sys
import tensorflow as tf
import tensorflow_text
model, texts = tf.saved_model.load(sys.argv[1]), json.loads(sys.argv[2])
packed = model.serve(tf.constant(texts), tf.constant(texts))
signature = model.signatures["serving_default"](first=tf.constant(texts), second=tf.constant(texts))
offsets = model.tokenizer.tokenize_with_offsets(tf.constant(texts))
print(json.dumps([packed["input_ids"].numpy().tolist(), signature["segment_ids"].numpy().tolist()]
                 + [x.to_list() for x in offsets]))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "model"), json.dumps(TEXTS)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    input_ids, segment_ids, ids, starts, ends = json.loads(result.stdout.splitlines()[-1])
    expected = padded([SentenceEncoder(tokenizer, 16)(text, text)[0][0] for text in TEXTS], 16)
    assert (input_ids, segment_ids) == (expected["input_ids"].tolist(), expected["segment_ids"].tolist())
    assert ids == [tokenizer.tokenize_to_ids(text) for text in TEXTS]
    pieces = [tokenizer.tokenize_with_offsets(text) for text in TEXTS]
    assert starts == [[piece.start for piece in row] for row in pieces]
    assert ends == [[piece.end for piece in row] for row in pieces]
