"""What TensorFlow Serving wants besides a SavedModel: version directories, warm-up, and how to serve it.

    <output_dir>/compose.yaml                     docker compose up
    <output_dir>/models.config                    which models there are
    <output_dir>/batching.config                  how requests are joined
    <output_dir>/<model_name>/<version>/saved_model.pb
    <output_dir>/<model_name>/<version>/assets.extra/tf_serving_warmup_requests

The container sees <output_dir> as /models. A server that runs takes the highest number it finds, so a version appears
only when it is whole, warm-up included, and files are moved into place.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.state import write_text

# The release that is built from the TensorFlow of requirements.txt.
SERVING_IMAGE = "tensorflow/serving:2.21.0"
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
MODELS_CONFIG = "models.config"
BATCHING_CONFIG = "batching.config"
COMPOSE_FILE = "compose.yaml"
# TensorFlow Serving refuses a model with more.
_MAX_WARMUP_REQUESTS = 1000

_MODELS_HEADER = """\
# The models to serve, as the container sees them. A model that is exported to this directory is added.
# The newest version is served. To hold on to others, put this into a model's config { … }:
#   model_version_policy { specific { versions: 1 } }
#   model_version_policy { latest { num_versions: 2 } }
"""

_BATCHING = """\
# How TensorFlow Serving joins requests that come at about the same time (--batching_parameters_file).

# The most rows of a batch, and so of one request: more are refused. Memory does not grow with them, since the model
# runs a few hundred tokens at a time; but whoever is in a batch waits for all of it.
max_batch_size {{ value: {max_batch_size} }}

# How long a request waits for others. Under load batches fill up before, so this is what a lonely request pays.
batch_timeout_micros {{ value: {batch_timeout_micros} }}

# What may wait. More is refused (UNAVAILABLE, 503) instead of being late; the client comes back a little later.
max_enqueued_batches {{ value: {max_enqueued_batches} }}

# Batches that run at the same time. Each of them uses several cores, so fewer than there are cores.
num_batch_threads {{ value: {num_batch_threads} }}

# There are no allowed_batch_sizes: the model takes any number of rows, and rows of padding would be work for nothing.

{padding}
"""

_NO_PADDING = """\
# Texts need no padding: the model pads them itself. Requests of ids (the signature `tokens`) do where lengths differ.
# The server would pad them, but with the first value of each tensor: ids with [CLS] and the mask with 1, so that the
# padding counts, and the answer is another one. As it is, such requests are refused where they meet; clients that pad
# to one length are served.
pad_variable_length_inputs: false"""

_PADDING = """\
# Requests of ids (the signature `tokens`) are padded to the longest of the batch. The server pads with the first value
# of each tensor, so ids with [CLS] and the mask with 1; the signature knows that, and masks each [CLS] but the first.
pad_variable_length_inputs: true"""

_COMPOSE = """\
# docker compose up: REST at http://localhost:8501, gRPC at localhost:8500. Models are read from this directory.
services:
  serving:
    image: {image}
    platform: linux/amd64  # there is no other
    restart: unless-stopped
    ports:
      - "8500:8500"  # gRPC
      - "8501:8501"  # REST
    volumes:
      - .:/models:ro
    command:
      - --model_config_file=/models/{models_config}
      - --model_config_file_poll_wait_seconds=60  # models that are added later
      - --enable_batching=true
      - --batching_parameters_file=/models/{batching_config}
    healthcheck:  # in bash, since the image has no curl
      test:
        - CMD
        - bash
        - -c
        - >-
          exec 3<>/dev/tcp/127.0.0.1/8501 &&
          printf 'GET /v1/models/{model_name} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 &&
          grep -q AVAILABLE <&3
      interval: 10s
      timeout: 5s
      start_period: 60s
"""


def next_version(model_dir: str | Path) -> int:
    """The first number above those of the versions in a model's directory; 1 where there is none."""
    model_dir = Path(model_dir)
    names = [path.name for path in model_dir.iterdir() if path.is_dir()] if model_dir.is_dir() else []
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1


def write_warmup_requests(
    saved_model_dir: str | Path, model_name: str, requests: Mapping[str, Iterable[Mapping[str, Any]]]
) -> Path:
    """Writes requests that the server runs before it calls a version ready, so that no user pays for the first ones.

    Args:
        saved_model_dir: a version's directory; its signatures say what type a tensor has.
        model_name: the name of the model on the server.
        requests: name of a signature -> inputs by name, as for `ServingClient.predict`. Good ones have the numbers of
            rows and the lengths that users send.

    Returns:
        The file.
    """
    import tensorflow as tf

    logs = []
    for signature_name, of_signature in requests.items():
        signature = _signature_def(Path(saved_model_dir), signature_name)
        logs += [_prediction_log(signature, model_name, signature_name, inputs) for inputs in of_signature]
    if len(logs) > _MAX_WARMUP_REQUESTS:
        raise ValueError(f"{len(logs)} warm-up requests are more than the {_MAX_WARMUP_REQUESTS} that a server takes.")
    path = Path(saved_model_dir) / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    with tf.io.TFRecordWriter(str(aside)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())
    os.replace(aside, path)
    return path


def _signature_def(saved_model_dir: Path, name: str):
    from tensorflow.core.protobuf import saved_model_pb2

    path = saved_model_dir / "saved_model.pb"
    signatures = saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs[0].signature_def
    if name not in signatures:
        raise ValueError(f"{path} has no signature {name!r}. It has: {', '.join(sorted(signatures))}.")
    return signatures[name]


def _prediction_log(signature, model_name: str, signature_name: str, inputs: Mapping[str, Any]):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    if inputs.keys() != signature.inputs.keys():
        raise ValueError(
            f"The signature {signature_name!r} takes {', '.join(sorted(signature.inputs))}; the warm-up request has "
            f"{', '.join(sorted(inputs)) or 'nothing'}."
        )
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature_name
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype=tf.as_dtype(signature.inputs[name].dtype)))
    return prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))


def write_models_config(output_dir: str | Path, model_names: Sequence[str]) -> Path:
    """Adds models to `models.config`; those that are in it already stay as they are, with what a person wrote there."""
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    path = Path(output_dir) / MODELS_CONFIG
    config = model_server_config_pb2.ModelServerConfig()
    if path.exists():
        try:
            text_format.Parse(path.read_text(encoding="utf-8"), config)
        except text_format.ParseError as error:
            raise ValueError(
                f"{path} is not a config of TensorFlow Serving: {error}. Mend it or move it away."
            ) from None
    before = {model.name for model in config.model_config_list.config}
    missing = [checked_name(name) for name in dict.fromkeys(model_names) if name not in before]
    if missing or not path.exists():  # else the file stays, with its comments
        for name in missing:
            config.model_config_list.config.add(name=name, base_path=f"/models/{name}", model_platform="tensorflow")
        write_text(path, _MODELS_HEADER + text_format.MessageToString(config, as_utf8=True))
    return path


def write_batching_config(
    output_dir: str | Path,
    *,
    max_batch_size: int = 512,
    batch_timeout_micros: int = 2000,
    max_enqueued_batches: int = 100,
    num_batch_threads: int = 4,
    pad_variable_length_inputs: bool = False,
) -> Path:
    """Writes `batching.config`; one that is there stays, since somebody may have tuned it.

    Args:
        pad_variable_length_inputs: whether the server pads requests of ids to one length. Only for models whose
            signature `tokens` masks what the server pads with, which is not 0: see `Service.without_padding_of_server`.
    """
    path = Path(output_dir) / BATCHING_CONFIG
    if not path.exists():
        text = _BATCHING.format(
            max_batch_size=max_batch_size,
            batch_timeout_micros=batch_timeout_micros,
            max_enqueued_batches=max_enqueued_batches,
            num_batch_threads=num_batch_threads,
            padding=_PADDING if pad_variable_length_inputs else _NO_PADDING,
        )
        write_text(path, text)
    return path


def write_compose_file(output_dir: str | Path, model_name: str, image: str = SERVING_IMAGE) -> Path:
    """Writes `compose.yaml`; one that is there stays. The server is healthy when it has the model."""
    path = Path(output_dir) / COMPOSE_FILE
    if not path.exists():
        text = _COMPOSE.format(
            image=image,
            model_name=checked_name(model_name),
            models_config=MODELS_CONFIG,
            batching_config=BATCHING_CONFIG,
        )
        write_text(path, text)
    return path


def write_deployment(
    output_dir: str | Path, model_name: str, *, pad_variable_length_inputs: bool = False
) -> list[Path]:
    """Writes all that stands beside the models, and gives the files.

    For when the model is in its place: a server that reads of one that is not there yet waits for it, and for nothing
    else.
    """
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    return [
        write_models_config(output_dir, [model_name]),
        write_batching_config(output_dir, pad_variable_length_inputs=pad_variable_length_inputs),
        write_compose_file(output_dir, model_name),
    ]


def checked_name(name: str) -> str:
    """A name that is safe in a URL, in a path and in YAML."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(f"{name!r} is no name for a model: --model_name is made of letters, digits, `_`, `-` and `.`.")
    return name
