"""A service as a SavedModel: signatures, assets, and the checks that it runs where there is no code of ours."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from data.graph_tokenization import SERVING_TEXT_OPS
from data.tokenization import vocab_text
from serving.deployment import WARMUP_FILE, write_warmup_requests
from serving.service import TEXTS, Service
from serving.trust import check_harmless
from tasks.settings import SETTINGS_FILE
from training.state import write_text

SERVING_DEFAULT = "serving_default"
MANIFEST = "assets.extra/SHA256SUMS"

# How far answers of a saved model may be from those before it was saved: ops are fused otherwise, and so rounded.
_TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}

# Ops of TensorFlow that call back into a Python program, which a server is not.
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def save(service: Service, directory: str | Path, model_name: str = "model") -> Path:
    """Saves a service, and does not leave half of one: the directory appears when all is checked.

    Args:
        service: of a task.
        directory: of a version, named by its number.
        model_name: on the server.

    Raises:
        ValueError: the directory is there already, TF Serving does not know an op, or what was saved does not answer as
            the service does.
    """
    directory = Path(directory)
    if directory.exists():
        raise ValueError(f"{directory} is there already. Choose another version, or take it away.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".saving-") as aside:
        made = Path(aside) / "model"
        signatures = make_signatures(service)
        with tempfile.TemporaryDirectory() as files:
            service.assets = [tf.saved_model.Asset(str(path)) for path in _write_assets(service, Path(files))]
            service.keep_weights(variable for function in signatures.values() for variable in function.variables)
            tf.saved_model.save(service, made, signatures=signatures)
        check_ops(op_names(made))
        check_harmless(made)
        check_answers(made, service, signatures[SERVING_DEFAULT])
        write_warmup_requests(made, model_name, {SERVING_DEFAULT: warmup_requests(service)})
        _write_manifest(made)
        made.rename(directory)
    return directory


def make_signatures(service: Service) -> dict[str, Any]:
    """By name: strings in, tokens in, and tf.Examples in."""
    functions = {
        SERVING_DEFAULT: (service.answer, service.inputs()),
        "tokens": (service.answer_tokens, service.token_inputs()),
        "examples": (service.answer_examples, {"examples": TEXTS}),
    }
    return {
        name: tf.function(function, autograph=False).get_concrete_function(
            **{key: tf.TensorSpec(spec.shape, spec.dtype, key) for key, spec in specs.items()}
        )
        for name, (function, specs) in functions.items()
    }


def op_names(saved_model_dir: str | Path) -> list[str]:
    """The ops of a SavedModel, in their functions too, sorted."""
    proto = saved_model_pb2.SavedModel.FromString((Path(saved_model_dir) / "saved_model.pb").read_bytes())
    found = set()
    for graph in (meta_graph.graph_def for meta_graph in proto.meta_graphs):
        functions = {function.signature.name for function in graph.library.function}
        found |= {node.op for node in graph.node} - functions
        found |= {node.op for function in graph.library.function for node in function.node_def} - functions
    return sorted(found)


def check_ops(names: Sequence[str]) -> None:
    """Raises where stock TF Serving would not know an op: it has TensorFlow's own and a few of tensorflow-text."""
    unknown = [n for n in names if n in _PYTHON_OPS or (not hasattr(tf.raw_ops, n) and n not in SERVING_TEXT_OPS)]
    if unknown:
        raise ValueError(f"Stock TF Serving does not have these ops: {', '.join(unknown)}.")


def check_answers(saved_model_dir: str | Path, service: Service, answer: Callable) -> None:
    """Loads a SavedModel by the loader of TensorFlow 1, which is TF Serving's, and compares its answers."""
    samples = service.samples()
    request = {name: [row[name] for row in samples] for name in service.inputs()}
    wanted = answer(**{name: tf.constant(values) for name, values in request.items()})
    tolerance = _TOLERANCES[service.precision]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(saved_model_dir))
        signature = loaded.signature_def[SERVING_DEFAULT]
        feed = {signature.inputs[name].name: values for name, values in request.items()}
        found = session.run({name: info.name for name, info in signature.outputs.items()}, feed)
    for name, values in wanted.items():
        values, others = values.numpy(), found[name]
        if values.dtype.kind == "f":
            is_same = values.shape == others.shape and np.allclose(values, others, atol=tolerance)
            is_same = is_same and np.isfinite(others).all()
        else:  # in half precision, rounding may decide between answers that are as good as each other
            is_same = np.array_equal(values, others) or service.precision != "float32"
        if not is_same:
            raise ValueError(f"The saved model answers {name} = {others}, but should answer {values}.")


def warmup_requests(service: Service) -> list[dict[str, list]]:
    """Requests of one row and of many, short ones and long ones."""
    samples = service.samples()
    batches = [[sample] for sample in samples] + [list(samples) * 8]
    return [{name: [row[name] for row in rows] for name in service.inputs()} for rows in batches]


def _write_assets(service: Service, directory: Path) -> Iterator[Path]:
    """What a person needs to know of the model: files that go into its assets."""
    texts = {
        "vocab.txt": vocab_text(service.tokenizer.vocab),
        "bert_config.json": json.dumps(service.config.to_dict(), indent=2) + "\n",
        SETTINGS_FILE: service.settings.to_json(),
    }
    if labels := getattr(service.settings, "labels", ()) or getattr(service.settings, "tags", ()):
        texts["labels.txt"] = "".join(f"{label}\n" for label in labels)
    for name, text in texts.items():
        write_text(directory / name, text)
        yield directory / name


def _write_manifest(directory: Path) -> None:
    """SHA-256 of each file, as `sha256sum --check` reads it."""
    # Warm-up requests may be exchanged for better ones.
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / WARMUP_FILE)
    lines = [f"{_sha256(path)}  {path.relative_to(directory).as_posix()}\n" for path in files]
    path = directory / MANIFEST
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(lines))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
