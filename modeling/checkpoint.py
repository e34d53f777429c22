"""Any checkpoint in: finds out what a path holds, reads it, and sets the variables of a model.

Whatever the format, a checkpoint is read as arrays under Google's names (see layers.py), which are the paths of our own
variables. Only modeling/hugging_face.py and modeling/keras_hub.py know of other names.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from modeling import google, hugging_face, keras_hub
from modeling.config import BertConfig
from modeling.errors import CheckpointError

# Every BERT has this variable; where it stands in a checkpoint tells what was written around the encoder.
LANDMARK = "bert/embeddings/word_embeddings"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What was found at a path."""

    source: str
    format: str  # "google", "hugging_face" or "keras_hub"
    variables: Mapping[str, np.ndarray]  # under Google's names; what has none of these under its own
    config: BertConfig | None  # None where no config lies beside the weights
    vocab_file: str | None = None
    do_lower_case: bool | None = None  # None where nothing beside the weights says so
    prefix: str = ""  # what stood before every name and was taken off


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What a checkpoint gave to a model."""

    source: str
    loaded: tuple[str, ...]  # variables of the model that were set
    missing: tuple[str, ...]  # variables of the model that the checkpoint lacks; they keep their values
    unexpected: tuple[str, ...]  # variables of the checkpoint that the model lacks, optimizer state left out
    prefix: str = ""  # what stood before every name in the checkpoint and was taken off

    def __str__(self):
        lines = [f"Loaded {len(self.loaded)} variables from {self.source}."]
        if self.prefix:
            lines.append(f'Their names there start with "{self.prefix}", which was taken off.')
        if self.missing:
            lines.append(f"Missing there, so left as they were: {', '.join(self.missing)}.")
        if self.unexpected:
            lines.append(f"Found there, but not part of this model: {', '.join(self.unexpected)}.")
        return "\n".join(lines)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads whatever a person has.

    Args:
        path: a prefix of Google's format or its directory (see `google.find_checkpoint`), a directory of Hugging Face
            (config.json and model.safetensors) or of KerasHub (a preset), `hf://owner/name`, or `kaggle://…`.

    Raises:
        CheckpointError: nothing there, something damaged, or a config that contradicts the weights.
    """
    path = str(path)
    if path.startswith("hf://"):
        directory = hugging_face.fetch(path.removeprefix("hf://"))
        return dataclasses.replace(_read_hugging_face(directory), source=path)
    if path.startswith("kaggle://"):
        directory = keras_hub.fetch(path.removeprefix("kaggle://"))
        return dataclasses.replace(_read_keras_hub(directory), source=path)
    if keras_hub.is_preset(path):
        return _read_keras_hub(path)
    if hugging_face.is_directory(path):
        return _read_hugging_face(path)
    return _read_google(path)


def _read_google(path: str) -> Checkpoint:
    prefix = google.find_checkpoint(path)
    variables = google.read_variables(prefix)
    name_prefix = _name_prefix(variables, prefix)
    directory = Path(prefix).parent
    if directory.name == "train_state":  # of a run of ours that is not done
        directory = directory.parent
    config_file, vocab_file = directory / "bert_config.json", directory / "vocab.txt"
    return _checked(
        Checkpoint(
            source=prefix,
            format="google",
            variables={name.removeprefix(name_prefix): value for name, value in variables.items()},
            config=BertConfig.from_json_file(config_file) if config_file.is_file() else None,
            vocab_file=str(vocab_file) if vocab_file.is_file() else None,
            prefix=name_prefix,
        )
    )


def _read_hugging_face(directory: str) -> Checkpoint:
    # Recent versions of the library write the vocabulary into tokenizer.json only.
    names = ("vocab.txt", "tokenizer.json")
    vocab_file = next((path for name in names if (path := Path(directory) / name).is_file()), None)
    return _checked(
        Checkpoint(
            source=directory,
            format="hugging_face",
            variables=hugging_face.read_variables(directory),
            config=BertConfig.from_json_file(Path(directory) / "config.json"),
            vocab_file=str(vocab_file) if vocab_file else None,
            do_lower_case=hugging_face.read_casing(directory),
        )
    )


def _read_keras_hub(preset: str) -> Checkpoint:
    variables, config, vocab_file, do_lower_case = keras_hub.read_preset(preset)
    return _checked(Checkpoint(preset, "keras_hub", variables, config, vocab_file, do_lower_case))


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    if checkpoint.config is not None:
        check_config(checkpoint)
    return checkpoint


def check_config(checkpoint: Checkpoint) -> None:
    """Raises where the weights have another shape than the config says."""
    config, shapes = checkpoint.config, {name: value.shape for name, value in checkpoint.variables.items()}
    layers = {name.split("/")[2] for name in shapes if name.startswith("bert/encoder/layer_")}
    found = {
        "vocab_size": shapes.get(LANDMARK, (config.vocab_size,))[0],
        "hidden_size": shapes.get(LANDMARK, (0, config.hidden_size))[1],
        "num_hidden_layers": len(layers) or config.num_hidden_layers,
        "type_vocab_size": shapes.get("bert/embeddings/token_type_embeddings", (config.type_vocab_size,))[0],
        "max_position_embeddings": shapes.get("bert/embeddings/position_embeddings", (config.max_position_embeddings,))[
            0
        ],
        "intermediate_size": shapes.get("bert/encoder/layer_0/intermediate/dense/bias", (config.intermediate_size,))[0],
    }
    for key, value in found.items():
        if value != getattr(config, key):
            raise CheckpointError(
                f"{checkpoint.source} contradicts itself: its config says {key} = {getattr(config, key)}, but its "
                f"weights have {value}. One of the two belongs to another model."
            )


def load_checkpoint(model: keras.Model, source: str | Path | Checkpoint) -> LoadReport:
    """Sets the variables of `model` from a checkpoint and says which.

    Args:
        model: a `BertEncoder`, or a model that holds one.
        source: a path, as in `read_checkpoint`, or what that function gave.

    Raises:
        CheckpointError: no checkpoint there, a damaged one, a shape that differs, or nothing of the encoder in it.
            The model is then as it was before.
    """
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source)
    targets = {variable.path: variable for variable in model.weights}
    loaded = [name for name in targets if name in checkpoint.variables]
    if not any(name.startswith("bert/") for name in loaded):
        names = sorted(checkpoint.variables)
        raise CheckpointError(
            f"{checkpoint.source} holds nothing of a BERT encoder. Its variables are: {', '.join(names[:5])}"
            f"{f', … ({len(names)} in all)' if len(names) > 5 else ''}. Names should look like {LANDMARK}."
        )
    for name in loaded:
        found, wanted = checkpoint.variables[name].shape, tuple(targets[name].shape)
        if found != wanted:
            raise CheckpointError(
                f"{name} has the shape {list(found)} in {checkpoint.source}, but {list(wanted)} in the model. Use the "
                "config that belongs to this checkpoint."
            )
    for name in loaded:
        targets[name].assign(checkpoint.variables[name])
    return LoadReport(
        source=checkpoint.source,
        loaded=tuple(loaded),
        missing=tuple(name for name in targets if name not in checkpoint.variables),
        unexpected=tuple(sorted(name for name in checkpoint.variables if name not in targets)),
        prefix=checkpoint.prefix,
    )


def save_checkpoint(model: keras.Model, prefix: str | Path) -> None:
    """Writes the weights of `model`, and nothing else, in Google's format."""
    google.write_variables({variable.path: variable.numpy() for variable in model.weights}, prefix)


def _name_prefix(names: Mapping[str, np.ndarray], source: str) -> str:
    """What stands before "bert/…" in the names of a checkpoint: nothing in Google's, "module/" in some others."""
    found = sorted({name.removesuffix(LANDMARK) for name in names if name.endswith(LANDMARK)})
    if "" in found or not found:
        return ""
    if len(found) > 1:
        raise CheckpointError(f"{source} holds several encoders, under {', '.join(found)}: which one is unclear.")
    return found[0]
