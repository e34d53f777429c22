"""What stands beside a SavedModel, read as TensorFlow Serving reads it."""

import re

import numpy as np
import pytest
import tensorflow as tf
import yaml
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from serving import deployment
from tests.serving import tiny_model

IDS = {"input_ids": [[2, 5, 3]], "input_mask": np.ones([1, 3], np.int64), "segment_ids": [[0, 0, 0]]}


@pytest.fixture(scope="module")
def saved_model_dir(tmp_path_factory):
    return tiny_model.export(tmp_path_factory.mktemp("tiny") / "1")


class TestNextVersion:
    def test_counts_numbers_only(self, tmp_path):
        assert deployment.next_version(tmp_path / "not_there") == 1
        for name in ("1", "9", "10", "latest", ".11.part", "12-old", "²"):
            (tmp_path / name).mkdir()
        (tmp_path / "20").write_text("a file is no version")
        assert deployment.next_version(tmp_path) == 11


class TestWarmup:
    def test_requests_run_against_the_model(self, saved_model_dir):
        texts = [{"text": ["한국어 문장입니다"]}, {"text": ["a", "긴 글 🙂" * 10]}]
        path = deployment.write_warmup_requests(saved_model_dir, "tiny", {"serving_default": texts, "tokens": [IDS]})
        assert path == saved_model_dir / "assets.extra" / "tf_serving_warmup_requests"
        model = tf.saved_model.load(str(saved_model_dir))
        rows = []
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            assert request.model_spec.name == "tiny"
            inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
            rows.append(len(model.signatures[request.model_spec.signature_name](**inputs)["probabilities"]))
        assert rows == [1, 2, 1]
        assert [path.name for path in path.parent.iterdir()] == [path.name]

    def test_types_are_those_of_the_signature(self, saved_model_dir):
        path = deployment.write_warmup_requests(saved_model_dir, "tiny", {"tokens": [IDS]})
        (record,) = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
        inputs = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request.inputs
        assert {proto.dtype for proto in inputs.values()} == {tf.int32.as_datatype_enum}

    @pytest.mark.parametrize(
        ("requests", "told"),
        [
            ({"no": [{"text": ["a"]}]}, "no signature 'no'. It has: .*tokens"),
            ({"serving_default": [{"sentence": ["a"]}]}, "takes text; the warm-up request has sentence"),
            ({"serving_default": [{"text": ["a"]}] * 1001}, "1001 warm-up requests are more than the 1000"),
        ],
    )
    def test_refuses_what_a_server_would(self, saved_model_dir, requests, told):
        with pytest.raises(ValueError, match=told):
            deployment.write_warmup_requests(saved_model_dir, "tiny", requests)


class TestModelsConfig:
    def _read(self, path):
        config = text_format.Parse(path.read_text(), model_server_config_pb2.ModelServerConfig())
        return {model.name: model for model in config.model_config_list.config}

    def test_adds_models_and_keeps_those_there_are(self, tmp_path):
        path = deployment.write_models_config(tmp_path, ["mrpc"])
        pinned = path.read_text().replace(
            'model_platform: "tensorflow"\n',
            'model_platform: "tensorflow"\n    model_version_policy { specific { versions: 3 } }\n',
        )
        path.write_text(pinned + "# mine\n")
        deployment.write_models_config(tmp_path, ["mrpc"])
        assert path.read_text() == pinned + "# mine\n"  # nothing to add: not even written
        deployment.write_models_config(tmp_path, ["ner-ko", "mrpc", "ner-ko"])
        models = self._read(path)
        assert list(models) == ["mrpc", "ner-ko"]
        assert models["mrpc"].model_version_policy.specific.versions == [3]
        assert models["ner-ko"].base_path == "/models/ner-ko"
        assert models["ner-ko"].model_platform == "tensorflow"
        assert not models["ner-ko"].HasField("model_version_policy")  # the newest
        assert [found.name for found in tmp_path.iterdir()] == ["models.config"]

    def test_refuses_what_it_cannot_read(self, tmp_path):
        (tmp_path / "models.config").write_text("model_config_list {")
        with pytest.raises(ValueError, match="Mend it or move it away"):
            deployment.write_models_config(tmp_path, ["mrpc"])

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "a:b", "가"])
    def test_refuses_names_that_no_url_has(self, tmp_path, name):
        with pytest.raises(ValueError, match="no name for a model"):
            deployment.write_models_config(tmp_path, [name])


class TestBatchingConfig:
    """The message BatchingParameters is not in the Python package, so its fields are written down here."""

    NUMBERS = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads")

    def _read(self, path):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        numbers = [re.fullmatch(r"(\w+) \{ value: (\d+) \}", line) for line in lines[:-1]]
        (flag,) = re.fullmatch(r"pad_variable_length_inputs: (true|false)", lines[-1]).groups()
        return {match[1]: int(match[2]) for match in numbers} | {"pad": flag}

    def test_fields(self, tmp_path):
        found = self._read(deployment.write_batching_config(tmp_path, max_batch_size=7))
        assert tuple(found) == (*self.NUMBERS, "pad")
        assert found["max_batch_size"] == 7 and found["pad"] == "false"
        assert min(found[name] for name in self.NUMBERS) > 0

    def test_one_that_is_there_stays(self, tmp_path):
        path = deployment.write_batching_config(tmp_path, max_batch_size=7)
        assert self._read(deployment.write_batching_config(tmp_path, max_batch_size=8))["max_batch_size"] == 7
        path.unlink()
        assert self._read(deployment.write_batching_config(tmp_path, pad_variable_length_inputs=True))["pad"] == "true"


def test_everything_beside_the_models(tmp_path):
    paths = deployment.write_deployment(tmp_path / "export", "mrpc")
    assert [path.name for path in paths] == ["models.config", "batching.config", "compose.yaml"]
    service = yaml.safe_load(paths[2].read_text())["services"]["serving"]
    assert service["image"] == "tensorflow/serving:2.21.0"
    assert service["volumes"] == [".:/models:ro"] and service["ports"] == ["8500:8500", "8501:8501"]
    flags = dict(flag.removeprefix("--").split("=") for flag in service["command"])
    assert flags["enable_batching"] == "true"
    for flag, path in (("model_config_file", paths[0]), ("batching_parameters_file", paths[1])):
        assert flags[flag] == f"/models/{path.name}"  # as the container sees it
    assert "/v1/models/mrpc " in service["healthcheck"]["test"][-1]
    before = [path.read_text() for path in paths]
    deployment.write_deployment(tmp_path / "export", "mrpc")
    assert [path.read_text() for path in paths] == before


def test_image_and_client_are_of_one_release():
    assert deployment.SERVING_IMAGE.split(":")[1].split(".")[:2] == tf.__version__.split(".")[:2]
