"""Several runs that differ in their seed alone, of which the best is kept."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from data.aside import written_aside
from training.best import merit
from training.state import TRIAL, write_text


def trial_dir(output_dir: str, trial: int, num_trials: int) -> str:
    """The directory of a trial: one of its own, unless there is only one."""
    return output_dir if num_trials == 1 else str(Path(output_dir) / TRIAL.format(trial))


def run_trials(
    output_dir: str,
    first_seed: int,
    num_trials: int,
    metric: str,
    write: bool,
    run: Callable[[str, int], dict[str, float]],
) -> None:
    """Runs all trials, each in its directory and from its seed, and keeps the best if there are several.

    Args:
        output_dir: of all trials.
        first_seed: of the first; the others follow it.
        num_trials: how many.
        metric: see `keep_best`.
        write: whether this process writes files.
        run: `(directory, seed)` -> figures.
    """
    seeds = [first_seed + trial for trial in range(num_trials)]
    results = [run(trial_dir(output_dir, trial, num_trials), seed) for trial, seed in enumerate(seeds)]
    if num_trials > 1 and write:
        keep_best(output_dir, results, seeds, metric)


def keep_best(output_dir: str, results: Sequence[Mapping[str, float]], seeds: Sequence[int], metric: str) -> None:
    """Copies the files of the best trial to `output_dir` and writes what all of them found to trials.json.

    Args:
        output_dir: of all trials.
        results: figures of each trial.
        seeds: of each trial.
        metric: the figure that decides, see `merit`.
    """
    best = max(range(len(results)), key=lambda trial: merit(metric, results[trial][metric]))
    directory = Path(trial_dir(output_dir, best, len(results)))
    (Path(output_dir) / "train_state").mkdir(exist_ok=True)
    for path in sorted([*directory.iterdir(), directory / "train_state" / "final_step"]):
        if path.is_file():
            target = Path(output_dir) / path.relative_to(directory)
            with open(path, "rb") as source, written_aside(target) as file:
                shutil.copyfileobj(source, file)
    summary = {
        "best_trial": best,
        "chosen_by": metric,
        "trials": [dict(result) | {"seed": seed} for result, seed in zip(results, seeds, strict=True)],
        "mean": {name: float(np.mean([result[name] for result in results])) for name in results[0]},
        "deviation": {name: float(np.std([result[name] for result in results], ddof=1)) for name in results[0]},
    }
    write_text(Path(output_dir) / "trials.json", json.dumps(summary, indent=2) + "\n")
    logging.getLogger(__name__).info("***** %d trials *****", len(results))
    for name in results[0]:
        logging.getLogger(__name__).info(
            "  %s: mean %.4f, deviation %.4f, best trial %.4f",
            name,
            summary["mean"][name],
            summary["deviation"][name],
            results[best][name],
        )
