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
from typing import NamedTuple

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
_PLOT = flags.DEFINE_string("plot", None, "Draws the first metric of each set as bars, to this file.")
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
        *(f"--learning_rate={_LEARNING_RATE.value}", f"--max_seq_length={_MAX_SEQ_LENGTH.value}"),
        *("--keep_checkpoint_max=1", "--save_checkpoints_steps=100000", "--train_batch_size=32"),
        *(start if is_random else [f"--init_checkpoint={path}"]),
        *_EXTRA.value,  # last, so that they win
    ]
    subprocess.run(command, check=True)
    write_text(output_dir / "done", "")
    return output_dir


class Figure(NamedTuple):
    """An official figure on the development set, in percent; without a deviation where there was one seed."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.deviation is None else f"{self.mean:.1f} ± {self.deviation:.1f}"


def figures(output_dir: Path, task: str) -> list[Figure]:
    """Of all seeds, in the order of the official metrics."""
    metrics = [f"eval_{metric}" for metric in GLUE_TASKS[task_name(task)].metrics]
    trials = output_dir / "trials.json"
    if trials.is_file():
        summary = json.loads(trials.read_text(encoding="utf-8"))
        return [Figure(100 * summary["mean"][name], 100 * summary["deviation"][name]) for name in metrics]
    results = dict(line.split(" = ") for line in (output_dir / "eval_results.txt").read_text().splitlines())
    return [Figure(100 * float(results[name]), None) for name in metrics]


def table(found: dict[str, dict[str, list[Figure]]], tasks: list[str]) -> str:
    """Markdown; a row an encoder."""
    header = [f"{task} ({'/'.join(GLUE_TASKS[task_name(task)].metrics)})" for task in tasks]
    lines = [f"| | {' | '.join(header)} |", "|---" * (len(header) + 1) + "|"]
    for name, by_task in found.items():
        lines.append(f"| {name} | {' | '.join(' / '.join(map(str, by_task[task])) for task in tasks)} |")
    return "\n".join(lines) + "\n"


def draw(path: str, found: dict[str, dict[str, list[Figure]]], tasks: list[str]) -> None:
    """Bars of the first metric of each set, one an encoder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(2 + 1.8 * len(tasks), 3.6), layout="constrained")
    width = 0.8 / len(found)
    for number, (name, by_task) in enumerate(found.items()):
        firsts = [by_task[task][0] for task in tasks]
        places = [place + (number - (len(found) - 1) / 2) * width for place in range(len(tasks))]
        bars = axes.bar(
            places,
            [figure.mean for figure in firsts],
            width,
            yerr=[figure.deviation or 0.0 for figure in firsts],
            capsize=3,
            label=name,
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    axes.set_xticks(range(len(tasks)), [f"{task}\n{GLUE_TASKS[task_name(task)].metrics[0]}" for task in tasks])
    axes.set_ylabel("percent")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=len(found), loc="upper center", bbox_to_anchor=(0.5, 1.15))
    figure.savefig(path, dpi=110)


def main() -> None:
    for flag in (_DATA_DIR, _OUTPUT_DIR, _ENCODERS):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    encoders = dict(encoder.split("=", 1) for encoder in _ENCODERS.value)
    found = {
        name: {task: figures(run(name, checkpoint, task), task) for task in _TASKS.value}
        for name, checkpoint in encoders.items()
    }
    text = table(found, _TASKS.value)
    write_text(Path(_OUTPUT_DIR.value) / "table.md", text)
    print(text)
    if _PLOT.value:
        draw(_PLOT.value, found, _TASKS.value)


if __name__ == "__main__":
    command_line.run(main)
