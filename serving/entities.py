"""Named entities as a service: a text in, its entities with their types and places out.

Axes in comments: B texts, U units of all texts, R windows, S pieces of a window, L tags, N entities of all texts,
E entities of the text that has most.
"""

from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from data.graph_packing import SentencePacker
from data.graph_tokenization import GraphTokenizer
from data.graph_windows import cut_out, decode, slide, surest_windows
from data.tokenization import UNKNOWN_TOKEN, FullTokenizer
from modeling.models import TaskModel
from serving.service import TEXTS, Service
from tasks.asking import load_trained
from tasks.ner import NerSettings, make_model, tag_and_probability

# Of one text. All rows of a batch are as wide as the widest: a text that is one long list of names would make the
# answers of its neighbours so large that a server runs out of memory.
MOST_ENTITIES = 1000


class _Units(NamedTuple):
    """What gets a tag: words or pieces, see data/ner_features.py."""

    ids: tf.RaggedTensor  # int32 [B, (pieces)]
    first_pieces: tf.Tensor  # int64 [U], numbers of pieces of all texts
    starts: tf.RaggedTensor  # int32 [B, (units)], in characters
    ends: tf.RaggedTensor  # int32 [B, (units)]

    @property
    def texts(self):
        """Of each unit the number of its text: int64 [U]."""
        return self.starts.value_rowids()


class EntityService(Service):
    """Finds entities: what `NerPredictor` does in Python.

    Args:
        model, tokenizer, settings: see `Service`.
    """

    def __init__(self, model: TaskModel, tokenizer: FullTokenizer, settings: NerSettings):
        super().__init__(model, tokenizer, settings)
        types = sorted({tag[2:] for tag in settings.tags} - {""})
        self._types = tf.constant(["", *types], tf.string)
        self._type_of_tag = tf.constant([types.index(tag[2:]) + 1 if tag[2:] else 0 for tag in settings.tags])  # [L]
        self._may_go_on = tf.constant([tag.startswith("I") for tag in settings.tags])  # [L]
        self._graph_tokenizer = GraphTokenizer(tokenizer)
        # Words are found whatever the vocabulary is.
        self._word_finder = GraphTokenizer(FullTokenizer(vocab={UNKNOWN_TOKEN: 0, "a": 1}, do_lower_case=False))
        self._unknown_id = tokenizer.vocab[UNKNOWN_TOKEN]
        self._pack = SentencePacker(tokenizer.vocab, settings.max_seq_length, pad_to_longest=True)

    @classmethod
    def load(cls, output_dir: str | Path, dtype: str = "float32") -> "EntityService":
        """Loads the --output_dir of run_ner.py."""
        settings = NerSettings.load(output_dir)
        model, tokenizer = load_trained(
            output_dir, settings.do_lower_case, lambda config: make_model(config, settings, dtype=dtype)
        )
        return cls(model, tokenizer, settings)

    @property
    def outputs(self):
        return {"logits": tf.TensorSpec([None, None, len(self.settings.tags)], tf.float32)}

    def inputs(self):
        return {"text": TEXTS}

    def samples(self):
        return [
            {"text": "Marta Lund lives in Oslo."},
            {"text": "The ship sailed from Bergen to Tromsø, and Anna Vik with it. " * 4},
        ]

    def answer(self, text):
        characters = decode(text)  # [B, (characters)]
        units = self._words(text, characters) if self.settings.unit == "word" else self._pieces(text)
        tags, probabilities = self._tag(units)
        first, last = self._join(tags, units.texts)  # [N]: units
        texts = tf.gather(units.texts, first)
        own = tf.ragged.range(first, last + 1)  # [N, (units)]
        # Accents may have changed places, so the first unit need not be the one that begins first.
        starts = tf.math.segment_min(tf.gather(units.starts.values, own.values), own.value_rowids())  # [N]
        ends = tf.math.segment_max(tf.gather(units.ends.values, own.values), own.value_rowids())
        found = {
            "entities": cut_out(characters, texts, starts, ends),
            "types": tf.gather(self._types, tf.gather(self._type_of_tag, tf.gather(tags, first))),
            "starts": starts,
            "ends": ends,
            "probabilities": tf.math.segment_min(tf.gather(probabilities, own.values), own.value_rowids()),
        }
        rows = {
            name: tf.RaggedTensor.from_value_rowids(values, texts, characters.nrows(), validate=False)[
                :, :MOST_ENTITIES
            ]
            for name, values in found.items()
        }
        count = tf.cast(rows["starts"].row_lengths(), tf.int32)  # [B]
        return {name: ragged.to_tensor() for name, ragged in rows.items()} | {"count": count}  # [B, E] each

    def run(self, batch):
        return {"logits": tf.cast(self._network(batch), tf.float32)}  # [B, S, L]

    def _words(self, text, characters) -> _Units:
        """Each word cut into pieces by itself. What leaves none, like a zero-width space, is an unknown one."""
        starts, ends = self._word_finder.split_words(text)  # [B, (words)]
        words = cut_out(characters, starts.value_rowids(), starts.values, ends.values)  # [U]
        ids = self._graph_tokenizer.tokenize(words).with_row_splits_dtype(tf.int64)  # [U, (pieces)]
        is_empty = tf.cast(ids.row_lengths() == 0, tf.int64)
        unknown = tf.fill([tf.reduce_sum(is_empty)], self._unknown_id)
        ids = tf.concat([ids, tf.RaggedTensor.from_row_lengths(unknown, is_empty, validate=False)], axis=1)
        splits = tf.gather(ids.row_splits, starts.row_splits)  # [B + 1]
        pieces = tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)
        return _Units(pieces, ids.row_starts(), starts, ends)

    def _pieces(self, text) -> _Units:
        ids, starts, ends = self._graph_tokenizer.tokenize_with_offsets(text)  # [B, (pieces)]
        ids = ids.with_row_splits_dtype(tf.int64)
        return _Units(ids, tf.range(tf.size(ids.values, tf.int64)), starts, ends)

    def _tag(self, units: _Units):
        """(tags: int32 [U], probabilities: float [U]), each from the window that shows most around the unit."""
        counts = units.ids.row_lengths()
        room = tf.fill(tf.shape(counts), tf.constant(self.settings.max_seq_length - 2, tf.int64))
        windows = slide(counts, room, tf.maximum(room // 2, 1), is_last_full=True)
        logits = self.run_in_parts(self._pack(windows.show(units.ids)).batch)["logits"]  # [R, S, L]
        window = tf.gather(surest_windows(windows, units.ids), units.first_pieces)  # [U]
        in_text = units.first_pieces - tf.gather(units.ids.row_starts(), units.texts)
        place = 1 + in_text - tf.gather(windows.starts, window)  # behind [CLS]
        told = tag_and_probability(tf.gather_nd(logits, tf.stack([window, place], axis=-1)))  # [U, 2]
        return tf.cast(told[:, 0], tf.int32), told[:, 1]

    def _join(self, tags, texts):
        """(first, last): the units of each entity, int64 [N], by the rules of `data.ner.decode`."""
        types = tf.gather(self._type_of_tag, tags)  # [U], 0 outside of entities
        goes_on = tf.gather(self._may_go_on, tags)[1:] & (types[1:] == types[:-1]) & (texts[1:] == texts[:-1])
        goes_on = tf.concat([[False], goes_on], axis=0)[: tf.size(tags)]
        first = tf.where((types > 0) & ~goes_on)[:, 0]
        # An entity ends where the next unit does not go on with it.
        last = tf.where((types > 0) & ~tf.concat([goes_on[1:], [False]], axis=0)[: tf.size(tags)])[:, 0]
        return first, last
