"""From one format of checkpoints to another: look, grow, write, and compare."""

import dataclasses
from pathlib import Path

import numpy as np
import tensorflow as tf

from modeling import google, hugging_face, keras_hub
from modeling.checkpoint import LANDMARK, Checkpoint, load_checkpoint, read_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.errors import CheckpointError
from modeling.models import PretrainingModel

_OUTPUT_BIAS = "cls/predictions/output_bias"

# What a checkpoint can do, by a variable of the head for it.
_ABILITIES = {
    LANDMARK: "encode text",
    "bert/pooler/dense/kernel": "pool a sequence into one vector",
    _OUTPUT_BIAS: "fill in masked words",
    "cls/seq_relationship/output_weights": "tell whether one sentence follows another",
    "output_weights": "classify (sentences, tokens or choices: weights do not tell)",
    "cls/squad/output_weights": "find answers in a text",
}


def describe(checkpoint: Checkpoint) -> str:
    """Variables and their shapes, parameters, and what the checkpoint can do."""
    variables = checkpoint.variables
    width = max(map(len, variables))
    lines = [f"{name:<{width}}  {list(value.shape)}" for name, value in sorted(variables.items())]
    config = checkpoint.config
    lines += [
        "",
        f"Format: {checkpoint.format}. {len(variables)} variables, "
        f"{sum(value.size for value in variables.values()):,} parameters.",
        f"Config: {config.num_hidden_layers} layers of {config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.hidden_act}, {config.max_position_embeddings} positions, {config.vocab_size} pieces.",
        "It can: " + "; ".join(what for name, what in _ABILITIES.items() if name in variables) + ".",
    ]
    if unknown := unknown_variables(checkpoint):
        lines.append(f"Not part of any BERT: {', '.join(unknown)}.")
    return "\n".join(lines)


def unknown_variables(checkpoint: Checkpoint) -> list[str]:
    """Names of variables that no BERT has."""
    # The smallest model with as many layers has all names there are.
    smallest = BertConfig(
        vocab_size=1,
        hidden_size=1,
        num_hidden_layers=checkpoint.config.num_hidden_layers,
        num_attention_heads=1,
        intermediate_size=1,
        max_position_embeddings=1,
    )
    known = {variable.path for variable in PretrainingModel(smallest).weights}
    known |= {"output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias"}
    return sorted(name for name in checkpoint.variables if name not in known)


def grow(checkpoint: Checkpoint, vocab_size: int, rng: np.random.Generator) -> Checkpoint:
    """A checkpoint with rows for further words, which start as all words did: small and random."""
    added = vocab_size - len(checkpoint.variables[LANDMARK])
    if added <= 0:
        return checkpoint
    variables = dict(checkpoint.variables)
    table = variables[LANDMARK]
    deviation = checkpoint.config.initializer_range
    rows = np.clip(rng.normal(scale=deviation, size=(added, table.shape[1])), -2 * deviation, 2 * deviation)
    variables[LANDMARK] = np.concatenate([table, rows.astype(table.dtype)])
    if _OUTPUT_BIAS in variables:
        variables[_OUTPUT_BIAS] = np.pad(variables[_OUTPUT_BIAS], [0, added])
    config = dataclasses.replace(checkpoint.config, vocab_size=vocab_size)
    return dataclasses.replace(checkpoint, variables=variables, config=config)


def with_positions(checkpoint: Checkpoint, count: int) -> Checkpoint:
    """A checkpoint for sequences of up to `count` tokens: positions are cut off, or repeated from the first on.

    A model that has read short sequences knows what stands before and after a token from how positions differ. Copies
    of learned positions keep that knowledge within each stretch, so training on longer sequences starts from it; from
    random ones it would start anew.
    """
    name = "bert/embeddings/position_embeddings"
    table = checkpoint.variables[name]
    rows = np.arange(count) % len(table)
    return dataclasses.replace(
        checkpoint,
        variables=dict(checkpoint.variables) | {name: table[rows]},
        config=dataclasses.replace(checkpoint.config, max_position_embeddings=count),
    )


def check_architecture(name: str | None) -> None:
    """Refuses a class that Hugging Face does not have; None leaves the choice to `write`."""
    if name is not None and name not in hugging_face.ARCHITECTURES:
        raise CheckpointError(f"{name!r} is none of: {', '.join(hugging_face.ARCHITECTURES)}.")


def write(
    checkpoint: Checkpoint,
    directory: str,
    target_format: str,
    vocab: list[str] | None = None,
    do_lower_case: bool | None = None,
    architecture: str | None = None,
    dtype: str = "float32",
) -> None:
    """Writes weights, config and vocabulary in a format; `dtype` is for Hugging Face's alone."""
    check_architecture(architecture)
    variables, config = checkpoint.variables, checkpoint.config
    if target_format == "hugging_face":
        hugging_face.write(variables, config, directory, vocab, do_lower_case, architecture, dtype)
    elif target_format == "keras_hub":
        keras_hub.write_preset(variables, config, directory, vocab, do_lower_case)
    else:
        google.write_variables(variables, Path(directory) / google.CHECKPOINT_NAME)
        texts = {"bert_config.json": config.to_json_string()}
        if vocab is not None:
            texts["vocab.txt"] = "".join(f"{token}\n" for token in vocab)
        for name, text in texts.items():
            hugging_face.write_aside(
                Path(directory) / name, lambda path, text=text: Path(path).write_text(text, encoding="utf-8")
            )


def largest_difference(source: Checkpoint, target: str) -> float:
    """Between the outputs of both on the same random tokens, and between weights of heads.

    Ours run both. A preset runs in KerasHub's own backbone, which is what people will load it with.
    """
    written = read_checkpoint(target)
    common = written.variables.keys() & source.variables.keys()
    length = min(64, source.config.max_position_embeddings)
    ids = np.random.default_rng(0).integers(0, source.config.vocab_size, (4, length), np.int32)
    expected = _outputs(source, ids)
    found = _outputs_of_keras_hub(written, ids) if written.format == "keras_hub" else _outputs(written, ids)
    # Some classes of Hugging Face have no pooler: what is not there cannot differ.
    names = ["sequence_output"] + ["pooled_output"] * ("bert/pooler/dense/kernel" in common)
    differences = [np.abs(expected[name].numpy() - found[name].numpy()).max() for name in names]
    heads = [name for name in common if not name.startswith("bert/")]
    differences += [np.abs(source.variables[name] - written.variables[name]).max() for name in heads]
    return float(max(differences))


def _outputs(checkpoint: Checkpoint, ids: np.ndarray):
    encoder = BertEncoder(checkpoint.config)
    load_checkpoint(encoder, checkpoint)
    return encoder({"input_ids": tf.constant(ids)})


def _outputs_of_keras_hub(checkpoint: Checkpoint, ids: np.ndarray):
    backbone = keras_hub.build(checkpoint.config)
    keras_hub.set_weights(backbone, checkpoint.variables)
    return backbone({"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)})
