"""Curves of one or more runs, from their metrics.jsonl, as a picture. Example:

python -m examples.plot_metrics --output_dirs=out/books,out/docs --metrics=masked_lm_loss --output_file=curves.png

With --consecutive, runs that continue each other (by --init_checkpoint) follow each other, over the tokens they saw.
"""

import itertools
import json
from pathlib import Path

from absl import flags

import command_line

_OUTPUT_DIRS = flags.DEFINE_list("output_dirs", [], "Output directories of training runs.")
_LABELS = flags.DEFINE_list("labels", [], "Their names in the legend; by default those of the directories.")
_METRICS = flags.DEFINE_list("metrics", ["masked_lm_loss", "masked_lm_accuracy"], "Figures to draw, a panel each.")
_CONSECUTIVE = flags.DEFINE_bool("consecutive", False, "Whether the runs are phases of one training.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", "curves.png", "The picture: .png, .svg or .pdf.")


def tokens_of(directory: str) -> tuple[float, int]:
    """Millions of tokens in a step of a pre-training run, and its last step."""
    from training.reports import read_metrics

    flags_of = json.loads((Path(directory) / "train_state" / "run.json").read_text(encoding="utf-8"))
    per_step = flags_of["train_batch_size"] * flags_of["max_seq_length"] / 1e6
    return per_step, max(line["step"] for line in read_metrics(directory))


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")  # no screen is needed
    import matplotlib.pyplot as plt

    from training.reports import read_metrics

    if not _OUTPUT_DIRS.value:
        raise ValueError("--output_dirs is missing: the runs to draw.")
    labels = _LABELS.value or [Path(directory).name for directory in _OUTPUT_DIRS.value]
    if len(labels) != len(_OUTPUT_DIRS.value):
        raise ValueError(f"--labels has {len(labels)} names, but --output_dirs {len(_OUTPUT_DIRS.value)}.")
    scales, starts = [1.0] * len(labels), [0.0] * len(labels)
    if _CONSECUTIVE.value:
        scales, last_steps = zip(*map(tokens_of, _OUTPUT_DIRS.value), strict=True)
        ends = itertools.accumulate(scale * step for scale, step in zip(scales, last_steps, strict=True))
        starts = [0.0, *ends][:-1]
    figure, panels = plt.subplots(1, len(_METRICS.value), figsize=(5 * len(_METRICS.value), 3.6), squeeze=False)
    for panel, metric in zip(panels[0], _METRICS.value, strict=True):
        for number, (directory, label) in enumerate(zip(_OUTPUT_DIRS.value, labels, strict=True)):
            for kind, style in (("train", {"alpha": 0.5}), ("eval", {"marker": "o", "markersize": 3})):
                points = [
                    (starts[number] + line["step"] * scales[number], line[metric])
                    for line in read_metrics(directory, kind)
                    if metric in line
                ]
                if points:
                    panel.plot(*zip(*points, strict=True), color=f"C{number}", label=f"{label}, {kind}", **style)
        panel.set_xlabel("million tokens" if _CONSECUTIVE.value else "step")
        panel.set_title(metric)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.tight_layout()
    Path(_OUTPUT_FILE.value).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(_OUTPUT_FILE.value, dpi=110)
    print(f"Wrote {_OUTPUT_FILE.value}.")


if __name__ == "__main__":
    command_line.run(main)
