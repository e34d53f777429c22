"""Turns a trained model into one that runs without this project: text in, answers out. Examples:

    python export_model.py --model_dir=out/mrpc --output_dir=export
    python export_model.py --model_dir=pretrained/bert-mini-books --task=fill_mask --output_dir=export
    python export_model.py --model_dir=out/mrpc --output_dir=export/phone --format=tflite \\
      --tflite_modes=float32,dynamic_int8 --dev_file=glue/MRPC/dev.tsv

A SavedModel goes to --output_dir/NAME/VERSION, with compose.yaml, models.config and batching.config for TensorFlow
Serving beside it. See docs/serving.md.
"""

import re
from pathlib import Path

from absl import flags

import command_line

_TASKS = ("auto", "classification", "ner", "squad", "multiple_choice", "fill_mask", "embeddings")

# Required.
_MODEL_DIR = flags.DEFINE_string(
    "model_dir",
    None,
    "--output_dir of the script that trained the model; for --task=fill_mask and embeddings any checkpoint.",
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where exported models go; one directory may hold several.")

# What to make.
_TASK = flags.DEFINE_enum("task", "auto", _TASKS, "What the model does; auto: what it was trained for.")
_MODEL_NAME = flags.DEFINE_string("model_name", None, "Its name on the server; by default that of --model_dir.")
_VERSION = flags.DEFINE_integer("version", None, "Number of the version; by default the next one.", lower_bound=1)
_PRECISION = flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16", "float16"],
    "Of weights and of what is computed. Half of it halves the size; faster only where the machine has it in hardware.",
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", None, "fill_mask, embeddings: longer texts are cut; by default as long as the model takes."
)
_TOP_K = flags.DEFINE_integer("top_k", None, "fill_mask: words for each [MASK]; 5 if not set.", lower_bound=1)
_POOLING = flags.DEFINE_enum(
    "pooling",
    None,
    ["cls", "mean", "max", "second_to_last", "concat_last_4"],
    "embeddings: how tokens become one vector, see extract_features.py; mean if not set.",
)
_NORMALIZE = flags.DEFINE_bool("normalize", None, "embeddings: give vectors the length 1.")


def main() -> None:
    validate_flags()
    from serving.deployment import next_version, write_deployment  # late, so that --help does not wait for TensorFlow
    from serving.saved_model import op_names, save
    from serving.services import load_service

    service = load_service(
        _MODEL_DIR.value,
        _TASK.value,
        _PRECISION.value,
        max_seq_length=_MAX_SEQ_LENGTH.value,
        top_k=_TOP_K.value,
        pooling=_POOLING.value,
        normalize=_NORMALIZE.value,
    )
    name = model_name()
    base = Path(_OUTPUT_DIR.value) / name
    directory = save(service, base / str(_VERSION.value or next_version(base)), name)
    written = write_deployment(_OUTPUT_DIR.value, name, pad_variable_length_inputs=True)
    print(f"Takes {', '.join(service.inputs())}; its ops, all of which stock TensorFlow Serving has:")
    print(" ".join(op_names(directory)))
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"{directory}: {size / 1e6:.1f} MB, and beside it {', '.join(path.name for path in written)}.")


def validate_flags() -> None:
    for flag in (_MODEL_DIR, _OUTPUT_DIR):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")


def model_name() -> str:
    """A name that can stand in a URL."""
    return _MODEL_NAME.value or re.sub("[^A-Za-z0-9_.-]+", "-", Path(_MODEL_DIR.value).resolve().name).lstrip(".-")


if __name__ == "__main__":
    command_line.run(main)
