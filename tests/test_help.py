"""`--help` alone has to be enough to use a script."""

import functools
import re
import subprocess
import sys

import pytest

from tests.scripts import ROOT

TRAINING = ("learning_rate", "distribution_strategy", "use_tpu", "seed", "eval_every_steps")
TUNING = ("init_checkpoint", "vocab_file", "num_train_epochs", "batching", "output_dir")
FLAGS = {
    "learn_vocab.py": ("input_file", "output_file", "vocab_size"),
    "create_pretraining_data.py": ("input_file", "output_file", "vocab_file", "masked_lm_prob"),
    "run_pretraining.py": ("input_file", "masking", *TRAINING),
    "run_classifier.py": ("task_name", "text_column", *TRAINING, *TUNING),
    "run_squad.py": ("doc_stride", "raw_results_in", *TRAINING, *TUNING),
    "run_ner.py": ("tag_scheme", "document_context", *TRAINING, *TUNING),
    "run_multiple_choice.py": ("format", "max_train_examples", *TRAINING, *TUNING),
    "extract_features.py": ("input_file", "layers", "pooling", "query", "sts_file"),
    "run_fill_mask.py": ("text", "top_k"),
    "convert_checkpoint.py": ("input", "format"),
    "export_model.py": ("model_dir", "task", "precision", "tflite_modes", "mediapipe"),
}
# Some of the smaller programs, which have no headings of their own.
SMALLER = {
    "serving.client": ("url", "grpc", "model", "text", "status"),
    "examples.plot_metrics": ("output_dirs", "metrics", "output_file"),
    "benchmarks.batching": ("data_dir", "init_checkpoint", "ways"),
}
# Flags of absl and TensorFlow do not help anybody here.
FOREIGN = ("helpxml", "test_srcdir", "hbm_oom_exit", "verbosity")
HEADINGS = ["Required", "Model", "Data", "Training", "Devices", "Output", "Running", "Exit codes"]


@functools.cache
def help_of(*program: str) -> subprocess.CompletedProcess:
    """What `--help` prints; on standard error, all that was imported for it."""
    command = [sys.executable, "-X", "importtime", *program, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def described(text: str) -> dict[str, tuple[str, str]]:
    """Name -> what the flag takes, and what is told of it."""
    found = re.findall(r"^  --(?:\[no\])?(\w+)(.*)\n((?:      .*\n)+)", text, re.MULTILINE)
    return {name: (takes, " ".join(told.split())) for name, takes, told in found}


def sections(text: str) -> dict[str, set[str]]:
    """Heading -> names of the flags below it."""
    parts = re.split(rf"^({'|'.join(HEADINGS)})$", text, flags=re.MULTILINE)[1:]
    return {heading: set(described(part)) for heading, part in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("script", FLAGS)
def test_help_shows_an_example_and_every_flag_in_whole_sentences(script):
    result = help_of(script)
    assert "tensorflow" not in result.stderr  # nobody waits for TensorFlow to read this
    assert f"python {script} " in result.stdout
    flags = described(result.stdout)
    assert flags.keys() >= {*FLAGS[script], "dry_run", "debug"}
    assert not flags.keys() & set(FOREIGN)
    for name, (takes, text) in flags.items():
        assert re.fullmatch(r"(?!Of |Its )[A-Z].+ .+ .+\.", text), name
        if takes in ("=N", "=X"):
            assert re.search(r"At least|At most|From .+ to|Any (number|integer)", text), f"{name} has which range?"
    headings = list(sections(result.stdout))
    assert headings == [name for name in HEADINGS if name in headings]
    assert {"Running", "Exit codes"} <= set(headings) and len(headings) >= 4


@pytest.mark.parametrize("module", SMALLER)
def test_help_of_smaller_programs(module):
    text = help_of("-m", module).stdout
    assert f"python -m {module} " in text
    assert sections(text)["Data"] >= set(SMALLER[module])
    assert not described(text).keys() & {*FOREIGN, "dry_run"}  # they do not heed it
    flag = max(SMALLER[module], key=len)
    assert f"Did you mean --{flag}" in told("-m", module, f"--{flag[:-1]}=1")
    assert "There is no flag --dry_run." in told("-m", module, "--dry_run")


def test_flags_stand_where_they_are_looked_for():
    data, features, export = (
        sections(help_of(script).stdout)
        for script in ("create_pretraining_data.py", "extract_features.py", "export_model.py")
    )
    assert data["Data"] >= {"tfds_name", "tfds_split", "tfds_text_key", "tfds_data_dir"}
    assert data["Output"] == {"shard_by_file", "overwrite"}
    assert features["Required"] == {"init_checkpoint", "input_file", "output_file"}
    assert export["Model"] >= {"task", "precision", "pooling"}
    assert export["Data"] == {"train_records", "eval_records"}


def told(*program_and_flags: str) -> str:
    command = [sys.executable, *program_and_flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("script", "flag", "meant"),
    [
        ("learn_vocab.py", "--vocabsize=3", "--vocab_size"),
        ("learn_vocab.py", "--size=3", "--vocab_size"),
        ("learn_vocab.py", "--no_do_lower_case", "--do_lower_case"),
        ("run_classifier.py", "--lr=3e-5", "--learning_rate"),
        ("run_classifier.py", "--batch_size=8", "--train_batch_size"),
        ("run_fill_mask.py", "--bs=8", "--batch_size"),
        ("export_model.py", "--model=out", "--model_dir"),
    ],
)
def test_an_unknown_flag_is_told_with_the_nearest_one(script, flag, meant):
    message = told(script, flag)
    assert flag.split("=")[0] in message
    assert f"Did you mean {meant}?" in message


@pytest.mark.parametrize(
    ("script", "flag"),
    [
        ("learn_vocab.py", "--vocab_size=0"),
        ("learn_vocab.py", "--learner=other"),
        ("create_pretraining_data.py", "--dupe_factor=0"),
        ("create_pretraining_data.py", "--masked_lm_prob=1.5"),
        ("create_pretraining_data.py", "--short_seq_prob=-0.1"),
        ("run_pretraining.py", "--max_seq_length=0"),
        ("run_pretraining.py", "--max_predictions_per_seq=0"),
        ("run_pretraining.py", "--num_tpu_cores=0"),
        ("run_classifier.py", "--max_seq_length=2"),
        ("run_squad.py", "--doc_stride=0"),
        ("run_squad.py", "--max_query_length=0"),
        ("run_ner.py", "--max_seq_length=2"),
        ("run_multiple_choice.py", "--max_seq_length=4"),
        ("export_model.py", "--max_seq_length=0"),
    ],
)
def test_a_value_out_of_range_is_told_before_anything_is_loaded(script, flag):
    assert flag in told(script, flag)


def test_words_that_are_no_flags():
    assert "books.txt" in told("learn_vocab.py", "books.txt")
