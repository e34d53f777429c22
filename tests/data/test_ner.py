import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.ner import Entity, TaggedText, decode, read_tagged, tags
from data.ner_features import entities_of, split_units, unit_tags, windows, words_of
from data.tokenization import FullTokenizer


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def spans(texts):
    return [[(text.text[slice(*text.characters(e))], e.type) for e in text.entities] for text in texts]


IOB2 = "-DOCSTART- -X- O\n\nMarta B-PER\nLund I-PER\nsaw O\nOslo B-LOC\nBergen B-LOC\n\nGo O\n"
IOB1 = IOB2.replace("Marta B-PER", "Marta I-PER").replace("Oslo B-LOC", "Oslo I-LOC")
BIOES = IOB2.replace("Lund I-PER", "Lund E-PER").replace("Oslo B-", "Oslo S-").replace("Bergen B-", "Bergen S-")


@pytest.mark.parametrize("content", [IOB2, IOB1, BIOES], ids=["iob2", "iob1", "bioes"])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_columns_in_every_scheme(tmp_path, content, separator):
    path = write(tmp_path / "a.conll", content.replace(" ", separator).replace("\n", "\r\n"))
    texts = read_tagged(path)
    assert spans(texts) == [[("Marta Lund", "PER"), ("Oslo", "LOC"), ("Bergen", "LOC")], []]
    assert [text.document for text in texts] == [1, 1]
    assert texts[0].text == "Marta Lund saw Oslo Bergen"


def test_any_column_and_none(tmp_path):
    path = write(tmp_path / "a.conll", "1 Marta NNP B-PER x\n2 ran VBD O y\n")
    [text] = read_tagged(path, word_column=1, tag_column=-2)
    assert spans([text]) == [[("Marta", "PER")]]
    [text] = read_tagged(path, word_column=1, tag_column=None)
    assert text.entities is None and text.text == "Marta ran"


def test_spans_in_json(tmp_path):
    rows = [{"id": "x", "text": "Das 👍 Büro in Köln", "entities": [{"start": 14, "end": 18, "type": "LOC"}]}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    [text] = read_tagged(path)
    assert text.id == "x" and spans([text]) == [[("Köln", "LOC")]]


def test_characters_of_klue(tmp_path):
    lines = [
        "## klue-ner-v1_0\t<경찰:OG>은 또",
        "경\tB-OG",
        "찰\tI-OG",
        "은\tO",
        " \tO",
        "또\tO",
        "",
        "## 둘",
        "김\tB-PS",
        "",
    ]
    texts = read_tagged(write(tmp_path / "a.tsv", "\n".join(lines)))
    assert [text.text for text in texts] == ["경찰은 또", "김"] and texts[0].id == "klue-ner-v1_0"
    assert spans(texts) == [[("경찰", "OG")], [("김", "PS")]]


@pytest.mark.parametrize(
    "name, content, options, message",
    [
        ("a.conll", "Marta\n", {}, "line 1: 'Marta' should be a word and its tag"),
        ("a.conll", "Marta PERSON\n", {}, "line 1: .* should be a word and its tag"),
        ("a.conll", "a O\nMarta I-PER\n", {"scheme": "iob2"}, "line 2: I-PER follows O, which IOB2 does not allow"),
        ("a.conll", "a B-PER\nb I-PER\n\nc O\nd I-LOC\n", {}, "line 5: I-LOC follows O, which IOB2 does not allow"),
        ("a.jsonl", '{"text": "ab", "entities": null}', {}, "should be a list"),
        ("a.conll", "a B-PER\nb O\nc S-PER\n", {}, "line 2: O follows B-PER, which has no end"),
        ("a.conll", "a O\n", {"word_column": 3}, "too few for --word_column=3"),
        ("a.jsonl", '{"text": "ab", "entities": [{"start": 1, "end": 3, "type": "X"}]}', {}, "not within the text"),
        ("a.jsonl", '{"text": "ab", "entities": [[0, 1]]}', {}, "should look like"),
        ("a.jsonl", '{"text": "ab"}', {}, 'no key "entities"'),
        ("a.jsonl", '{"text": " ", "entities": []}', {}, 'no text in the key "text"'),
        (
            "a.jsonl",
            '{"text": "abc", "entities": [{"start": 0, "end": 2, "type": "X"}, {"start": 1, "end": 3, "type": "Y"}]}',
            {},
            "overlap",
        ),
        ("a.tsv", "## x\n경찰\tO\n", {}, "line 2: .* should be a character"),
        ("a.conll", "\n\n", {}, "no text in"),
    ],
)
def test_mistakes_are_told_with_file_and_line(tmp_path, name, content, options, message):
    with pytest.raises(ValueError, match=message) as error:
        read_tagged(write(tmp_path / name, content), **options)
    assert name in str(error.value)


def test_what_a_model_says_may_break_the_scheme():
    assert decode(["I-A", "I-A", "B-A", "I-B", "O", "B-C"]) == [
        Entity(0, 2, "A"),
        Entity(2, 3, "A"),
        Entity(3, 4, "B"),
        Entity(5, 6, "C"),
    ]
    entities = [Entity(0, 2, "A"), Entity(2, 3, "A"), Entity(4, 6, "B")]
    assert decode(tags(entities, 7)) == entities


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(golden / "vocab.txt")


def test_words_have_their_tag_on_their_first_piece(tokenizer):
    text = TaggedText(
        "0", "beekeeper \u200b xylophone", ((0, 9), (10, 11), (12, 21)), (Entity(0, 1, "A"), Entity(2, 3, "B"))
    )
    units = split_units(text, tokenizer)
    assert len(units.units) == 3 and len(units.ids) > 3  # a word of a zero-width space is an unknown one
    assert unit_tags(units, text.entities) == ["B-A", "O", "B-B"]
    assert entities_of(units, ["B-A", "O", "B-B"]) == list(text.entities)


def test_pieces_have_the_tag_of_their_characters(shared):
    vocab = shared / "datasets" / "vocab" / "bert-base-multilingual-cased-vocab.txt"
    tokenizer = FullTokenizer(vocab, do_lower_case=False)
    text = TaggedText("0", "경찰은 서울에서", None, (Entity(0, 2, "OG"), Entity(4, 6, "LC")))
    units = split_units(text, tokenizer)
    assert entities_of(units, unit_tags(units, text.entities)) == list(text.entities)


@pytest.mark.parametrize("document_context", [False, True])
def test_each_unit_is_answered_for_once_and_with_room_around_it(tokenizer, document_context):
    words = [piece for piece in tokenizer.vocab if piece.isalpha()][:60]
    lengths, start, texts = [3, 57, 1, 20], 0, []
    for length in lengths:
        some = (words * 2)[start : start + length]
        start = (start + length) % 60
        ends = [sum(len(w) + 1 for w in some[: i + 1]) - 1 for i in range(length)]
        spans_of = tuple((end - len(word), end) for word, end in zip(some, ends, strict=True))
        texts.append(split_units(TaggedText("", " ".join(some), spans_of, ()), tokenizer))
    made = list(windows(texts, [0, 0, 0, 1], tokenizer, 22, document_context))
    answered = [(w.text, unit) for w in made for unit in w.units]
    assert sorted(answered) == [(t, unit) for t, length in enumerate(lengths) for unit in range(length)]
    for window in made:
        assert len(window.input_ids) <= 22
        for position, unit in zip(window.positions, window.units, strict=True):
            assert window.input_ids[position] == texts[window.text].ids[texts[window.text].units[unit]]
    first = next(window for window in made if window.text == 0)
    assert len(first.input_ids) == (22 if document_context else 5)
    last = next(window for window in made if window.text == 3)
    assert len(last.input_ids) == 22  # the other document is no part of it, and it fills its window by itself


@given(data=st.data())
def test_entities_survive_the_way_through_pieces(data, uncased):
    """Whatever a tokenizer makes of characters: one into several (Hangul), several into one (accents)."""
    text = data.draw(st.text(st.sampled_from("aé가각漢字 e\u0301"), min_size=1, max_size=12))
    units = split_units(TaggedText("", text, None, None), uncased)
    bounds = {start for start, _ in units.atoms} | {end for _, end in units.atoms}
    bounds = sorted(b for b in bounds if not any(start < b < end for start, end in units.atoms))
    entities = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        is_whole = any(start <= a < end for a, _ in units.atoms)
        if is_whole and data.draw(st.booleans()):
            entities.append(Entity(start, end, "X"))
    assert entities_of(units, unit_tags(units, entities)) == entities


@pytest.fixture(scope="module")
def uncased():
    jamo = [chr(code) for code in (0x1100, 0x1161, 0x11A8)]
    pieces = ["a", "e", "漢", "字", *jamo, *("##" + letter for letter in jamo), "##a", "##e"]
    return FullTokenizer(vocab={piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces])})


ALPHABET = "aé가각漢字👍🏽 \u00a0\u200b\t.,-'ßİ\u0301"


@given(st.text(st.sampled_from(ALPHABET), max_size=30))
def test_words_of_a_text_are_where_they_are_said_to_be(text):
    words = words_of(text)
    for (_, end), (start, _) in zip(words, words[1:], strict=False):
        assert end <= start
    assert all(0 <= start < end <= len(text) and text[start:end].strip() for start, end in words)
    covered = "".join(text[start:end] for start, end in words)
    assert set("가각漢字aéß") & set(text) <= set(covered)
