import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.squad_answers import FoundAnswers, at_threshold
from tasks.squad_scores import best_threshold, normalize, score, scores


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Beatles", "beatles"),
        ("an apple, a day; the end.", "apple day end"),
        ("  two\t spaces\n", "two spaces"),
        ("U.S.A.", "usa"),
        ("Anna the-theatre", "anna thetheatre"),  # punctuation goes first, so that this is no article
        ("well-known", "wellknown"),
        ("$5,000", "5000"),
        ("the", ""),
        ("", ""),
        ("«Émile»", "«émile»"),  # only ASCII is punctuation, and accents stay
        ("“a”", "“ ”"),  # but an article is found beside it
        ("à la", "à la"),  # a letter with an accent is no article
        ("the\u00a0end", "end"),
    ],
)
def test_what_of_an_answer_counts(text, wanted):
    assert normalize(text) == wanted


def test_words_in_common():
    assert score(["the quick brown fox"], "quick fox") == (0.0, pytest.approx(2 * 1.0 * (2 / 3) / (1.0 + 2 / 3)))
    assert score(["fox fox"], "fox") == (0.0, pytest.approx(2 / 3))  # counted as often as they come
    assert score(["fox fox"], "fox fox fox") == (0.0, pytest.approx(0.8))
    assert score(["The Fox!"], "a fox") == (1.0, 1.0)
    assert score(["fox"], "ox") == (0.0, 0.0)
    assert score(["東京 タワー"], "東京") == (0.0, pytest.approx(2 / 3))
    assert score(["東京タワー"], "東京") == (0.0, 0.0)


def test_the_best_of_several_right_answers():
    assert score(["in Paris, France", "Paris"], "paris") == (1.0, 1.0)
    # Exact match of one, F1 of another: each is the best it can be.
    assert score(["one two three", "one two"], "one two four") == (0.0, pytest.approx(0.8))


def test_where_the_two_versions_differ():
    assert score(["the"], "the") == (1.0, 0.0)
    assert score(["the"], "the", version_2_with_negative=True) == (1.0, 1.0)  # the same as if there were no answer
    assert score(["the", "fox"], "", version_2_with_negative=True) == (0.0, 0.0)
    assert score(["the", "fox"], "") == (1.0, 0.0)
    assert score([], "", version_2_with_negative=True) == (1.0, 1.0)
    assert score([], "fox", version_2_with_negative=True) == (0.0, 0.0)
    assert score([], "The.", version_2_with_negative=True) == (1.0, 1.0)
    assert score(["fox"], "", version_2_with_negative=True) == (0.0, 0.0)


def test_figures_of_version_1():
    gold = {"a": ["Paris", "in Paris"], "b": ["a red fox"], "c": ["x"], "d": ["y"]}
    found = scores(gold, {"a": "Paris!", "b": "fox", "c": "", "d": "z", "other": "Paris"})
    assert found == {"exact_match": 25.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 4), "total": 4}


def test_figures_of_version_2():
    gold = {"a": ["Paris"], "b": ["a red fox"], "c": [], "d": [], "e": []}
    found = scores(gold, {"a": "Paris", "b": "fox", "c": "", "d": "", "e": "z"})
    assert found == {
        "exact": pytest.approx(60.0),
        "f1": pytest.approx(100 * (3 + 2 / 3) / 5),
        "total": 5,
        "HasAns_exact": 50.0,
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2),
        "HasAns_total": 2,
        "NoAns_exact": pytest.approx(200 / 3),
        "NoAns_f1": pytest.approx(200 / 3),
        "NoAns_total": 3,
    }
    only_answers = scores({"a": ["Paris"]}, {"a": "Paris"}, version_2_with_negative=True)
    assert set(only_answers) == {"exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total"}
    only_none = scores({"a": []}, {"a": "Paris"})
    assert only_none == {"exact": 0.0, "f1": 0.0, "total": 1, "NoAns_exact": 0.0, "NoAns_f1": 0.0, "NoAns_total": 1}


def test_questions_without_a_prediction_count_nothing_and_are_told_of_once(caplog):
    gold = {"a": ["Paris"], "b": ["fox"], "c": ["x"]}
    with caplog.at_level(logging.WARNING):
        assert scores(gold, {"a": "Paris"})["exact_match"] == pytest.approx(100 / 3)
    assert caplog.messages == ["2 of 3 questions have no prediction and count 0, as 'b'."]
    # No answer would be right, but a question that was not even tried is not.
    found = scores({"a": ["Paris"], "b": []}, {"a": "Paris"}, {"a": -1.0})
    assert (found["exact"], found["NoAns_exact"], found["best_exact"]) == (50.0, 0.0, 50.0)
    with pytest.raises(ValueError, match="no questions to score"):
        scores({}, {})


# From the lowest odds up: right, half right, wrong where there is none, right, wrong where there is none.
GOLD = {"n1": [], "p1": ["Paris"], "p2": ["red fox"], "n2": [], "p3": ["x"]}
TEXTS = {"n1": "z", "p1": "Paris", "p2": "fox", "n2": "z", "p3": "x"}
ODDS = {"n1": -1.0, "p1": -9.0, "p2": -4.0, "n2": 7.0, "p3": 2.0}


def test_the_best_threshold_by_hand():
    found = scores(GOLD, TEXTS, ODDS)
    # Answered nothing: 2 of 5. Then p1 3, p2 3 + 2/3 (exact 3), n1 2 + 2/3 (2), p3 3 + 2/3 (3), n2 2 + 2/3 (2).
    assert found["best_exact"] == pytest.approx(60.0) and found["best_exact_thresh"] == -9.0
    assert found["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 5) and found["best_f1_thresh"] == -4.0
    assert found["exact"] == pytest.approx(40.0)  # predictions as they are, whatever the odds
    assert best_threshold(GOLD, TEXTS, ODDS) == -4.0
    assert best_threshold(GOLD, TEXTS, ODDS, metric="exact") == -9.0
    with pytest.raises(ValueError, match="metric is 'em', but should be one of exact, f1"):
        best_threshold(GOLD, TEXTS, ODDS, metric="em")
    with pytest.raises(ValueError, match="no null odds of question 'p3', and of 1 in all"):
        scores(GOLD, TEXTS, {name: odds for name, odds in ODDS.items() if name != "p3"})
    with pytest.raises(ValueError, match="nothing to choose a threshold by"):
        best_threshold(GOLD, {}, ODDS)


def test_where_answering_nothing_is_best():
    gold, texts, odds = {"a": [], "b": []}, {"a": "x", "b": "y"}, {"a": -8.0, "b": 3.0}
    found = scores(gold, texts, odds)
    assert (found["best_f1"], found["best_f1_thresh"]) == (100.0, 0.0)  # as the official script has it, though at 0 ...
    assert [name for name in texts if odds[name] <= 0.0] == ["a"]  # ... this would be answered
    assert best_threshold(gold, texts, odds) < -8.0


def figures_at(threshold, gold, texts, odds):
    found = at_threshold(FoundAnswers(dict(texts), {}, dict(texts), dict(odds)), threshold)
    return scores(gold, found.predictions, version_2_with_negative=True)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([[], ["fox"], ["red fox", "the"], ["a red hot fox"]]),
            st.sampled_from(["fox", "red fox", "dog", ""]),
            st.integers(-3, 3).map(float),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["exact", "f1"]),
)
def test_no_threshold_is_better_than_the_best(rows, metric):
    gold, texts, odds = ({str(i): row[column] for i, row in enumerate(rows)} for column in range(3))
    threshold = best_threshold(gold, texts, odds, metric)
    best = figures_at(threshold, gold, texts, odds)[metric]
    for other in [value / 2 for value in range(-8, 9)]:
        assert figures_at(other, gold, texts, odds)[metric] <= best + 1e-9
    official = scores(gold, texts, odds)[f"best_{metric}"]
    if len(set(odds.values())) == len(odds):
        assert official == pytest.approx(best)
    else:
        assert official >= best - 1e-9  # it may part questions that no threshold can


def test_scores_of_the_golden_predictions(golden):
    """Gold answers against themselves, and against what the original predicted of made-up logits."""
    data = json.loads((golden / "squad_v2.json").read_text(encoding="utf-8"))["data"]
    gold = {
        question["id"]: [found["text"] for found in question["answers"]]
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    found = scores(gold, {name: texts[0] if texts else "" for name, texts in gold.items()})
    assert found["exact"] == found["f1"] == found["NoAns_f1"] == 100.0
    predictions = json.loads((golden / "squad_v2" / "predictions.json").read_text())
    odds = json.loads((golden / "squad_v2" / "null_odds.json").read_text())
    found = scores(gold, predictions, odds)
    assert found["exact"] <= found["f1"] < 60.0 and found["best_f1"] >= found["f1"]
    assert found["total"] == found["HasAns_total"] + found["NoAns_total"] == len(gold)
