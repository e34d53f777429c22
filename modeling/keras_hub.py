"""KerasHub's models (keras_nlp): `BertBackbone` and `BertMaskedLM`, as objects and as preset directories."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from modeling.config import BertConfig
from modeling.errors import CheckpointError

# Weights of a preset of ours that KerasHub has no place for.
_REMAINDER = "not_in_keras_hub.safetensors"

_ENCODER = {
    "token_embedding/embeddings": "embeddings/word_embeddings",
    "segment_embedding/embeddings": "embeddings/token_type_embeddings",
    "position_embedding/embeddings": "embeddings/position_embeddings",
    "embeddings_layer_norm": "embeddings/LayerNorm",
    "self_attention_layer/attention_output": "attention/output/dense",
    "self_attention_layer": "attention/self",
    "self_attention_layer_norm": "attention/output/LayerNorm",
    "feedforward_intermediate_dense": "intermediate/dense",
    "feedforward_output_dense": "output/dense",
    "feedforward_layer_norm": "output/LayerNorm",
    "pooled_dense": "pooler/dense",
}
_HEAD = {
    "output_bias": "output_bias",
    "intermediate_dense": "transform/dense",
    "intermediate_layer_norm": "transform/LayerNorm",
}


def google_name(path: str) -> str:
    """Google's name of a variable of theirs, by its path."""
    if path.startswith("mlm_head/"):
        return "cls/predictions/" + _renamed(path.removeprefix("mlm_head/"), _HEAD)
    block = re.fullmatch(r"transformer_layer_(\d+)/(.*)", path)
    if block:
        return f"bert/encoder/layer_{block[1]}/" + _renamed(block[2], _ENCODER)
    return "bert/" + _renamed(path, _ENCODER)


def _renamed(path: str, names: Mapping[str, str]) -> str:
    """Replaces the longest known beginning of a path."""
    parts = path.split("/")
    for count in range(len(parts), 0, -1):
        if (known := names.get("/".join(parts[:count]))) is not None:
            return "/".join([known, *parts[count:]])
    return path


def build(config: BertConfig, masked_lm: bool = False, dtype=None):
    """Their model of the same shape: a `BertBackbone`, or a `BertMaskedLM` around one."""
    import keras_nlp

    if config.hidden_act != "gelu":
        raise CheckpointError(
            f"KerasHub's BERT knows only the tanh form of gelu, but this model has {config.hidden_act!r}: its numbers "
            "would change."
        )
    if config.attention != "bidirectional":
        raise CheckpointError(f"KerasHub's BERT attends to both sides, but this model is {config.attention}.")
    if config.layer_norm_eps != 1e-12:
        raise CheckpointError(f"KerasHub's BERT knows only layer_norm_eps 1e-12, but this is {config.layer_norm_eps}.")
    backbone = keras_nlp.models.BertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        dropout=config.hidden_dropout_prob,
        max_sequence_length=config.max_position_embeddings,
        num_segments=config.type_vocab_size,
        dtype=dtype,
    )
    return keras_nlp.models.BertMaskedLM(backbone=backbone, preprocessor=None) if masked_lm else backbone


def set_weights(model, variables: Mapping[str, np.ndarray]) -> None:
    """Sets the variables of a model of theirs from arrays under Google's names."""
    for variable in model.weights:
        name = google_name(variable.path)
        if name not in variables:
            raise CheckpointError(f"The checkpoint has no {name}, which KerasHub's {type(model).__name__} needs.")
        variable.assign(variables[name].reshape(variable.shape))


def get_weights(model) -> dict[str, np.ndarray]:
    """Arrays under Google's names from a model of theirs. Heads apart, kernels become matrices again."""
    hidden = model.get_config().get("hidden_dim") or model.backbone.hidden_dim
    variables = {}
    for variable in model.weights:
        name, value = google_name(variable.path), variable.numpy()
        if "/attention/" in name and name.endswith("kernel"):
            value = value.reshape(hidden, hidden)
        elif "/attention/self/" in name:
            value = value.reshape(hidden)
        variables[name] = value
    return variables


def is_preset(path: str | Path) -> bool:
    """Whether a directory is a preset of a BERT backbone."""
    try:
        values = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and str(values.get("registered_name", "")).endswith(">BertBackbone")


def fetch(handle: str) -> str:
    """The directory of a preset on Kaggle, e.g. `keras/bert/keras/bert_tiny_en_uncased`, from the local cache where it
    is there already."""
    import kagglehub

    try:
        return kagglehub.model_download(handle)
    except Exception as error:  # its own errors, and those of the network, have no common type
        raise CheckpointError(f"kaggle://{handle} cannot be fetched: {error}") from error


def read_preset(preset: str) -> tuple[dict[str, np.ndarray], BertConfig, str | None, bool | None]:
    """Weights under Google's names, config, vocabulary file and casing of a preset."""
    import keras_nlp

    directory = Path(preset)
    has_head = (directory / "task.json").is_file() and "BertMaskedLM" in (directory / "task.json").read_text()
    loader = keras_nlp.models.BertMaskedLM if has_head else keras_nlp.models.BertBackbone
    try:
        model = loader.from_preset(preset, preprocessor=None) if has_head else loader.from_preset(preset)
    except (ValueError, OSError, KeyError) as error:
        raise CheckpointError(f"{preset} cannot be read as a preset of KerasHub: {error}") from error
    backbone = getattr(model, "backbone", model)
    config = BertConfig(
        vocab_size=backbone.vocabulary_size,
        hidden_size=backbone.hidden_dim,
        num_hidden_layers=backbone.num_layers,
        num_attention_heads=backbone.num_heads,
        intermediate_size=backbone.intermediate_dim,
        hidden_dropout_prob=backbone.dropout,
        attention_probs_dropout_prob=backbone.dropout,
        max_position_embeddings=backbone.max_sequence_length,
        type_vocab_size=backbone.num_segments,
    )
    vocab_file, lower_case = None, None
    if (directory / "tokenizer.json").is_file():
        lower_case = json.loads((directory / "tokenizer.json").read_text())["config"].get("lowercase")
        found = directory / "assets" / "tokenizer" / "vocabulary.txt"
        vocab_file = str(found) if found.is_file() else None
    variables = get_weights(model)
    if (directory / _REMAINDER).is_file():
        variables |= load_file(str(directory / _REMAINDER))
        config = BertConfig.from_json_file(directory / "bert_config.json")
    return variables, config, vocab_file, lower_case


def write_preset(
    variables: Mapping[str, np.ndarray],
    config: BertConfig,
    directory: str | Path,
    vocab: list[str] | None = None,
    do_lower_case: bool | None = None,
) -> None:
    """Writes a preset that `BertBackbone.from_preset`, and with a masked LM head `BertMaskedLM.from_preset`, load.

    KerasHub has no next sentence head and no room for most of the config. Two files beside its own keep them, so that
    nothing is lost on the way back.
    """
    import keras_nlp

    model = build(config, masked_lm="cls/predictions/output_bias" in variables)
    set_weights(model, variables)
    model.save_to_preset(str(directory))
    taken = {google_name(variable.path) for variable in model.weights}
    remainder = {name: np.ascontiguousarray(value) for name, value in variables.items() if name not in taken}
    save_file(remainder, str(path := Path(directory) / _REMAINDER))
    path.chmod(0o644)  # safetensors lets nobody but its owner read
    (Path(directory) / "bert_config.json").write_text(config.to_json_string(), encoding="utf-8")
    if vocab is not None:
        tokenizer = keras_nlp.models.BertTokenizer(vocabulary=list(vocab), lowercase=do_lower_case is not False)
        tokenizer.save_to_preset(str(directory))
