"""Whether pre-training records hold what a model can take.

A checksum tells that a record is as it was written, not that it was written right. And a lookup beyond the end of a
table is an error on some devices only, which names neither file nor record: so records are looked at as they are read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Bounds(NamedTuple):
    """How many ids and segments the model has."""

    vocab_size: int = 2**31  # whatever an int32 holds
    type_vocab_size: int = 2


# Bounds that the config of the model sets, by feature: one of both may be the wrong one.
_SET_BY = {"input_ids": "vocab_size", "masked_lm_ids": "vocab_size", "segment_ids": "type_vocab_size"}


class RecordCheck:
    """Finds records that have features of other lengths, or numbers out of bounds.

    Args:
        spec: the features of a record, see `tf.io.parse_example`.
        bounds: of the model.
    """

    def __init__(self, spec: dict[str, tf.io.FixedLenFeature], bounds: Bounds | None = None):
        bounds = bounds or Bounds()
        self._spec = spec
        self._ends = {
            "input_ids": bounds.vocab_size,
            "input_mask": 2,
            "segment_ids": bounds.type_vocab_size,
            "next_sentence_labels": 2,
            "masked_lm_positions": spec["input_ids"].shape[0],
            "masked_lm_ids": bounds.vocab_size,
        }

    def wrong(self, records: Sequence[bytes]) -> dict[int, str]:
        """What is wrong with records, by their number among all that are given."""
        try:
            columns = self._parse(records)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # which quotes the record, whatever its bytes
            if len(records) == 1:
                return {0: self._why_not_parsed(records[0])}
            each = {number: self.wrong([record]) for number, record in enumerate(records)}
            return {number: why[0] for number, why in each.items() if why}
        found: dict[int, str] = {}
        for name in columns.keys() & self._ends.keys():
            is_outside = columns[name].view(np.uint64) >= self._ends[name]  # as negative numbers are, too
            if is_outside.any():
                for row, column in np.argwhere(is_outside):
                    found[int(row)] = self._out_of_bounds(name, columns[name][row, column])
        return found

    def _out_of_bounds(self, name: str, value: int) -> str:
        end = self._ends[name]
        reason = f": {_SET_BY[name]} in --bert_config_file is {end}" if name in _SET_BY else ""
        return f"has {value} in {name}, where 0 to {end - 1} can be{reason}"

    def _parse(self, records: Sequence[bytes]) -> dict[str, np.ndarray]:
        with tf.device("CPU:0"):
            parsed = tf.io.parse_example(tf.constant(records, tf.string), self._spec)
        return {name: tensor.numpy() for name, tensor in parsed.items()}

    def _why_not_parsed(self, record: bytes) -> str:
        """In words of ours: TensorFlow's quote the record."""
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception:  # of the protobuf library, which has several
            return "is no tf.Example"
        for name, feature in self._spec.items():
            values = features[name].int64_list if feature.dtype == tf.int64 else features[name].float_list
            if len(values.value) != feature.shape[0]:
                return f"has {len(values.value)} numbers in {name} instead of {feature.shape[0]}"
        return "is no tf.Example of pre-training"
