import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.squad import Answer, Context, read_questions

WHITE_SPACE = " \t\r\n\u202f"

# What is written with or without spaces, accents in one character and in two, and spaces that part no words here.
TEXTS = st.text(
    st.sampled_from("aé\u0301漢字한국어ñßİ.,«()\U0001f600\u00a0\u200b\u3000\u2028\ufeff" + WHITE_SPACE), max_size=40
)


@given(TEXTS)
def test_words_and_their_characters(text):
    """As the original walks through a text, character by character."""
    words, starts, word_of_char, is_between = [], [], [], True
    for position, char in enumerate(text):
        if char in WHITE_SPACE:
            is_between = True
        elif is_between:
            words.append(char)
            starts.append(position)
            is_between = False
        else:
            words[-1] += char
        word_of_char.append(len(words) - 1)
    context = Context.of(text)
    assert list(context.words) == words
    assert list(context.word_starts) == starts
    assert [context.word_at(position) for position in range(len(text))] == word_of_char
    for first in range(len(words)):
        start, end = context.span(first, first)
        assert text[start:end] == words[first]
        start, end = context.span(first, len(words) - 1)
        assert text[start:end] == text[starts[first] :].rstrip(WHITE_SPACE)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes questions about one context, each given as (id, answers), and tells where."""
    path = tmp_path_factory.mktemp("squad") / "set.json"

    def write(context, *questions, **more):
        qas = [
            {"id": name, "question": "What?", "answers": [{"text": t, "answer_start": s} for t, s in answers]} | more
            for name, answers in questions
        ]
        path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}), encoding="utf-8")
        return path

    return write


@given(TEXTS.filter(lambda text: any(word.strip() for word in Context.of(text).words)), st.data())
def test_an_answer_of_whole_words_is_found(write, text, data):
    context = Context.of(text)
    first = data.draw(st.sampled_from([n for n, word in enumerate(context.words) if word.strip()]))
    last = data.draw(st.integers(first, len(context.words) - 1))
    start, end = context.span(first, last)
    [question] = read_questions(write(text, ("q", [(text[start:end], start)])), True, False)
    assert (question.start_word, question.end_word) == (first, last)
    assert question.answers == (Answer(text[start:end], start),)
    assert question.context.span(question.start_word, question.end_word) == (start, end)


def test_an_answer_within_words(write):
    [question] = read_questions(write("He lived (1895-1943).\tThen", ("q", [("1895", 10)])), True, False)
    assert (question.start_word, question.end_word) == (2, 2)
    [question] = read_questions(write("서울특별시는 대한민국의 수도이다.", ("q", [("대한민국", 7)])), True, False)
    assert question.context.words[question.start_word] == "대한민국의"


def test_the_golden_sets(golden):
    for version, count in (1, 20), (2, 26):
        for is_training in True, False:
            questions = read_questions(golden / f"squad_v{version}.json", is_training, version == 2)
            assert len(questions) == count
            assert {question.is_impossible for question in questions} == {False, version == 2}
            for question in questions:
                assert (question.start_word is None) == (question.is_impossible or not is_training)
                assert bool(question.answers) != question.is_impossible
                assert question.start_word is None or question.answers[0].text in " ".join(
                    question.context.words[question.start_word : question.end_word + 1]
                )
    assert len({id(question.context) for question in questions}) < len(questions)


def test_what_is_odd_is_counted_and_stops_nobody(write, caplog):
    path = write(
        "the old bridge",
        ("fine", [("old", 4)]),
        ("beside", [("old", 5)]),
        ("elsewhere", [("bridge", 0)]),
        ("behind", [("bridge", 9)]),
        ("far behind", [("old", 400)]),
        ("before", [("old", -4)]),
        ("nothing", [("  ", 3)]),
        ("two", [("the", 0), ("old", 4)]),
        ("three", [("the", 0), ("the", 0), ("the", 0)]),
    )
    questions = read_questions(path, True, False)
    assert [(q.id, q.start_word, q.end_word) for q in questions] == [
        ("fine", 1, 1),
        ("beside", 1, 1),
        ("two", 0, 0),
        ("three", 0, 0),
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 and all(line.startswith(str(path)) for line in lines)
    assert "'answer_start' is not quite right" in lines[0] and lines[0].endswith(": 1, e.g. 'beside'.")
    assert "questions left out" in lines[1] and lines[1].endswith(": 5, e.g. 'elsewhere'.")
    assert "with several answers" in lines[2] and lines[2].endswith(": 2, e.g. 'two'.")


def test_prediction_asks_nothing_of_answers(write, caplog):
    path = write("the old bridge", ("none", []), ("wrong", [("old", 400), ("x", -1)]))
    assert [question.start_word for question in read_questions(path, False, False)] == [None, None]
    content = json.loads(path.read_text())
    del content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    del content["data"][0]["paragraphs"][0]["qas"][1]["answers"][0]["answer_start"]
    path.write_text("\ufeff" + json.dumps(content), encoding="utf-8")
    assert [question.answers for question in read_questions(path, False, True)] == [
        (),
        (Answer("old", None), Answer("x", -1)),
    ]
    assert not caplog.records


def test_empty_texts(write, caplog):
    path = write(" \n\u202f", ("q", [("a", 0)]), ("r", []))
    assert [question.context.words for question in read_questions(path, False, False)] == [(), ()]
    assert "questions about an empty text: 2, e.g. 'q'." in caplog.text
    with pytest.raises(ValueError, match=f"There is no question to train on in {path}"):
        read_questions(path, True, False)


def test_impossible_questions(write):
    path = write("the old bridge", ("q", []), is_impossible=True)
    [question] = read_questions(path, True, True)
    assert question.is_impossible and question.start_word is None
    with pytest.raises(ValueError, match="'q' has no answer to train on.* set --version_2_with_negative"):
        read_questions(path, True, False)
    assert not read_questions(path, False, False)[0].is_impossible
    with pytest.raises(ValueError, match="'q' has no answer to train on.*\"is_impossible\": true"):
        read_questions(write("the old bridge", ("q", [])), True, True)


def test_files_of_another_shape(write, tmp_path):
    def complaint(change, is_training=True):
        path = write("the old bridge", ("q", [("old", 4)]), ("r", [("old", 4)]))
        content = json.loads(path.read_text())
        paragraph = content["data"][0]["paragraphs"][0]
        content = change(content, paragraph, paragraph["qas"][1]) or content
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ValueError) as error:
            read_questions(path, is_training, True)
        assert str(path) in str(error.value)
        return str(error.value)

    assert "is not JSON" in complaint(lambda whole, paragraph, question: "{")
    assert "has no 'data'. The shape is" in complaint(lambda whole, paragraph, question: {"version": "1.1"})
    assert "has no 'data'" in complaint(lambda whole, paragraph, question: "[]")
    assert "another kind" in complaint(lambda whole, paragraph, question: {"data": {}})
    assert "no question" in complaint(lambda whole, paragraph, question: {"data": []})
    for key in "context", "qas":
        assert f"article 0, paragraph 0 has no '{key}'" in complaint(
            lambda w, paragraph, q, key=key: paragraph.pop(key) and None
        )
    assert "question 1 has no 'id'" in complaint(lambda w, p, question: question.pop("id") and None)
    assert "question 'r' has no 'question'" in complaint(lambda w, p, question: question.pop("question") and None)
    assert "question 'r' has no answer" in complaint(lambda w, p, question: question.pop("answers") and None)
    assert "'answer_start'" in complaint(lambda w, p, question: question["answers"][0].pop("answer_start") and None)
    assert "has no 'text'" in complaint(lambda w, p, question: question["answers"][0].pop("text") and None)
    assert "'is_impossible' of another kind" in complaint(lambda w, p, question: question.update(is_impossible="no"))
    for is_training in True, False:
        assert "two questions have the id 'q'" in complaint(lambda w, p, q: q.update(id="q"), is_training)
    with pytest.raises(FileNotFoundError, match="There is no file of questions"):
        read_questions(tmp_path / "none.json", True, False)
