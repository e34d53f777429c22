"""Answers to questions as a service: a question and a context in, the answer and where it stands out.

Axes in comments: B questions, R windows, S pieces of a window, K best starts or ends of a window, C candidates of all
questions, A answers that are told of each.
"""

from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from data.graph_packing import SentencePacker, take
from data.graph_tokenization import GraphTokenizer
from data.graph_windows import Windows, cut_out, decode, slide, surest_windows
from data.tokenization import FullTokenizer
from modeling.models import SpanModel
from serving.service import TEXTS, Service
from tasks.asking import load_trained
from tasks.squad import SquadSettings
from tasks.squad_answers import AnswerSettings
from training.prediction import MISSING

_NUM_ANSWERS = 5

# Any odd number has an inverse in 64 bits. This one, of a generator of random numbers, mixes well.
_FACTOR = 6364136223846793005
_INVERSE = pow(_FACTOR, -1, 2**64)


class _Pieces(NamedTuple):
    """What is read of each question and of its context."""

    question: tf.RaggedTensor  # int32 [B, (pieces)]
    context: tf.RaggedTensor  # int32 [B, (pieces)]
    starts: tf.RaggedTensor  # int32 [B, (pieces)]: the characters that each piece of a context came from
    ends: tf.RaggedTensor  # int32 [B, (pieces)]


class _Candidates(NamedTuple):
    """Parts of contexts that may be answers. "No answer" is one of them, and ends at character 0."""

    questions: tf.Tensor  # int64 [C]
    starts: tf.Tensor  # int32 [C], in characters
    ends: tf.Tensor  # int32 [C]
    scores: tf.Tensor  # float64 [C]

    @property
    def are_none(self):
        return self.ends == 0

    def take(self, numbers) -> "_Candidates":
        return _Candidates(*(tf.gather(values, numbers) for values in self))


class SpanService(Service):
    """Answers questions: what `SquadPredictor` does in Python.

    Where the question is empty, which is an error in Python, the answer is "" with a probability of 0.

    Args:
        model, tokenizer, settings: see `Service`.
    """

    outputs = dict.fromkeys(("start_logits", "end_logits"), tf.TensorSpec([None, None], tf.float32))

    def __init__(self, model: SpanModel, tokenizer: FullTokenizer, settings: SquadSettings):
        super().__init__(model, tokenizer, settings)
        settings.encoder(tokenizer)  # looks whether the lengths fit together
        self._how = AnswerSettings()
        self._graph_tokenizer = GraphTokenizer(tokenizer)
        self._pack = SentencePacker(tokenizer.vocab, settings.max_seq_length, pad_to_longest=True)

    @classmethod
    def load(cls, output_dir: str | Path, dtype: str = "float32") -> "SpanService":
        """Loads the --output_dir of run_squad.py."""
        settings = SquadSettings.load(output_dir)
        model, tokenizer = load_trained(
            output_dir, settings.do_lower_case, lambda config: SpanModel(config, dtype=dtype)
        )
        return cls(model, tokenizer, settings)

    def inputs(self):
        return {"question": TEXTS, "context": TEXTS}

    def samples(self):
        context = "Marta rowed out to the island and lit the lamp."
        return [
            {"question": "Who lit the lamp?", "context": context},
            {"question": "Where did she row?", "context": f"{context} The storm went on for three days. " * 12},
        ]

    def answer(self, question, context):
        tf.debugging.assert_equal(tf.size(question), tf.size(context), "question and context need as many rows.")
        characters = decode(context)  # [B, (characters)]
        pieces = self._cut(question, context)
        entries = self._n_best(self._candidates(pieces), characters)
        probabilities = _softmax(entries, characters.nrows())
        first = self._choose(entries, characters.nrows())
        told = entries.take(first)
        found = {
            "answers": cut_out(characters, told.questions, told.starts, told.ends),
            "starts": told.starts,
            "ends": told.ends,
            "probabilities": tf.cast(tf.gather(probabilities, first), tf.float32),
        }
        answers = {}
        for name, values in found.items():
            ragged = tf.RaggedTensor.from_value_rowids(values, told.questions, characters.nrows(), validate=False)
            answers[name] = ragged.to_tensor(shape=[None, _NUM_ANSWERS])  # [B, A]
        of_best = {"answer": "answers", "start": "starts", "end": "ends", "probability": "probabilities"}
        return answers | {name: answers[several][:, 0] for name, several in of_best.items()}

    def run(self, batch):
        logits = self._network(batch)
        return {name: tf.cast(logits[name], tf.float32) for name in self.outputs}  # [B, S] each

    def _cut(self, question, context) -> _Pieces:
        asked = self._graph_tokenizer.tokenize(question).with_row_splits_dtype(tf.int64)
        lengths = tf.minimum(asked.row_lengths(), self.settings.max_query_length)
        asked = take(asked, tf.range(asked.nrows()), tf.zeros_like(lengths), lengths)
        read = self._graph_tokenizer.tokenize_with_offsets(context)
        return _Pieces(asked, *(values.with_row_splits_dtype(tf.int64) for values in read))

    def _candidates(self, pieces: _Pieces) -> _Candidates:
        """Pairs of a good start and a good end, in the order of Python, and "no answer" for each question."""
        lengths = pieces.question.row_lengths()
        size = self.settings.max_seq_length - 3 - lengths  # [B]: beside the question, [CLS] and two [SEP]
        counts = tf.where(lengths > 0, pieces.context.row_lengths(), 0)
        windows = slide(counts, size, tf.minimum(size, self.settings.doc_stride), is_last_full=False)
        batch = self._pack(tf.gather(pieces.question, windows.texts), windows.show(pieces.context)).batch
        told = self.run_in_parts(batch)
        start_logits, end_logits = (tf.where(batch["input_mask"] > 0, told[name], MISSING) for name in self.outputs)
        spans = self._pair(pieces, windows, start_logits, end_logits)
        at_cls = _in_64_bits(start_logits[:, 0]) + _in_64_bits(end_logits[:, 0])  # [R]
        if not self.settings.version_2_with_negative:  # then it is what is told where there is nothing else
            at_cls = tf.fill(tf.shape(at_cls), tf.float64.min)
        # Last, so that it comes after answers that score the same.
        asked = tf.where(lengths > 0)[:, 0]
        none = tf.gather(tf.math.unsorted_segment_min(at_cls, windows.texts, tf.size(lengths)), asked)
        nowhere = tf.zeros_like(asked, tf.int32)
        both = zip(spans, (asked, nowhere, nowhere, none), strict=True)
        return _Candidates(*(tf.concat(values, axis=0) for values in both))

    def _pair(self, pieces: _Pieces, windows: Windows, start_logits, end_logits) -> _Candidates:
        num_best = tf.minimum(self._how.n_best_size, tf.shape(start_logits)[1])
        start_scores, first = tf.math.top_k(start_logits, num_best)  # [R, K]
        end_scores, last = tf.math.top_k(end_logits, num_best)
        # From here on counted from the first piece of the context in the window.
        document_starts = (tf.gather(pieces.question.row_lengths(), windows.texts) + 2)[:, tf.newaxis]
        first, last = (tf.cast(places, tf.int64) - document_starts for places in (first, last))
        may_start, may_end = ((x >= 0) & (x < windows.lengths[:, tf.newaxis]) for x in (first, last))
        origins = tf.gather(pieces.context.row_starts(), windows.texts) + windows.starts  # [R]
        number = tf.where(may_start, origins[:, tf.newaxis] + first, 0)  # [R, K], of all pieces
        surest = tf.gather(surest_windows(windows, pieces.context), number)
        may_start &= surest == tf.range(tf.size(origins, tf.int64))[:, tf.newaxis]
        lengths = last[:, tf.newaxis] - first[:, :, tf.newaxis] + 1  # [R, K, K]
        fits = (lengths >= 1) & (lengths <= self._how.max_answer_length)
        window, start, end = tf.unstack(
            tf.where(fits & may_start[:, :, tf.newaxis] & may_end[:, tf.newaxis]), num=3, axis=-1
        )  # [C]
        of_start, of_end = tf.stack([window, start], axis=-1), tf.stack([window, end], axis=-1)
        origin = tf.gather(origins, window)
        ends_of_span = origin + tf.gather_nd(first, of_start), origin + tf.gather_nd(last, of_end)
        # Accents may have changed places, so the first piece may stand behind the last.
        return _Candidates(
            tf.gather(windows.texts, window),
            tf.minimum(*(tf.gather(pieces.starts.values, number) for number in ends_of_span)),
            tf.maximum(*(tf.gather(pieces.ends.values, number) for number in ends_of_span)),
            # In 32 bits some sums would be equal that are not.
            _in_64_bits(tf.gather_nd(start_scores, of_start)) + _in_64_bits(tf.gather_nd(end_scores, of_end)),
        )

    def _n_best(self, candidates: _Candidates, characters: tf.RaggedTensor) -> _Candidates:
        """The best of each question that differ in text, from the best down, and "no answer" in any case."""
        order = tf.argsort(candidates.scores, direction="DESCENDING", stable=True)
        candidates = candidates.take(order)
        candidates = candidates.take(tf.argsort(candidates.questions, stable=True))
        _, texts = tf.unique(_fingerprints(candidates, characters), out_idx=tf.int64)
        numbers = tf.range(tf.size(texts, tf.int64))
        # The op numbers texts as it meets them, so the first of each are in order.
        first = tf.math.unsorted_segment_min(numbers, texts, tf.reduce_max(tf.concat([texts, [-1]], axis=0)) + 1)
        candidates = candidates.take(first)
        is_kept = (_ranks(candidates.questions) < self._how.n_best_size) | candidates.are_none
        return candidates.take(tf.where(is_kept)[:, 0])

    def _choose(self, entries: _Candidates, num_questions):
        """Numbers of the entries to tell. The threshold decides whether "no answer" goes before the others or last."""
        none, some = (
            tf.math.unsorted_segment_max(
                tf.where(is_one, entries.scores, tf.float64.min), entries.questions, num_questions
            )
            for is_one in (entries.are_none, ~entries.are_none)
        )
        is_empty = none - some > self.settings.null_score_diff_threshold  # [B]
        is_later = entries.are_none != tf.gather(is_empty, entries.questions)
        order = tf.argsort(entries.questions * 2 + tf.cast(is_later, tf.int64), stable=True)
        return tf.boolean_mask(order, _ranks(tf.gather(entries.questions, order)) < _NUM_ANSWERS)


def _softmax(entries: _Candidates, num_questions):
    """Probabilities among the entries of the same question: float64 [entries]."""
    highest = tf.math.unsorted_segment_max(entries.scores, entries.questions, num_questions)
    powers = tf.exp(entries.scores - tf.gather(highest, entries.questions))
    return powers / tf.gather(tf.math.unsorted_segment_sum(powers, entries.questions, num_questions), entries.questions)


def _ranks(numbers):
    """How many equal ones stand before each of sorted numbers: int64."""
    return tf.range(tf.size(numbers, tf.int64)) - tf.searchsorted(numbers, numbers, out_type=tf.int64)


def _fingerprints(candidates: _Candidates, characters: tf.RaggedTensor):
    """Numbers that are the same for candidates of one question with the same text, and otherwise next to never: [C].

    Comparing the texts themselves would need a string for each, and a context may be one very long word.
    """
    count = tf.size(characters.values)
    powers, inverses = (
        # Without what overflows 64 bits.
        tf.math.cumprod(tf.fill([count + 1], tf.constant(_signed(factor), tf.int64)), exclusive=True)
        for factor in (_FACTOR, _INVERSE)
    )
    sums = tf.cumsum(tf.pad(tf.cast(characters.values, tf.int64) + 1, [[0, 1]]) * powers, exclusive=True)
    origins = tf.gather(characters.row_starts(), candidates.questions)
    starts, ends = (origins + tf.cast(places, tf.int64) for places in (candidates.starts, candidates.ends))
    prints = (tf.gather(sums, ends) - tf.gather(sums, starts)) * tf.gather(inverses, starts)
    return (prints * _FACTOR + ends - starts) * _FACTOR + candidates.questions


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _in_64_bits(values):
    return tf.cast(values, tf.float64)
