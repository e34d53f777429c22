"""Fine-tunes encoders on sets of GLUE and prints a table of the official figures on their development sets.

    python -m benchmarks.glue --data_dir=glue --tasks=CoLA,MRPC,STS-B,RTE --num_trials=3 --output_dir=out/glue \\
      --encoders=bert-base=uncased_L-12_H-768_A-12,ours=pretrained/bert-mini-books

An encoder is a name and a checkpoint; `name=random:checkpoint` is the same model from random weights. What is in
--output_dir already is not done again, so the same command continues, and prints the table of what is there.
"""

import json
import subprocess
import sys
from pathlib import Path

from absl import flags

import command_line
from data.glue import GLUE_TASKS, task_name
from training.state import write_text

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Directory of GLUE, with a directory for each set.")
_TASKS = flags.DEFINE_list("tasks", ["CoLA", "MRPC", "STS-B", "RTE"], "Names of sets, as their directories are called.")
_ENCODERS = flags.DEFINE_list("encoders", [], "name=checkpoint, one or more.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Keeps the runs, and table.md.")
_NUM_TRIALS = flags.DEFINE_integer("num_trials", 3, "Seeds, from 1 on.", lower_bound=1)
_EPOCHS = flags.DEFINE_float("num_train_epochs", 3.0, "Epochs of each run.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 5e-5, "Peak of the learning rate.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Pieces of a sequence.")
_EXTRA = flags.DEFINE_multi_string("extra_flag", [], "A further flag of run_classifier.py, e.g. --bias_correction.")


def run(name: str, checkpoint: str, task: str) -> Path:
    """Fine-tunes an encoder on a set, unless that has been done."""
    output_dir = Path(_OUTPUT_DIR.value) / name / task
    if (output_dir / "done").is_file():
        return output_dir
    is_random = checkpoint.startswith("random:")
    path = checkpoint.removeprefix("random:")
    config = next(p for n in ("bert_config.json", "config.json") if (p := Path(path) / n).is_file())
    start = [f"--bert_config_file={config}", f"--vocab_file={Path(path) / 'vocab.txt'}", "--do_lower_case"]
    command = [
        *(sys.executable, "run_classifier.py", "--do_train", "--do_eval", "--batching=bucketed", "--seed=1"),
        *(f"--task_name={task}", f"--data_dir={Path(_DATA_DIR.value) / task}", f"--output_dir={output_dir}"),
        *(f"--num_trials={_NUM_TRIALS.value}", f"--num_train_epochs={_EPOCHS.value}", "--eval_batch_size=64"),
        *(f"--learning_rate={_LEARNING_RATE.value}", f"--max_seq_length={_MAX_SEQ_LENGTH.value}", *_EXTRA.value),
        *("--keep_checkpoint_max=1", "--save_checkpoints_steps=100000", "--train_batch_size=32"),
        *(start if is_random else [f"--init_checkpoint={path}"]),
    ]
    subprocess.run(command, check=True)
    write_text(output_dir / "done", "")
    return output_dir


def cell(output_dir: Path, task: str) -> str:
    """Mean and deviation of the official figures, in percent."""
    metrics = [f"eval_{metric}" for metric in GLUE_TASKS[task_name(task)].metrics]
    trials = output_dir / "trials.json"
    if trials.is_file():
        summary = json.loads(trials.read_text(encoding="utf-8"))
        return " / ".join(f"{100 * summary['mean'][m]:.1f} ± {100 * summary['deviation'][m]:.1f}" for m in metrics)
    results = dict(line.split(" = ") for line in (output_dir / "eval_results.txt").read_text().splitlines())
    return " / ".join(f"{100 * float(results[metric]):.1f}" for metric in metrics)


def main() -> None:
    for flag in (_DATA_DIR, _OUTPUT_DIR, _ENCODERS):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    header = [f"{task} ({'/'.join(GLUE_TASKS[task_name(task)].metrics)})" for task in _TASKS.value]
    lines = [f"| | {' | '.join(header)} |", "|---" * (len(header) + 1) + "|"]
    for encoder in _ENCODERS.value:
        name, checkpoint = encoder.split("=", 1)
        cells = [cell(run(name, checkpoint, task), task) for task in _TASKS.value]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    write_text(Path(_OUTPUT_DIR.value) / "table.md", table)
    print(table)


if __name__ == "__main__":
    command_line.run(main)
