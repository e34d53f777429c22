"""Text into TFRecords for masked LM and next sentence prediction.

The input is plain text, one sentence a line, with an empty line between documents. Example:

    python create_pretraining_data.py \\
      --input_file='books/*.txt' --output_file=records/books.tfrecord --vocab_file=vocab.txt \\
      --max_seq_length=128 --max_predictions_per_seq=20 --shard_by_file --num_workers=8

With the flags of the original and no others, the records are those of the original, one for one.
"""

import logging
import os
import tempfile

from absl import flags

import command_line
from data.metadata import load_metadata
from data.pretraining import InstanceOptions, Pieces
from data.shards import Job, jobs_by_file, run_jobs, run_on_beam
from data.text_files import find_files, write_texts
from data.tokenization import load_vocab
from data.vocabulary_checks import check_casing
from flag_help import heading

command_line.offer_dry_run()

heading("Required")
_INPUT_FILE = flags.DEFINE_string(
    "input_file",
    None,
    "Read these texts: a comma-separated list of files or globs, plain or gzip (.gz), UTF-8; or name --tfds_name.",
)
_OUTPUT_FILE = flags.DEFINE_string(
    "output_file",
    None,
    "Write this TFRecord file, or a comma-separated list of files that take the records in turn.",
)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "The model has this vocabulary, one piece a line.")

heading("Data")
_DO_LOWER_CASE = flags.DEFINE_bool(
    "do_lower_case", True, "Whether to lower-case the text and take accents off: True for uncased models."
)
_DO_WHOLE_WORD_MASK = flags.DEFINE_bool(
    "do_whole_word_mask", False, "Whether to mask all pieces of a word together instead of each by itself."
)
# `InstanceOptions` tells why these two are out of range, which a bound here could not.
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", 128, "Every sequence has this many pieces, [CLS] and [SEP] among them. From 5 to 65535."
)
_MAX_PREDICTIONS_PER_SEQ = flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "A sequence has at most this many masked pieces; about max_seq_length * masked_lm_prob is right. From 1 to "
    "--max_seq_length.",
)
_RANDOM_SEED = flags.DEFINE_integer("random_seed", 12345, "All choices are drawn from this seed. Any integer will do.")
_DUPE_FACTOR = flags.DEFINE_integer(
    "dupe_factor", 10, "Go over the text this many times, each time with other masks.", lower_bound=1
)
_MASKED_LM_PROB = flags.DEFINE_float(
    "masked_lm_prob", 0.15, "This part of the pieces of a sequence is masked.", lower_bound=0.0, upper_bound=1.0
)
_SHORT_SEQ_PROB = flags.DEFINE_float(
    "short_seq_prob",
    0.1,
    "This part of the documents is cut into shorter sequences, of random length.",
    lower_bound=0.0,
    upper_bound=1.0,
)
_MASKING = flags.DEFINE_enum(
    "masking",
    "static",
    ["static", "dynamic"],
    "With static, mask now, as the original does. With dynamic, store every pair once (--dupe_factor is not used) and "
    "mask it anew in each epoch of training.",
)
_TFDS_NAME = flags.DEFINE_string(
    "tfds_name",
    None,
    "Read this set of tensorflow-datasets instead of --input_file: each example is a document, each line a sentence.",
)
_TFDS_SPLIT = flags.DEFINE_string("tfds_split", "train", "Read this split of --tfds_name.")
_TFDS_TEXT_KEY = flags.DEFINE_string("tfds_text_key", "text", "This feature of --tfds_name holds the text.")
_TFDS_DATA_DIR = flags.DEFINE_string(
    "tfds_data_dir", None, "The set --tfds_name is stored here, not in the usual place."
)

heading("Output")
_SHARD_BY_FILE = flags.DEFINE_bool(
    "shard_by_file",
    False,
    "Whether each text is a pool of documents by itself, with a file of records of its own, named after --output_file: "
    "out-00000-of-00031.tfrecord and so on. Memory then depends on the largest text, and not on all of them; the "
    "records do not depend on --num_workers.",
)
_OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Whether to make records anew that are there already, also those made with other flags."
)

heading("Running")
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers", 1, "This many processes share the work; more than one needs --shard_by_file.", lower_bound=1
)
_RUNNER = flags.DEFINE_string(
    "runner",
    None,
    "Run on Apache Beam with this runner, e.g. DirectRunner, FlinkRunner, SparkRunner or DataflowRunner; needs "
    "--shard_by_file.",
)
_BEAM_OPTIONS = flags.DEFINE_string("beam_options", "", "The Beam runner gets these options, separated by spaces.")


def validate_flags() -> InstanceOptions:
    """Refuses what cannot work, before any of it is done."""
    if (_INPUT_FILE.value is None) == (_TFDS_NAME.value is None):
        raise ValueError("Name the text by either --input_file or --tfds_name.")
    for flag in (_OUTPUT_FILE, _VOCAB_FILE):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    if _NUM_WORKERS.value > 1 and not _SHARD_BY_FILE.value:
        raise ValueError("--num_workers needs --shard_by_file: a single pool of documents is drawn by one process.")
    if _RUNNER.value and not _SHARD_BY_FILE.value:
        raise ValueError("--runner needs --shard_by_file: each text is one task of the pipeline.")
    if _SHARD_BY_FILE.value and "," in _OUTPUT_FILE.value:
        raise ValueError("With --shard_by_file, --output_file is one name, and the shards are named after it.")
    if _SHARD_BY_FILE.value:  # what is written lies beside the file that is named
        command_line.check_output_dir(_OUTPUT_FILE.name, os.path.dirname(_OUTPUT_FILE.value) or ".")
    else:
        for output in _OUTPUT_FILE.value.split(","):
            command_line.check_output_file(_OUTPUT_FILE.name, output)
    vocab = load_vocab(_VOCAB_FILE.value)
    Pieces.of(vocab)
    check_casing(_DO_LOWER_CASE.value, "", vocab, _VOCAB_FILE.value)
    return InstanceOptions(
        max_seq_length=_MAX_SEQ_LENGTH.value,
        max_predictions_per_seq=_MAX_PREDICTIONS_PER_SEQ.value,
        dupe_factor=_DUPE_FACTOR.value,
        masked_lm_prob=_MASKED_LM_PROB.value,
        short_seq_prob=_SHORT_SEQ_PROB.value,
        do_whole_word_mask=_DO_WHOLE_WORD_MASK.value,
        masking=_MASKING.value,
    )


def main() -> None:
    options = validate_flags()
    if _TFDS_NAME.value and command_line.is_dry_run():
        told = f"{_TFDS_NAME.value}, split {_TFDS_SPLIT.value}; not opened, since that may download it"
        memory = f"about {_MEGABYTES} MB and {_BYTES_A_BYTE} bytes for each byte of its text, beside Python's own"
        command_line.end_dry_run({"input": told, "output": _OUTPUT_FILE.value, "memory": memory})
    with tempfile.TemporaryDirectory() as directory:
        if _TFDS_NAME.value:
            inputs = write_texts(
                _TFDS_NAME.value, _TFDS_SPLIT.value, _TFDS_TEXT_KEY.value, _TFDS_DATA_DIR.value, directory
            )
        else:
            inputs = find_files(_INPUT_FILE.value, flag="input_file")
        job = Job(
            inputs=tuple(inputs),
            outputs=tuple(_OUTPUT_FILE.value.split(",")),
            seed=_RANDOM_SEED.value,
            vocab_file=_VOCAB_FILE.value,
            do_lower_case=_DO_LOWER_CASE.value,
            options=options,
            overwrite=_OVERWRITE.value,
        )
        jobs = jobs_by_file(job, _OUTPUT_FILE.value) if _SHARD_BY_FILE.value else [job]
        if command_line.is_dry_run():
            end_dry_run(jobs)
        if _RUNNER.value:
            run_on_beam(jobs, _RUNNER.value, _BEAM_OPTIONS.value.split())
        else:
            run_jobs(jobs, _NUM_WORKERS.value)
    report(jobs)


# Of a worker, and for each byte of the texts it has open at once; measured, see docs/data.md.
_MEGABYTES, _BYTES_A_BYTE = 30, 5.5


def end_dry_run(jobs: list[Job]) -> None:
    sizes = [sum(map(os.path.getsize, job.inputs)) for job in jobs]  # bytes of each pool of documents
    at_once = sum(sorted(sizes)[-_NUM_WORKERS.value :])  # text that is compressed takes more
    megabytes = _NUM_WORKERS.value * _MEGABYTES + _BYTES_A_BYTE * at_once / 1e6
    command_line.end_dry_run(
        {
            "input": f"{sum(len(job.inputs) for job in jobs)} files, {sum(sizes) / 1e6:.1f} MB",
            "output": f"{sum(len(job.outputs) for job in jobs)} files, {jobs[0].outputs[0]} first",
            "memory": f"about {megabytes:.0f} MB beside Python's own",
        }
    )


def report(jobs: list[Job]) -> None:
    """Says what is there now, in the words of the original and some more."""
    metadata = [load_metadata(path) for job in jobs for path in job.outputs]
    logging.info("Wrote %d total instances", sum(file.num_records for file in metadata))
    for path, file in zip((path for job in jobs for path in job.outputs), metadata, strict=True):
        logging.info("  %s: %d records, %.1f MB", path, file.num_records, file.num_bytes / 1e6)


if __name__ == "__main__":
    command_line.run(main)
