"""Named entities: a tag for each unit of a text, see data/ner_features.py.

Axes in comments: B batch, T sequence length, L tags, N records.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqeval.metrics
import tensorflow as tf
from tqdm import tqdm

from data.example_records import ExampleRecords
from data.ner import Entity, TaggedText, decode, tags
from data.ner_features import TokenWindow, UnitText, entities_of, split_units, unit_tags, windows
from data.tfrecord import ExampleEncoder
from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.losses import cross_entropy
from modeling.models import TaskModel, TokenFeatureModel, TokenModel
from tasks.settings import TaskSettings


@dataclasses.dataclass(frozen=True)
class NerSettings(TaskSettings):
    """Of a tagger."""

    tags: tuple[str, ...]  # in IOB2, "O" first
    unit: str  # "word" or "piece": what has a tag
    do_lower_case: bool
    max_seq_length: int
    document_context: bool = False
    feature_layers: tuple[int, ...] = ()  # of a frozen encoder, for a BiLSTM; empty if the encoder is fine-tuned

    script = "run_ner.py"


def find_tags(texts: Iterable[TaggedText]) -> tuple[str, ...]:
    """All tags of the types that occur, in IOB2."""
    types = sorted({entity.type for text in texts for entity in text.entities})
    if not types:
        raise ValueError("There is no entity in the training data: all tags are O.")
    return ("O", *(f"{prefix}-{name}" for name in types for prefix in "BI"))


class NerTask:
    """The mean loss over units, and how many tags are right; see `training.step.Task`."""

    measures = ("unit_count", "unit_loss", "unit_correct")

    def counts(self, batch) -> dict[str, tf.Tensor]:
        return {"unit_count": tf.reduce_sum(_weights(batch))}

    def sums(self, logits, batch) -> dict[str, tf.Tensor]:
        labels, weights = batch["label_ids"], _weights(batch)  # [B, T]
        is_right = tf.argmax(logits, axis=-1, output_type=tf.int32) == labels
        return {
            "unit_loss": tf.reduce_sum(cross_entropy(logits, labels) * weights),
            "unit_correct": tf.reduce_sum(tf.cast(is_right, tf.float32) * weights),
        }

    def loss(self, sums, counts) -> tf.Tensor:
        return tf.math.divide_no_nan(sums["unit_loss"], counts["unit_count"])

    def figures(self, totals) -> dict[str, float]:
        return {"accuracy": totals["unit_correct"] / max(totals["unit_count"], 1.0)}


def _weights(batch):
    """[B, T]: 1 where a row that counts answers for a unit."""
    return tf.cast(batch["label_mask"], tf.float32) * batch["row_weights"][:, tf.newaxis]


def tag_and_probability(logits) -> tf.Tensor:
    """[B, T, L] -> [B, T, 2]: the likeliest tag and how sure the model is of it. All tags would be a lot to keep."""
    probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))
    best = tf.argmax(probabilities, axis=-1)
    return tf.stack([tf.cast(best, tf.float32), tf.reduce_max(probabilities, axis=-1)], axis=-1)


def entities_told(
    settings: NerSettings,
    texts: Sequence[UnitText],
    windows_of: Iterable[tuple[int, Sequence[int], Sequence[int]]],
    told: Sequence[np.ndarray],
) -> list[list[tuple[Entity, float]]]:
    """Entities of each text, each with the probability of the least sure of its tags.

    Args:
        settings: of the task.
        texts: in units.
        windows_of: text, positions and units of each window.
        told: of each window, what the model says: the tag and its probability, [T, 2].
    """
    tags_of = [["O"] * len(text.units) for text in texts]
    sure = [[0.0] * len(text.units) for text in texts]
    for (text, positions, units), of_window in zip(windows_of, told, strict=True):
        for position, unit in zip(positions, units, strict=True):
            tags_of[text][unit] = settings.tags[int(of_window[position, 0])]
            sure[text][unit] = float(of_window[position, 1])
    result = []
    for text, names, scores in zip(texts, tags_of, sure, strict=True):
        least_sure = [min(scores[entity.start : entity.end]) for entity in decode(names)]
        result.append(list(zip(entities_of(text, names), least_sure, strict=True)))
    return result


def make_model(config: BertConfig, settings: NerSettings, **options) -> TaskModel:
    """The network that the settings ask for."""
    if settings.feature_layers:
        return TokenFeatureModel(config, len(settings.tags), settings.feature_layers, **options)
    return TokenModel(config, len(settings.tags), **options)


@dataclasses.dataclass(frozen=True)
class EncodedTexts:
    """Texts in a file of records."""

    settings: NerSettings
    texts: Sequence[TaggedText]
    units: Sequence[UnitText]
    windows: Sequence[tuple[int, list[int], list[int]]]  # text, positions and units of each record
    records: ExampleRecords

    @classmethod
    def write(
        cls, path: str | Path, texts: Sequence[TaggedText], settings: NerSettings, tokenizer: FullTokenizer
    ) -> "EncodedTexts":
        """Writes texts, padded to the full length; where entities are not known, labels are 0."""
        check_types(texts, settings)
        ids = {tag: number for number, tag in enumerate(settings.tags)}
        units = [
            split_units(text, tokenizer) for text in tqdm(texts, desc=f"Encoding {Path(path).stem}", unit=" texts")
        ]
        labels = [
            [0] * len(u.units) if text.entities is None else [ids[tag] for tag in unit_tags(u, text.entities)]
            for text, u in zip(texts, units, strict=True)
        ]
        made = list(
            windows(
                units,
                [text.document for text in texts],
                tokenizer,
                settings.max_seq_length,
                settings.document_context,
            )
        )
        encode = ExampleEncoder(max_number=max(tokenizer.vocab.values()))

        def records() -> Iterator[tuple[bytes, int]]:
            for window in made:
                yield _record(encode, window, labels[window.text], settings.max_seq_length), len(window.input_ids)

        kept = [(window.text, window.positions, window.units) for window in made]
        return cls(settings, texts, units, kept, ExampleRecords.write(path, records()))

    def entities(self, told: np.ndarray) -> list[list[tuple[Entity, float]]]:
        """What the model says, [N, T, 2], as entities of each text."""
        return entities_told(self.settings, self.units, self.windows, told)

    def figures(self, told: np.ndarray) -> dict[str, float]:
        """Entity precision, recall and F1 over all types, as conlleval and seqeval count them."""
        right, predicted = self._tag_lists(told)
        return {
            "eval_precision": float(seqeval.metrics.precision_score(right, predicted, zero_division=0)),
            "eval_recall": float(seqeval.metrics.recall_score(right, predicted, zero_division=0)),
            "eval_f1": float(seqeval.metrics.f1_score(right, predicted, zero_division=0)),
            "eval_accuracy": float(seqeval.metrics.accuracy_score(right, predicted)),
        }

    def per_type(self, told: np.ndarray) -> dict[str, dict[str, float]]:
        """The same for each type of entity."""
        report = seqeval.metrics.classification_report(*self._tag_lists(told), output_dict=True, zero_division=0)
        return {
            name: {
                "precision": float(row["precision"]),
                "recall": float(row["recall"]),
                "f1": float(row["f1-score"]),
                "support": int(row["support"]),
            }
            for name, row in report.items()
            if " avg" not in name
        }

    def _tag_lists(self, told: np.ndarray) -> tuple[list[list[str]], list[list[str]]]:
        right = [tags(text.entities, text.num_atoms) for text in self.texts]
        found = self.entities(told)
        predicted = [
            tags([entity for entity, _ in of_text], text.num_atoms)
            for text, of_text in zip(self.texts, found, strict=True)
        ]
        return right, predicted


def check_types(texts: Iterable[TaggedText], settings: NerSettings) -> None:
    """Refuses entities of a type that training does not have."""
    known = {tag[2:] for tag in settings.tags}
    for text in texts:
        for entity in text.entities or ():
            if entity.type not in known:
                types = ", ".join(sorted(known - {""}))
                raise ValueError(
                    f"{text.place}: the type {entity.type!r} does not occur in the training data: {types}."
                )


def _record(encode: ExampleEncoder, window: TokenWindow, labels: Sequence[int], length: int) -> bytes:
    label_ids, label_mask = [0] * length, [0] * length
    for position, unit in zip(window.positions, window.units, strict=True):
        label_ids[position], label_mask[position] = labels[unit], 1
    used = len(window.input_ids)
    return encode.example(
        encode.numbers("input_ids", window.input_ids, length - used),
        encode.repeated("input_mask", (1, used), (0, length - used)),
        encode.repeated("segment_ids", (0, length)),
        encode.numbers("label_ids", label_ids),
        encode.numbers("label_mask", label_mask),
    )


def parser(settings: NerSettings):
    """A function from serialized windows [B] to features [B, T]."""
    names = ("input_ids", "input_mask", "segment_ids", "label_ids", "label_mask")
    features = dict.fromkeys(names, tf.io.FixedLenFeature([settings.max_seq_length], tf.int64))

    def parse(records) -> dict[str, tf.Tensor]:
        return {name: tf.cast(value, tf.int32) for name, value in tf.io.parse_example(records, features).items()}

    return parse


def conll_lines(texts: Sequence[TaggedText], found: Sequence[Sequence[tuple[Entity, float]]]) -> Iterator[str]:
    """Texts in columns: the word, its right tag where it is known, and the tag that was predicted."""
    for text, of_text in zip(texts, found, strict=True):
        predicted = tags([entity for entity, _ in of_text], text.num_atoms)
        right = None if text.entities is None else tags(text.entities, text.num_atoms)
        for atom in range(text.num_atoms):
            start, end = (atom, atom + 1) if text.words is None else text.words[atom]
            columns = [
                " ".join(text.text[start:end].split()) or " ",
                *([right[atom]] if right else []),
                predicted[atom],
            ]
            yield "\t".join(columns) + "\n"
        yield "\n"


def json_object(text: TaggedText, of_text: Sequence[tuple[Entity, float]]) -> dict[str, Any]:
    """What predictions.jsonl tells of a text: its entities with the characters they stand at."""
    entities = []
    for entity, score in of_text:
        start, end = text.characters(entity)
        entities.append(
            {"start": start, "end": end, "type": entity.type, "text": text.text[start:end], "probability": score}
        )
    return {"id": text.id, "text": text.text, "entities": entities}
