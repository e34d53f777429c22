"""The shape of a BERT model, read from Google's or Hugging Face's JSON."""

import dataclasses
import json
import logging
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# How each family of files names its activations, and what we call them. The same word means two things: Google's
# "gelu" is the tanh approximation, Hugging Face's "gelu" the exact form with the error function.
_GOOGLE_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_erf": "gelu_erf",  # ours: the original never had it and refuses the name, which is better than wrong numbers
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
    "silu": "silu",
}
_HUGGING_FACE_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATIONS = tuple(_GOOGLE_ACTIVATIONS)

# Which positions a position sees: all, or itself and those to its left.
ATTENTIONS = ("bidirectional", "causal")

# A file with any of these keys was written by Hugging Face's library.
_HUGGING_FACE_MARKS = frozenset({"model_type", "architectures", "transformers_version", "_name_or_path", "torch_dtype"})

# Keys that say nothing about the numbers of the encoder: kept, and not worth a warning.
_HARMLESS_KEYS = _HUGGING_FACE_MARKS | {
    "directionality",  # the keys of Google's multilingual and Chinese configs; its code never read them
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "bos_token_id",
    "classifier_dropout",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "problem_type",
    "tie_word_embeddings",
    "use_cache",
}

# Keys that change the network into one that is not BERT's, with the only value that leaves it alone.
_REQUIRED_VALUES = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
}

_LONGEST_MESSAGE = 500  # a file may hold anything, and errors quote it

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_POSITIVE_NUMBERS = ("initializer_range", "layer_norm_eps")


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Everything that decides the shape and the arithmetic of a BERT encoder.

    The defaults are the original's, `type_vocab_size=16` included; every model that Google released has 2.

    Example:
        >>> BertConfig(vocab_size=30522, type_vocab_size=2).hidden_size
        768
        >>> BertConfig.preset("tiny").num_hidden_layers
        2
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"  # "gelu" is the tanh form, as in Google's code; "gelu_erf" the exact one
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    attention: str = "bidirectional"  # "causal": left to right, for the paper's ablation
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)  # keys we do not know, kept

    def __post_init__(self):
        for key in _SIZES:
            value = getattr(self, key)
            if type(value) is not int or value < 1:
                raise ValueError(f"{key} must be a whole number of at least 1, but is {value!r}.")
        for key in _PROBABILITIES:
            if not _is_number(value := getattr(self, key)) or not 0 <= value < 1:
                raise ValueError(f"{key} must be a probability from 0 up to (not including) 1, but is {value!r}.")
        for key in _POSITIVE_NUMBERS:
            if not _is_number(value := getattr(self, key)) or not 0 < value < float("inf"):
                raise ValueError(f"{key} must be a number above 0, but is {value!r}.")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}, but is {self.hidden_act!r}.")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, but is {self.attention!r}.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_attention_heads, but {self.hidden_size} is not one of "
                f"{self.num_attention_heads}."
            )
        object.__setattr__(self, "extra", dict(self.extra))

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "BertConfig":
        """The config of a released size by its name: `preset("base")`, `preset("L-4_H-256_A-4", vocab_size=8000)`."""
        if name not in PRESETS:
            raise ValueError(f"There is no preset {name!r}. The presets are: {', '.join(PRESETS)}.")
        return dataclasses.replace(PRESETS[name], **changes)

    @classmethod
    def from_json_file(cls, path: str | Path) -> "BertConfig":
        """Reads Google's `bert_config.json` or Hugging Face's `config.json`; an error names the file and the key."""
        path = Path(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no config file {path}.") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a JSON file: {error}.") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path} must hold one JSON object, but holds a {type(values).__name__}.")
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{path}: {str(error)[:_LONGEST_MESSAGE]}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BertConfig":
        """Builds a config from the keys of either family of files, which it tells apart by the keys they carry."""
        values = dict(values)
        if "vocab_size" not in values:
            raise ValueError("vocab_size is missing: the number of lines of vocab.txt.")
        if values.get("model_type", "bert") != "bert":
            raise ValueError(
                f"model_type is {values['model_type']!r}: a relative of BERT, perhaps, but another network."
            )
        for key, required in _REQUIRED_VALUES.items():
            if (value := values.get(key, required)) != required:
                raise ValueError(f"{key} is {value!r}, which is not BERT's network: only {required!r} is supported.")

        from_hugging_face = not _HUGGING_FACE_MARKS.isdisjoint(values)
        if from_hugging_face:
            values.setdefault("type_vocab_size", 2)  # the default that Hugging Face's files leave unsaid
        if "hidden_act" in values:
            names = _HUGGING_FACE_ACTIVATIONS if from_hugging_face else _GOOGLE_ACTIVATIONS
            activation = values["hidden_act"]
            if not isinstance(activation, str) or activation not in names:
                raise ValueError(f"hidden_act must be one of {', '.join(names)}, but is {activation!r}.")
            values["hidden_act"] = names[activation]
        elif from_hugging_face:
            values["hidden_act"] = "gelu_erf"

        if values.pop("is_decoder", False):  # Hugging Face's name for it
            values["attention"] = "causal"

        fields = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        extra = {key: value for key, value in values.items() if key not in fields}
        if unknown := sorted(set(extra) - _HARMLESS_KEYS - set(_REQUIRED_VALUES)):
            logging.getLogger(__name__).warning("Config keys without a meaning here, kept as they are: %s", unknown)
        return cls(**{key: value for key, value in values.items() if key in fields}, extra=extra)

    def to_dict(self) -> dict[str, Any]:
        """The keys of Google's `bert_config.json`, and those we kept without knowing them.

        Marks of a Hugging Face file are left out: with them, "gelu" would be read as the exact form again.
        """
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "extra"}
        if self.attention == "bidirectional":
            del known["attention"]  # what Google's files mean without saying it
        kept = {key: value for key, value in self.extra.items() if key not in _HUGGING_FACE_MARKS}
        return kept | known

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _released(layers: int, hidden: int) -> BertConfig:
    """The released English models of one size: heads of 64, an inner layer four times as wide, 2 segments."""
    return BertConfig(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        type_vocab_size=2,
    )


# The 24 small models by the names of their archives, and the names people call them by.
PRESETS: Mapping[str, BertConfig] = types.MappingProxyType(
    {
        f"L-{layers}_H-{hidden}_A-{hidden // 64}": _released(layers, hidden)
        for layers in (2, 4, 6, 8, 10, 12)
        for hidden in (128, 256, 512, 768)
    }
    | {
        "tiny": _released(2, 128),
        "mini": _released(4, 256),
        "small": _released(4, 512),
        "medium": _released(8, 512),
        "base": _released(12, 768),
        "large": _released(24, 1024),
    }
)
