"""Questions into what the network reads: [CLS] question [SEP] part of the context [SEP], in windows that overlap.

Words are cut into pieces one by one, so each piece knows its word. No TensorFlow here: processes that share the work
start in a moment.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data.squad import Context, Question
from data.tfrecord import ExampleEncoder
from data.tokenization import FullTokenizer, vocab_size

FIRST_UNIQUE_ID = 1_000_000_000

# Questions that are encoded at a time: some 0.1 MB of records.
_BLOCK_QUESTIONS = 64


class Document(NamedTuple):
    """The pieces of a context."""

    ids: list[int]
    word_indices: np.ndarray  # int32 [pieces], the word that each came from
    word_bounds: np.ndarray  # int [words + 1], the first piece of each word, and the end


class Window(NamedTuple):
    """One sequence: a question and the part of its context that fits beside it.

    The pieces of the context stand from `document_start`, which is also where the second segment starts, to the last
    but one; the last is [SEP]. `word_indices` and `is_max_context` tell of these pieces alone.
    """

    unique_id: int
    example_index: int
    doc_span_index: int  # which window of its question
    input_ids: list[int]
    document_start: int
    word_indices: np.ndarray  # int32 [pieces of the context], the word that each came from
    is_max_context: np.ndarray  # bool [pieces of the context], whether no other window shows more around it
    start_position: int  # of the answer in the sequence; 0 where it is not within, or not known
    end_position: int  # its last piece
    is_impossible: bool


@dataclasses.dataclass(frozen=True)
class WindowEncoder:
    """Makes windows of questions.

    Args:
        tokenizer: of the model.
        max_seq_length: pieces of a sequence, [CLS] and [SEP] among them.
        doc_stride: pieces of the context from the start of a window to that of the next.
        max_query_length: pieces of a question; the rest of it is cut off.
    """

    tokenizer: FullTokenizer
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def __post_init__(self):
        if self.max_query_length < 1 or self.doc_stride < 1:
            raise ValueError(
                f"max_query_length is {self.max_query_length} and doc_stride {self.doc_stride}: both must be at least "
                "1."
            )
        if self.max_seq_length <= self.max_query_length + 3:
            raise ValueError(
                f"max_seq_length is {self.max_seq_length}: beside a question of max_query_length="
                f"{self.max_query_length} and 3 marks that leaves no room for text. Make it larger, or the question "
                "shorter."
            )
        missing = [token for token in ("[CLS]", "[SEP]") if token not in self.tokenizer.vocab]
        if missing:
            raise ValueError(f"The vocabulary has no {' and no '.join(missing)}: it is not one of BERT's.")

    def document(self, context: Context) -> Document:
        """The pieces of a context: the same for all questions about it."""
        pieces = list(map(self.tokenizer.tokenize_to_ids, context.words))
        counts = np.fromiter(map(len, pieces), np.int32, len(pieces))
        return Document(
            list(itertools.chain.from_iterable(pieces)),
            np.repeat(np.arange(len(pieces), dtype=np.int32), counts),
            np.concatenate([[0], np.cumsum(counts)]),
        )

    def windows(
        self, question: Question, document: Document, example_index: int = 0, first_id: int = FIRST_UNIQUE_ID
    ) -> tuple[list[Window], bool]:
        """The windows of a question, none where its context has no pieces; and whether the question was cut."""
        vocab = self.tokenizer.vocab
        query = self.tokenizer.tokenize_to_ids(question.question)
        head = [vocab["[CLS]"], *query[: self.max_query_length], vocab["[SEP]"]]
        spans = _spans(len(document.ids), self.max_seq_length - len(head) - 1, self.doc_stride)
        best = _best_windows(len(document.ids), spans)
        answer = self._answer_pieces(question, document)
        windows = []
        for number, (start, end) in enumerate(spans):
            position = (0, 0)
            if answer is not None and start <= answer[0] and answer[1] < end:
                position = (len(head) - start + answer[0], len(head) - start + answer[1])
            windows.append(
                Window(
                    first_id + number,
                    example_index,
                    number,
                    [*head, *document.ids[start:end], vocab["[SEP]"]],
                    len(head),
                    document.word_indices[start:end],
                    best[start:end] == number,
                    *position,
                    question.is_impossible,
                )
            )
        return windows, len(query) > self.max_query_length

    def _answer_pieces(self, question: Question, document: Document) -> tuple[int, int] | None:
        """The first and last piece of the answer in the document; None where there is none.

        An answer may be part of a word: of "(1895-1943)." it is "1895". So among the pieces of its words the first run
        is taken that is equal to the pieces of the answer, and all of them where no run is.
        """
        if question.start_word is None:
            return None
        first, end = int(document.word_bounds[question.start_word]), int(document.word_bounds[question.end_word + 1])
        pieces, answer = document.ids[first:end], self.tokenizer.tokenize_to_ids(question.answers[0].text)
        if not pieces:  # words of deleted characters alone
            return None
        runs = range(len(pieces) - len(answer) + 1) if answer else ()
        for start in runs:
            if pieces[start : start + len(answer)] == answer:
                return first + start, first + start + len(answer) - 1
        return first, end - 1


def _spans(num_pieces: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Where the windows of a document start and end."""
    if num_pieces == 0:
        return []
    step = min(size, stride)  # a stride longer than a window would leave gaps
    return [(start, min(start + size, num_pieces)) for start in range(0, max(num_pieces - size, 0) + step, step)]


def _best_windows(num_pieces: int, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each piece of a document the window that shows most around it: the first where several show as much.

    What counts is the shorter side, and a hundredth of the length of the window, which tells against a short last one.
    """
    best = np.zeros(num_pieces, np.int32)
    if len(spans) < 2:
        return best
    scores = np.full(num_pieces, -1.0)
    for number, (start, end) in enumerate(spans):
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * len(left)
        is_better = score > scores[start:end]
        scores[start:end][is_better] = score[is_better]
        best[start:end][is_better] = number
    return best


def question_windows(questions: Iterable[Question], encoder: WindowEncoder) -> Iterator[Window]:
    """The windows of questions, one after the other. Questions about one context should come in a row."""
    for _, windows, _ in _encoded(questions, encoder):
        yield from windows


def _encoded(
    questions: Iterable[Question], encoder: WindowEncoder, first_index: int = 0
) -> Iterator[tuple[Question, list[Window], bool]]:
    """Questions with their windows, and whether each was cut."""
    context = document = None
    next_id = FIRST_UNIQUE_ID
    for index, question in enumerate(questions, first_index):
        if question.context is not context:
            context, document = question.context, encoder.document(question.context)
        windows, is_cut = encoder.windows(question, document, index, next_id)
        yield question, windows, is_cut
        next_id += len(windows)


class WindowPieces(NamedTuple):
    """The pieces of the context in a window, from its `document_start` on."""

    ids: np.ndarray
    word_indices: np.ndarray
    is_max_context: np.ndarray


@dataclasses.dataclass(frozen=True)
class WindowTable:
    """What has to be known of windows to find answers in what the network says of them. Axes: N windows, P pieces.

    The unique id of a window is its number in the table and `FIRST_UNIQUE_ID`.
    """

    example_indices: np.ndarray  # int32 [N]
    document_starts: np.ndarray  # int32 [N]
    piece_counts: np.ndarray  # int32 [N], how many of the following belong to each window
    piece_ids: np.ndarray  # int32 [P], pieces of the context
    word_indices: np.ndarray  # int32 [P]
    is_max_context: np.ndarray  # bool [P]

    @classmethod
    def of(cls, windows: Sequence[Window]) -> "WindowTable":
        return cls(
            np.array([window.example_index for window in windows], np.int32),
            np.array([window.document_start for window in windows], np.int32),
            np.array([len(window.word_indices) for window in windows], np.int32),
            np.array([piece for window in windows for piece in window.input_ids[window.document_start : -1]], np.int32),
            np.concatenate([np.zeros(0, np.int32), *(window.word_indices for window in windows)]),
            np.concatenate([np.zeros(0, bool), *(window.is_max_context for window in windows)]),
        )

    @classmethod
    def join(cls, tables: Sequence["WindowTable"]) -> "WindowTable":
        """One table of several, in their order."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(table, name) for table in (cls.of([]), *tables)]) for name in names))

    def __len__(self) -> int:
        return len(self.example_indices)

    def pieces(self, number: int) -> WindowPieces:
        """The pieces of the context in a window."""
        part = slice(self._bounds[number], self._bounds[number + 1])
        return WindowPieces(self.piece_ids[part], self.word_indices[part], self.is_max_context[part])

    def windows_of(self, example_index: int) -> range:
        """The numbers of the windows of a question; none where its context has no pieces."""
        return range(*np.searchsorted(self.example_indices, [example_index, example_index + 1]).tolist())

    @functools.cached_property
    def _bounds(self) -> list[int]:
        return [0, *np.cumsum(self.piece_counts, dtype=np.int64).tolist()]


class Block(NamedTuple):
    """The windows of some questions, in the form that goes from one process to another."""

    num_questions: int
    features: list[bytes]  # of each window, serialized; all but its unique id, which depends on the blocks before
    lengths: list[int]  # pieces that are not padding
    cut_questions: list[str]  # ids of those that were too long
    table: WindowTable | None  # for prediction


class BlockEncoder:
    """Questions into blocks of serialized features, under the names of the original."""

    def __init__(self, encoder: WindowEncoder, is_training: bool):
        self._encoder = encoder
        self._is_training = is_training
        self._numbers = ExampleEncoder(max(vocab_size(encoder.tokenizer.vocab), encoder.max_seq_length))

    def __call__(self, questions: Sequence[Question], first_index: int) -> Block:
        """Args: some questions, and the number of the first of them in the set."""
        windows, cut = [], []
        for question, found, is_cut in _encoded(questions, self._encoder, first_index):
            windows += found
            if is_cut:
                cut.append(question.id)
        return Block(
            len(questions),
            [self._features(window) for window in windows],
            [len(window.input_ids) for window in windows],
            cut,
            None if self._is_training else WindowTable.of(windows),
        )

    def _features(self, window: Window) -> bytes:
        encode, length, second = self._numbers, len(window.input_ids), window.document_start
        padding = self._encoder.max_seq_length - length
        features = [
            encode.numbers("input_ids", window.input_ids, padding),
            encode.repeated("input_mask", (1, length), (0, padding)),
            encode.repeated("segment_ids", (0, second), (1, length - second), (0, padding)),
        ]
        if self._is_training:
            features += [
                encode.numbers("start_positions", [window.start_position]),
                encode.numbers("end_positions", [window.end_position]),
                encode.repeated("is_impossible", (int(window.is_impossible), 1)),
            ]
        return b"".join(features)


def encode_blocks(
    questions: Sequence[Question], encoder: WindowEncoder, is_training: bool, num_workers: int = 1
) -> Iterator[Block]:
    """Encodes questions, block by block, in their order. The blocks do not depend on the number of processes."""
    jobs = (
        (questions[first : first + _BLOCK_QUESTIONS], first) for first in range(0, len(questions), _BLOCK_QUESTIONS)
    )
    if num_workers <= 1 or len(questions) <= _BLOCK_QUESTIONS:
        yield from itertools.starmap(BlockEncoder(encoder, is_training), jobs)
    else:
        yield from _encode_in_processes(jobs, encoder, is_training, num_workers)


def _encode_in_processes(
    jobs: Iterator[tuple[Sequence[Question], int]], encoder: WindowEncoder, is_training: bool, num_workers: int
) -> Iterator[Block]:
    # Spawned, not forked: a fork of a process in which TensorFlow runs its threads may hang.
    pool = concurrent.futures.ProcessPoolExecutor(
        num_workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_worker,
        initargs=(*_told(encoder), is_training),
    )

    def submit(job):
        with _without_main_script():  # the pool starts processes as work comes in
            return pool.submit(_run_in_worker, *job)

    try:
        # Work waits for each process, so that none has to, and no more than that is in memory.
        waiting = collections.deque(map(submit, itertools.islice(jobs, 4 * num_workers)))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(map(submit, itertools.islice(jobs, 1)))
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_main_script() -> Iterator[None]:
    """Processes that are started here do not run the main script again.

    A spawned process does so by default, in case it finds something of use there. It would import TensorFlow with it:
    seconds and 400 MB for each.
    """
    main = sys.modules["__main__"]
    hidden = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _told(encoder: WindowEncoder) -> tuple[dict, dict]:
    """What another process needs to make the same encoder: a tokenizer with its caches does not travel."""
    tokenizer = {name: getattr(encoder.tokenizer, name) for name in _TOKENIZER_ARGUMENTS}
    fields = dataclasses.fields(encoder)
    return tokenizer, {field.name: getattr(encoder, field.name) for field in fields if field.name != "tokenizer"}


_TOKENIZER_ARGUMENTS = ("vocab", "do_lower_case", "strip_accents", "never_split")


def _prepare_worker(tokenizer: dict, settings: dict, is_training: bool) -> None:
    global _worker_encoder
    _worker_encoder = BlockEncoder(WindowEncoder(FullTokenizer(**tokenizer), **settings), is_training)


def _run_in_worker(questions: Sequence[Question], first_index: int) -> Block:
    return _worker_encoder(questions, first_index)
