"""`--help` alone has to be enough to use a script."""

import subprocess
import sys

import pytest

from tests.scripts import ROOT

SHARED_TRAINING = ("--learning_rate", "--distribution_strategy", "--use_tpu", "--seed", "--eval_every_steps")
SHARED_TUNING = ("--init_checkpoint", "--vocab_file", "--num_train_epochs", "--batching", "--output_dir")
FLAGS = {
    "run_pretraining.py": ("--input_file", "--masking", *SHARED_TRAINING),
    "run_classifier.py": ("--task_name", "--text_column", *SHARED_TRAINING, *SHARED_TUNING),
    "run_squad.py": ("--doc_stride", "--raw_results_in", *SHARED_TRAINING, *SHARED_TUNING),
    "run_ner.py": ("--tag_scheme", "--document_context", *SHARED_TRAINING, *SHARED_TUNING),
    "run_multiple_choice.py": ("--format", "--max_train_examples", *SHARED_TRAINING, *SHARED_TUNING),
    "extract_features.py": ("--input_file", "--layers", "--pooling", "--query", "--sts_file"),
    "run_fill_mask.py": ("--text", "--top_k"),
    "convert_checkpoint.py": ("--input", "--format"),
    "export_model.py": ("--model_dir", "--task", "--precision", "--tflite_modes", "--mediapipe"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", FLAGS)
def test_help_shows_an_example_and_every_flag(script):
    result = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"python {script} " in result.stdout
    for flag in FLAGS[script]:
        name = flag.removeprefix("--")
        assert f"  --{name}:" in result.stdout or f"  --[no]{name}:" in result.stdout, flag
