"""From the logits of a SQuAD model to answers in words, number for number as the original release.

Nothing here needs TensorFlow, so logits that were kept are made into answers again, with other settings or those of
several models averaged, in seconds. The way of an answer:

    logits -> candidates (pairs of tokens, the best first) -> text of each (tasks/squad_text.py) -> n-best -> prediction
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.squad_logits import RawResults, aside, check_raw
from tasks.squad_text import Span, normal_words, recover, span_text

PREDICTIONS_FILE = "predictions.json"
NBEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"

# What the original answers where there is no candidate at all, and what "no answer" scores before any window is seen.
_NONCE = "empty"
_NULL_SCORE_WITHOUT_WINDOWS = 1_000_000.0


@dataclasses.dataclass(frozen=True)
class AnswerSettings:
    """What decides which of the candidates becomes the answer: flags of run_squad.py, with their defaults.

    Args:
        n_best_size: best starts and best ends of a window that are paired, and answers kept of a question.
        max_answer_length: the most tokens of an answer.
        do_lower_case: of the tokenizer that made the tokens.
        strip_accents: of the tokenizer, too; None does what `do_lower_case` says.
        version_2_with_negative: a question may have no answer.
        null_score_diff_threshold: a question has none where "no answer" scores higher than the best answer by more
            than this.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    do_lower_case: bool = True
    strip_accents: bool | None = None
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def __post_init__(self):
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but should be at least 1.")


class WindowText(NamedTuple):
    """The part of a context that stands in a window: [CLS] question [SEP] part of the context [SEP].

    Args:
        unique_id: of the window, by which its logits are found.
        document_start: at which token of the window the context starts.
        tokens: those of the context alone.
        word_indices: int [tokens], the word that each came from.
        is_max_context: bool [tokens], whether no other window shows more of what stands around it.
        offsets: (start, end) of each token in its word, in characters. Where they are given, answers are cut by them,
            and not recovered from the tokens as in the original.
    """

    unique_id: int
    document_start: int
    tokens: Sequence[str]
    word_indices: np.ndarray
    is_max_context: np.ndarray
    offsets: Sequence[tuple[int, int]] | None = None


class QuestionText(NamedTuple):
    """What the answers to a question are cut from.

    Args:
        id: of the question.
        words: of its context, between white space.
        windows: in the order of the context.
        context: as it was written; only for offsets.
        word_starts: at which character of the context each word starts; only for offsets.
    """

    id: str
    words: Sequence[str]
    windows: Sequence[WindowText]
    context: str = ""
    word_starts: Sequence[int] = ()


class FoundAnswer(NamedTuple):
    """All that is said of one question.

    Args:
        prediction: the answer; "" for none.
        nbest: what nbest_predictions.json holds: the best first, each with `text`, `probability`, `start_logit` and
            `end_logit`; with offsets also `answer`, `start` and `end`.
        best_text: the best answer that is not empty, whatever the threshold says; "" where there is none.
        null_odds: by how much "no answer" scores higher than `best_text`; None unless version_2_with_negative.
    """

    prediction: str
    nbest: list[dict[str, Any]]
    best_text: str
    null_odds: float | None


class FoundAnswers(NamedTuple):
    """The same of many questions, by their ids. `null_odds` is empty unless version_2_with_negative."""

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    best_texts: dict[str, str]
    null_odds: dict[str, float]


def answers(
    questions: Iterable[QuestionText], raw: RawResults, settings: AnswerSettings, with_offsets: bool = False
) -> FoundAnswers:
    """The answers of all questions; see `answer`.

    Raises:
        ValueError: a window has no logits, or logits are not finite, or not of the windows' shape.
    """
    check_raw(raw, "The results")
    row_of = {unique_id: row for row, unique_id in enumerate(raw.unique_ids.tolist())}
    result = FoundAnswers({}, {}, {}, {})
    for question in questions:
        missing = [window.unique_id for window in question.windows if window.unique_id not in row_of]
        if missing:
            raise ValueError(
                f"There are no logits of window {missing[0]}, which question {question.id!r} has. Were the logits made "
                "of the same file, with the same vocabulary, --max_seq_length, --doc_stride and --max_query_length?"
            )
        rows = [row_of[window.unique_id] for window in question.windows]
        found = answer(question, raw.start_logits[rows], raw.end_logits[rows], settings, with_offsets)
        result.predictions[question.id] = found.prediction
        result.nbest[question.id] = found.nbest
        result.best_texts[question.id] = found.best_text
        if found.null_odds is not None:
            result.null_odds[question.id] = found.null_odds
    return result


def answer(
    question: QuestionText,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    settings: AnswerSettings,
    with_offsets: bool = False,
) -> FoundAnswer:
    """The answer of one question.

    With offsets each of the n-best also has `answer`, which is exactly `context[start:end]`, with `start` and `end`
    counted in characters. It differs from `text` where the white space between two words is not one space. An answer
    that stands nowhere, as the empty one does, is "" from 0 to 0.

    Args:
        question: with its windows.
        start_logits: [windows, sequence length], how likely an answer starts at each token.
        end_logits: [windows, sequence length], how likely an answer ends at each token.
        settings: of the task.
        with_offsets: tell where in the context the answers stand; `question` needs its context and word_starts.

    Raises:
        ValueError: a window is longer than its logits, or there is nothing to count offsets by.
    """
    if with_offsets and len(question.word_starts) != len(question.words):
        raise ValueError(
            f"Offsets need the place of every word: question {question.id!r} has {len(question.words)} words, and "
            f"{len(question.word_starts)} word_starts."
        )
    null_score, null_logits = _null(start_logits, end_logits)
    nbest = _nbest(question, start_logits, end_logits, null_logits, settings)
    probabilities = _softmax([entry.score for entry in nbest])
    told = [
        {
            "text": entry.text,
            "probability": probability,
            "start_logit": entry.start_logit,
            "end_logit": entry.end_logit,
            **(_place(entry.span, question) if with_offsets else {}),
        }
        for entry, probability in zip(nbest, probabilities, strict=True)
    ]
    if not settings.version_2_with_negative:
        return FoundAnswer(nbest[0].text, told, nbest[0].text, None)
    best = next((entry for entry in nbest if entry.text), None)
    if best is None:  # the original stops with an error here, which takes all other questions with it
        return FoundAnswer("", told, "", null_score)
    null_odds = null_score - best.start_logit - best.end_logit
    prediction = "" if null_odds > settings.null_score_diff_threshold else best.text
    return FoundAnswer(prediction, told, best.text, null_odds)


def at_threshold(found: FoundAnswers, threshold: float) -> FoundAnswers:
    """The same answers with another null_score_diff_threshold. Without null odds there is nothing to decide."""
    decided = {
        question_id: "" if odds > threshold else found.best_texts[question_id]
        for question_id, odds in found.null_odds.items()
    }
    return found._replace(predictions=found.predictions | decided)


class _Entry(NamedTuple):
    """One of the n-best; its span is None where it stands nowhere in the context."""

    text: str
    start_logit: float
    end_logit: float
    span: Span | None = None

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def _null(start_logits: np.ndarray, end_logits: np.ndarray) -> tuple[float, tuple[float, float]]:
    """The score of "no answer", that of [CLS] in the window which is surest of an answer; and its two logits."""
    if not len(start_logits):
        return _NULL_SCORE_WITHOUT_WINDOWS, (0.0, 0.0)
    at_cls = np.stack([start_logits[:, 0], end_logits[:, 0]], axis=-1).astype(np.float64)
    lowest = at_cls[np.argmin(at_cls.sum(axis=-1))].tolist()
    return sum(lowest), tuple(lowest)


def _nbest(
    question: QuestionText,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    null_logits: tuple[float, float],
    settings: AnswerSettings,
) -> list[_Entry]:
    """The best candidates that differ in text. There is always one."""
    candidates = _candidates(question, start_logits, end_logits, settings)
    scores = candidates.start_logits + candidates.end_logits
    if settings.version_2_with_negative:  # last, so that it comes after answers that score the same
        scores = np.append(scores, sum(null_logits))
    normal_of = normal_words(settings.do_lower_case, settings.strip_accents)
    entries: dict[str, _Entry] = {}
    for index in np.argsort(-scores, kind="stable").tolist():
        if len(entries) >= settings.n_best_size:
            break
        if index == len(candidates.windows):
            entries[""] = _Entry("", *null_logits)
            continue
        window = question.windows[candidates.windows[index]]
        first, last = candidates.starts[index], candidates.ends[index]
        span = _span(question, window, first, last, normal_of)
        text = span_text(span, question.words)
        if text not in entries:
            entries[text] = _Entry(
                text, candidates.start_logits[index].item(), candidates.end_logits[index].item(), span
            )
    if settings.version_2_with_negative and "" not in entries:  # beyond n_best_size, as in the original
        entries[""] = _Entry("", *null_logits)
    return list(entries.values()) or [_Entry(_NONCE, 0.0, 0.0)]


def _span(question: QuestionText, window: WindowText, first: int, last: int, normal_of: Mapping[str, str]) -> Span:
    """Where the text from one token to another stands."""
    first_word, last_word = int(window.word_indices[first]), int(window.word_indices[last])
    if window.offsets is None:
        pieces = _piece_text(window.tokens[first : last + 1])
        return recover(pieces, question.words, first_word, last_word, normal_of)
    (start, first_end), (last_start, end) = window.offsets[first], window.offsets[last]
    if first_word == last_word:  # accents may have changed places, so the first token may stand behind the last
        start, end = min(start, last_start), max(end, first_end)
    return Span(first_word, start, last_word, end)


class _Candidates(NamedTuple):
    """Pairs of tokens of the context that may be an answer: in which window, from which to which, and their logits."""

    windows: list[int]
    starts: list[int]
    ends: list[int]
    start_logits: np.ndarray
    end_logits: np.ndarray


def _candidates(
    question: QuestionText, start_logits: np.ndarray, end_logits: np.ndarray, settings: AnswerSettings
) -> _Candidates:
    """All pairs of a good start and a good end, window by window, starts and then ends from the best down.

    What is not allowed is left out only after the best were taken: good starts in the question or in the padding take
    the place of others, as they did in the original.
    """
    best_starts = _largest(start_logits, settings.n_best_size)
    best_ends = _largest(end_logits, settings.n_best_size)
    windows, starts, ends = [], [], []
    for number, window in enumerate(question.windows):
        length = len(window.word_indices)
        if window.document_start + length > start_logits.shape[1]:
            raise ValueError(
                f"Window {window.unique_id} of question {question.id!r} has {window.document_start + length} tokens, "
                f"but logits for {start_logits.shape[1]}. Were they made with another --max_seq_length?"
            )
        first = _within(best_starts[number], window.document_start, length)
        first = first[window.is_max_context[first]]
        last = _within(best_ends[number], window.document_start, length)
        lengths = last - first[:, np.newaxis] + 1  # [starts, ends]
        of_start, of_end = np.nonzero((lengths >= 1) & (lengths <= settings.max_answer_length))
        windows.append(np.full(len(of_start), number))
        starts.append(first[of_start])
        ends.append(last[of_end])
    if not windows:
        return _Candidates([], [], [], np.zeros(0), np.zeros(0))
    window, start, end = map(np.concatenate, (windows, starts, ends))
    document_starts = np.array([text.document_start for text in question.windows])[window]
    # The original added Python's floats, which have 64 bits: in 32 some sums would be equal that are not.
    return _Candidates(
        window.tolist(),
        start.tolist(),
        end.tolist(),
        start_logits[window, document_starts + start].astype(np.float64),
        end_logits[window, document_starts + end].astype(np.float64),
    )


def _within(positions: np.ndarray, document_start: int, length: int) -> np.ndarray:
    """Those of the positions in a window that are in the context, counted from its start."""
    positions = positions - document_start
    return positions[(positions >= 0) & (positions < length)]


def _largest(logits: np.ndarray, count: int) -> np.ndarray:
    """[windows, tokens] -> [windows, count], where the largest are, from the largest down; of equal ones the first."""
    return np.argsort(-logits, axis=-1, kind="stable")[:, :count]


def _softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def _piece_text(tokens: Sequence[str]) -> str:
    text = " ".join(tokens).replace(" ##", "").replace("##", "")
    return " ".join(text.split())


def _place(span: Span | None, question: QuestionText) -> dict[str, Any]:
    if span is None:
        return {"answer": "", "start": 0, "end": 0}
    start = int(question.word_starts[span.first_word]) + span.start
    end = int(question.word_starts[span.last_word]) + span.end
    return {"answer": question.context[start:end], "start": start, "end": end}


def write_answers(output_dir: str | Path, found: FoundAnswers) -> None:
    """Writes predictions.json, nbest_predictions.json and, where questions may have no answer, null_odds.json."""
    files = {PREDICTIONS_FILE: found.predictions, NBEST_FILE: found.nbest}
    if found.null_odds:
        files[NULL_ODDS_FILE] = found.null_odds
    for name, content in files.items():
        with aside(Path(output_dir) / name) as file:
            file.write((json.dumps(content, indent=4) + "\n").encode("utf-8"))
