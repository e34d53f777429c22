"""Both clients, over real sockets, against the stand-in that tests/serving/stand_in.py is."""

import http.server
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from serving import deployment
from serving.client import ServingClient, ServingError
from tests.scripts import ROOT
from tests.serving import tiny_model

TEXTS = ["한국어 문장입니다, 조금 길다.", "🙂👍🏽", "", "naïve café", 'quotes " \\ and \n lines', "a" * 10_000]
START_SECONDS = 180  # TensorFlow takes its time where others compute, too
TRANSPORTS = pytest.mark.parametrize("transport", ["rest", "grpc"])


class StandIn:
    """A process that has loaded TensorFlow, or is about to, and serves when it is told to."""

    def __init__(self, base: Path, *arguments: str):
        self._process = subprocess.Popen(
            [sys.executable, "tests/serving/stand_in.py", f"--model=tiny={base}", *arguments],
            cwd=ROOT,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def serve(self) -> dict[str, int]:
        """Its ports."""
        killer = threading.Timer(START_SECONDS, self._process.kill)
        killer.start()
        print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        killer.cancel()
        assert line, "The stand-in did not start."
        return json.loads(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def _address(transport: str, port: int) -> dict[str, str]:
    return {"url": f"http://127.0.0.1:{port}"} if transport == "rest" else {"grpc": f"127.0.0.1:{port}"}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Two: one for most tests, and one for accidents. Both load TensorFlow while the model is made."""
    base = tmp_path_factory.mktemp("models") / "tiny"
    late = {"rest": _free_port(), "grpc": _free_port()}
    started = [StandIn(base), StandIn(base, *(f"--{name}_port={port}" for name, port in late.items()), "--refuse=2")]
    tiny_model.export(base / "1")
    shutil.copytree(base / "1", base / "3")
    (base / "not_a_version").mkdir()
    yield started[0], started[1], late
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def ports(stand_ins):
    return stand_ins[0].serve()


@pytest.fixture
def client(ports, transport):
    with ServingClient("tiny", **_address(transport, ports[transport]), timeout=60) as made:
        yield made


def _refused(client: ServingClient, inputs, *arguments, **options) -> ServingError:
    with pytest.raises(ServingError) as caught:
        client.predict(inputs, *arguments, **options)
    return caught.value


@TRANSPORTS
class TestPredict:
    def test_answers_as_the_model_does(self, client):
        answers = client.predict({"text": TEXTS})
        assert answers["label"] == [tiny_model.LONG if len(text) > 8 else tiny_model.SHORT for text in TEXTS]
        assert answers["text_bytes"] == [text.encode() for text in TEXTS]
        wanted = [tiny_model.long_probability(len(text)) for text in TEXTS]
        assert [row[1] for row in answers["probabilities"]] == pytest.approx(wanted, abs=1e-6)

    def test_by_column_the_same(self, client):
        assert client.predict({"text": TEXTS}, columnar=True) == client.predict({"text": TEXTS})

    def test_bytes_arrive_as_they_are(self, client):
        assert client.predict({"text": [b"\xff\x00\xfe"]})["text_bytes"] == [b"\xff\x00\xfe"]

    def test_an_output_alone_has_its_name(self, client):
        assert client.predict({"text": ["a", "b"], "text_pair": ["a", "c"]}, "pairs") == {"same": [1.0, 0.0]}

    def test_tokens(self, client):
        ids = {"input_ids": [[2, 5, 3, 0], [2, 5, 6, 3]], "input_mask": [[1, 1, 1, 0], [1] * 4]}
        answers = client.predict(ids | {"segment_ids": ((0, 0, 0, 0), (0, 0, 1, 1))}, "tokens")
        assert answers["num_segments"] == [1, 2]
        wanted = [tiny_model.long_probability(3), tiny_model.long_probability(4)]
        assert [row[1] for row in answers["probabilities"]] == pytest.approx(wanted, abs=1e-6)

    def test_output_without_rows(self, client):
        assert client.predict({"text": ["a", "b"]}, "total") == {"count": 2, "text": ["a", "b"]}

    def test_batch_of_none(self, client):
        assert client.predict({"text": []}) == {"label": [], "probabilities": [], "text_bytes": []}

    def test_a_version(self, ports, transport):
        address = _address(transport, ports[transport])
        with ServingClient("tiny", **address, version=1, timeout=60) as client:
            assert client.predict({"text": ["a"]})["label"] == [tiny_model.SHORT]
        with ServingClient("tiny", **address, version=2, timeout=60) as client:
            error = _refused(client, {"text": ["a"]})
        assert error.code == "NOT_FOUND" and "model 'tiny', version 2" in str(error)

    def test_threads_share_a_client(self, client):
        answers = {}

        def ask(number: int) -> None:
            answers[number] = [client.predict({"text": ["x" * number]})["text_bytes"] for _ in range(5)]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {number: [[b"x" * number]] * 5 for number in range(8)}


@TRANSPORTS
class TestErrors:
    def test_unknown_model(self, ports, transport):
        with ServingClient("nobody", **_address(transport, ports[transport]), timeout=60) as client:
            error = _refused(client, {"text": ["a"]})
            assert not client.is_ready()
        assert error.code == "NOT_FOUND"
        for part in (
            str(ports[transport]),
            "'nobody'",
            "Servable not found for request: Latest(nobody)",
            "models.conf",
        ):
            assert part in str(error)

    def test_wrong_input_names_the_right_ones(self, client):
        error = _refused(client, {"sentence": ["a"]})
        assert error.code == "INVALID_ARGUMENT"
        assert "takes the inputs text; it was given sentence" in str(error)

    def test_unknown_signature_names_those_there_are(self, client):
        assert "It has: pairs, serving_default, slow, tokens, total." in str(_refused(client, {"text": ["a"]}, "no"))

    def test_columns_of_different_length(self, client):
        assert "text 1, text_pair 2" in str(_refused(client, {"text": ["a"], "text_pair": ["a", "b"]}, "pairs"))

    def test_ragged_rows_are_refused_and_not_tried_again(self, client):
        rows = [[1, 2], [1, 2, 3]]
        start = time.monotonic()
        error = _refused(client, dict.fromkeys(("input_ids", "input_mask", "segment_ids"), rows), "tokens")
        assert error.code == "INVALID_ARGUMENT" and "length" in str(error)
        assert time.monotonic() - start < 20  # nobody waited for another try

    def test_wrong_type(self, client):
        assert _refused(client, {"text": [1]}).code == "INVALID_ARGUMENT"

    def test_time_out(self, ports, transport):
        with ServingClient("tiny", **_address(transport, ports[transport]), timeout=1) as client:
            client._signatures = _signatures(ports)  # so that only the slow one has a second
            error = _refused(client, {"text": ["a"]}, "slow")
        assert error.code == "DEADLINE_EXCEEDED"
        assert "no answer within 1 s" in str(error) and "--timeout" in str(error)

    def test_nobody_there(self, transport):
        port = _free_port()
        with ServingClient("tiny", **_address(transport, port), retries=1, backoff=0.01) as client:
            error = _refused(client, {"text": ["a"]})
        assert error.code == "UNAVAILABLE" and str(port) in str(error) and "Is the server running" in str(error)


def _signatures(ports):
    with ServingClient("tiny", **_address("rest", ports["rest"]), timeout=60) as client:
        return client.signatures()


def test_too_large_for_grpc(ports):
    with ServingClient("tiny", grpc=f"127.0.0.1:{ports['grpc']}", max_message_mb=1, timeout=60) as client:
        error = _refused(client, {"text": ["a" * 3_000_000]})
    assert error.code == "RESOURCE_EXHAUSTED" and "--max_message_mb" in str(error)


@TRANSPORTS
def test_status_and_metadata(client):
    assert client.status() == {1: "AVAILABLE", 3: "AVAILABLE"}
    assert client.is_ready()
    client.wait_until_ready(1)
    tokens = client.signatures()["tokens"]
    assert {spec.dtype for spec in tokens.inputs.values()} == {"DT_INT32"}
    assert tokens.outputs["probabilities"].shape == (None, 2)


def test_both_transports_agree(ports):
    rest, grpc = (ServingClient("tiny", **_address(name, ports[name]), timeout=60) for name in ("rest", "grpc"))
    with rest, grpc:
        assert rest.signatures() == grpc.signatures()
        ours, theirs = rest.predict({"text": TEXTS}), grpc.predict({"text": TEXTS})
        assert ours.keys() == theirs.keys()
        for name in ("label", "text_bytes"):
            assert ours[name] == theirs[name]
        assert ours["probabilities"] == [pytest.approx(row, abs=1e-7) for row in theirs["probabilities"]]


@TRANSPORTS
def test_no_text_is_logged(client, caplog, capfd):
    """Neither what is asked nor what is answered, whether it goes well or not."""
    caplog.set_level(logging.DEBUG)
    client.predict({"text": ["somebody's private words"]})
    _refused(client, {"text": ["somebody's private words"], "nonsense": ["somebody's private words"]})
    assert "private" not in caplog.text + "".join(capfd.readouterr())


def test_needs_one_address():
    with pytest.raises(ValueError, match="one of the two"):
        ServingClient("tiny")
    with pytest.raises(ValueError, match="http://localhost:8501"):
        ServingClient("tiny", url="ftp://localhost")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_server_that_comes_late_is_busy_and_dies(stand_ins):
    """Both clients wait for it, are refused once each, and lose it."""
    _, server, late = stand_ins
    options = {"timeout": 60, "retries": 1000, "backoff": 0.05, "rng": random.Random(1)}
    clients = {name: ServingClient("tiny", **_address(name, port), **options) for name, port in late.items()}
    answers = {}
    threads = [
        threading.Thread(target=lambda name=name: answers.update({name: clients[name].predict({"text": ["a"]})}))
        for name in clients
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    assert not any(client.is_ready() for client in clients.values())
    server.serve()
    for thread in threads:
        thread.join(60)
    assert {name: answer["label"] for name, answer in answers.items()} == dict.fromkeys(late, [tiny_model.SHORT])
    server.kill()
    for client in clients.values():
        client._retries = 2
        assert _refused(client, {"text": ["a"]}).code == "UNAVAILABLE"
        assert not client.is_ready()
        client.close()


def test_a_busy_server_is_asked_again_only_as_often_as_told(ports, monkeypatch):
    with ServingClient("tiny", **_address("rest", ports["rest"]), retries=2, timeout=60) as client:
        client.signatures()
        asked, waited = [], []
        monkeypatch.setattr(time, "sleep", waited.append)

        def refuse(*_):
            asked.append(1)
            raise ServingError("UNAVAILABLE", "busy")

        monkeypatch.setattr(client._transport, "predict", refuse)
        assert _refused(client, {"text": ["a"]}).code == "UNAVAILABLE"
        assert len(asked) == 3
        assert 0.1 <= waited[0] <= 0.2 and 0.2 <= waited[1] <= 0.4


class Odd(http.server.BaseHTTPRequestHandler):
    """Hangs up after each answer without a word; and is not always TensorFlow Serving."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = (
            b"<html>Welcome!</html>" if "other" in self.path else b'{"model_version_status": [{"state": "AVAILABLE"}]}'
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


def test_connections_that_were_closed_and_servers_that_are_others():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with ServingClient("tiny", url=url, retries=0) as client:
            assert [client.is_ready() for _ in range(5)] == [True] * 5
        with ServingClient("other", url=url, retries=0) as client, pytest.raises(ServingError, match="Welcome!"):
            client.status()
        server.shutdown()


def test_rest_needs_no_tensorflow():
    code = "import sys, serving.client; sys.exit(bool({'tensorflow', 'numpy', 'grpc', 'absl'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


class TestCommandLine:
    def _run(self, *flags: str, given: bytes = b"", code: int = 0) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "serving.client", "--model=tiny", "--timeout=60", *flags],
            input=given,
            cwd=ROOT,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert result.returncode == code, result.stderr.decode()
        return (result.stdout if code == 0 else result.stderr).decode()

    @pytest.mark.parametrize("transport", ["rest", pytest.param("grpc", marks=pytest.mark.slow)])
    def test_texts(self, ports, transport):
        (flag, address), *_ = _address(transport, ports[transport]).items()
        lines = self._run(f"--{flag}={address}", "--text=한국어 문장입니다", "--text=🙂").splitlines()
        assert [json.loads(line)["label"] for line in lines] == [tiny_model.LONG, tiny_model.SHORT]
        assert tiny_model.LONG in lines[0]  # readable, not \\u....

    def test_lines(self, ports, tmp_path):
        rest = f"--url=http://127.0.0.1:{ports['rest']}"
        given = "one\n\n한 ||| 한\n".encode() + b'{"text": "a", "text_pair": "b"}\n'
        error = self._run(rest, "--signature_name=pairs", given=given, code=1)
        assert "takes the inputs text, text_pair; it was given text" in error
        answers = self._run(rest, "--signature_name=pairs", given=given[5:]).splitlines()
        assert answers == ['{"same": 1.0}', '{"same": 0.0}']
        (tmp_path / "lines.txt").write_bytes(b"short\n\xff\n" * 3)
        lines = self._run(rest, f"--input_file={tmp_path}/lines.txt", "--batch_size=4").splitlines()
        assert [json.loads(line)["text_bytes"]["b64"] for line in lines] == ["c2hvcnQ=", "/w=="] * 3

    def test_status_and_metadata(self, ports):
        rest = f"--url=http://127.0.0.1:{ports['rest']}"
        assert self._run(rest, "--status") == "version 1: AVAILABLE\nversion 3: AVAILABLE\n"
        assert "serving_default\n  takes text: string [?]\n  gives label: string [?]\n" in self._run(rest, "--metadata")

    def test_mistakes(self, ports):
        assert "one of the two" in self._run("--text=a", code=1)
        error = self._run(f"--url=http://127.0.0.1:{_free_port()}", "--text=a", "--retries=0", code=1)
        assert "Is the server running there" in error and "Traceback" not in error


def test_health_check_of_the_compose_file(ports, tmp_path):
    for name, healthy in (("tiny", True), ("nobody", False)):
        (tmp_path / name).mkdir()
        path = deployment.write_compose_file(tmp_path / name, name)
        check = yaml.safe_load(path.read_text())["services"]["serving"]["healthcheck"]["test"]
        command = [part.replace("/8501", f"/{ports['rest']}") for part in check[1:]]
        assert (subprocess.run(command, timeout=60, check=False).returncode == 0) == healthy
