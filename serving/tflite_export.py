"""From a service to a directory of TFLite models, with a report of what each has cost and gained."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from data.example_records import SEQUENCES
from data.tokenization import vocab_text
from serving import mediapipe
from serving.blanks import BlankService
from serving.choices import ChoiceService
from serving.sentences import SentenceService
from serving.service import Service
from serving.tflite import Batch, Outputs, Run, check_length, convert
from serving.tflite_report import REPORT_JSON, REPORT_MARKDOWN, LiteReport, measure, write_reports
from serving.tflite_text import convert_text
from serving.vectors import VectorService
from tasks import sentence_results
from tasks.settings import SETTINGS_FILE
from training.state import write_bytes, write_text

# Sequences to measure the ranges of int8 on; more change little.
_REPRESENTATIVE = 100


def export(
    service: Service,
    directory: str | Path,
    modes: Sequence[str],
    max_seq_length: int,
    resizable: bool = False,
    takes_text: bool = False,
    for_mediapipe: bool = False,
    train_file: str | None = None,
    eval_file: str | None = None,
) -> list[LiteReport]:
    """Writes `model_<mode>.tflite` for each mode, vocab.txt and labels, and where there is an `eval_file` a report.

    Args:
        service: of a task.
        directory: is made if it is not there.
        modes: see serving.tflite.
        max_seq_length, resizable: see `convert`.
        takes_text: whether the model takes strings and not ids; see serving.tflite_text.
        for_mediapipe: whether to put in what MediaPipe's classifier or embedder wants to find.
        train_file: records of a script (train.tf_record), to measure the ranges of int8 on.
        eval_file: records of a script (eval.tf_record), to compare models on.
    """
    check(service, modes, max_seq_length, takes_text, for_mediapipe, train_file)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    run = _only_output(service) if for_mediapipe else service.run
    features, score = (None, None) if eval_file is None else _read_scored(service, eval_file, max_seq_length)
    reports, contents = [], {}
    for mode in modes:
        if takes_text:
            has_pairs = "text_pair" in service.inputs()
            content = convert_text(run, service.config, service.tokenizer, max_seq_length, mode, has_pairs)
        else:
            representative = read_features(train_file, max_seq_length, _REPRESENTATIVE) if mode == "int8" else None
            batches = [representative] if representative is not None else None
            content = convert(run, service.config, max_seq_length, mode, resizable, batches)
            if features is not None:
                reports.append(measure(content, run, features, mode, score))
        if for_mediapipe:
            content = _for_mediapipe(service, content)
        contents[directory / f"model_{mode}.tflite"] = content
    # What was there stays until all is made. A report is of the models beside it, so it goes before them.
    for name in (REPORT_JSON, REPORT_MARKDOWN):
        (directory / name).unlink(missing_ok=True)
    for path, content in contents.items():
        write_bytes(path, content)
        logging.getLogger(__name__).info("%s: %.1f MB.", path, len(content) / 1e6)
    # What an app has to know besides: the pieces behind the ids, and the labels behind the probabilities.
    write_text(directory / "vocab.txt", vocab_text(service.tokenizer.vocab))
    write_text(directory / SETTINGS_FILE, service.settings.to_json())
    if reports:
        write_reports(reports, directory)
    return reports


def check(
    service: Service,
    modes: Sequence[str],
    max_seq_length: int,
    takes_text: bool = False,
    for_mediapipe: bool = False,
    train_file: str | None = None,
) -> None:
    """Refuses what `export` cannot make; arguments as there."""
    if isinstance(service, (ChoiceService, BlankService)):
        raise ValueError(
            "Multiple choice and fill_mask have no TFLite form: a model there takes one sequence, and answers with as "
            "many numbers for each."
        )
    check_length(service.config, max_seq_length)
    is_plain = isinstance(service, SentenceService) and service.settings.long_text == "head"
    if takes_text and not (is_plain or isinstance(service, VectorService)):
        raise ValueError(
            "TFLite takes text for labels, numbers and vectors, of the head of a text (--long_text=head): use "
            "--tflite_input=ids."
        )
    if "int8" in modes and not train_file:
        raise ValueError("The mode int8 measures ranges on training data: name its records by --train_records.")
    if for_mediapipe:
        _only_output(service)


def _only_output(service: Service) -> Run:
    """MediaPipe wants a model with one output."""
    if "text_pair" in service.inputs():
        raise ValueError("MediaPipe takes one text, but this model was trained on pairs: leave out --mediapipe.")
    name = "vector" if isinstance(service, VectorService) else "probabilities"
    if name not in service.outputs or not isinstance(service, (VectorService, SentenceService)):
        raise ValueError("MediaPipe has classifiers and embedders: export a model of labels, or --task=embeddings.")
    return lambda batch: {name: service.run(batch)[name]}


def _for_mediapipe(service: Service, content: bytes) -> bytes:
    if isinstance(service, VectorService):
        return mediapipe.embedder(content, service.tokenizer)
    return mediapipe.classifier(content, service.tokenizer, service.settings.labels)


def read_features(path: str, max_seq_length: int, most: int | None = None) -> Batch:
    """Sequences of the records of a script: int32 [N, max_seq_length] each; those that are longer are left out."""
    rows = [row for row, _ in itertools.islice(_records(path, max_seq_length), most)]
    if not rows:
        raise ValueError(f"{path} has no sequence of at most {max_seq_length} tokens: raise --max_seq_length.")
    return {name: np.stack([row[name] for row in rows]) for name in SEQUENCES}


def _read_scored(service: Service, path: str, max_seq_length: int):
    """Sequences of records, and what makes figures of answers to them; None where figures need more than records."""
    if not isinstance(service, SentenceService) or service.settings.kind == "multi_label":
        return read_features(path, max_seq_length), None
    features = read_features(path, max_seq_length)
    settings = service.settings
    field = "float_list" if settings.kind == "regression" else "int64_list"
    examples = [example for _, example in _records(path, max_seq_length)]
    values = [getattr(example.features.feature["label_ids"], field).value for example in examples]
    if not all(values):
        raise ValueError(f"{path} has records without label_ids: name records of a set that has labels.")
    labels = np.array([value[0] for value in values])

    def score(outputs: Outputs) -> Mapping[str, float]:
        told = outputs["probabilities"] if "probabilities" in outputs else outputs["logits"]
        figures = sentence_results.figures(settings, told, labels, np.zeros(len(labels)))
        return {name: value for name, value in figures.items() if name != "eval_loss"}

    return features, score


def _records(path: str, max_seq_length: int) -> Iterator[tuple[dict[str, np.ndarray], tf.train.Example]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no {path}: the script that trains writes such files to its --output_dir.")
    for data in tf.data.TFRecordDataset(path).as_numpy_iterator():
        example = tf.train.Example.FromString(data)
        row = {name: np.array(example.features.feature[name].int64_list.value, np.int32) for name in SEQUENCES}
        length = int(row["input_mask"].sum())
        if 0 < length <= max_seq_length:
            padding = [0, max_seq_length - length]
            yield {name: np.pad(ids[:length], padding) for name, ids in row.items()}, example
