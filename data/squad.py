"""Questions about texts, from JSON of SQuAD's shape: SQuAD 1.1 and 2.0, XQuAD, KorQuAD 1.0 and others like them."""

import array
import bisect
import dataclasses
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from data.quoting import shown

# The original parts words at these and nowhere else, e.g. neither at NBSP nor at the ideographic space.
_WORD = re.compile("[^ \t\r\n\u202f]+")

_SHAPE = (
    'The shape is {"data": [{"paragraphs": [{"context": "…", "qas": [{"id": "…", "question": "…", '
    '"answers": [{"text": "…", "answer_start": 0}]}]}]}]}.'
)


@dataclasses.dataclass(frozen=True)
class Context:
    """A text that holds answers, and its words. The questions about it share it."""

    text: str
    words: tuple[str, ...]
    word_starts: array.array  # where each word starts in the text, in characters

    @classmethod
    def of(cls, text: str) -> "Context":
        words, starts = [], array.array("i")
        for match in _WORD.finditer(text):
            words.append(sys.intern(match.group()))  # most words of a set come many times
            starts.append(match.start())
        return cls(text, tuple(words), starts)

    def word_at(self, position: int) -> int:
        """The number of the word at a character; at white space that of the word before, -1 where there is none."""
        return bisect.bisect_right(self.word_starts, position) - 1

    def span(self, first_word: int, last_word: int) -> tuple[int, int]:
        """Where words stand, both ends among them: they are `text[start:end]`, with the white space between them."""
        return self.word_starts[first_word], self.word_starts[last_word] + len(self.words[last_word])


class Answer(NamedTuple):
    text: str
    start: int | None  # its first character in the context, as the file tells; None where it does not


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, the text it is about, and what is known of its answer."""

    id: str
    question: str
    context: Context
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False
    start_word: int | None = None  # words of the first answer, for training; None where there is none
    end_word: int | None = None  # the last of them


def read_questions(path: str | Path, is_training: bool, version_2_with_negative: bool) -> list[Question]:
    """Reads the questions of a file in their order.

    For training, each needs an answer that is found in its context, or must be marked as impossible. Those that are
    not found are left out. For prediction answers are optional, and nothing is asked of them.

    Args:
        path: a JSON file.
        is_training: look for the answers in the contexts.
        version_2_with_negative: some questions have no answer: their "is_impossible" is true. Without this, nobody
            looks at "is_impossible".

    Raises:
        ValueError: the file is not JSON or of another shape, two questions have one id, a question has no answer to
            train on, or there is no question at all; with the file, the question and what to do.
    """
    questions, ids, notes = [], set(), _Notes(str(path))
    for context, record, place in _records(path):
        question = _question(context, record, place, version_2_with_negative)
        if question.id in ids:
            raise ValueError(
                f"{path}: two questions have the id {shown(question.id)}. Answers are told by id: give each one of its "
                "own."
            )
        ids.add(question.id)
        if not context.words:
            notes.add(f"about an empty text{', left out' if is_training else ''}", question.id)
            if is_training:
                continue
        if is_training and not question.is_impossible:
            question = _located(question, place, version_2_with_negative, notes)
        if question is not None:
            questions.append(question)
    notes.log()
    if not questions:
        raise ValueError(f"There is no question{' to train on' if is_training else ''} in {path}.")
    return questions


class _Notes:
    """What is odd in a file but stops nobody: one line for each kind of it, however often it comes."""

    def __init__(self, path: str):
        self._path = path
        self._ids: dict[str, list[str]] = {}

    def add(self, what: str, question_id: str) -> None:
        self._ids.setdefault(what, []).append(question_id)

    def log(self) -> None:
        for what, ids in self._ids.items():
            logging.getLogger(__name__).warning(
                "%s: questions %s: %d, e.g. %s.", self._path, what, len(ids), shown(ids[0])
            )


def _records(path: str | Path) -> Iterator[tuple[Context, Mapping[str, Any], str]]:
    """The questions as they stand in the file, each with its context and a name for errors."""
    try:
        content = json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file of questions {path}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON in UTF-8: {error}. {_SHAPE}") from None
    for number, article in enumerate(_value(content, "data", list, str(path))):
        place = f"{path}: article {number}"
        for paragraph_number, paragraph in enumerate(_value(article, "paragraphs", list, place)):
            paragraph_place = f"{place}, paragraph {paragraph_number}"
            context = Context.of(_value(paragraph, "context", str, paragraph_place))
            for question_number, record in enumerate(_value(paragraph, "qas", list, paragraph_place)):
                question_id = _value(record, "id", str | int, f"{paragraph_place}, question {question_number}")
                yield context, record, f"{path}: question {shown(str(question_id))}"


def _question(context: Context, record: Mapping[str, Any], place: str, version_2_with_negative: bool) -> Question:
    is_impossible = False
    if version_2_with_negative and "is_impossible" in record:
        is_impossible = _value(record, "is_impossible", bool, place)
    answers = ()
    if not is_impossible and record.get("answers") is not None:
        answers = tuple(_answer(answer, place) for answer in _value(record, "answers", list, place))
    return Question(str(record["id"]), _value(record, "question", str, place), context, answers, is_impossible)


def _answer(record: Any, place: str) -> Answer:
    text = _value(record, "text", str, f"{place}, one of its answers,")
    return Answer(text, _value(record, "answer_start", int, place) if "answer_start" in record else None)


def _value(record: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        raise ValueError(f"{place} has no {key!r}. {_SHAPE}")
    if not isinstance(record[key], kind):
        raise ValueError(f"{place} has a {key!r} of another kind than it should: {shown(record[key])}. {_SHAPE}")
    return record[key]


def _located(question: Question, place: str, version_2_with_negative: bool, notes: _Notes) -> Question | None:
    """The question with the words of its first answer; None where they are not to be found."""
    if not question.answers:
        fix = (
            'Give it one, or mark it with "is_impossible": true.'
            if version_2_with_negative
            else "If it is meant to have none, as some of SQuAD 2.0, set --version_2_with_negative; else give it one."
        )
        raise ValueError(f"{place} has no answer to train on. {fix}")
    if len(question.answers) > 1:  # where the original stopped
        notes.add("with several answers, of which the first is taken", question.id)
    answer, context = question.answers[0], question.context
    if answer.start is None:
        raise ValueError(f"{place} has an answer without 'answer_start', its first character in the context. {_SHAPE}")
    end = answer.start + len(answer.text)
    start_word, end_word = context.word_at(answer.start), context.word_at(end - 1)
    # Both sides are cleaned in the same way. The original cleaned the answer only, and so lost all answers with NBSP.
    found, wanted = _cleaned(" ".join(context.words[max(start_word, 0) : end_word + 1])), _cleaned(answer.text)
    if min(answer.start, start_word) < 0 or end > len(context.text) or not wanted or wanted not in found:
        notes.add("left out, as their answer does not stand where 'answer_start' tells", question.id)
        return None
    if context.text[answer.start : end] != answer.text:
        notes.add("whose 'answer_start' is not quite right, but the words there hold the answer", question.id)
    return dataclasses.replace(question, start_word=start_word, end_word=end_word)


def _cleaned(text: str) -> str:
    return " ".join(text.split())
