"""`--help` alone has to be enough to use a script."""

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
# Flags of absl and TensorFlow do not help anybody here.
FOREIGN = ("helpxml", "test_srcdir", "hbm_oom_exit", "verbosity")


@pytest.mark.parametrize("script", FLAGS)
def test_help_shows_an_example_and_every_flag_in_whole_sentences(script):
    command = [sys.executable, "-X", "importtime", script, "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "tensorflow" not in result.stderr  # all that was imported: nobody waits for TensorFlow to read this
    assert f"python {script} " in result.stdout
    described = dict(re.findall(r"^  --(?:\[no\])?(\w+).*\n((?:      .*\n)+)", result.stdout, re.MULTILINE))
    assert described.keys() >= {*FLAGS[script], "dry_run", "debug"}
    assert not described.keys() & set(FOREIGN)
    for name, text in described.items():
        assert text.rstrip().endswith("."), name
    headings = re.findall(r"^([A-Z]\w+(?: codes)?)$", result.stdout, re.MULTILINE)
    order = ["Required", "Model", "Data", "Training", "Devices", "Output", "Running", "Exit codes"]
    assert headings == [name for name in order if name in headings]
    assert {"Running", "Exit codes"} <= set(headings) and len(headings) >= 4


def told(script: str, *flags: str) -> str:
    command = [sys.executable, script, *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--vocabsize=3", "--vocab_size"), ("--size=3", "--vocab_size"), ("--no_do_lower_case", "--do_lower_case")],
)
def test_an_unknown_flag_is_told_with_the_nearest_one(flag, meant):
    message = told("learn_vocab.py", flag)
    assert flag.split("=")[0] in message
    assert f"Did you mean {meant}?" in message


def test_a_value_out_of_range_and_words_that_are_no_flags():
    assert "--vocab_size=0" in told("learn_vocab.py", "--vocab_size=0")
    assert "--learner=other" in told("learn_vocab.py", "--learner=other")
    assert "books.txt" in told("learn_vocab.py", "books.txt")
