"""Which service a directory makes: the one of the script that trained it, or one that any pre-trained model can do."""

import json
from pathlib import Path
from typing import Any

from serving.blanks import BlankService
from serving.choices import ChoiceService
from serving.entities import EntityService
from serving.sentences import SentenceService
from serving.service import Service
from serving.spans import SpanService
from serving.vectors import VectorService
from tasks.settings import SETTINGS_FILE

# By --task. Those of the first group come from fine-tuning, and what they are is in their directory.
FINE_TUNED = {
    "classification": SentenceService,
    "ner": EntityService,
    "squad": SpanService,
    "multiple_choice": ChoiceService,
}
PRETRAINED = {"fill_mask": BlankService, "embeddings": VectorService}
TASKS = ("auto", *FINE_TUNED, *PRETRAINED)

# What else can be chosen, where training has not decided it.
_OPTIONS = {
    "fill_mask": frozenset({"max_seq_length", "top_k"}),
    "embeddings": frozenset({"max_seq_length", "pooling", "normalize"}),
}

_TASK_OF_SCRIPT = {
    "run_classifier.py": "classification",
    "run_ner.py": "ner",
    "run_squad.py": "squad",
    "run_multiple_choice.py": "multiple_choice",
}


def find_task(model_dir: str | Path) -> str:
    """What the model of an output directory does."""
    path = Path(model_dir) / SETTINGS_FILE
    if not path.is_file():
        raise ValueError(
            f"There is no {path}, so {model_dir} is not a fine-tuned model. Of a pre-trained one --task=fill_mask and "
            "--task=embeddings can be made."
        )
    try:
        script = json.loads(path.read_text(encoding="utf-8")).get("script")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be used: {error}.") from error
    if script not in _TASK_OF_SCRIPT:
        raise ValueError(f"{path} is of {script!r}, which makes nothing that is served.")
    return _TASK_OF_SCRIPT[script]


def load_service(model_dir: str | Path, task: str = "auto", dtype: str = "float32", **options: Any) -> Service:
    """Loads a model for a task.

    Args:
        model_dir: --output_dir of a script; for `PRETRAINED` tasks any checkpoint.
        task: one of `TASKS`.
        dtype: of weights and of what is computed.
        options: of `PRETRAINED` tasks, see their `load`; None says nothing.
    """
    task = find_task(model_dir) if task == "auto" else task
    options = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(options.keys() - _OPTIONS.get(task, frozenset())):
        raise ValueError(f"--{unknown[0]} says nothing for --task={task}: take it away.")
    return (FINE_TUNED | PRETRAINED)[task].load(model_dir, dtype=dtype, **options)
