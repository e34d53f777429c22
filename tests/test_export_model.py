"""From the directory of a model to what runs without us, by the script."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers ops

from modeling.checkpoint import save_checkpoint
from modeling.config import BertConfig
from modeling.models import ChoiceModel, PretrainingModel, SentenceModel, SpanModel, TokenModel
from serving.tflite import LiteModel
from tasks.choices import ChoiceSettings
from tasks.ner import NerSettings
from tasks.sentence_classifier import SentenceClassifier
from tasks.sentences import SentenceSettings
from tasks.settings import SETTINGS_FILE
from tasks.squad import SquadSettings
from tests.scripts import complaints, run, spell, write_tiny_model
from training.memory_estimate import num_parameters

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "##a", "##b", "##c", "##d", ".", ",", "?"]
SENTENCES = SentenceSettings("single_label", ("no", "yes"), True, 16, has_pairs=True)


def write_model(directory, model_class, settings=None, *arguments):
    """A directory as a script leaves it, with random weights."""
    directory.mkdir()
    write_tiny_model(directory, WORDS)
    config = BertConfig.from_json_file(directory / "config.json")
    save_checkpoint(model_class(config, *arguments, seed=1), directory / "bert_model.ckpt")
    (directory / "config.json").rename(directory / "bert_config.json")
    if settings is not None:
        (directory / SETTINGS_FILE).write_text(settings.to_json(), encoding="utf-8")
    return directory


def write_records(path, lengths):
    rng = np.random.default_rng(1)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, length in enumerate(lengths):
            ids = [2, *rng.integers(5, 20, length - 2).tolist(), 3] + [0] * (16 - length)
            mask, segments = [1] * length + [0] * (16 - length), [0] * 16
            values = {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "label_ids": [number % 2]}
            feature = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for name, v in values.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def test_sentences_twice_into_one_directory(tmp_path):
    model = write_model(tmp_path / "mrpc", SentenceModel, SENTENCES, 2)
    for version in (1, 2):
        said = run("export_model.py", *spell(model_dir=model, output_dir=tmp_path / "export"))
        assert f"export/mrpc/{version}: " in said and "FastBertNormalize" in said
    exported = tmp_path / "export" / "mrpc" / "2"
    assert (exported / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 100
    for name in ("models.config", "batching.config", "compose.yaml"):
        assert "mrpc" in (tmp_path / "export" / name).read_text() or name == "batching.config"
    loaded = tf.saved_model.load(exported)
    pairs = [("a b c.", "d e f"), ("", "a"), ("ab, cd?", "")]
    told = loaded.signatures["serving_default"](
        text=tf.constant([a for a, _ in pairs]), text_pair=tf.constant([b for _, b in pairs])
    )
    expected = SentenceClassifier.load(model).predict(pairs)
    assert [label.decode() for label in told["label"].numpy()] == [prediction.label for prediction in expected]
    wanted = [list(prediction.probabilities.values()) for prediction in expected]
    np.testing.assert_allclose(told["probabilities"], wanted, atol=1e-5)
    shown, ran = (
        saved_model_cli(exported, "show"),
        saved_model_cli(exported, "run", "--input_exprs", 'text=["a b c."];text_pair=["d e f"]'),
    )
    assert "inputs['text_pair']" in shown and "outputs['probabilities']" in shown
    assert f"[b'{expected[0].label}']" in ran


def saved_model_cli(directory, command, *arguments):
    """As docs/serving.md has it."""
    code = "import sys, tensorflow_text; from tensorflow.python.tools.saved_model_cli import main; sys.exit(main())"
    given = [command, "--dir", str(directory), "--tag_set", "serve", "--signature_def", "serving_default", *arguments]
    return subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_class", "settings", "arguments", "flags", "request_of", "answers"),
    [
        (
            *(TokenModel, NerSettings(("O", "B-x", "I-x"), "word", True, 16), (3,), {}),
            {"text": ["a b c.", ""]},
            {"entities", "types", "starts", "ends", "probabilities", "count"},
        ),
        (
            *(SpanModel, SquadSettings(True, 16, 4, 6), (), {}),
            {"question": ["a b?"], "context": ["a b c d e f g h i j a b c d"]},
            {"answer", "start", "end", "probability", "answers", "starts", "ends", "probabilities"},
        ),
        (
            *(ChoiceModel, ChoiceSettings(3, True, 16), (), {"precision": "float16"}),
            {"context": ["a b"], "endings": [["c", "d", "e f"]]},
            {"label", "logits", "probabilities"},
        ),
        (
            *(PretrainingModel, None, (), {"task": "fill_mask", "top_k": 3}),
            {"text": ["a [MASK] c"]},
            {"tokens", "probabilities", "count"},
        ),
        (
            *(PretrainingModel, None, (), {"task": "embeddings", "pooling": "max", "normalize": True}),
            {"text": ["a b", "c"]},
            {"vector"},
        ),
    ],
    ids=["ner", "squad", "choice", "fill_mask", "embeddings"],
)
def test_every_task(tmp_path, model_class, settings, arguments, flags, request_of, answers):
    model = write_model(tmp_path / "my model", model_class, settings, *arguments)
    run("export_model.py", *spell(model_dir=model, output_dir=tmp_path / "export", **flags))
    loaded = tf.saved_model.load(tmp_path / "export" / "my-model" / "1")
    told = loaded.signatures["serving_default"](**{name: tf.constant(value) for name, value in request_of.items()})
    assert told.keys() == answers
    rows = len(next(iter(request_of.values())))
    assert all(len(values) == rows for values in told.values())


def test_tflite_with_a_report(tmp_path):
    model = write_model(tmp_path / "mrpc", SentenceModel, SENTENCES, 2)
    write_records(model / "train.tf_record", [16, 8, 12, 3] * 5)
    write_records(model / "eval.tf_record", [5, 16, 9, 12])
    modes = ("float32", "dynamic_int8", "int8")
    said = run(
        "export_model.py",
        *spell(model_dir=model, output_dir=tmp_path / "lite", format="tflite", tflite_modes=",".join(modes)),
    )
    assert "| dynamic_int8 | 16 |" in said
    reports = json.loads((tmp_path / "lite" / "mrpc" / "report.json").read_text())
    assert [report["mode"] for report in reports] == list(modes)
    assert all(report["num_sequences"] == 4 and 0 <= report["scores"]["eval_accuracy"] <= 1 for report in reports)
    assert reports[0]["largest_difference"]["logits"] < 1e-5 < reports[1]["largest_difference"]["logits"] < 0.1
    lite = LiteModel(tmp_path / "lite" / "mrpc" / "model_float32.tflite")
    assert lite({name: np.ones([1, 16], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}).keys() == {
        "logits",
        "probabilities",
    }


def test_a_dry_run_tells_the_memory_and_writes_nothing(tmp_path):
    model = write_model(tmp_path / "mrpc", SentenceModel, SENTENCES, 2)
    flags = spell(model_dir=model, output_dir=tmp_path / "export", precision="float16", dry_run=True)
    parameters = num_parameters(BertConfig.from_json_file(model / "bert_config.json"))
    assert f"about {2e-6 * parameters:.1f} MB for weights" in run("export_model.py", *flags)
    assert not (tmp_path / "export").exists()


def test_says_what_is_wrong(tmp_path):
    tuned = write_model(tmp_path / "mrpc", SentenceModel, SENTENCES, 2)
    tails = write_model(
        tmp_path / "tails", SentenceModel, SentenceSettings("single_label", ("no", "yes"), True, 16, "tail"), 2
    )
    plain = write_model(tmp_path / "plain", PretrainingModel)
    output = f"--output_dir={tmp_path / 'export'}"
    of_tuned, of_plain = [f"--model_dir={tuned}", output], [f"--model_dir={plain}", output]
    lite = [*of_tuned, "--format=tflite"]
    wrong = {
        "--model_dir is missing": [output],
        "There is nothing at --model_dir": [f"--model_dir={tmp_path / 'nowhere'}", output],
        "--task=embeddings can be made": of_plain,
        "--top_k says nothing for --task=classification": [*of_tuned, "--top_k=3"],
        "no masked LM head": [*of_tuned, "--task=fill_mask"],
        "'../up' is no name": [*of_tuned, "--model_name=../up"],
        "'int4', which is not one of float32": [*lite, "--tflite_modes=int4"],
        "--tflite_modes=float16": [*lite, "--precision=float16"],
        "--train_records": [*lite, "--tflite_modes=int8"],
        "leave out --resizable": [*lite, "--tflite_modes=int8", "--resizable"],
        "trained on pairs": [*lite, "--mediapipe"],
        "--tflite_input=ids": [f"--model_dir={tails}", output, "--format=tflite", "--tflite_input=text"],
        "fill_mask have no TFLite form": [*of_plain, "--format=tflite", "--task=fill_mask"],
        "vocab.txt/x cannot be written": [*of_tuned, f"--output_dir={tuned / 'vocab.txt' / 'x'}"],
        "vocab.txt is a file. Name a directory": [*of_tuned, f"--output_dir={tuned / 'vocab.txt'}"],
        "There is no --train_records=nowhere": [*lite, "--train_records=nowhere"],
        "There is no --eval_records=nowhere": [*lite, "--eval_records=nowhere"],
        "--version=3 is there already": [*of_tuned, f"--output_dir={tmp_path / 'before'}", "--version=3"],
        # What only a model can tell, a dry run tells, too.
        "name its records by --train_records": [*lite, "--tflite_modes=int8", "--dry_run"],
        "leave out --mediapipe": [*lite, "--mediapipe", "--dry_run"],
        "should be from 1 to 32": [*lite, "--max_seq_length=33", "--dry_run"],
    }
    (tmp_path / "before" / "mrpc" / "3").mkdir(parents=True)
    for expected, said in zip(wrong, complaints("export_model.py", *wrong.values()), strict=True):
        assert expected in said
    assert not (tmp_path / "export").exists() or not list((tmp_path / "export").glob("*/*"))
