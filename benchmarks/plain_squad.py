"""Windows of questions by the plain rules: every question cuts its whole context into pieces anew, word by word.

This is how the original works and what it costs. It is here to be measured against, and as a second opinion: the fast
way in data/ must give the same windows.
"""

from collections.abc import Iterator

from benchmarks.plain_pretraining import tokenize
from data.squad import Question


def windows(
    question: Question,
    vocab: dict[str, int],
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
) -> Iterator[dict[str, list[int]]]:
    """The features of each window of a question, by the original's names."""
    query = tokenize(question.question, vocab)[:max_query_length]
    pieces, first_pieces, word_of_piece = [], [], []
    for index, word in enumerate(question.context.words):
        first_pieces.append(len(pieces))
        for piece in tokenize(word, vocab):
            word_of_piece.append(index)
            pieces.append(piece)
    answer = _answer(question, pieces, first_pieces, vocab)
    spans = _spans(len(pieces), max_seq_length - len(query) - 3, doc_stride)
    for number, (start, end) in enumerate(spans):
        tokens = ["[CLS]", *query, "[SEP]", *pieces[start:end], "[SEP]"]
        max_context = []
        for position in range(start, end):
            max_context.append(int(_best_span(spans, position) == number))
        features = {
            "input_ids": [vocab[token] for token in tokens],
            "input_mask": [1] * len(tokens),
            "segment_ids": [0] * (len(query) + 2) + [1] * (end - start + 1),
        }
        for values in features.values():
            while len(values) < max_seq_length:
                values.append(0)
        is_inside = answer is not None and start <= answer[0] and answer[1] < end
        features["start_positions"] = [answer[0] - start + len(query) + 2 if is_inside else 0]
        features["end_positions"] = [answer[1] - start + len(query) + 2 if is_inside else 0]
        features["is_impossible"] = [int(question.is_impossible)]
        yield features | {"is_max_context": max_context, "words": word_of_piece[start:end]}


def _answer(question: Question, pieces: list[str], first_pieces: list[int], vocab) -> tuple[int, int] | None:
    if question.start_word is None:
        return None
    first = first_pieces[question.start_word]
    is_last = question.end_word + 1 == len(first_pieces)
    last = (len(pieces) if is_last else first_pieces[question.end_word + 1]) - 1
    wanted = " ".join(tokenize(question.answers[0].text, vocab))
    for start in range(first, last + 1):
        for end in range(last, start - 1, -1):
            if " ".join(pieces[start : end + 1]) == wanted:
                return start, end
    return first, last


def _spans(num_pieces: int, size: int, stride: int) -> list[tuple[int, int]]:
    spans, start = [], 0
    while start < num_pieces:
        spans.append((start, min(start + size, num_pieces)))
        if spans[-1][1] == num_pieces:
            break
        start += min(size, stride)
    return spans


def _best_span(spans: list[tuple[int, int]], position: int) -> int:
    best_score, best = None, None
    for number, (start, end) in enumerate(spans):
        if start <= position < end:
            score = min(position - start, end - 1 - position) + 0.01 * (end - start)
            if best_score is None or score > best_score:
                best_score, best = score, number
    return best
