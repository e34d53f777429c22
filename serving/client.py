"""Asks a model that TensorFlow Serving serves, by REST or by gRPC. Examples:

    python -m serving.client --url=http://localhost:8501 --model=mrpc --text='He left.' --text_pair='He is gone.'
    python -m serving.client --grpc=localhost:8500 --model=sst2 --input_file=lines.txt
    echo '{"question": "Who?", "context": "It was Ann."}' | python -m serving.client --grpc=localhost:8500 --model=squad
    python -m serving.client --url=http://localhost:8501 --model=mrpc --status

Lines come from --text, from --input_file or from standard input: a text, `A ||| B` for a pair, or a JSON object that
names the inputs. An answer is a line of JSON. In Python:

    with ServingClient("mrpc", url="http://localhost:8501") as client:
        client.predict({"text": ["He left."], "text_pair": ["He is gone."]})

By REST the class needs nothing but Python: this file and serving/transports.py may be copied, in a directory serving,
to a machine that has no TensorFlow. gRPC needs the package tensorflow-serving-api, which brings TensorFlow along.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from serving.transports import Grpc, Rest, ServingError, Signature, as_list, decode, has_rows, parse_signatures, to_json

DEFAULT_SIGNATURE = "serving_default"
# gRPC's own limit is 4 MB, which the vectors of a few hundred tokens reach.
_MAX_MESSAGE_MB = 64
_LONGEST_WAIT = 5.0
_Answer = TypeVar("_Answer")


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
        self._transport: Rest | Grpc
        if url is not None:
            self._transport = Rest(url, model, version, timeout)
        else:
            self._transport = Grpc(grpc, model, version, timeout, max_message_mb)
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
        columns = {name: as_list(value) for name, value in inputs.items()}
        signature = self._signature(signature_name, columns)
        rows = {name: len(column) if isinstance(column, list) else None for name, column in columns.items()}
        if set(rows.values()) == {0}:
            return {name: [] for name in signature.outputs}
        by_row = not columnar and all(has_rows(spec) for spec in signature.outputs.values())
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
            self._signatures = parse_signatures(self._retrying(self._transport.metadata))
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
            ServingError: it is not ready after this many seconds.
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
    texts = [decode(part.strip()) for part in line.split(b"|||", 1)]
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
    return {name: to_json(value) for name, value in answers.items()}


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
