"""Questions about a text: from questions and logits to answers, and a class that answers one after the other."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from data.sentence_features import Features
from data.squad import Context, Question
from data.squad_features import FIRST_UNIQUE_ID, Window, WindowEncoder, WindowTable, question_windows
from data.tokenization import FullTokenizer
from modeling.models import SpanModel
from tasks.asking import BATCH_SIGNATURE, in_batches, load_trained
from tasks.settings import TaskSettings
from tasks.spans import both_ends
from tasks.squad_answers import AnswerSettings, QuestionText, WindowText, answer
from training.prediction import MISSING


@dataclasses.dataclass(frozen=True)
class SquadSettings(TaskSettings):
    """Of a model that answers questions."""

    do_lower_case: bool
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    script = "run_squad.py"

    def deciding(self) -> dict[str, Any]:
        values = super().deciding()
        del values["null_score_diff_threshold"]  # has a say in answers, not in what is learned
        return values

    def encoder(self, tokenizer: FullTokenizer) -> WindowEncoder:
        return WindowEncoder(tokenizer, self.max_seq_length, self.doc_stride, self.max_query_length)


def question_texts(
    questions: Sequence[Question], table: WindowTable, tokenizer: FullTokenizer
) -> Iterator[QuestionText]:
    """What answers are cut from."""
    for number, question in enumerate(questions):
        windows = []
        for window in table.windows_of(number):
            pieces = table.pieces(window)
            windows.append(
                WindowText(
                    unique_id=FIRST_UNIQUE_ID + window,
                    document_start=int(table.document_starts[window]),
                    tokens=tokenizer.convert_ids_to_tokens(pieces.ids.tolist()),
                    word_indices=pieces.word_indices,
                    is_max_context=pieces.is_max_context,
                )
            )
        context = question.context
        yield QuestionText(question.id, context.words, windows, context.text, context.word_starts)


class FoundSpan(NamedTuple):
    """An answer; `context[start:end]` is its text. An empty one says that the context has none."""

    text: str
    start: int
    end: int
    probability: float


class SquadPredictor:
    """Answers questions.

    Example:
        >>> predictor = SquadPredictor.load("out/squad")
        >>> predictor.answer("Who lit the lamp?", "Marta rowed out to the island and lit the lamp.")
        FoundSpan(text='Marta', start=0, end=5, probability=0.93)

    Args:
        model: with trained weights.
        tokenizer: of the model.
        settings: of the task.
    """

    def __init__(self, model: SpanModel, tokenizer: FullTokenizer, settings: SquadSettings):
        self.settings = settings
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = settings.encoder(tokenizer)

    @classmethod
    def load(cls, output_dir: str | Path) -> "SquadPredictor":
        """Loads the --output_dir of run_squad.py."""
        settings = SquadSettings.load(output_dir)
        model, tokenizer = load_trained(output_dir, settings.do_lower_case, SpanModel)
        return cls(model, tokenizer, settings)

    def answer(self, question: str, context: str, batch_size: int = 32, max_answer_length: int = 30) -> FoundSpan:
        """The best answer to one question."""
        return self.answers(question, context, 1, batch_size, max_answer_length)[0]

    def answers(
        self, question: str, context: str, top_k: int = 5, batch_size: int = 32, max_answer_length: int = 30
    ) -> list[FoundSpan]:
        """The best answers to one question, the best first; one at least.

        Args:
            question: in words.
            context: where the answer stands; of any length, since it is read in windows.
            top_k: how many answers.
            batch_size: windows that run together.
            max_answer_length: the most pieces of an answer.
        """
        if not self._tokenizer.tokenize_to_ids(question):
            raise ValueError(f"The question is empty: {question[:40]!r}.")
        windows = list(question_windows([Question("", question, Context.of(context))], self._encoder))
        start_logits, end_logits = self._logits(windows, batch_size)
        # The context as one long word: an answer is cut out as it stands there, white space and all.
        offsets = [(piece.start, piece.end) for piece in self._tokenizer.tokenize_with_offsets(context)]
        texts = [self._window_text(window, offsets) for window in windows]
        text = QuestionText("", [context], texts, context, [0])
        settings = AnswerSettings(
            n_best_size=max(20, top_k),
            max_answer_length=max_answer_length,
            version_2_with_negative=self.settings.version_2_with_negative,
            null_score_diff_threshold=self.settings.null_score_diff_threshold,
        )
        found = answer(text, start_logits, end_logits, settings, with_offsets=True)
        spans = [FoundSpan(e["answer"], e["start"], e["end"], e["probability"]) for e in found.nbest]
        # The threshold decides whether there is an answer; the n-best list does not know of it.
        is_empty = found.prediction == ""
        chosen = [span for span in spans if (span.text == "") == is_empty]
        others = [span for span in spans if (span.text == "") != is_empty]
        return (chosen + others or [FoundSpan("", 0, 0, 1.0)])[:top_k]

    def _window_text(self, window: Window, offsets: Sequence[tuple[int, int]]) -> WindowText:
        start, length = window.document_start, len(window.word_indices)
        step = min(self.settings.max_seq_length - start - 1, self.settings.doc_stride)
        first = window.doc_span_index * step  # of the pieces of the context
        part, no_words = offsets[first : first + length], np.zeros(length, np.int32)
        return WindowText(window.unique_id, start, (), no_words, window.is_max_context, part)

    def _logits(self, windows: Sequence[Window], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits of starts and ends, each [windows, max_seq_length]."""
        logits = np.full([len(windows), self.settings.max_seq_length, 2], MISSING, np.float32)
        rows = [Features(window.input_ids, window.document_start) for window in windows]
        for numbers, batch in in_batches(rows, self.settings.max_seq_length, batch_size):
            told, is_token = self._run(batch).numpy(), batch["input_mask"].numpy() > 0
            # What the network says of padding must not matter, since how much there is depends on the other windows.
            logits[numbers, : told.shape[1]] = np.where(is_token[..., np.newaxis], told, MISSING)
        return logits[..., 0], logits[..., 1]

    @tf.function(input_signature=BATCH_SIGNATURE, autograph=False)
    def _run(self, batch):
        return tf.cast(both_ends(self._model(batch, training=False)), tf.float32)  # [B, T, 2]
