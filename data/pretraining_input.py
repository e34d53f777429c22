"""Records of pre-training as a script sees them: checked against its flags, masked where they have to be."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from data.masking import DynamicMasker
from data.metadata import SUFFIX, load_metadata
from data.pretraining import InstanceOptions, Pieces
from data.record_checks import Bounds
from data.records import (
    CheckedBlocks,
    CorruptRecords,
    RecordFiles,
    RecordFormat,
    evaluation_batches,
    num_evaluation_batches,
    training_batches,
)


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
    """Files of records with all that is needed to read them."""

    names: tuple[str, ...]
    files: RecordFiles
    masker: DynamicMasker | None
    corrupt: CorruptRecords
    checked: CheckedBlocks
    change: Callable | None  # what is done to each batch in the end

    @classmethod
    def open(
        cls,
        names: Sequence[str],
        max_seq_length: int,
        max_predictions_per_seq: int,
        masking: str = "auto",
        vocab: Mapping[str, int] | None = None,
        skip_corrupt: bool = False,
        vocab_size: int | None = None,
        change: Callable | None = None,
        type_vocab_size: int = 2,
    ) -> "PretrainingInput":
        """Opens records, and raises where they are of another length or masking than wanted.

        Args:
            names: the files.
            max_seq_length, max_predictions_per_seq: what the flags say.
            masking: "static", "dynamic", or "auto" for whichever the records have.
            vocab: for dynamic masking.
            skip_corrupt: leave out records that cannot be read.
            vocab_size, type_vocab_size: how many ids and segments the model has. Records with others are refused.
            change: a function from batch to batch, e.g. `left_to_right`.
        """
        names = tuple(name for name in names if not name.endswith(SUFFIX))
        corrupt = CorruptRecords(skip_corrupt)
        files = RecordFiles.open(names, corrupt)
        found = RecordFormat.of(files)
        found.check(names[0], max_seq_length, max_predictions_per_seq)
        if masking not in ("auto", found.masking):
            raise ValueError(
                f"{names[0]} holds records made with --masking={found.masking}, but --masking is {masking} here."
            )
        masker = None
        if found.masking == "dynamic":
            masker = _masker(names[0], vocab, max_seq_length, max_predictions_per_seq)
        bounds = Bounds(vocab_size or Bounds().vocab_size, type_vocab_size)
        return cls(names, files, masker, corrupt, found.checked_blocks(bounds), change)

    def training_batches(self, batch_size: int, seed: int, start_step: int, worker: int, num_workers: int):
        """See `data.records.training_batches`."""
        batches = training_batches(
            self.files, batch_size, seed, start_step, worker, num_workers, self.masker, self.corrupt, self.checked
        )
        return self._changed(batches)

    def evaluation_batches(self, batch_size: int, worker: int, num_workers: int) -> tf.data.Dataset:
        """See `data.records.evaluation_batches`."""
        batches = evaluation_batches(
            self.files, batch_size, worker, num_workers, masker=self.masker, corrupt=self.corrupt, checked=self.checked
        )
        return self._changed(batches)

    def num_evaluation_batches(self, batch_size: int) -> int:
        return num_evaluation_batches(self.files, batch_size)

    def describe(self) -> str:
        """Enough to tell these records from others, and from the same ones after they were made again otherwise."""
        digest = hashlib.sha256()
        for name in self.names:
            metadata = load_metadata(name)
            made_of = (metadata.flags, metadata.inputs, metadata.vocab_sha256) if metadata else ()
            digest.update(repr((Path(name).name, tf.io.gfile.stat(name).length, made_of)).encode())
        return f"{len(self.names)} files, {self.files.num_records} records, {digest.hexdigest()[:12]}"

    def _changed(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        if not self.change:
            return batches
        change = tf.autograph.experimental.do_not_convert(self.change)  # which takes longer than to trace it
        return batches.map(change, num_parallel_calls=2).prefetch(2)


def _masker(file: str, vocab, max_seq_length: int, max_predictions_per_seq: int) -> DynamicMasker:
    if vocab is None:
        raise ValueError(f"{file} holds records without masks (--masking=dynamic): masking them needs --vocab_file.")
    metadata = load_metadata(file)
    made_with = metadata.flags if metadata else {}
    options = InstanceOptions(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        masked_lm_prob=made_with.get("masked_lm_prob", 0.15),
        do_whole_word_mask=made_with.get("do_whole_word_mask", False),
    )
    return DynamicMasker(Pieces.of(vocab), options)
