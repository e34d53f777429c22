"""Turns a trained model into one that runs without this project: text in, answers out. Examples:

    python export_model.py --model_dir=out/mrpc --output_dir=export
    python export_model.py --model_dir=pretrained/bert-mini-books --task=fill_mask --output_dir=export
    python export_model.py --model_dir=out/mrpc --output_dir=phone --format=tflite --tflite_modes=float32,dynamic_int8

A SavedModel goes to --output_dir/NAME/VERSION, with compose.yaml, models.config and batching.config for TensorFlow
Serving beside it; TFLite models go to --output_dir/NAME, with a report. See docs/serving.md.
"""

import re
from pathlib import Path

from absl import flags

import command_line
from flag_help import heading

_TASKS = ("auto", "classification", "ner", "squad", "multiple_choice", "fill_mask", "embeddings")

command_line.offer_dry_run()

heading("Required")
_MODEL_DIR = flags.DEFINE_string(
    "model_dir",
    None,
    "Export the model of this directory, the --output_dir of the script that trained it; for --task=fill_mask and "
    "embeddings any checkpoint will do.",
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Exported models go into this directory; one directory may hold several."
)

heading("Model")
_TASK = flags.DEFINE_enum("task", "auto", _TASKS, "The model does this; with auto, what it was trained for.")
_PRECISION = flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16", "float16"],
    "Weights have this precision, and so has what is computed. Half of it halves the size; it is faster only where the "
    "machine has it in hardware.",
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    None,
    "For fill_mask, embeddings and TFLite, longer texts than this are cut; by default it is as long as in training, or "
    "as the model takes.",
    lower_bound=1,
)
_TOP_K = flags.DEFINE_integer(
    "top_k", None, "With --task=fill_mask, tell this many words for each [MASK]; 5 if not set.", lower_bound=1
)
_POOLING = flags.DEFINE_enum(
    "pooling",
    None,
    ["cls", "mean", "max", "second_to_last", "concat_last_4"],
    "With --task=embeddings, tokens become one vector in this way, see extract_features.py; mean if not set.",
)
_NORMALIZE = flags.DEFINE_bool(
    "normalize",
    None,
    "Whether, with --task=embeddings, vectors get the length 1. By default they keep the length they have.",
)

heading("Data")
_TRAIN_RECORDS = flags.DEFINE_string(
    "train_records",
    None,
    "Measure the ranges of the mode int8 on these records; by default on train.tf_record of --model_dir.",
)
_EVAL_RECORDS = flags.DEFINE_string(
    "eval_records", None, "Compare models in the report on these records; by default on eval.tf_record of --model_dir."
)

heading("Output")
_FORMAT = flags.DEFINE_enum(
    "format", "saved_model", ["saved_model", "tflite"], "Write a saved_model, for servers, or tflite, for phones."
)
_MODEL_NAME = flags.DEFINE_string(
    "model_name", None, "The model has this name on the server; by default that of --model_dir."
)
_VERSION = flags.DEFINE_integer(
    "version", None, "The version has this number; by default it is the next one.", lower_bound=1
)
_TFLITE_MODES = flags.DEFINE_list(
    "tflite_modes",
    ["float32", "dynamic_int8"],
    "Write one or more of float32, float16 (half the size), dynamic_int8 (a quarter) and int8 (a quarter, with ranges "
    "that are measured on training data).",
)
_TFLITE_INPUT = flags.DEFINE_enum(
    "tflite_input",
    "ids",
    ["ids", "text"],
    "The TFLite model takes this; text needs the ops of tensorflow-text on the phone.",
)
_RESIZABLE = flags.DEFINE_bool(
    "resizable", False, "Whether a TFLite model takes any length up to --max_seq_length, and not just that one."
)
_MEDIAPIPE = flags.DEFINE_bool(
    "mediapipe", False, "Whether to put in what MediaPipe's text classifier or embedder reads."
)


def main() -> None:
    validate_flags()
    command_line.load_tensorflow()  # late, so that --help does not wait for it
    from serving.services import load_service

    name = model_name()
    output = Path(_OUTPUT_DIR.value) / name
    if _FORMAT.value == "saved_model" and _VERSION.value and (output / str(_VERSION.value)).exists():
        raise ValueError(f"--version={_VERSION.value} is there already, in {output}: name another, or none.")
    is_fixed = _FORMAT.value == "tflite" and _TASK.value not in ("fill_mask", "embeddings")
    service = load_service(
        _MODEL_DIR.value,
        _TASK.value,
        _PRECISION.value,
        max_seq_length=None if is_fixed else _MAX_SEQ_LENGTH.value,
        top_k=_TOP_K.value,
        pooling=_POOLING.value,
        normalize=_NORMALIZE.value,
    )
    if command_line.is_dry_run():
        end_dry_run(service, output)
    export = export_saved_model if _FORMAT.value == "saved_model" else export_tflite
    export(service, name)


def end_dry_run(service, output: Path) -> None:
    from serving.tflite_export import check
    from training.memory_estimate import num_parameters

    if _FORMAT.value == "tflite":
        check(service, **tflite_settings(service))
    facts = {"takes": ", ".join(service.inputs()), "output": f"{_FORMAT.value} in {output}"}
    width = 4 if _PRECISION.value == "float32" else 2
    command_line.end_dry_run(facts | command_line.weights_memory(width * num_parameters(service.config)))


def export_saved_model(service, name: str) -> None:
    from serving.deployment import next_version, write_deployment
    from serving.saved_model import op_names, save

    base = Path(_OUTPUT_DIR.value) / name
    directory = save(service, base / str(_VERSION.value or next_version(base)), name)
    written = write_deployment(_OUTPUT_DIR.value, name, pad_variable_length_inputs=True)
    print(f"Takes {', '.join(service.inputs())}; its ops, all of which stock TensorFlow Serving has:")
    print(" ".join(op_names(directory)))
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"{directory}: {size / 1e6:.1f} MB, and beside it {', '.join(path.name for path in written)}.")


def export_tflite(service, name: str) -> None:
    from serving.tflite_export import export
    from serving.tflite_report import to_markdown

    reports = export(
        service,
        Path(_OUTPUT_DIR.value) / name,
        **tflite_settings(service),
        resizable=_RESIZABLE.value,
        eval_file=records(_EVAL_RECORDS, "eval.tf_record"),
    )
    print(
        to_markdown(reports) if reports else "No report: models of text are not compared, others need --eval_records."
    )


def tflite_settings(service) -> dict:
    """Arguments of `serving.tflite_export.check`."""
    return {
        "modes": _TFLITE_MODES.value,
        "max_seq_length": _MAX_SEQ_LENGTH.value or service.settings.max_seq_length,
        "takes_text": _TFLITE_INPUT.value == "text",
        "for_mediapipe": _MEDIAPIPE.value,
        "train_file": records(_TRAIN_RECORDS, "train.tf_record"),
    }


def records(flag, usual: str) -> str | None:
    """The file that a flag names, or the usual one if it is there."""
    path = Path(_MODEL_DIR.value) / usual
    return flag.value or (str(path) if path.is_file() else None)


def validate_flags() -> None:
    for flag in (_MODEL_DIR, _OUTPUT_DIR):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    directory = Path(_MODEL_DIR.value)  # or the prefix of a checkpoint
    if not directory.exists() and not list(directory.parent.glob(f"{directory.name}.*")):
        raise ValueError(f"There is nothing at --model_dir={_MODEL_DIR.value}.")
    command_line.check_output_dir(_OUTPUT_DIR.name, _OUTPUT_DIR.value)
    for flag in (_TRAIN_RECORDS, _EVAL_RECORDS):
        if flag.value and not Path(flag.value).is_file():
            raise FileNotFoundError(
                f"There is no --{flag.name}={flag.value}: the script that trains writes such files to its --output_dir."
            )
    modes = ("float32", "float16", "dynamic_int8", "int8")
    if not _TFLITE_MODES.value:
        raise ValueError(f"--tflite_modes is empty: name one or more of {', '.join(modes)}.")
    if unknown := [mode for mode in _TFLITE_MODES.value if mode not in modes]:
        raise ValueError(f"--tflite_modes has {unknown[0]!r}, which is not one of {', '.join(modes)}.")
    if _FORMAT.value == "tflite" and _PRECISION.value != "float32":
        raise ValueError("--precision is for SavedModels; for TFLite use --tflite_modes=float16.")
    if "int8" in _TFLITE_MODES.value and (_RESIZABLE.value or _TFLITE_INPUT.value == "text"):
        raise ValueError(
            "int8 is measured on ids of one length: leave out --resizable and --tflite_input=text, or int8."
        )
    if _TFLITE_INPUT.value == "text" and (_RESIZABLE.value or _MEDIAPIPE.value):
        raise ValueError("--tflite_input=text goes neither with --resizable nor with --mediapipe.")


def model_name() -> str:
    """A name that can stand in a URL."""
    from serving.deployment import checked_name

    usual = re.sub("[^A-Za-z0-9_.-]+", "-", Path(_MODEL_DIR.value).resolve().name).lstrip(".-")
    return checked_name(_MODEL_NAME.value or usual)


if __name__ == "__main__":
    command_line.run(main)
