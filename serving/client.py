"""Asks a model that TensorFlow Serving serves, by REST or by gRPC. Examples:

    python -m serving.client --url=http://localhost:8501 --model=mrpc --text='He left.' --text_pair='He is gone.'
    python -m serving.client --grpc=localhost:8500 --model=sst2 --input_file=lines.txt
    echo '{"question": "Who?", "context": "It was Ann."}' | python -m serving.client --grpc=localhost:8500 --model=squad
    python -m serving.client --url=http://localhost:8501 --model=mrpc --status

Lines come from --text, from --input_file or from standard input: a text, `A ||| B` for a pair, or a JSON object that
names the inputs. An answer is a line of JSON. In Python:

    with ServingClient("mrpc", url="http://localhost:8501") as client:
        client.predict({"text": ["He left."], "text_pair": ["He is gone."]})

By REST the class needs nothing but Python: this file may be copied to a machine that has no TensorFlow. gRPC needs the
package tensorflow-serving-api, which brings TensorFlow along.
"""

import base64
import http.client
import json
import random
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

DEFAULT_SIGNATURE = "serving_default"
# gRPC's own limit is 4 MB, which the vectors of a few hundred tokens reach.
_MAX_MESSAGE_MB = 64
_LONGEST_WAIT = 5.0
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
_Answer = TypeVar("_Answer")


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


class ServingClient:
    """One model on one server. Any thread may ask it.

    Args:
        model: its name on the server, as in models.config.
        url: where REST is, `http://localhost:8501`; or
        grpc: where gRPC is, `localhost:8500`.
        version: which version to ask; the newest that is loaded if not set.
        timeout: seconds that one request may take.
        retries: how often to ask again when the server is not there or says that it is busy (UNAVAILABLE, 503). Nothing
            else is asked again: the answer would be the same.
        backoff: seconds before the second try; they double, up to 5.
        max_message_mb: the largest message that gRPC sends or takes.
        rng: where the spread of waiting times comes from, so that many clients do not come back all at once.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        grpc: str | None = None,
        version: int | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        backoff: float = 0.2,
        max_message_mb: int = _MAX_MESSAGE_MB,
        rng: random.Random | None = None,
    ):
        if (url is None) == (grpc is None):
            raise ValueError("Give url (REST, as http://localhost:8501) or grpc (as localhost:8500): one of the two.")
        self.model, self.version = model, version
        self._retries, self._backoff, self._rng = retries, backoff, rng or random.Random()
        self._transport: _Rest | _Grpc
        if url is not None:
            self._transport = _Rest(url, model, version, timeout)
        else:
            self._transport = _Grpc(grpc, model, version, timeout, max_message_mb)
        self._signatures: dict[str, Signature] | None = None

    def __enter__(self) -> "ServingClient":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def predict(
        self, inputs: Mapping[str, Any], signature_name: str = DEFAULT_SIGNATURE, columnar: bool = False
    ) -> dict[str, Any]:
        """Asks the model.

        Args:
            inputs: name -> a row for each example, as lists or arrays. Strings are str; bytes stay what they are.
            signature_name: which signature answers.
            columnar: sends REST requests by column ("inputs") and not by row ("instances"). Signatures with outputs
                that have no row for each example are always asked so. gRPC knows only columns.

        Returns:
            name -> nested lists; what is not UTF-8, and what is called `…_bytes`, is bytes. A batch of none is answered
            by an empty list for each output, without the server, which refuses it.
        """
        columns = {name: _as_list(value) for name, value in inputs.items()}
        signature = self._signature(signature_name, columns)
        rows = {name: len(column) if isinstance(column, list) else None for name, column in columns.items()}
        if set(rows.values()) == {0}:
            return {name: [] for name in signature.outputs}
        by_row = not columnar and all(_has_rows(spec) for spec in signature.outputs.values())
        if by_row and len(set(rows.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in rows.items())
            raise ServingError("INVALID_ARGUMENT", f"The inputs have different numbers of rows: {counts}.")
        try:
            return self._retrying(lambda: self._transport.predict(columns, signature_name, signature, by_row))
        except ServingError as error:
            if error.code in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"):
                self._signatures = None  # another version may have taken over, with other inputs
            raise

    def signatures(self) -> dict[str, Signature]:
        """What the model can be asked, by the name of the signature."""
        if self._signatures is None:
            self._signatures = _parse_signatures(self._retrying(self._transport.metadata))
        return self._signatures

    def status(self) -> dict[int, str]:
        """Version -> its state: START, LOADING, AVAILABLE, UNLOADING or END; with the error of one that failed."""
        versions = {}
        for found in self._retrying(self._transport.status).get("model_version_status", []):
            message = found.get("status", {}).get("error_message", "")
            state = found.get("state", "UNKNOWN")
            versions[int(found.get("version", 0))] = f"{state}: {message}" if message else state
        return versions

    def is_ready(self) -> bool:
        """Whether the server is there and has a version to answer with. Asks once."""
        try:
            found = self._transport.status().get("model_version_status", [])
        except ServingError:
            return False
        return any(version.get("state") == "AVAILABLE" for version in found)

    def wait_until_ready(self, timeout: float) -> None:
        """Waits for `is_ready`.

        Raises:
            ServingError: it is not ready after so many seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if time.monotonic() >= deadline:
                where = self._transport.where
                raise ServingError(
                    "UNAVAILABLE", f"{where} is not ready after {timeout:g} s. Look at the server's log."
                )
            time.sleep(min(0.2, timeout))

    def _signature(self, name: str, inputs: Mapping[str, Any]) -> Signature:
        """A signature that takes just these inputs."""
        signatures = self.signatures()
        if name not in signatures:
            raise ServingError(
                "INVALID_ARGUMENT",
                f"{self._transport.where} has no signature {name!r}. It has: {', '.join(sorted(signatures))}.",
            )
        wanted = signatures[name].inputs
        if wanted.keys() != inputs.keys():
            self._signatures = None
            raise ServingError(
                "INVALID_ARGUMENT",
                f"The signature {name!r} of {self._transport.where} takes the inputs {', '.join(sorted(wanted))}; it "
                f"was given {', '.join(sorted(inputs)) or 'none'}.",
            )
        return signatures[name]

    def _retrying(self, ask: Callable[[], _Answer]) -> _Answer:
        """Asks until there is an answer, but again only where waiting can help."""
        for attempt in range(self._retries + 1):
            try:
                return ask()
            except ServingError as error:
                if error.code != "UNAVAILABLE" or attempt == self._retries:
                    raise
                wait = min(self._backoff * 2**attempt, _LONGEST_WAIT)
                time.sleep(wait * self._rng.uniform(0.5, 1.0))
        raise AssertionError("not reached")


class _Rest:
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
        columns = {name: _to_json(column) for name, column in columns.items()}
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


class _Grpc:
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
            name: _decode(tf.make_ndarray(proto).tolist(), as_bytes=name.endswith("_bytes"))
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


def _parse_signatures(found: Mapping[str, Any]) -> dict[str, Signature]:
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


def _has_rows(spec: TensorSpec) -> bool:
    """Whether an output has a row for each example, as far as its signature tells."""
    return spec.shape is None or (bool(spec.shape) and spec.shape[0] is None)


def _as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, (tuple, list)) else value


def _to_json(value: Any) -> Any:
    """Lists and scalars that JSON knows; bytes as {"b64": …}."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if hasattr(value, "tolist"):
        return _to_json(value.tolist())
    return [_to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"])
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _decode(value: Any, as_bytes: bool = False) -> Any:
    if isinstance(value, bytes) and not as_bytes:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return [_decode(item, as_bytes) for item in value] if isinstance(value, list) else value


# From the command line. Flags are defined there only: this file is a library, too, and its names are common ones.


def _define_flags() -> None:
    from absl import flags

    flags.DEFINE_string("url", None, "Where REST is: http://localhost:8501.")
    flags.DEFINE_string("grpc", None, "Where gRPC is, instead: localhost:8500.")
    flags.DEFINE_string("model", None, "Name of the model on the server.", required=True)
    flags.DEFINE_integer("version", None, "Its version; the newest if not set.")
    flags.DEFINE_string("signature_name", DEFAULT_SIGNATURE, "Which signature to ask.")
    flags.DEFINE_multi_string("text", [], "The input `text`; may be given several times.")
    flags.DEFINE_multi_string("text_pair", [], "The input `text_pair`, one for each --text.")
    flags.DEFINE_string(
        "input_file", None, "Lines, plain or gzip, instead of --text; standard input if neither is set."
    )
    flags.DEFINE_integer("batch_size", 32, "Lines that go in one request.", lower_bound=1)
    flags.DEFINE_bool("columnar", False, "Whether REST requests go by column and not by row.")
    flags.DEFINE_float("timeout", 30.0, "Seconds for one request.", lower_bound=0.001)
    flags.DEFINE_integer("retries", 4, "How often to ask again if the server is not there or is busy.", lower_bound=0)
    flags.DEFINE_integer("max_message_mb", _MAX_MESSAGE_MB, "Largest message of gRPC.", lower_bound=1, upper_bound=2047)
    flags.DEFINE_bool("status", False, "Tells instead which versions are loaded; exit code 1 if none is.")
    flags.DEFINE_bool("metadata", False, "Tells instead what the model takes and gives.")


def _rows(texts: list[str], pairs: list[str], input_file: str | None) -> Iterator[dict[str, Any]]:
    """Name -> value for each example."""
    if texts and input_file:
        raise ValueError("Give texts by --text or by --input_file, not by both.")
    if pairs and len(pairs) != len(texts):
        raise ValueError(f"There are {len(texts)} --text and {len(pairs)} --text_pair: each text wants its pair.")
    if texts:
        for index, text in enumerate(texts):
            yield {"text": text, "text_pair": pairs[index]} if pairs else {"text": text}
        return
    if input_file:
        from data.text_files import read_lines

        lines: Iterable[bytes] = read_lines(input_file)
    else:
        lines = sys.stdin.buffer
    for number, line in enumerate(lines, 1):
        if row := _parse_line(line.rstrip(b"\r\n"), number):
            yield row


def _parse_line(line: bytes, number: int) -> dict[str, Any] | None:
    if line.lstrip().startswith(b"{"):
        try:
            return json.loads(line)
        except ValueError as error:
            raise ValueError(
                f'Line {number} starts as JSON does, and is none: {error}. Text goes as {{"text": "…"}}.'
            ) from None
    texts = [_decode(part.strip()) for part in line.split(b"|||", 1)]
    if len(texts) == 2:
        return {"text": texts[0], "text_pair": texts[1]}
    return {"text": texts[0]} if texts[0] else None


def _batches(rows: Iterable[dict[str, Any]], size: int) -> Iterator[dict[str, list]]:
    """Name -> column, of rows that follow each other and have the same names."""
    batch: list[dict[str, Any]] = []
    for row in rows:
        if batch and (len(batch) == size or row.keys() != batch[0].keys()):
            yield {name: [row[name] for row in batch] for name in batch[0]}
            batch = []
        batch.append(row)
    if batch:
        yield {name: [row[name] for row in batch] for name in batch[0]}


def _print_answers(answers: dict[str, Any], num_rows: int) -> None:
    if not all(isinstance(value, list) and len(value) == num_rows for value in answers.values()):
        print(json.dumps(_to_json_strings(answers), ensure_ascii=False), flush=True)
        return
    for index in range(num_rows):
        row = {name: value[index] for name, value in answers.items()}
        print(json.dumps(_to_json_strings(row), ensure_ascii=False), flush=True)


def _to_json_strings(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: _to_json(value) for name, value in answers.items()}


def main() -> None:
    from absl import flags

    values = flags.FLAGS
    with ServingClient(
        values.model,
        url=values.url,
        grpc=values.grpc,
        version=values.version,
        timeout=values.timeout,
        retries=values.retries,
        max_message_mb=values.max_message_mb,
    ) as client:
        if values.status:
            versions = client.status()
            for version, state in sorted(versions.items()):
                print(f"version {version}: {state}")
            if "AVAILABLE" not in versions.values():
                raise ServingError("UNAVAILABLE", f"No version of {values.model} answers.")
        elif values.metadata:
            for name, signature in sorted(client.signatures().items()):
                print(name)
                for way, specs in (("takes", signature.inputs), ("gives", signature.outputs)):
                    for tensor, spec in sorted(specs.items()):
                        shape = "?" if spec.shape is None else ["?" if size is None else size for size in spec.shape]
                        print(f"  {way} {tensor}: {spec.dtype.removeprefix('DT_').lower()} {shape}".replace("'", ""))
        else:
            for batch in _batches(_rows(values.text, values.text_pair, values.input_file), values.batch_size):
                answers = client.predict(batch, values.signature_name, values.columnar)
                _print_answers(answers, len(next(iter(batch.values()))))


if __name__ == "__main__":
    import command_line

    _define_flags()
    command_line.run(main)
