"""A stand-in for TensorFlow Serving, FOR TESTS ONLY: the real server's binary cannot be had from a package index.

It speaks the protocol (PredictionService and ModelService of tensorflow_serving.apis over gRPC, JSON over HTTP) on real
sockets of the loopback, in a process of its own, and words errors as the real one does. It has no batching, no
roll-over, no limits and no security: to serve a model, use tensorflow/serving (docs/serving.md).

    python tests/serving/stand_in.py --model=tiny=<directory of versions>

It waits for a line on standard input, loads, and says that it is ready by a line of JSON: {"rest": port, "grpc": port}.
"""

import argparse
import base64
import json
import re
import sys
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

_HTTP = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404, "UNAVAILABLE": 503, "INTERNAL": 500}


class Refusal(Exception):
    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code, self.message = code, message


class Model:
    """One version of a model."""

    def __init__(self, directory: Path):
        self._loaded = tf.saved_model.load(str(directory))
        proto = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
        self.signatures = proto.meta_graphs[0].signature_def

    def run(self, signature_name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        wanted = self.signatures[signature_name].inputs
        if inputs.keys() != wanted.keys():
            extra, missing = inputs.keys() - wanted.keys(), wanted.keys() - inputs.keys()
            raise Refusal(
                "INVALID_ARGUMENT",
                f"input size does not match signature: {len(inputs)}!={len(wanted)} "
                f"len({{{','.join(sorted(inputs))}}}) != len({{{','.join(sorted(wanted))}}}). "
                f"Sent extra: {{{','.join(sorted(extra))}}}. "
                f"Missing but required: {{{','.join(sorted(missing))}}}.",
            )
        for name, value in inputs.items():
            dtype = tf.as_dtype(wanted[name].dtype)
            if tf.as_dtype(value.dtype) != dtype:
                raise Refusal("INVALID_ARGUMENT", f"input {name} is {tf.as_dtype(value.dtype).name}, not {dtype.name}")
        try:
            tensors = {name: tf.constant(value) for name, value in inputs.items()}
            return {name: value.numpy() for name, value in self._loaded.signatures[signature_name](**tensors).items()}
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise Refusal("INVALID_ARGUMENT", str(error).splitlines()[0]) from None


class Core:
    """What both servers share: models by name and version, and the accidents that a test wants."""

    def __init__(self, models: dict[str, Path], refuse: int, slow_seconds: float):
        self.models = {
            name: {int(path.name): Model(path) for path in sorted(base.iterdir()) if path.name.isdigit()}
            for name, base in models.items()
        }
        self._refuse, self._slow_seconds = refuse, slow_seconds
        self.num_asked = 0

    def find(self, name: str, version: int | None) -> tuple[int, Model]:
        versions = self.models.get(name, {})
        if not versions:
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise Refusal("NOT_FOUND", f"Servable not found for request: {wanted}")
        version = max(versions) if version is None else version
        if version not in versions:
            raise Refusal("NOT_FOUND", f"Servable not found for request: Specific({name}, {version})")
        return version, versions[version]

    def predict(self, model: Model, signature_name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.num_asked += 1
        if self._refuse > 0:
            self._refuse -= 1
            raise Refusal("UNAVAILABLE", "The batch scheduling queue to which this task was submitted is full")
        if signature_name == "slow":
            time.sleep(self._slow_seconds)
        return model.run(signature_name, inputs)

    def status(self, name: str, version: int | None) -> get_model_status_pb2.GetModelStatusResponse:
        versions = self.models.get(name, {})
        if version is not None and version not in versions:
            raise Refusal("NOT_FOUND", f"Could not find version {version} of model {name}")
        if not versions:
            raise Refusal("NOT_FOUND", f"Could not find any versions of model {name}")
        response = get_model_status_pb2.GetModelStatusResponse()
        for number in sorted(versions, reverse=True) if version is None else [version]:
            response.model_version_status.add(version=number, state="AVAILABLE").status.SetInParent()
        return response


def _signature_name(given: str) -> str:
    return given or "serving_default"


# gRPC


def _answer_or_abort(method):
    def guarded(self, request, context):
        try:
            return method(self, request)
        except Refusal as refusal:
            context.abort(getattr(grpc.StatusCode, refusal.code), refusal.message)

    return guarded


def _version(spec) -> int | None:
    return spec.version.value if spec.HasField("version") else None


class Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, core: Core):
        self._core = core

    @_answer_or_abort
    def Predict(self, request, context=None):
        spec = request.model_spec
        version, model = self._core.find(spec.name, _version(spec))
        name = _signature_name(spec.signature_name)
        if name not in model.signatures:
            raise Refusal("FAILED_PRECONDITION", f'Serving signature key "{name}" not found.')
        inputs = {key: tf.make_ndarray(proto) for key, proto in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.version.value = spec.name, version
        response.model_spec.signature_name = name
        for key, value in self._core.predict(model, name, inputs).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    @_answer_or_abort
    def GetModelMetadata(self, request, context=None):
        if list(request.metadata_field) != ["signature_def"]:
            raise Refusal("INVALID_ARGUMENT", "GetModelMetadataRequest must specify at least one metadata_field")
        version, model = self._core.find(request.model_spec.name, _version(request.model_spec))
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name, response.model_spec.version.value = request.model_spec.name, version
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=model.signatures)
        response.metadata["signature_def"].Pack(signatures)
        return response


class ModelStatus(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, core: Core):
        self._core = core

    @_answer_or_abort
    def GetModelStatus(self, request, context=None):
        return self._core.status(request.model_spec.name, _version(request.model_spec))


# REST


def _is_base64(value) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _array(value, info) -> np.ndarray:
    """JSON -> a tensor of the type that the signature has."""
    dtype = tf.as_dtype(info.dtype)

    def leaf(item):
        if isinstance(item, list):
            return [leaf(inner) for inner in item]
        if dtype == tf.string:
            if _is_base64(item):
                return base64.b64decode(item["b64"])
            if isinstance(item, str):
                return item.encode("utf-8")
        elif isinstance(item, (int, float)):
            return item
        shown = json.dumps(item, ensure_ascii=False)
        raise Refusal("INVALID_ARGUMENT", f"JSON Value: {shown} Type: is not of expected type: {dtype.name}")

    try:
        return np.array(leaf(value), object if dtype == tf.string else dtype.as_numpy_dtype)
    except ValueError:
        raise Refusal("INVALID_ARGUMENT", "Expecting tensor size: but got another: rows differ in length") from None


def _request_inputs(body: dict, infos) -> tuple[dict[str, np.ndarray], bool]:
    """The tensors of a request, and whether they came by row."""
    if "instances" in body:
        rows = body["instances"]
        if not rows:
            raise Refusal("INVALID_ARGUMENT", f"JSON Value: {json.dumps(body)} No values in 'instances' array")
        if not isinstance(rows[0], dict) or _is_base64(rows[0]):
            if len(infos) > 1:
                raise Refusal(
                    "INVALID_ARGUMENT",
                    "instances is a plain list, but expecting list of objects as multiple input tensors required as "
                    "per tensorinfo_map",
                )
            rows = [{next(iter(infos)): row} for row in rows]
        for index, row in enumerate(rows):
            if row.keys() != infos.keys():
                raise Refusal(
                    "INVALID_ARGUMENT",
                    f"Failed to process element: {index} of 'instances' list. JSON object: {json.dumps(row)} keys must "
                    f"be equal to: {','.join(sorted(infos))}",
                )
        return {name: _array([row[name] for row in rows], info) for name, info in infos.items()}, True
    if "inputs" not in body:
        raise Refusal("INVALID_ARGUMENT", "Missing 'inputs' or 'instances' key")
    columns = body["inputs"]
    if not isinstance(columns, dict) or _is_base64(columns):
        columns = {next(iter(infos)): columns}
    for name in infos:
        if name not in columns:
            raise Refusal("INVALID_ARGUMENT", f"Missing named input: {name} in 'inputs' object.")
    return {name: _array(columns[name], info) for name, info in infos.items()}, False


def _json_value(name: str, value):
    if isinstance(value, list):
        return [_json_value(name, item) for item in value]
    if isinstance(value, bytes):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(value).decode("ascii")}
        return value.decode("utf-8", "replace")
    return value


def _shortest(value: np.ndarray) -> list:
    """Numbers as the server writes them: no more digits than float32 has."""
    if value.dtype == np.float32:
        return np.vectorize(lambda number: float(str(number)), otypes=[float])(value).tolist()
    return value.tolist()


def _response(outputs: dict[str, np.ndarray], by_row: bool) -> dict:
    if by_row:
        sizes = set()
        for name, value in outputs.items():
            if not value.ndim:
                raise Refusal("INVALID_ARGUMENT", f"Tensor name: {name} has no shape information ")
            sizes.add(len(value))
        if len(sizes) > 1:
            raise Refusal("INVALID_ARGUMENT", "Tensor name: has inconsistent batch size")
    columns = {name: _json_value(name, _shortest(value)) for name, value in outputs.items()}
    if len(columns) == 1:
        return {"predictions" if by_row else "outputs": next(iter(columns.values()))}
    if not by_row:
        return {"outputs": columns}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


class Rest(BaseHTTPRequestHandler):
    core: Core
    protocol_version = "HTTP/1.1"  # keeps connections

    def do_GET(self):
        self._answer(b"")

    def do_POST(self):
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        try:
            code, content = 200, self._content(body)
        except Refusal as refusal:
            code, content = _HTTP[refusal.code], {"error": refusal.message}
        payload = json.dumps(content, ensure_ascii=False, indent=1).encode("utf-8")
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _content(self, body: bytes) -> dict:
        match = re.fullmatch(r"/v1/models/([^/:]+)(?:/versions/(\d+))?(/metadata|:predict)?", self.path)
        if not match or (self.command == "POST") != (match[3] == ":predict"):
            raise Refusal("INVALID_ARGUMENT", f"Malformed request: {self.command} {self.path}")
        name, version = match[1], int(match[2]) if match[2] else None
        if match[3] is None:
            response = self.core.status(name, version)
            return json_format.MessageToDict(
                response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        version, model = self.core.find(name, version)
        if match[3] == "/metadata":
            signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=model.signatures)
            told = json_format.MessageToDict(
                signatures, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            return {"model_spec": {"name": name, "version": str(version)}, "metadata": {"signature_def": told}}
        try:
            request = json.loads(body)
        except ValueError as error:
            raise Refusal("INVALID_ARGUMENT", f"JSON Parse error: {error}") from None
        signature_name = _signature_name(request.get("signature_name", ""))
        if signature_name not in model.signatures:
            message = f'Serving signature name: "{signature_name}" not found in signature def'
            raise Refusal("INVALID_ARGUMENT", message)
        inputs, by_row = _request_inputs(request, model.signatures[signature_name].inputs)
        return _response(self.core.predict(model, signature_name, inputs), by_row)

    def log_message(self, *_):
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append", required=True, help="name=directory of its versions")
    parser.add_argument("--rest_port", type=int, default=0)
    parser.add_argument("--grpc_port", type=int, default=0)
    parser.add_argument("--refuse", type=int, default=0, help="answers the first few with UNAVAILABLE")
    parser.add_argument("--slow_seconds", type=float, default=3.0, help="what the signature `slow` takes")
    arguments = parser.parse_args()
    sys.stdin.readline()
    models = {name: Path(path) for name, path in (model.split("=", 1) for model in arguments.model)}
    core = Core(models, arguments.refuse, arguments.slow_seconds)

    Rest.core = core
    rest = ThreadingHTTPServer(("127.0.0.1", arguments.rest_port), Rest)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Prediction(core), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelStatus(core), server)
    port = server.add_insecure_port(f"127.0.0.1:{arguments.grpc_port}")
    server.start()
    print(json.dumps({"rest": rest.server_address[1], "grpc": port}))
    sys.stdout.flush()
    rest.serve_forever()


if __name__ == "__main__":
    main()
