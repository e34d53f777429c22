"""Files of others are data: no code in them runs, and no name in them leads out of their directory."""

import ast
import json
import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from data.choices import read_choices
from data.ner import read_tagged
from data.squad import read_questions
from modeling.checkpoint import read_checkpoint
from modeling.errors import CheckpointError
from serving.trust import check_harmless
from tests.scripts import ROOT
from tests.serving import tiny_model

ROOMS = ("data", "modeling", "training", "tasks", "serving", "examples", "benchmarks", ".ci")
SOURCES = [*sorted(ROOT.glob("*.py")), *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "torch.load"} | {
    "keras.layers.Lambda",
    "tf.keras.layers.Lambda",
    "keras.config.enable_unsafe_deserialization",
    "numpy.lib.format.read_array",
}
FORBIDDEN_ARGUMENTS = {("allow_pickle", True), ("shell", True), ("safe_mode", False), ("trust_remote_code", True)}


def offences(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [module for module in modules if module.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found += [called] if called in FORBIDDEN_CALLS or called.endswith("layers.Lambda") else []
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if (keyword.arg, value) in FORBIDDEN_ARGUMENTS:
                    found.append(f"{keyword.arg}={value}")
    return found


def test_no_source_runs_what_a_file_holds():
    assert len(SOURCES) > 80
    found = {str(path.relative_to(ROOT)): offences(path.read_text()) for path in SOURCES}
    assert not {path: what for path, what in found.items() if what}


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import load", "np.load(p, allow_pickle=True)", "eval(x)", "os.system(x)"]
    + ["subprocess.run(x, shell=True)", "yaml.load(f)", "keras.layers.Lambda(f)", "load_model(p, safe_mode=False)"],
)
def test_that_would_be_seen(source):
    assert offences(source)


@pytest.fixture
def hugging_face(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    (directory / "config.json").write_text(json.dumps(sizes | {"max_position_embeddings": 8, "model_type": "bert"}))
    save_file({"embeddings.word_embeddings.weight": np.ones((9, 4), np.float32)}, str(tmp_path / "out.safetensors"))
    return directory


@pytest.mark.parametrize("name", ["../out.safetensors", "{parent}/out.safetensors", "sub/../../out.safetensors", ".."])
def test_an_index_of_weights_names_only_its_neighbours(hugging_face, name):
    name = name.format(parent=hugging_face.parent)
    index = hugging_face / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embeddings.word_embeddings.weight": name}}))
    with pytest.raises(CheckpointError, match="beside it") as raised:
        read_checkpoint(hugging_face)
    assert str(index) in str(raised.value)


@pytest.mark.parametrize("form", ["../secret/model.ckpt", "{parent}/secret/model.ckpt"])
def test_a_checkpoint_file_names_only_its_neighbours(tmp_path, golden, form):
    (tmp_path / "secret").mkdir()
    for end in (".index", ".data-00000-of-00001"):
        shutil.copy(golden / "model" / f"bert_model.ckpt{end}", tmp_path / "secret" / f"model.ckpt{end}")
    (tmp_path / "sent").mkdir()
    path = form.format(parent=tmp_path)
    (tmp_path / "sent" / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\n')
    with pytest.raises(CheckpointError, match="is not in") as raised:
        read_checkpoint(tmp_path / "sent")
    assert str(tmp_path / "sent" / "checkpoint") in str(raised.value)


class Writing(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def write(self, text):
        tf.io.write_file("out.txt", text[0])
        return {"text": text}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def in_branch(self, text):
        return {"text": tf.cond(tf.size(text) > 3, lambda: tf.io.read_file(text[0]), lambda: text[0])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def save(self, text):
        tf.raw_ops.SaveV2(prefix=text[0], tensor_names=["a"], shape_and_slices=[""], tensors=[text])
        return {"text": text}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def python(self, text):
        return {"text": tf.numpy_function(lambda value: value, [text], tf.string)}


@pytest.mark.parametrize(
    ("name", "op"), [("write", "WriteFile"), ("in_branch", "ReadFile"), ("save", "SaveV2"), ("python", "PyFunc")]
)
def test_a_saved_model_that_does_more_than_compute_is_refused(tmp_path, name, op):
    module = Writing()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=getattr(module, name))
    with pytest.raises(ValueError, match=op) as raised:
        check_harmless(tmp_path / "1")
    assert str(tmp_path / "1") in str(raised.value)


def test_a_saved_model_that_only_answers_is_not(tmp_path):
    check_harmless(tiny_model.export(tmp_path / "1"))
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match="is not a SavedModel"):
        check_harmless(tmp_path / "1")


def test_an_asset_outside_of_its_model_is_refused(tmp_path):
    from tensorflow.core.protobuf import saved_model_pb2

    path = tiny_model.export(tmp_path / "1") / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    proto.meta_graphs[0].asset_file_def.add(filename="../../secret")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match="names the asset"):
        check_harmless(tmp_path / "1")


SECRET = "a private sentence that somebody wrote and nobody else should read in a log, however it came to be there"


def squad_json(*questions) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": " ", "qas": questions}]}]})


def test_errors_and_logs_quote_no_more_than_a_few_words(tmp_path, caplog):
    """Of a row that is wrong, enough to find it."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "a.conll").write_text(f"{SECRET.replace(' ', '_')}\n")
    (tmp_path / "a.jsonl").write_text(json.dumps({"context": "x", "endings": SECRET, "label": 0}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": SECRET, "entities": [SECRET]}) + "\n")
    question = {"id": SECRET, "question": "Who?", "answers": []}
    (tmp_path / "twice.json").write_text(squad_json(question, question))
    (tmp_path / "empty.json").write_text(squad_json(question))
    said = []
    readers = [(read_tagged, "a.conll"), (read_choices, "a.jsonl"), (read_tagged, "b.jsonl")]
    readers += [(lambda path: read_questions(path, False, False), "twice.json")]
    readers += [(lambda path: read_questions(path, True, True), "empty.json")]  # which logs why none is left
    for read, name in readers:
        with pytest.raises(ValueError, match=name) as raised:
            read(tmp_path / name)
        said.append(str(raised.value))
    assert caplog.messages
    for message in [*said, *caplog.messages]:
        assert SECRET not in message and SECRET.replace(" ", "_") not in message
        assert "else should" not in message.replace("_", " ")
