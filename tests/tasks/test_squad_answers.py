import gzip
import itertools
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenization import FullTokenizer, split_words
from tasks.squad_answers import (
    AnswerSettings,
    QuestionText,
    WindowText,
    answer,
    answers,
    at_threshold,
    write_answers,
)
from tasks.squad_logits import RawResults, average, load_raw, save_raw
from tasks.squad_text import final_text

VOCAB = Path(__file__).parents[1] / "testdata" / "golden" / "vocab.txt"
LENGTH = 24  # of the sequences made here
WORD = re.compile("[^ \t\r\n\u202f]+")

# What normalizing makes longer, shorter, or parts: accents, jamo, ideographs, deleted characters, odd spaces.
ODD_TEXT = st.text(alphabet="aeTh.,'é\u0301İßΣ中文각ㄱ\u200b\u00a0\ufffd\U0001f600 \t\n\u202f", max_size=30)


def golden_case(golden, name):
    """The original's features and flags as questions and settings."""
    content = json.loads((golden / f"{name}.json").read_text(encoding="utf-8"))
    texts = [
        (question["id"], paragraph["context"])
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    with gzip.open(golden / name / "predict_features.jsonl.gz", "rt", encoding="utf-8") as file:
        features = [json.loads(line) for line in file]
    windows = {number: [] for number in range(len(texts))}
    for feature in features:
        word_of = {int(token): word for token, word in feature["token_to_orig_map"].items()}
        start, end = min(word_of), max(word_of) + 1
        windows[feature["example_index"]].append(
            WindowText(
                feature["unique_id"],
                start,
                feature["tokens"][start:end],
                np.array([word_of[token] for token in range(start, end)]),
                np.array([feature["token_is_max_context"][str(token)] for token in range(start, end)]),
            )
        )
    flags = json.loads((golden / name / "flags.json").read_text())
    known = {field: flags[field] for field in AnswerSettings.__dataclass_fields__ if field in flags}
    questions = [question_of(context, windows[i], question_id) for i, (question_id, context) in enumerate(texts)]
    return questions, load_raw(golden / name / "logits.npz"), AnswerSettings(**known)


def question_of(context, windows, question_id="q"):
    words = list(WORD.finditer(context))
    return QuestionText(
        question_id, [word.group() for word in words], windows, context, [word.start() for word in words]
    )


def tokenized(context, do_lower_case=True, vocab=None):
    """The pieces of a context, and the word of each."""
    tokenizer = FullTokenizer(None if vocab else VOCAB, do_lower_case, vocab=vocab)
    pieces = [tokenizer.tokenize(word) for word in WORD.findall(context)]
    tokens = list(itertools.chain.from_iterable(pieces))
    return tokens, np.repeat(np.arange(len(pieces)), [len(word) for word in pieces])


def one_window(context, do_lower_case=True, vocab=None):
    tokens, word_indices = tokenized(context, do_lower_case, vocab)
    return question_of(context, [WindowText(0, 2, tokens, word_indices, np.ones(len(tokens), bool))])


def logits_at(*tokens, length=LENGTH):
    """A window that finds the first of the given tokens best, the next second, and so on."""
    logits = np.full([1, length], -10.0, np.float32)
    for place, token in enumerate(tokens):
        logits[0, token] = 10.0 - place
    return logits


def check_like(found, wanted):
    """Equal in order, keys and text, and nearly in numbers."""
    assert list(found) == list(wanted)
    for question_id, entries in wanted.items():
        assert len(found[question_id]) == len(entries)
        for entry, wanted_entry in zip(found[question_id], entries, strict=True):
            assert list(entry) == list(wanted_entry) and entry["text"] == wanted_entry["text"]
            for name in ("probability", "start_logit", "end_logit"):
                assert entry[name] == pytest.approx(wanted_entry[name], abs=1e-6)


@pytest.mark.parametrize("name", ["squad_v1", "squad_v2"])
def test_files_of_the_original(golden, tmp_path, name):
    write_answers(tmp_path, answers(*golden_case(golden, name)))
    assert (tmp_path / "predictions.json").read_bytes() == (golden / name / "predictions.json").read_bytes()
    nbest_file = "nbest_predictions.json"
    wanted = (golden / name / nbest_file).read_text()
    check_like(json.loads((tmp_path / nbest_file).read_text()), json.loads(wanted))
    assert (tmp_path / nbest_file).read_text().count("\n") == wanted.count("\n")
    if name == "squad_v2":
        wanted = json.loads((golden / name / "null_odds.json").read_text())
        assert json.loads((tmp_path / "null_odds.json").read_text()) == pytest.approx(wanted, abs=1e-6)
        assert "" in json.loads((tmp_path / "predictions.json").read_text()).values()
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"predictions.json", nbest_file} | ({"null_odds.json"} if name == "squad_v2" else set())


def test_offsets_of_the_golden_answers(golden):
    questions, raw, task_settings = golden_case(golden, "squad_v2")
    plain = answers(questions, raw, task_settings)
    found = answers(questions, raw, task_settings, with_offsets=True)
    assert found.predictions == plain.predictions
    for question in questions:
        for entry, without in zip(found.nbest[question.id], plain.nbest[question.id], strict=True):
            assert {name: entry[name] for name in without} == without
            assert entry["answer"] == question.context[entry["start"] : entry["end"]] == entry["text"]


def test_no_tensorflow_is_needed():
    code = "import sys, tasks.squad_answers, tasks.squad_scores; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("pieces", "text", "wanted"),
    [
        ("steve smith", "Steve Smith's", "Steve Smith"),
        ("1895 - 1943", "(1895-1943).", "1895-1943"),
        ("cafe", "Le Café.", "Café"),  # one character as it is, one without its accent
        ("cafe", "Le Cafe\u0301.", "Le Cafe\u0301."),  # two characters became one: nothing can be counted
        ("北 京", "在北京市。", "北京"),  # ideographs stand apart, but no space was in the text
        ("smith", "Mr.  Smith  Jr.", "Smith"),
        ("mr . smith", "Mr.  Smith  Jr.", "Mr.  Smith"),
        ("[UNK] smith", "Steve Smith's", "Steve Smith's"),
        ("smythe", "Steve Smith's", "Steve Smith's"),
        ("", "Steve Smith's", "Steve Smith's"),
        ("a", "banana", "a"),
        ("jr", "Steve\u200b Smith Jr.", "Steve\u200b Smith Jr."),  # U+200B is deleted
        ("다", "간다", "간다"),  # decomposed, a syllable is two or three characters
    ],
)
def test_text_is_recovered_as_it_was_written(pieces, text, wanted):
    assert final_text(pieces, text) == wanted


def test_text_of_cased_models_keeps_accents():
    assert final_text("Café", "Le Café.", do_lower_case=False) == "Café"
    assert final_text("cafe", "Le Café.", do_lower_case=False) == "Le Café."
    # Lower-cased with accents, as some models are: U+0130 then becomes two characters.
    assert final_text("café", "Le Café.", strip_accents=False) == "Café"
    assert final_text("le", "Le İ", strip_accents=False) == "Le İ"


def recovered_slowly(pieces, text, do_lower_case):
    """The rule, letter by letter: `pieces` in the normalized text, and what stands at the same letters of the text."""
    normal = " ".join(word.text for word in split_words(text, do_lower_case, do_lower_case))
    letters = [i for i, char in enumerate(text) if char != " "]
    normal_letters = [i for i, char in enumerate(normal) if char != " "]
    place = normal.find(pieces)
    if not pieces or place == -1 or len(letters) != len(normal_letters):
        return text
    first, last = normal_letters.index(place), normal_letters.index(place + len(pieces) - 1)
    return text[letters[first] : letters[last] + 1]


@settings(deadline=None)
@given(ODD_TEXT, st.booleans(), st.data())
def test_recovering_by_words_is_recovering_by_letters(text, do_lower_case, data):
    text = " ".join(WORD.findall(text))
    words = [word.text for word in split_words(text, do_lower_case, do_lower_case)]
    first = data.draw(st.integers(0, len(words)))
    last = data.draw(st.integers(first, len(words)))
    pieces = " ".join(words[first:last])
    cut = data.draw(st.integers(0, 2))
    pieces = pieces[cut:].strip()
    assert final_text(pieces, text, do_lower_case) == recovered_slowly(pieces, text, do_lower_case)


def test_text_that_cannot_be_recovered_is_told_of(caplog):
    with caplog.at_level(logging.DEBUG, "tasks.squad_text"):
        final_text("smythe", "Steve Smith's")
        final_text("steve", "Steve\u200b Smith")
    assert len(caplog.messages) == 2 and "'smythe' is not found" in caplog.messages[0]


def test_answers_across_odd_white_space():
    """The text has one space between words, as in the original; the answer is what the context has."""
    question = one_window("the\u202f\tlight \n at  the door")
    tokens = question.windows[0].tokens
    assert tokens[:3] == ["the", "light", "at"]
    found = answer(question, logits_at(2), logits_at(4), AnswerSettings(), with_offsets=True)
    best = found.nbest[0]
    assert found.prediction == best["text"] == "the light at"
    assert best["answer"] == "the\u202f\tlight \n at" == question.context[best["start"] : best["end"]]
    with pytest.raises(ValueError, match="'q' has 5 words, and 0 word_starts"):
        answer(question._replace(word_starts=()), logits_at(2), logits_at(4), AnswerSettings(), with_offsets=True)


def test_offsets_stand_at_the_word_that_was_meant():
    question = one_window("The door, the door.")
    found = answer(question, logits_at(6), logits_at(6), AnswerSettings(), with_offsets=True)
    assert question.windows[0].tokens[4] == "door"
    assert {name: found.nbest[0][name] for name in ("answer", "start", "end")} == {
        "answer": "door",
        "start": 14,
        "end": 18,
    }


def test_what_may_be_an_answer():
    words = "one two three four five"
    question = one_window(words, vocab={word: i for i, word in enumerate(["[UNK]", *words.split()])})
    few = AnswerSettings(n_best_size=1)
    # The only start that is looked at stands in the question, then in the padding, then after the end.
    for start, end in ((0, 3), (1, 3), (7, 3), (23, 3), (3, 0), (3, 7), (4, 3)):
        found = answer(question, logits_at(start), logits_at(end), few, with_offsets=True)
        assert found.prediction == "empty"
        assert found.nbest == [
            {
                "text": "empty",
                "probability": 1.0,
                "start_logit": 0.0,
                "end_logit": 0.0,
                "answer": "",
                "start": 0,
                "end": 0,
            }
        ]
    assert answer(question, logits_at(3), logits_at(6), few).prediction == "two three four five"
    assert answer(question, logits_at(3), logits_at(6), AnswerSettings(1, max_answer_length=4)).prediction != "empty"
    assert answer(question, logits_at(3), logits_at(6), AnswerSettings(1, max_answer_length=3)).prediction == "empty"
    elsewhere = question.windows[0]._replace(is_max_context=np.array([True, False, True, True, True]))
    assert answer(question._replace(windows=[elsewhere]), logits_at(3), logits_at(6), few).prediction == "empty"
    assert answer(question._replace(windows=[elsewhere]), logits_at(2), logits_at(3), few).prediction == "one two"


def test_no_answer_is_weighed_over_windows():
    question = one_window("the door")
    window = question.windows[0]
    question = question._replace(windows=[window, window._replace(unique_id=1)])
    start_logits = np.full([2, LENGTH], -5.0, np.float32)
    end_logits = start_logits.copy()
    start_logits[:, 0], end_logits[:, 0] = [4.0, 1.0], [4.0, 2.0]
    start_logits[1, 2], end_logits[0, 3], end_logits[1, 3] = 3.0, 2.5, 2.5
    for threshold, wanted in ((-2.5, "the door"), (-2.6, "")):
        task_settings = AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
        found = answer(question, start_logits, end_logits, task_settings)
        assert found.null_odds == pytest.approx(1.0 + 2.0 - 3.0 - 2.5) and found.prediction == wanted
        assert found.best_text == "the door"
        empty = next(entry for entry in found.nbest if not entry["text"])
        assert (empty["start_logit"], empty["end_logit"]) == (1.0, 2.0)
        assert sum(entry["probability"] for entry in found.nbest) == pytest.approx(1.0)
    found = answer(question, start_logits, end_logits, AnswerSettings(1, version_2_with_negative=True))
    assert [entry["text"] for entry in found.nbest] == ["the door", ""]  # one more than n_best_size


def test_scores_that_32_bits_cannot_tell_apart():
    question = one_window("the light at the door")
    window = question.windows[0]
    question = question._replace(windows=[window, window._replace(unique_id=1)])
    start_logits, end_logits = np.full([2, 2, LENGTH], -10.0, np.float32)
    start_logits[0, 2] = start_logits[1, 3] = 2.0**24
    end_logits[0, 2], end_logits[1, 3] = 0.25, 0.5
    found = answer(question, start_logits, end_logits, AnswerSettings())
    assert [entry["text"] for entry in found.nbest][:2] == ["light", "the"]


def test_another_threshold_without_the_logits(golden):
    questions, raw, task_settings = golden_case(golden, "squad_v2")
    found = answers(questions, raw, task_settings)
    for threshold in (-30.0, -12.0, 5.0):
        other = AnswerSettings(
            task_settings.n_best_size,
            task_settings.max_answer_length,
            version_2_with_negative=True,
            null_score_diff_threshold=threshold,
        )
        assert at_threshold(found, threshold) == answers(questions, raw, other)
    assert set(at_threshold(found, -30.0).predictions.values()) == {""}
    assert at_threshold(found, 5.0).predictions == found.best_texts
    without = found._replace(null_odds={})
    assert at_threshold(without, -30.0) == without


def test_a_question_with_no_candidate_does_not_stop_the_others(golden):
    """The original stopped with an error where nothing but the empty answer was left."""
    questions, raw, task_settings = golden_case(golden, "squad_v2")
    usual = answers(questions, raw, task_settings)
    lost = questions[3]
    closed = [window._replace(is_max_context=np.zeros(len(window.tokens), bool)) for window in lost.windows]
    found = answers([*questions[:3], lost._replace(windows=closed), *questions[4:]], raw, task_settings)
    assert found.predictions == usual.predictions | {lost.id: ""} and usual.predictions[lost.id] != ""
    [entry] = found.nbest[lost.id]
    assert entry["text"] == "" and entry["probability"] == 1.0
    assert found.null_odds[lost.id] == pytest.approx(entry["start_logit"] + entry["end_logit"])
    assert at_threshold(found, 1e9).predictions[lost.id] == ""


def test_a_context_without_text():
    nothing = np.zeros([0, LENGTH], np.float32)
    assert answer(question_of(" \n", []), nothing, nothing, AnswerSettings()).prediction == "empty"
    found = answer(question_of("", []), nothing, nothing, AnswerSettings(version_2_with_negative=True), True)
    assert found.prediction == "" and len(found.nbest) == 1 and json.loads(json.dumps(found)) is not None


@st.composite
def cases(draw):
    """A question in windows that overlap, and logits many of which are equal."""
    context = draw(ODD_TEXT)
    do_lower_case = draw(st.booleans())
    tokens, word_indices = tokenized(context, do_lower_case)
    size, stride = draw(st.integers(3, 12)), draw(st.integers(1, 6))
    windows = []
    for first in range(0, len(tokens), stride):
        part = slice(first, first + size)
        flags = draw(st.lists(st.booleans(), min_size=size, max_size=size))[: len(tokens[part])]
        windows.append(WindowText(7 + first, 3, tokens[part], word_indices[part], np.array(flags, bool)))
    levels = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    start_logits, end_logits = rng.integers(-levels, levels, [2, len(windows), LENGTH]).astype(np.float32) / 4
    task_settings = AnswerSettings(
        draw(st.integers(1, 25)),
        draw(st.integers(1, 8)),
        do_lower_case,
        None,
        draw(st.booleans()),
        draw(st.floats(-9, 9)),
    )
    return question_of(context, windows), start_logits, end_logits, task_settings


@settings(deadline=None)
@given(cases())
def test_answers_with_offsets_are_parts_of_the_context(case):
    question, start_logits, end_logits, task_settings = case
    for entry in answer(question, start_logits, end_logits, task_settings, with_offsets=True).nbest:
        assert 0 <= entry["start"] <= entry["end"] <= len(question.context)
        assert entry["answer"] == question.context[entry["start"] : entry["end"]]
        if (entry["text"], entry["end"]) != ("empty", 0):
            assert " ".join(WORD.findall(entry["answer"])) == entry["text"]


def answered_slowly(question, start_logits, end_logits, task_settings):
    """The rules of the original one by one, with Python's own sorting: texts and logits of the n-best, and the odds."""

    def best(logits):
        return sorted(range(len(logits)), key=lambda token: logits[token], reverse=True)[: task_settings.n_best_size]

    found, null = [], (1_000_000.0, 0.0, 0.0)
    for window, starts, ends in zip(question.windows, start_logits.tolist(), end_logits.tolist(), strict=True):
        null = min(null, (starts[0] + ends[0], starts[0], ends[0]), key=lambda values: values[0])
        for start, end in itertools.product(best(starts), best(ends)):
            first, last = start - window.document_start, end - window.document_start
            is_inside = 0 <= first < len(window.tokens) and 0 <= last < len(window.tokens)
            if is_inside and window.is_max_context[first] and 0 <= last - first < task_settings.max_answer_length:
                pieces = " ".join(window.tokens[first : last + 1]).replace(" ##", "").replace("##", "")
                words = question.words[window.word_indices[first] : window.word_indices[last] + 1]
                text = recovered_slowly(pieces, " ".join(words), task_settings.do_lower_case)
                found.append((text, starts[start], ends[end]))
    if task_settings.version_2_with_negative:
        found.append(("", *null[1:]))
    found.sort(key=lambda entry: entry[1] + entry[2], reverse=True)
    texts = {}
    for entry in found:
        texts.setdefault(entry[0], entry)
    nbest = list(texts.values())[: task_settings.n_best_size]
    if task_settings.version_2_with_negative and texts[""] not in nbest:
        nbest.append(texts[""])
    best_entry = next((entry for entry in nbest if entry[0]), ("", 0.0, 0.0))
    return nbest or [("empty", 0.0, 0.0)], null[0] - best_entry[1] - best_entry[2]


@settings(deadline=None)
@given(cases())
def test_answers_follow_the_rules_of_the_original(case):
    question, start_logits, end_logits, task_settings = case
    found = answer(question, start_logits, end_logits, task_settings)
    nbest, odds = answered_slowly(question, start_logits, end_logits, task_settings)
    assert [(entry["text"], entry["start_logit"], entry["end_logit"]) for entry in found.nbest] == nbest
    if not task_settings.version_2_with_negative:
        assert found.null_odds is None and found.prediction == nbest[0][0]
        return
    assert found.null_odds == odds
    best = next((text for text, _, _ in nbest if text), "")
    assert found.prediction == ("" if odds > task_settings.null_score_diff_threshold else best)


def raw_of(ids, seed=0, length=4):
    start_logits, end_logits = np.random.default_rng(seed).normal(size=[2, len(ids), length]).astype(np.float32)
    return RawResults(np.array(ids), start_logits, end_logits)


def test_models_are_averaged_window_by_window():
    first, second = raw_of([3, 1, 2], 1), raw_of([1, 2, 3], 2)
    found = average([first, second])
    assert found.unique_ids.tolist() == [3, 1, 2] and found.start_logits.dtype == np.float32
    same_order = [2, 0, 1]
    np.testing.assert_allclose(
        found.start_logits, (first.start_logits + second.start_logits[same_order]) / 2, rtol=1e-6
    )
    np.testing.assert_allclose(found.end_logits, (first.end_logits + second.end_logits[same_order]) / 2, rtol=1e-6)
    for alone, given_ in zip(average([first]), first, strict=True):
        np.testing.assert_array_equal(alone, given_)
    with pytest.raises(
        ValueError, match="Model 3 has seen other windows than model 1: it lacks 3, and it adds 4, 5, 6 and 1"
    ):
        average([first, second, raw_of([1, 2, 4, 5, 6, 7])])
    with pytest.raises(
        ValueError, match="Model 2 has logits for 5 tokens, model 1 for 4. Use the same --max_seq_length"
    ):
        average([first, raw_of([1, 2, 3], length=5)])
    with pytest.raises(ValueError, match="no logits to average"):
        average([])


def test_an_ensemble_finds_what_its_models_agree_on():
    question = one_window("the light at the door")
    one, other = logits_at(2, 4), logits_at(5, 4)
    ids = np.zeros(1, np.int64)
    together = average([RawResults(ids, one, one), RawResults(ids, other, other)])
    few = AnswerSettings(1)
    assert [answers([question], RawResults(ids, x, x), few).predictions["q"] for x in (one, other)] == ["the", "the"]
    assert answers([question], together, few).predictions == {"q": "at"}


def test_logits_survive_the_disk(golden, tmp_path):
    raw = raw_of([5, 6])
    save_raw(tmp_path / "logits.npz", raw)
    for found, wanted in zip(load_raw(tmp_path / "logits.npz"), raw, strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["logits.npz"]
    assert len(load_raw(golden / "squad_v1" / "logits.npz").unique_ids) == 95


def test_a_file_is_never_half_written(tmp_path):
    raw = raw_of([5, 6])
    save_raw(tmp_path / "logits.npz", raw)

    class Broken:
        shape = (2,)

        def __array__(self, *_, **__):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        save_raw(tmp_path / "logits.npz", raw._replace(end_logits=Broken()))
    np.testing.assert_array_equal(load_raw(tmp_path / "logits.npz").end_logits, raw.end_logits)


def test_logits_that_do_not_fit_are_refused(golden, tmp_path):
    questions, raw, task_settings = golden_case(golden, "squad_v1")
    with pytest.raises(ValueError, match="no logits of window 1000000094, which question 'q[0-9]+' has.*--doc_stride"):
        answers(questions, RawResults(*(values[:-1] for values in raw)), task_settings)
    short = RawResults(raw.unique_ids, raw.start_logits[:, :64], raw.end_logits[:, :64])
    with pytest.raises(ValueError, match="Window 1000000000 of question 'q00' has 95 tokens, but logits for 64"):
        answers(questions, short, task_settings)
    broken = raw.end_logits.copy()
    broken[7, 3] = np.nan
    with pytest.raises(ValueError, match="logits of window 1000000007 are not finite"):
        answers(questions, raw._replace(end_logits=broken), task_settings)
    with pytest.raises(ValueError, match="window 5 has logits more than once"):
        answers([], raw_of([4, 5, 5]), task_settings)
    np.savez(tmp_path / "other.npz", unique_ids=raw.unique_ids)
    with pytest.raises(ValueError, match="other.npz does not hold unique_ids, start_logits, end_logits"):
        load_raw(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ValueError, match="text.npz does not hold"):
        load_raw(tmp_path / "text.npz")
    save_raw(tmp_path / "odd.npz", raw_of([1, 2])._replace(unique_ids=np.arange(3)))
    with pytest.raises(ValueError, match=r"odd.npz: unique_ids should be \[N\].*\[3\], \[2, 4\] and \[2, 4\]"):
        load_raw(tmp_path / "odd.npz")
    with pytest.raises(FileNotFoundError, match="There is no file of logits"):
        load_raw(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="n_best_size is 0, but should be at least 1"):
        AnswerSettings(n_best_size=0)
