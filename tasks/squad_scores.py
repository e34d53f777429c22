"""Exact match and F1 of answers, as the scripts that came with SQuAD 1.1 and 2.0 count them.

Both forgive capitals, ASCII punctuation, articles and white space, and take the best of several right answers. Where
they differ: 2.0 leaves out right answers of which nothing remains, as "the", and has F1 1 for no answer where there is
none; 1.1 has F1 0 for an answer of which nothing remains, even if it is the right one.
"""

import logging
import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

METRICS = ("exact", "f1")

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

_log = logging.getLogger(__name__)


def normalize(text: str) -> str:
    """What of an answer counts: lower-case, without ASCII punctuation, then without articles, one space a gap."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


class Score(NamedTuple):
    """Of one answer, each 0 to 1."""

    exact: float
    f1: float


def score(gold: Sequence[str], prediction: str, version_2_with_negative: bool = False) -> Score:
    """How well a prediction fits the best of the right answers; without any, as only 2.0 has it, "" is right."""
    told = normalize(prediction)
    right = [normalize(text) for text in gold]
    if version_2_with_negative:
        right = [text for text in right if text]
    exact = float(told in (right or [""]))
    return Score(exact, max((_f1(text.split(), told.split()) for text in right), default=exact))


def _f1(right: Sequence[str], told: Sequence[str]) -> float:
    """Of words that are in both, as often as they are in both. 0 where either has none."""
    same = sum((Counter(right) & Counter(told)).values())
    if same == 0:
        return 0.0
    # Not 2 * same / (len(told) + len(right)), which differs from the scripts in the last digit.
    precision, recall = same / len(told), same / len(right)
    return 2 * precision * recall / (precision + recall)


def scores(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    version_2_with_negative: bool = False,
) -> dict[str, float]:
    """Figures of all questions, in percent, under the names of the official scripts.

    SQuAD 1.1: `exact_match`, `f1`, and `total`, the number of questions.
    SQuAD 2.0: `exact`, `f1`, `total`; where there are such questions, the same of those with an answer, `HasAns_exact`,
    `HasAns_f1`, `HasAns_total`, and of those without, `NoAns_exact` and so on; and with null odds `best_exact`,
    `best_exact_thresh`, `best_f1`, `best_f1_thresh`: the best that a threshold can make of these predictions, and that
    threshold, 0 where it is best to answer nothing. A prediction that is "" already cannot be won back by any: give
    `FoundAnswers.best_texts` to know what a model is worth.

    A question without a prediction counts 0. The scripts do the same in 1.1, and stop in 2.0. The script of 2.0 also
    takes predictions back whose odds are above its own --na-prob-thresh, which is 1; here they are as they are.

    Args:
        gold: right answers by question; none of a question that cannot be answered.
        predictions: by question; "" for no answer.
        null_odds: by question, what null_odds.json holds; see `tasks.squad_answers`.
        version_2_with_negative: count as 2.0 does even if every question has an answer. Where one has none, or there
            are null odds, it is 2.0 anyway.
    """
    if not gold:
        raise ValueError("There are no questions to score.")
    is_version_2 = version_2_with_negative or null_odds is not None or not all(gold.values())
    by_question = _by_question(gold, predictions, is_version_2)
    if not is_version_2:
        overall = _means(by_question, gold)
        return {"exact_match": overall["exact"], "f1": overall["f1"], "total": overall["total"]}
    result = _means(by_question, gold)
    for name, ids in (
        ("HasAns", [question_id for question_id, texts in gold.items() if texts]),
        ("NoAns", [question_id for question_id, texts in gold.items() if not texts]),
    ):
        if ids:
            result |= {f"{name}_{metric}": value for metric, value in _means(by_question, ids).items()}
    if null_odds is not None:
        for metric in METRICS:
            nothing, steps = _sweep(gold, predictions, null_odds, by_question, metric)
            # Of thresholds that are as good, the lowest. Like the script, it may stop between questions with the same
            # odds, which no threshold can tell apart.
            best = max([_Step(0.0, nothing), *steps], key=lambda step: step.points)
            result[f"best_{metric}"] = 100.0 * best.points / len(gold)
            result[f"best_{metric}_thresh"] = best.odds
    return result


def best_threshold(
    gold: Mapping[str, Sequence[str]],
    best_texts: Mapping[str, str],
    null_odds: Mapping[str, float],
    metric: str = "f1",
) -> float:
    """The null_score_diff_threshold with the best figures, for --null_score_diff_threshold=auto.

    Unlike `best_f1_thresh` of the official script it always keeps what it promises: questions with the same odds are
    answered together, and where it is best to answer nothing, it is below all odds.

    Args:
        gold: right answers by question; none of a question that cannot be answered.
        best_texts: by question, the best answer without any threshold: `FoundAnswers.best_texts`.
        null_odds: by question; see `tasks.squad_answers`.
        metric: "f1", as the original advises, or "exact".
    """
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}, but should be one of {', '.join(METRICS)}.")
    by_question = _by_question(gold, best_texts, version_2_with_negative=True)
    nothing, steps = _sweep(gold, best_texts, null_odds, by_question, metric)
    if not steps:
        raise ValueError("None of the questions has a prediction, so there is nothing to choose a threshold by.")
    with_next = zip(steps, [*steps[1:], None], strict=True)
    possible = [step for step, following in with_next if following is None or following.odds > step.odds]
    answer_nothing = _Step(math.nextafter(steps[0].odds, -math.inf), nothing)
    return max([answer_nothing, *possible], key=lambda step: step.points).odds


class _Step(NamedTuple):
    """What all questions get together if those with odds up to these are answered."""

    odds: float
    points: float


def _sweep(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    by_question: Mapping[str, Score],
    metric: str,
) -> tuple[float, list[_Step]]:
    """Points if nothing is answered, and then with one question after the other answered, from the lowest odds up."""
    ids = [question_id for question_id in gold if question_id in predictions]
    missing = [question_id for question_id in ids if question_id not in null_odds]
    if missing:
        raise ValueError(f"There are no null odds of question {missing[0]!r}, and of {len(missing)} in all.")
    nothing = points = float(sum(not gold[question_id] for question_id in ids))
    steps = []
    known = set(ids)
    for question_id in sorted(null_odds, key=null_odds.__getitem__):
        if question_id in known:
            if gold[question_id]:
                points += getattr(by_question[question_id], metric)
            elif predictions[question_id]:
                points -= 1.0
            steps.append(_Step(null_odds[question_id], points))
    return nothing, steps


def _by_question(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str], version_2_with_negative: bool
) -> dict[str, Score]:
    """The score of every question, 0 without a prediction; tells once how many have none."""
    missing = [question_id for question_id in gold if question_id not in predictions]
    if missing:
        _log.warning("%d of %d questions have no prediction and count 0, as %r.", len(missing), len(gold), missing[0])
    return {
        question_id: score(texts, predictions[question_id], version_2_with_negative)
        if question_id in predictions
        else Score(0.0, 0.0)
        for question_id, texts in gold.items()
    }


def _means(by_question: Mapping[str, Score], ids) -> dict[str, float]:
    total = len(ids)
    result = {
        metric: 100.0 * sum(getattr(by_question[question_id], metric) for question_id in ids) / total
        for metric in METRICS
    }
    return result | {"total": total}
