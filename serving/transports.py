"""How a client reaches TensorFlow Serving: REST by the standard library, gRPC by tensorflow-serving-api.

Both transports take columns of lists and give them, and raise `ServingError` with the words that a person needs.
"""

import base64
import http.client
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What TensorFlow Serving makes of its status codes in HTTP, read backwards. 400 may be one of three: the usual one.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ServingError(RuntimeError):
    """What the server, or the way to it, did not do. `code` is a status code of gRPC, by name, for both transports."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of an input or output: `DT_STRING`, `(None,)`. The shape is None where even the rank is free."""

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of one way to ask a model, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class Rest:
    """JSON over HTTP, with connections that are kept."""

    def __init__(self, url: str, model: str, version: int | None, timeout: float):
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address. It looks like http://localhost:8501.")
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._timeout = parts.hostname, parts.port, timeout
        self._server = f"{parts.scheme}://{parts.netloc}"
        at_version = "" if version is None else f"/versions/{version}"
        self._path = f"{parts.path.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}{at_version}"
        self.where = _where(self._server, model, version)
        self._idle: list[http.client.HTTPConnection] = []  # append and pop are atomic

    def predict(
        self, columns: Mapping[str, Any], signature_name: str, signature: Signature, by_row: bool
    ) -> dict[str, Any]:
        columns = {name: to_json(column) for name, column in columns.items()}
        if by_row:
            rows = zip(*columns.values(), strict=True)
            body = {"instances": [dict(zip(columns, row, strict=True)) for row in rows]}
        else:
            body = {"inputs": columns}
        answer = self._ask("POST", f"{self._path}:predict", {"signature_name": signature_name, **body})
        found = answer.get("predictions" if by_row else "outputs")
        if found is None:
            raise ServingError(
                "INTERNAL", f"{self.where} answered what is not TensorFlow Serving's: {str(answer)[:200]}"
            )
        if len(signature.outputs) == 1:  # then the server leaves the name out
            return {next(iter(signature.outputs)): _from_json(found)}
        if by_row:
            found = {name: [row[name] for row in found] for name in (found[0] if found else signature.outputs)}
        return {name: _from_json(value) for name, value in found.items()}

    def metadata(self) -> dict[str, Any]:
        return self._ask("GET", f"{self._path}/metadata").get("metadata", {}).get("signature_def", {})

    def status(self) -> dict[str, Any]:
        return self._ask("GET", self._path)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _ask(self, method: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content, ensure_ascii=False).encode("utf-8")
        status, answer = self._exchange(method, path, body)
        try:
            parsed = json.loads(answer)
        except ValueError:
            parsed = None
        if status == 200 and isinstance(parsed, dict):
            return parsed
        text = parsed.get("error") if isinstance(parsed, dict) else None
        text = text or answer[:300].decode("utf-8", "replace").strip() or "no more than that"
        code = "INTERNAL" if status == 200 else _CODES.get(status, "INTERNAL")
        raise ServingError(code, _explain(code, f"HTTP {status}", text, self.where))

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Sends a request, reads the answer; and at once again where a kept connection has been closed meanwhile."""
        while True:
            try:
                connection, kept = self._idle.pop(), True
            except IndexError:
                connection, kept = self._connect(self._host, self._port, timeout=self._timeout), False
            try:
                headers = {} if body is None else {"Content-Type": "application/json"}
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            except TimeoutError:
                connection.close()
                code = "DEADLINE_EXCEEDED"
                text = f"no answer within {self._timeout:g} s"
                raise ServingError(code, _explain(code, "time-out", text, self.where)) from None
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if kept:
                    continue
                text = str(error) or type(error).__name__
                raise ServingError("UNAVAILABLE", _explain("UNAVAILABLE", "no connection", text, self.where)) from None
            if response.will_close:
                connection.close()
            else:
                self._idle.append(connection)
            return response.status, answer


class Grpc:
    """TensorFlow Serving's protocol buffers over gRPC."""

    def __init__(self, target: str, model: str, version: int | None, timeout: float, max_message_mb: int):
        import grpc  # here and below, since they bring TensorFlow along, and REST does without
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

        self._model, self._version, self._timeout, self._max_message_mb = model, version, timeout, max_message_mb
        self.where = _where(target, model, version)
        options = {
            "grpc.max_send_message_length": max_message_mb << 20,
            "grpc.max_receive_message_length": max_message_mb << 20,
            # A channel that found nobody waits by itself before it looks again, up to two minutes. We do the waiting.
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.min_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 1000,
        }
        self._errors = grpc.RpcError
        self._channel = grpc.insecure_channel(target, list(options.items()))
        self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def predict(
        self, columns: Mapping[str, Any], signature_name: str, signature: Signature, by_row: bool
    ) -> dict[str, Any]:
        del by_row  # its messages have columns
        import tensorflow as tf
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        self._fill(request.model_spec, signature_name)
        for name, column in columns.items():
            dtype = tf.as_dtype(types_pb2.DataType.Value(signature.inputs[name].dtype))
            try:
                request.inputs[name].CopyFrom(tf.make_tensor_proto(column, dtype=dtype))
            except (TypeError, ValueError) as error:
                raise ServingError(
                    "INVALID_ARGUMENT",
                    f"The input {name!r} of {self.where} does not make a tensor of {signature.inputs[name].dtype}: "
                    f"{str(error).splitlines()[0]}. Rows must have one length: pad them.",
                ) from None
        outputs = self._call(self._prediction.Predict, request).outputs
        return {
            name: decode(tf.make_ndarray(proto).tolist(), as_bytes=name.endswith("_bytes"))
            for name, proto in outputs.items()
        }

    def metadata(self) -> dict[str, Any]:
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        self._fill(request.model_spec)
        response = self._call(self._prediction.GetModelMetadata, request)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return json_format.MessageToDict(signatures, preserving_proto_field_name=True)  # what REST has

    def status(self) -> dict[str, Any]:
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest()
        self._fill(request.model_spec)
        response = self._call(self._models.GetModelStatus, request)
        return json_format.MessageToDict(response, preserving_proto_field_name=True)

    def close(self) -> None:
        self._channel.close()

    def _fill(self, model_spec, signature_name: str | None = None) -> None:
        model_spec.name = self._model
        if self._version is not None:
            model_spec.version.value = self._version
        if signature_name is not None:
            model_spec.signature_name = signature_name

    def _call(self, method, request):
        try:
            return method(request, timeout=self._timeout)
        except self._errors as error:
            code, text = error.code().name, error.details() or "no more than that"
            if code == "DEADLINE_EXCEEDED":
                text = f"no answer within {self._timeout:g} s"
            elif code == "RESOURCE_EXHAUSTED":
                text += f" (the limit here is {self._max_message_mb} MB)"
            raise ServingError(code, _explain(code, code, text, self.where)) from None


_FIXES = {
    "UNAVAILABLE": "Is the server running there, with this port open, and not overloaded?",
    "NOT_FOUND": "Names are in models.config; the server's log tells which models and versions did not load.",
    "DEADLINE_EXCEEDED": "Send fewer rows at a time, or give more time (--timeout).",
    "RESOURCE_EXHAUSTED": "Send fewer rows at a time, or raise the limit: --max_message_mb here, "
    "--grpc_channel_arguments=grpc.max_receive_message_length=… at the server.",
}


def _explain(code: str, status: str, text: str, where: str) -> str:
    fix = _FIXES.get(code, "")
    if "larger than maximum input batch size" in text:
        fix = "Send fewer rows at a time (--batch_size), or raise max_batch_size in batching.config."
    elif "padding is turned off" in text:
        fix = "Pad all rows to one length, or ask a signature that takes text."
    return f"{where}: {status}: {text.rstrip('.')}. {fix}".rstrip()


def _where(server: str, model: str, version: int | None) -> str:
    return f"{server}, model {model!r}" + ("" if version is None else f", version {version}")


def parse_signatures(found: Mapping[str, Any]) -> dict[str, Signature]:
    """From the JSON of a SignatureDefMap."""

    def specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
        return {name: TensorSpec(tensor.get("dtype", ""), _parse_shape(tensor)) for name, tensor in tensors.items()}

    return {
        name: Signature(specs(signature.get("inputs", {})), specs(signature.get("outputs", {})))
        for name, signature in found.get("signature_def", {}).items()
        if name != "__saved_model_init_op"  # TensorFlow's own: nobody asks it
    }


def _parse_shape(tensor: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    shape = tensor.get("tensor_shape", {})
    if shape.get("unknown_rank"):
        return None
    sizes = (int(dimension.get("size", 0)) for dimension in shape.get("dim", []))
    return tuple(None if size < 0 else size for size in sizes)


def has_rows(spec: TensorSpec) -> bool:
    """Whether an output has a row for each example, as far as its signature tells."""
    return spec.shape is None or (bool(spec.shape) and spec.shape[0] is None)


def as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, (tuple, list)) else value


def to_json(value: Any) -> Any:
    """Lists and scalars that JSON knows; bytes as {"b64": …}."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    return [to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"])
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def decode(value: Any, as_bytes: bool = False) -> Any:
    if isinstance(value, bytes) and not as_bytes:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return [decode(item, as_bytes) for item in value] if isinstance(value, list) else value


# From the command line. Flags are defined there only: this file is a library, too, and its names are common ones.
