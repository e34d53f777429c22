"""What is told of a sentence task after an evaluation or a prediction: figures, tables, a plot, and GLUE's files."""

import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from data.examples import Example
from data.sentence_sets import NamedExamples
from tasks.sentences import SentenceSettings, by_label, sentence_losses, verdict
from training.state import write_bytes, write_text

# Beyond so many classes a picture of their confusion cannot be read.
_MOST_CLASSES_IN_PLOT = 50


def metric_names(settings: SentenceSettings) -> tuple[str, ...]:
    """What `figures` holds, for whoever wants to choose by one of them."""
    if settings.kind == "regression":
        return ("eval_loss", "eval_pearson", "eval_spearman")
    if settings.kind == "multi_label":
        return ("eval_accuracy", "eval_f1_macro", "eval_f1_micro", "eval_loss")
    return ("eval_accuracy", "eval_f1" if len(settings.labels) == 2 else "eval_f1_macro", "eval_loss", "eval_matthews")


def figures(
    settings: SentenceSettings, probabilities: np.ndarray, labels: np.ndarray, losses: np.ndarray
) -> dict[str, float]:
    """Figures of an evaluation, under the original's names where it had them.

    Args:
        settings: of the task.
        probabilities: [examples, L].
        labels: see `tasks.sentences.label_ids`.
        losses: [records], what the model lost on each.
    """
    result = {"eval_loss": float(np.mean(losses))}
    if settings.kind == "regression":
        # Undefined where all predictions, or all labels, are the same.
        is_defined = np.ptp(probabilities) > 0 and np.ptp(labels) > 0
        pearson = scipy.stats.pearsonr(probabilities[:, 0], labels)[0] if is_defined else 0.0
        spearman = scipy.stats.spearmanr(probabilities[:, 0], labels)[0] if is_defined else 0.0
        return result | {"eval_pearson": float(pearson), "eval_spearman": float(spearman)}
    if settings.kind == "multi_label":
        told = (probabilities > 0.5).astype(int)
        _, _, by_label, _ = _scores_of_labels(settings, labels, told)
        return result | {
            "eval_accuracy": float(np.mean(np.all(labels == told, axis=-1))),
            "eval_f1_micro": float(sklearn.metrics.f1_score(labels.ravel(), told.ravel(), zero_division=0)),
            "eval_f1_macro": float(np.mean(by_label)),
        }
    told = np.argmax(probabilities, axis=-1)
    result |= {
        "eval_accuracy": float(sklearn.metrics.accuracy_score(labels, told)),
        "eval_matthews": float(sklearn.metrics.matthews_corrcoef(labels, told)),
    }
    if len(settings.labels) == 2:  # F1 of the second, "1" or "yes", as GLUE has it
        return result | {"eval_f1": float(sklearn.metrics.f1_score(labels, told, zero_division=0))}
    everything = range(len(settings.labels))
    macro = sklearn.metrics.f1_score(labels, told, average="macro", labels=everything, zero_division=0)
    return result | {"eval_f1_macro": float(macro)}


def _scores_of_labels(settings: SentenceSettings, labels: np.ndarray, told: np.ndarray):
    """Precision, recall, F1 and number of each label: labels and what was told, int [N], or [N, L] of 0 and 1."""
    if settings.kind == "single_label":
        return sklearn.metrics.precision_recall_fscore_support(
            labels, told, labels=range(len(settings.labels)), zero_division=0
        )
    columns = [  # one by one: a single column of 0 and 1 would be taken for two classes
        sklearn.metrics.precision_recall_fscore_support(right, of_label, labels=[1], zero_division=0)
        for right, of_label in zip(labels.T, told.T, strict=True)
    ]
    return tuple(np.concatenate(values) for values in zip(*columns, strict=True))


def losses_of(settings: SentenceSettings, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[records, L] and labels of the records -> [records]."""
    return sentence_losses(settings.kind, logits, labels).numpy()


def per_class(settings: SentenceSettings, probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Precision, recall, F1 and number of each class, and for single labels who was taken for whom."""
    if settings.kind == "regression":
        return {}
    is_single = settings.kind == "single_label"
    told = np.argmax(probabilities, axis=-1) if is_single else (probabilities > 0.5).astype(int)
    scores = _scores_of_labels(settings, labels, told)
    names = ("precision", "recall", "f1", "support")
    result: dict[str, Any] = {
        "labels": {
            label: {name: values[number].item() for name, values in zip(names, scores, strict=True)}
            for number, label in enumerate(settings.labels)
        }
    }
    if is_single:  # rows: what is right; columns: what was told
        matrix = sklearn.metrics.confusion_matrix(labels, told, labels=range(len(settings.labels)))
        result["confusion_matrix"] = matrix.tolist()
    return result


def write_evaluation(
    output_dir: str | Path,
    settings: SentenceSettings,
    results: Mapping[str, float],
    probabilities: np.ndarray,
    labels: np.ndarray,
    suffix: str = "",
) -> None:
    """Writes eval_results.json and eval_results.png."""
    directory = Path(output_dir)
    whole = {"figures": dict(results)} | per_class(settings, probabilities, labels)
    write_text(directory / f"eval_results{suffix}.json", json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    if (picture := _plot(settings, probabilities, labels)) is not None:
        write_bytes(directory / f"eval_results{suffix}.png", picture)


def _plot(settings: SentenceSettings, probabilities: np.ndarray, labels: np.ndarray) -> bytes | None:
    """A PNG: predicted against right numbers, or who was taken for whom; None where it would not be legible."""
    from matplotlib.figure import Figure  # not pyplot, which keeps global state and looks for a screen

    if settings.kind == "multi_label" or len(settings.labels) > _MOST_CLASSES_IN_PLOT:
        return None
    size = 5.0 + 0.2 * len(settings.labels)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.add_subplot()
    if settings.kind == "regression":
        axes.scatter(labels, probabilities[:, 0], s=6, alpha=0.5)
        axes.set(xlabel="right", ylabel="predicted")
    else:
        told = np.argmax(probabilities, axis=-1)
        matrix = sklearn.metrics.confusion_matrix(labels, told, labels=range(len(settings.labels)))
        axes.imshow(matrix, cmap="Blues")
        for (row, column), count in np.ndenumerate(matrix):
            axes.text(
                column, row, str(count), ha="center", va="center", color="black" if count < matrix.max() / 2 else "w"
            )
        ticks = range(len(settings.labels))
        axes.set_xticks(ticks, settings.labels, rotation=45, ha="right")
        axes.set_yticks(ticks, settings.labels)
        axes.set(xlabel="predicted", ylabel="right")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def write_predictions(
    output_dir: str | Path,
    settings: SentenceSettings,
    examples: Sequence[Example],
    probabilities: np.ndarray,
    suffix: str = "",
) -> None:
    """Writes test_results.tsv as the original did, probabilities without header or names, and predictions.jsonl."""
    rows = ("\t".join(str(float(p)) for p in row) + "\n" for row in probabilities)
    write_text(Path(output_dir) / f"test_results{suffix}.tsv", "".join(rows))
    lines = (
        json.dumps(prediction(settings, example, row), ensure_ascii=False) + "\n"
        for example, row in zip(examples, probabilities, strict=True)
    )
    write_text(Path(output_dir) / f"predictions{suffix}.jsonl", "".join(lines))


def prediction(settings: SentenceSettings, example: Example, probabilities: np.ndarray) -> dict[str, Any]:
    """What predictions.jsonl tells of an example."""
    result: dict[str, Any] = {"id": example.id, "text": example.text_a}
    if example.text_b is not None:
        result["text_pair"] = example.text_b
    result["label"] = verdict(settings, probabilities)
    if settings.kind != "regression":
        result["probabilities"] = by_label(settings, probabilities)
    return result


def write_submission(path: Path, settings: SentenceSettings, test: NamedExamples, probabilities: np.ndarray) -> None:
    """Writes a file as GLUE's server takes it: a header, then the index and the label of each row.

    The server wants all rows of the official set, and numbers of STS-B between 0 and 5.
    """
    if len(test.examples) != test.test_set.size:
        logging.getLogger(__name__).warning(
            "%s will be refused by GLUE's server: it has %d rows, and should have %d.",
            path,
            len(test.examples),
            test.test_set.size,
        )
    lines = ["index\tprediction\n"]
    for example, row in zip(test.examples, probabilities, strict=True):
        told = verdict(settings, row)
        if settings.kind == "regression":
            told = f"{min(max(told, 0.0), 5.0):.3f}"
        lines.append(f"{example.id}\t{told}\n")
    write_text(path, "".join(lines))
