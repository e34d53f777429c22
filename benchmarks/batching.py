"""What batches by length save in fine-tuning: the same run with everything padded, trimmed and bucketed.

    python -m benchmarks.batching --data_dir=glue/MRPC --init_checkpoint=uncased_L-12_H-768_A-12

Runs run_classifier.py once for each way, one after the other, and prints sequences per second (without the first step,
which compiles), the ratio to padded, and what came of it on the development set.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from absl import flags

import command_line

_TASK_NAME = flags.DEFINE_string("task_name", "mrpc", "A set of GLUE.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Its directory.")
_INIT_CHECKPOINT = flags.DEFINE_string("init_checkpoint", None, "The model to fine-tune.")
_WAYS = flags.DEFINE_list(
    "ways", ["padded", "trimmed", "bucketed"], "Values of --batching; the first is compared with."
)
_SEED = flags.DEFINE_integer("seed", 1, "Seed of all runs.")
_EPOCHS = flags.DEFINE_float("num_train_epochs", 3.0, "Epochs of each.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Keeps the runs; a directory for the moment if not set.")


def train(way: str, output_dir: Path) -> tuple[float, dict[str, str]]:
    """Sequences per second of a run, and its eval_results.txt."""
    from training.reports import read_metrics

    command = [
        *(sys.executable, "run_classifier.py", "--do_train", "--do_eval", f"--batching={way}"),
        *(f"--task_name={_TASK_NAME.value}", f"--data_dir={_DATA_DIR.value}", f"--output_dir={output_dir}"),
        *(f"--init_checkpoint={_INIT_CHECKPOINT.value}", f"--seed={_SEED.value}", "--log_every_steps=20"),
        f"--num_train_epochs={_EPOCHS.value}",
    ]
    subprocess.run(command, check=True)
    steps = seconds = 0.0
    before = 0
    for line in read_metrics(output_dir, "train"):
        if "sequences_per_second" in line:
            seconds += (line["step"] - before) / line["sequences_per_second"]
            steps += line["step"] - before
        before = line["step"]
    results = dict(line.split(" = ") for line in (output_dir / "eval_results.txt").read_text().splitlines())
    return steps / seconds, results


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(_OUTPUT_DIR.value or temporary)
        found = {way: train(way, directory / way) for way in _WAYS.value}
    first, _ = found[_WAYS.value[0]]
    for way, (speed, results) in found.items():
        told = "  ".join(f"{name} {float(value):.4f}" for name, value in results.items() if name.startswith("eval_"))
        print(f"{way:9} {speed:7.1f} sequences/s  {speed / first:5.2f}x  {told}")


if __name__ == "__main__":
    command_line.run(main)
