"""Files of others are data: no code in them runs, and no name in them leads out of their directory."""

import ast
import json
import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from data.choices import read_choices
from data.ner import read_tagged
from data.squad import read_questions
from modeling.checkpoint import read_checkpoint
from modeling.config import ACTIVATIONS, BertConfig
from modeling.errors import CheckpointError
from modeling.models import PretrainingModel
from serving.trust import HARMLESS_OPS, check_harmless
from tests.scripts import ROOT, spell, write_tiny_model
from tests.serving import tiny_model

ROOMS = ("data", "modeling", "training", "tasks", "serving", "examples", "benchmarks", ".ci")
SOURCES = [*sorted(ROOT.glob("*.py")), *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle", "pty"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "runpy.run_path"} | {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "yaml.load",
    "yaml.unsafe_load",
    "torch.load",
    "keras.layers.Lambda",
    "tf.keras.layers.Lambda",
    "keras.config.enable_unsafe_deserialization",
    "numpy.lib.format.read_array",
}
FORBIDDEN_ARGUMENTS = {("allow_pickle", True), ("shell", True), ("safe_mode", False), ("trust_remote_code", True)}
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "cmd", "cmd.exe", "powershell"}


def offences(source: str) -> list[str]:
    tree = ast.parse(source)
    imported = imported_names(tree)
    found = [whole for whole in imported.values() if whole.split(".")[0] in FORBIDDEN_MODULES]
    found += [whole for whole in imported.values() if whole in FORBIDDEN_CALLS]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, *others = ast.unparse(node.func).split(".")
            called = ".".join([imported.get(first, first), *others]).removeprefix("builtins.")
            found += [called] if called in FORBIDDEN_CALLS or called.endswith("layers.Lambda") else []
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if (keyword.arg, value) in FORBIDDEN_ARGUMENTS:
                    found.append(f"{keyword.arg}={value}")
        if isinstance(node, (ast.List, ast.Tuple)) and node.elts and isinstance(node.elts[0], ast.Constant):
            program = str(node.elts[0].value).split("/")[-1]
            found += [program] if program in SHELLS else []
    return found


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What names stand for in a source: `from os import system as run` -> {"run": "os.system"}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):  # `import os.path` makes a name "os"
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_no_source_runs_what_a_file_holds():
    assert len(SOURCES) > 80
    found = {str(path.relative_to(ROOT)): offences(path.read_text()) for path in SOURCES}
    assert not {path: what for path, what in found.items() if what}


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import load", "np.load(p, allow_pickle=True)", "eval(x)", "os.system(x)"]
    + ["subprocess.run(x, shell=True)", "yaml.load(f)", "keras.layers.Lambda(f)", "load_model(p, safe_mode=False)"]
    + ["from os import system", "from os import popen as run\nrun(x)", "import os as o\no.system(x)", "__import__(x)"]
    + [
        "subprocess.run(['sh', '-c', x])",
        "os.execv('/bin/sh', ('/bin/bash', '-c', x))",
        "import builtins\nbuiltins.eval(x)",
    ]
    + ["import pickle as data", "import builtins\nbuiltins.eval(x)", "subprocess.getoutput(x)"],
)
def test_that_would_be_seen(source):
    assert offences(source)


def test_all_that_is_locked_is_audited():
    makefile = (ROOT / "Makefile").read_text()
    assert "/python .ci/audit.py requirements*.lock\n" in makefile


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


TEXTS = tf.TensorSpec([None], tf.string)


def write(text):
    tf.io.write_file("out.txt", text[0])
    return {"text": text}


def read_in_branch(text):
    return {"text": tf.cond(tf.size(text) > 3, lambda: tf.io.read_file(text[0]), lambda: text[0])}


def save(text):
    tf.raw_ops.SaveV2(prefix=text[0], tensor_names=["a"], shape_and_slices=[""], tensors=[text])
    return {"text": text}


def restore(text):
    read = tf.raw_ops.RestoreV2(prefix=text[0], tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.string])
    return {"text": read[0]}


def call_python(text):
    return {"text": tf.numpy_function(lambda value: value, [text], tf.string)}


def write_records(text):
    records = tf.data.Dataset.from_tensor_slices(text)._variant_tensor
    tf.raw_ops.DatasetToTFRecord(input_dataset=records, filename="out.tfrecord", compression_type="")
    return {"text": text}


def read_table(text):
    table = tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.string, use_node_name_sharing=True)
    tf.raw_ops.InitializeTableFromTextFileV2(
        table_handle=table, filename="/etc/passwd", key_index=-1, value_index=-2, vocab_size=-1, delimiter="\t"
    )
    return {"text": tf.raw_ops.LookupTableFindV2(table_handle=table, keys=tf.size(text, tf.int64), default_value="")}


def saved_model_of(function, directory):
    module = tf.Module()
    module.weight = tf.Variable(1.0)  # so that something is saved
    module.function = tf.function(function, input_signature=[TEXTS])
    tf.saved_model.save(module, str(directory), signatures=module.function)
    return directory


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (write, "WriteFile"),
        (read_in_branch, "ReadFile"),
        (save, "SaveV2"),
        (restore, "RestoreV2"),
        (call_python, "PyFunc"),
        (write_records, "DatasetToTFRecord"),
        (read_table, "InitializeTableFromTextFileV2"),
    ],
)
def test_a_saved_model_that_does_more_than_compute_is_refused(tmp_path, function, op):
    with pytest.raises(ValueError, match=op) as raised:
        check_harmless(saved_model_of(function, tmp_path / "1"))
    assert str(tmp_path / "1") in str(raised.value)


def saver_serves(graph):
    """Names the function of a signature as what saves."""
    graph.saver_def.save_tensor_name = graph.signature_def["serving_default"].outputs["text"].name


def signature_saves(graph):
    graph.signature_def["serving_default"].outputs["text"].name = graph.saver_def.save_tensor_name


def object_saves(graph):
    nodes = graph.object_graph_def.nodes
    named = next(node.bare_concrete_function for node in nodes if node.HasField("bare_concrete_function"))
    named.concrete_function_name = function_called(graph, graph.saver_def.save_tensor_name)


def loading_saves(graph):
    graph.saver_def.restore_op_name = graph.saver_def.save_tensor_name.split(":")[0]


def restoring_waits_for_saving(graph):
    node_called(graph, graph.saver_def.restore_op_name).input.append(
        f"^{graph.saver_def.save_tensor_name.split(':')[0]}"
    )


def main_op_saves(graph):
    graph.collection_def["saved_model_main_op"].node_list.value[:] = [graph.saver_def.save_tensor_name.split(":")[0]]


def request_names_the_file(graph):
    inputs = graph.signature_def["serving_default"].inputs
    inputs["file"].name = graph.saver_def.filename_tensor_name


def restores_a_file_of_its_own(graph):
    name = function_called(graph, graph.saver_def.restore_op_name)
    function = next(one for one in graph.graph_def.library.function if one.signature.name == name)
    node = next(node for node in function.node_def if node.op == "RestoreV2")
    node.input[0] = "RestoreV2/tensor_names:output:0"


def always_saves_to_one_file(graph):
    node_called(graph, graph.saver_def.filename_tensor_name.split(":")[0]).op = "Const"


def has_a_function_named_as_an_op(graph):
    graph.graph_def.library.function[0].signature.name = "ReadFile"
    graph.graph_def.node.add(name="read", op="ReadFile")


def node_called(graph, name):
    return next(node for node in graph.graph_def.node if node.name == name)


def function_called(graph, tensor_name):
    return node_called(graph, tensor_name.split(":")[0]).attr["f"].func.name


@pytest.mark.parametrize(
    "change",
    [saver_serves, signature_saves, object_saves, loading_saves, restoring_waits_for_saving, main_op_saves]
    + [request_names_the_file, restores_a_file_of_its_own, always_saves_to_one_file, has_a_function_named_as_an_op],
)
def test_what_saves_a_model_does_nothing_else(tmp_path, change):
    directory = saved_model_of(lambda text: {"text": text + "!"}, tmp_path / "1")
    check_harmless(directory)
    changed_saved_model(directory, change)
    with pytest.raises(ValueError, match="SaveV2|RestoreV2|ReadFile"):
        check_harmless(directory)


def changed_saved_model(directory, change):
    path = directory / "saved_model.pb"
    proto = SavedModel.FromString(path.read_bytes())
    change(proto.meta_graphs[0])
    path.write_bytes(proto.SerializeToString())


def test_no_function_hides_behind_the_saver(tmp_path):
    """A model that writes a file when asked, and says that this is how it is saved."""
    directory = saved_model_of(write, tmp_path / "1")
    changed_saved_model(directory, saver_serves)
    with pytest.raises(ValueError, match="WriteFile"):
        check_harmless(directory)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_whatever_a_config_asks_for_can_be_exported(activation):
    """Tests of exports have one activation."""
    config = BertConfig(9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, hidden_act=activation)
    ids = tf.TensorSpec([None, None], tf.int32)
    model = PretrainingModel(config)
    traced = tf.function(lambda **batch: model(batch, training=False)).get_concrete_function(
        input_ids=ids, input_mask=ids, segment_ids=ids, masked_lm_positions=ids
    )
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert {node.op for node in nodes} <= HARMLESS_OPS


def test_a_saved_model_that_only_answers_is_not(tmp_path):
    check_harmless(tiny_model.export(tmp_path / "1"))
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match="is not a SavedModel"):
        check_harmless(tmp_path / "1")


def test_an_asset_outside_of_its_model_is_refused(tmp_path):
    tiny_model.export(tmp_path / "1")
    changed_saved_model(tmp_path / "1", lambda graph: graph.asset_file_def.add(filename="../../secret"))
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


def test_scripts_log_nothing_of_what_they_read(warm, tuning_flags, tmp_path):
    """At the most talkative. The original logged its first five examples, and twenty of pre-training."""
    words = ["quillon", "vexatious", "marzipan", "obelisk"]
    model = write_tiny_model(tmp_path, [*words, "the", "old", "sea"])  # so that they are pieces, and not unknown
    secret = " ".join(words)
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"the {secret} {label}", "label": label}) + "\n" for label in ("sea", "old") * 8)
    )
    (tmp_path / "a.txt").write_text(f"the {secret}\nold {secret}\n\nsea {secret}\n{secret} the\n" * 4)
    files = dict.fromkeys(("train_file", "eval_file", "predict_file"), tmp_path / "a.jsonl")
    own = {"bert_config_file": model / "config.json", "vocab_file": model / "vocab.txt", "num_train_epochs": 1}
    steps = dict.fromkeys(("do_train", "do_eval", "do_predict"), True)
    said = warm.run("run_classifier.py", *spell(**tuning_flags | files | own | steps, verbosity=1))
    out = tmp_path / "out.tfrecord"
    made = {"input_file": tmp_path / "a.txt", "output_file": out, "vocab_file": own["vocab_file"], "max_seq_length": 16}
    said += warm.run("create_pretraining_data.py", *spell(**made, max_predictions_per_seq=2, verbosity=1))
    assert secret in (tuning_flags["output_dir"] / "predictions.jsonl").read_text() and out.stat().st_size
    assert len(said) > 500
    assert not [word for word in words if word in said], said
