"""Hugging Face's format: `config.json` beside `model.safetensors`, in one file or several.

Weights are read with safetensors and never with pickle, which runs whatever code a file holds.
"""

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import numpy as np
from safetensors import SafetensorError, safe_open

from modeling.config import BertConfig
from modeling.errors import CheckpointError

_WEIGHTS, _INDEX, _PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"

# The format knows no checksums, and would take a flipped bit for a weight. Ours stand where only their owner looks.
_CHECKSUMS = "crc32c"

_MASKED_LM, _NEXT_SENTENCE = "cls/predictions/", "cls/seq_relationship/"
_CLASSIFIER, _SPAN, _POOLER = "output_", "cls/squad/", "bert/pooler/"

# Architectures of the library that a checkpoint can be written for, and what they have besides the encoder: how the
# names of those variables start.
ARCHITECTURES = {
    "BertModel": (_POOLER,),
    "BertForPreTraining": (_POOLER, _MASKED_LM, _NEXT_SENTENCE),
    "BertForMaskedLM": (_MASKED_LM,),
    "BertForSequenceClassification": (_POOLER, _CLASSIFIER),
    "BertForTokenClassification": (_CLASSIFIER,),
    "BertForQuestionAnswering": (_SPAN,),
    "BertForMultipleChoice": (_POOLER, _CLASSIFIER),
}

# Heads: their name there -> Google's, without transposing.
_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
_HEADS_BACK = {ours: theirs for theirs, ours in _HEADS.items()}

# What other names say a second time: a buffer of positions, and the decoder that is tied to the embeddings.
_REPEATED = ("embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


def is_directory(path: str | Path) -> bool:
    """Whether a directory was written by Hugging Face's library, or by us in its format."""
    path = Path(path)
    return (path / "config.json").is_file() and any((path / name).is_file() for name in (_WEIGHTS, _INDEX, _PICKLED))


def fetch(repository: str) -> str:
    """The directory of a model on the hub, from the local cache where it is there already."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["config.json", "*.safetensors", _INDEX, "vocab.txt", "tokenizer*.json"]
    try:
        return snapshot_download(repository, allow_patterns=wanted)
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"hf://{repository} is not in the local cache, and the hub cannot be reached. Fetch it once where there is "
            f"a network (hf download {repository}), or name a local directory."
        ) from error
    except (HfHubHTTPError, ValueError) as error:
        raise CheckpointError(f"hf://{repository} cannot be fetched: {error}") from error


def read_variables(directory: str | Path) -> dict[str, np.ndarray]:
    """All weights under Google's names, in float32. What has no such name keeps its own."""
    tensors = _read_tensors(Path(directory))
    variables = {}
    for name, value in tensors.items():
        if name.removeprefix("bert.") in _REPEATED:
            continue
        ours, transposed = google_name(name)
        variables[ours] = np.ascontiguousarray(value.T) if transposed else value
    if "cls.predictions.decoder.bias" in tensors:  # some versions write it under this name only
        variables.setdefault("cls/predictions/output_bias", tensors["cls.predictions.decoder.bias"])
    _check_tied(tensors, variables, directory)
    return variables


def read_casing(directory: str | Path) -> bool | None:
    """What `tokenizer_config.json` says about lower-casing, if it is there."""
    path = Path(directory) / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("do_lower_case")
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a JSON object: {error}.") from error


def google_name(name: str) -> tuple[str, bool]:
    """Google's name of a tensor, and whether its axes are swapped."""
    if name in _HEADS:
        return _HEADS[name], False
    name = name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
    name = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name)
    # Old files say gamma and beta as Google does, new ones weight and bias.
    name = re.sub(r"LayerNorm\.(weight|gamma)$", "LayerNorm.gamma", name)
    name = re.sub(r"LayerNorm\.(bias|beta)$", "LayerNorm.beta", name)
    is_embedding = name.endswith("_embeddings.weight")
    name = name.removesuffix(".weight") if is_embedding else re.sub(r"\.weight$", ".kernel", name)
    return name.replace(".", "/"), name.endswith(".kernel")


def hugging_face_name(name: str) -> tuple[str, bool]:
    """The other way round."""
    if name in _HEADS_BACK:
        return _HEADS_BACK[name], False
    transposed = name.endswith("/kernel")
    name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name)
    name = re.sub(r"/kernel$|/gamma$|(?<=_embeddings)$", "/weight", name)
    return re.sub(r"/beta$", "/bias", name).replace("/", "."), transposed


def architecture_of(names) -> str:
    """The architecture that has the heads of these variables, by Google's names."""
    if "cls/squad/output_weights" in names:
        return "BertForQuestionAnswering"
    if "output_weights" in names:
        return "BertForSequenceClassification"  # or tokens, or choices: weights do not tell
    if "cls/predictions/output_bias" in names:
        return "BertForPreTraining" if "cls/seq_relationship/output_weights" in names else "BertForMaskedLM"
    return "BertModel"


def write(
    variables: Mapping[str, np.ndarray],
    config: BertConfig,
    directory: str | Path,
    vocab: list[str] | None = None,
    do_lower_case: bool | None = None,
    architecture: str | None = None,
    dtype: str = "float32",
) -> None:
    """Writes a directory that `from_pretrained` loads with no missing and no unexpected weight.

    Args:
        variables: the weights, under Google's names.
        config: the shape of the network.
        directory: where to.
        vocab: the pieces, by id; with it, files of the tokenizer are written.
        do_lower_case: what the tokenizer does.
        architecture: one of `ARCHITECTURES`; by default the one that has the heads of the variables.
        dtype: of the weights. Half of the size in float16, for about three digits.
    """
    architecture = architecture or architecture_of(variables)
    tensors = {name: value.astype(dtype) for name, value in _tensors_of(variables, architecture).items()}
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_aside(directory / _WEIGHTS, lambda path: _save(tensors, path))
    files = {"config.json": _config_json(config, variables, architecture)}
    if vocab is not None:
        files["vocab.txt"] = "".join(f"{token}\n" for token in vocab)
        files["tokenizer_config.json"] = _json(
            {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": do_lower_case is not False,
                "model_max_length": config.max_position_embeddings,
            }
        )
    for name, text in files.items():
        write_aside(directory / name, lambda path, text=text: Path(path).write_text(text, encoding="utf-8"))


def _tensors_of(variables: Mapping[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    wanted = ARCHITECTURES[architecture]
    for part in wanted:
        if not any(name.startswith(part) for name in variables):
            raise CheckpointError(f"{architecture} needs variables {part}…, which this checkpoint does not have.")
    parts = (_POOLER, _MASKED_LM, _NEXT_SENTENCE, _CLASSIFIER, _SPAN)
    unwanted = tuple(part for part in parts if part not in wanted)
    kept = {name: value for name, value in variables.items() if not name.startswith(unwanted)}
    tensors = {}
    for name, value in kept.items():
        theirs, transposed = hugging_face_name(name)
        if architecture == "BertModel":
            theirs = theirs.removeprefix("bert.")
        tensors[theirs] = np.ascontiguousarray(value.T if transposed else value)
    return tensors


def _config_json(config: BertConfig, variables: Mapping[str, np.ndarray], architecture: str) -> str:
    names = {"gelu": "gelu_new", "gelu_erf": "gelu"}
    values = config.to_dict()
    values["hidden_act"] = names.get(config.hidden_act, config.hidden_act)
    values |= {"architectures": [architecture], "model_type": "bert"}
    if values.pop("attention", None) == "causal":
        values["is_decoder"] = True
    if "output_weights" in variables and architecture != "BertForMultipleChoice":
        count = len(variables["output_weights"])
        values.setdefault("id2label", {str(i): f"LABEL_{i}" for i in range(count)})
        values.setdefault("label2id", {label: int(i) for i, label in values["id2label"].items()})
    return _json(values)


def _json(values: Mapping) -> str:
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _save(tensors: Mapping[str, np.ndarray], path: str) -> None:
    """Writes safetensors with checksums. The library would put them beside the rest in an order left to chance."""
    checksums = {name: _checksum(tensor) for name, tensor in sorted(tensors.items())}
    header: dict = {"__metadata__": {"format": "pt", _CHECKSUMS: json.dumps(checksums)}}
    end = 0
    for name, tensor in sorted(tensors.items()):
        kind = {"float32": "F32", "float16": "F16"}[str(tensor.dtype)]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in sorted(tensors.items()):
            file.write(np.ascontiguousarray(tensor).tobytes())


def write_aside(path: Path, write_to) -> None:
    aside = path.with_name(f".{path.name}.part")
    try:
        write_to(str(aside))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _read_tensors(directory: Path) -> dict[str, np.ndarray]:
    if (directory / _INDEX).is_file():
        try:
            names = list(json.loads((directory / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{directory / _INDEX} is not an index of weights: {type(error).__name__}: {error}."
            ) from error
        files = [directory / name for name in _checked_names(names, directory / _INDEX)]
    elif (directory / _WEIGHTS).is_file():
        files = [directory / _WEIGHTS]
    else:
        raise CheckpointError(_why_no_weights(directory))
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        tensors |= _read_safetensors(file)
    return tensors


def _checked_names(names: list, index: Path) -> list[str]:
    """Names of files beside an index, each once: whoever writes an index does not choose what else is read."""
    for name in names:
        if not isinstance(name, str) or not name.endswith(".safetensors") or re.search(r"[/\\\0]", name):
            raise CheckpointError(
                f"{index} names {str(name)[:60]!r}, which is no safetensors file beside it. Fetch the index again, or "
                "put all files of the weights into one directory."
            )
    return sorted(set(names))


def _why_no_weights(directory: Path) -> str:
    if not (directory / _PICKLED).is_file():
        return f"There is no {_WEIGHTS} in {directory}."
    return (
        f"{directory} holds only {_PICKLED}, which is pickle: loading it could run any code that somebody put in. Turn "
        'it into safetensors once, with torch, which then takes nothing but tensors: python -c "import torch, '
        f"safetensors.torch as s; w = torch.load('{directory / _PICKLED}', weights_only=True); s.save_file("
        f"{{k: v.clone().contiguous() for k, v in w.items()}}, '{directory / _WEIGHTS}')\""
    )


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(str(file), framework="numpy") as reader:
            names = list(reader.keys())
            types = {name: reader.get_slice(name).get_dtype() for name in names}
            _check_types(types, file)
            tensors = {name: reader.get_tensor(name) for name in names if types[name] != "BF16"}
            _check_sums(tensors, (reader.metadata() or {}).get(_CHECKSUMS), file)
        bfloats = [name for name in names if types[name] == "BF16"]
        tensors |= _read_bfloat16(file, bfloats) if bfloats else {}
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"There is no {file}, though the index beside it names it.") from None
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(f"{file} is not a whole safetensors file: {error}. Fetch it again.") from error
    return {
        name: value if value.dtype == np.float32 or name.endswith("position_ids") else value.astype(np.float32)
        for name, value in tensors.items()
    }


def _checksum(tensor: np.ndarray) -> str:
    return f"{tensor.dtype}:{google_crc32c.value(np.ascontiguousarray(tensor).tobytes()):08x}"


def _check_sums(tensors: Mapping[str, np.ndarray], checksums: str | None, file: Path) -> None:
    """Compares with what was written down when the file was; files of others have nothing to compare with."""
    if checksums is None:
        return
    try:
        expected = {name: str(checksum) for name, checksum in json.loads(checksums).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"The checksums in the metadata of {file} are not a JSON object: {error}. Copy the file again, or take "
            f"{_CHECKSUMS} out of its metadata."
        ) from error
    for name, tensor in tensors.items():
        was = expected.get(name, "nothing")
        # In another precision they are weights that somebody has changed since, and kept the rest of the header.
        if was.startswith((f"{tensor.dtype}:", "nothing")) and was != _checksum(tensor):
            raise CheckpointError(
                f"{name} in {file} is damaged: its checksum does not fit. Copy the file again; or, if somebody has "
                f"changed its weights since, without {_CHECKSUMS} in its metadata."
            )


def _check_types(types: Mapping[str, str], file: Path) -> None:
    for name, kind in types.items():
        if kind not in ("F16", "F32", "F64", "BF16") and not name.endswith("position_ids"):
            raise CheckpointError(f"{name} in {file} has the type {kind}: weights are F16, BF16, F32 or F64.")


def _read_bfloat16(file: Path, names: list[str]) -> dict[str, np.ndarray]:
    """NumPy has no bfloat16: it is the upper half of a float32."""
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    tensors = {}
    for name in names:
        first, last = header[name]["data_offsets"]
        halves = np.frombuffer(data[start + first : start + last], np.uint16).astype(np.uint32)
        tensors[name] = (halves << 16).view(np.float32).reshape(header[name]["shape"])
    return tensors


def _check_tied(tensors: Mapping[str, np.ndarray], variables: Mapping[str, np.ndarray], directory) -> None:
    """The decoder of the masked LM is the embedding table. A file may repeat it, but not contradict it."""
    for theirs, ours in (
        ("cls.predictions.decoder.weight", "bert/embeddings/word_embeddings"),
        ("cls.predictions.decoder.bias", "cls/predictions/output_bias"),
    ):
        if theirs in tensors and ours in variables and not np.array_equal(tensors[theirs], variables[ours]):
            raise CheckpointError(
                f"{theirs} in {directory} differs from {ours}: BERT ties them, and this model does not."
            )
