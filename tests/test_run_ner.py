"""The script as a person runs it, on data that it can learn: names of people and of places, some with a second one."""

import json
import random

import pytest

from tasks.ner_predictor import NerPredictor
from tests.scripts import complaints, run, spell, write_tiny_model
from training.reports import read_metrics

SCRIPT = "run_ner.py"
NAMES = {"person": ["marta", "anna"], "place": ["oslo", "bergen"]}
SECOND_NAMES = {"person": "lund", "place": "vik"}
ALL_NAMES = [*NAMES["person"], *NAMES["place"], *SECOND_NAMES.values()]
WORDS = ["the", "old", "ship", "sailed", "and", "then"]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    pieces = [*(name[:2] for name in ALL_NAMES), *("##" + name[2:] for name in ALL_NAMES), *WORDS, "."]
    return write_tiny_model(tmp_path_factory.mktemp("model"), pieces)


@pytest.fixture
def flags(model_files, tmp_path):
    return {
        "output_dir": tmp_path / "out",
        "bert_config_file": model_files / "config.json",
        "vocab_file": model_files / "vocab.txt",
        "max_seq_length": 16,
        "train_batch_size": 8,
        "learning_rate": 1e-3,
        "seed": 1,
        "do_train": True,
        "do_eval": True,
    }


def sentence(rng, words):
    """Words with their tags."""
    rows = []
    while len(rows) < words:
        kind = rng.choice(["person", "place", None, None])
        if kind is None:
            rows.append((rng.choice(WORDS), "O"))
        else:
            rows.append((rng.choice(NAMES[kind]), f"B-{kind}"))
            if rng.random() < 0.4:
                rows.append((SECOND_NAMES[kind], f"I-{kind}"))
    return rows


def write_conll(path, count, seed, words=8):
    rng = random.Random(seed)
    blocks = ["".join(f"{word}\t{tag}\n" for word, tag in sentence(rng, words)) for _ in range(count)]
    path.write_text("\n".join(blocks))
    return path


@pytest.mark.slow
def test_learns_evaluates_and_tags(flags, tmp_path):
    """Long sentences in windows, the best evaluation kept, answers in two forms with right offsets."""
    flags |= {
        "train_file": write_conll(tmp_path / "train.conll", 120, seed=0),
        "eval_file": write_conll(tmp_path / "dev.conll", 20, seed=1),
        "predict_file": write_conll(tmp_path / "test.conll", 6, seed=2, words=40),
        "num_train_epochs": 15,
        "eval_every_steps": 75,
        "keep_best_metric": "eval_f1",
        "batching": "bucketed",
        "document_context": True,
    }
    said = run(SCRIPT, *spell(**flags, do_predict=True))
    assert "test_f1" in said
    out = tmp_path / "out"
    results = dict(line.split(" = ") for line in (out / "eval_results.txt").read_text().splitlines())
    assert float(results["eval_f1"]) == pytest.approx(max(line["eval_f1"] for line in read_metrics(out, "eval")))
    assert float(results["eval_f1"]) > 0.9
    details = json.loads((out / "eval_results.json").read_text())
    assert set(details["types"]) == {"person", "place"}

    answers = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(answers) == 6
    for answer in answers:
        assert answer["entities"]
        for entity in answer["entities"]:
            assert answer["text"][entity["start"] : entity["end"]] == entity["text"]
            assert entity["text"].split()[0] in (*NAMES[entity["type"]], SECOND_NAMES[entity["type"]])
    blocks = (out / "predictions.conll").read_text().strip().split("\n\n")
    right = [line.split("\t")[:2] for block in blocks for line in block.split("\n")]
    given = (tmp_path / "test.conll").read_text().split("\n")
    assert [f"{word}\t{tag}" for word, tag in right] == [line for line in given if line]

    predictor = NerPredictor.load(out)
    found = predictor.predict(["the ship and oslo vik.", "marta", ""])
    assert [[(e.text, e.type) for e in of_text] for of_text in found] == [
        [("oslo vik", "place")],
        [("marta", "person")],
        [],
    ]


@pytest.mark.slow
def test_features_of_a_frozen_encoder_from_characters(flags, tmp_path):
    rng = random.Random(3)
    rows = []
    for _ in range(60):
        words = sentence(rng, 5)
        text, entities = "", []
        for word, tag in words:
            text += " " if text else ""
            if tag != "O":
                entities.append({"start": len(text), "end": len(text) + len(word), "type": tag[2:]})
            text += word
        rows.append(json.dumps({"text": text, "entities": entities}))
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows) + "\n")
    flags |= {"train_file": path, "eval_file": path, "num_train_epochs": 15, "num_trials": 2}
    run(SCRIPT, *spell(**flags, feature_layers="-2,-1", gradient_accumulation_steps=2))
    summary = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert summary["chosen_by"] == "eval_f1" and max(t["eval_f1"] for t in summary["trials"]) > 0.6
    assert json.loads((tmp_path / "out" / "bert_task.json").read_text())["unit"] == "piece"
    [found] = NerPredictor.load(tmp_path / "out").predict(["the old ship and bergen"])
    assert all(e.text == "the old ship and bergen"[e.start : e.end] for e in found)


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_trained(flags, tmp_path):
    good = write_conll(tmp_path / "good.conll", 20, seed=0)
    other = tmp_path / "other.conll"
    other.write_text("oslo\tB-thing\n")
    plain = tmp_path / "plain.conll"
    plain.write_text("oslo\tO\n")
    flags |= {"train_file": good, "eval_file": good}
    mistakes = [
        ({"train_file": None}, "--do_train needs --train_file"),
        ({"eval_file": other}, "other.conll, line 1: the type 'thing' does not occur in the training data"),
        ({"train_file": plain}, "no entity in the training data"),
        ({"train_file": tmp_path / "nowhere.conll"}, "There is no file"),
        ({"feature_layers": "last"}, "should be numbers like"),
        ({"feature_layers": "-3"}, "should be from -1, the last, to -2"),
        ({"keep_best_metric": "f1", "eval_every_steps": 5}, "should be one of eval_f1"),
        ({"do_train": None, "do_eval": None}, "At least one of"),
        ({"do_train": None}, "is not the --output_dir of a run_ner.py"),
    ]
    told = complaints(SCRIPT, *(spell(**flags | changes) for changes, _ in mistakes))
    for (_, wanted), said in zip(mistakes, told, strict=True):
        assert wanted in said


@pytest.mark.slow
def test_wnut_and_klue_are_read(shared):
    from data.ner import read_tagged

    files = {"wnut17train.conll": 3394, "emerging.dev.conll": 1009, "emerging.test.annotated": 1287}
    for name, count in files.items():
        texts = read_tagged(shared / "datasets" / "ner" / name, "conll")
        assert len(texts) == count
    klue = read_tagged(shared / "datasets" / "korean" / "klue-ner_dev.tsv")
    assert len(klue) == 5000 and klue[0].text.startswith("경찰은 또")
    assert {e.type for text in klue for e in text.entities} == {"DT", "LC", "OG", "PS", "QT", "TI"}
