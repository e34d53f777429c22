"""The script as a person runs it, on questions that it can learn: the only name in the text is the answer."""

import json
import random

import numpy as np
import pytest

from tasks.squad import SquadPredictor
from tests.scripts import complaints, run, spell, write_tiny_model
from training.reports import read_metrics

SCRIPT = "run_squad.py"
NAMES = ["marta", "lund", "oslo", "bergen", "vik", "anna"]
WORDS = ["the", "old", "ship", "sailed", "and", "then", "it"]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    return write_tiny_model(
        tmp_path_factory.mktemp("model"),
        [*NAMES, *WORDS, "lit", "who", "?", "."],
        intermediate_size=64,
        max_position_embeddings=48,
    )


def write_questions(path, count, seed, has_impossible=False, length=12):
    """Contexts with one name among other words, which is the answer; impossible where there is none."""
    rng = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = [rng.choice(WORDS) for _ in range(length)]
        answers = []
        impossible = has_impossible and rng.random() < 0.4
        if not impossible:
            place, name = rng.randrange(length), rng.choice(NAMES)
            words[place] = name
            answers = [{"text": name, "answer_start": len(" ".join([*words[:place], ""]))}]
        question = {"id": f"q{number}", "question": "who lit it ?", "answers": answers}
        if has_impossible:
            question["is_impossible"] = impossible
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    path.write_text(json.dumps({"version": "1", "data": [{"title": "", "paragraphs": paragraphs}]}))
    return path


@pytest.fixture
def flags(model_files, tmp_path):
    return {
        "output_dir": tmp_path / "out",
        "bert_config_file": model_files / "config.json",
        "vocab_file": model_files / "vocab.txt",
        "max_seq_length": 24,
        "doc_stride": 8,
        "max_query_length": 6,
        "train_batch_size": 8,
        "learning_rate": 1e-3,
        "seed": 1,
    }


@pytest.mark.slow
def test_learns_answers_and_scores(flags, tmp_path):
    """Contexts in several windows, kept logits made into answers again, one question at a time."""
    flags |= {
        "train_file": write_questions(tmp_path / "train.json", 200, seed=0),
        "predict_file": write_questions(tmp_path / "dev.json", 30, seed=1, length=24),
        "do_train": True,
        "do_predict": True,
        "num_train_epochs": 10,
        "eval_every_steps": 125,
        "keep_best_metric": "f1",
        "raw_results_out": tmp_path / "raw.npz",
        "output_offsets": True,
        "batching": "bucketed",
    }
    said = run(SCRIPT, *spell(**flags))
    out = tmp_path / "out"
    results = dict(line.split(" = ") for line in (out / "eval_results.txt").read_text().splitlines())
    assert set(results) == {"exact_match", "f1", "global_step", "total"}, said
    assert float(results["f1"]) > 80.0
    assert [line["step"] for line in read_metrics(out, "eval")][:2] == [125, 250]
    contexts = {
        q["qas"][0]["id"]: q["context"] for q in json.loads(flags["predict_file"].read_text())["data"][0]["paragraphs"]
    }
    predictions = json.loads((out / "predictions.json").read_text())
    nbest = json.loads((out / "nbest_predictions.json").read_text())
    assert predictions.keys() == contexts.keys()
    for number, entries in nbest.items():
        for entry in entries:
            assert contexts[number][entry["start"] : entry["end"]] == entry["answer"]
    assert not (out / "null_odds.json").exists()

    again = {name: flags[name] for name in ("bert_config_file", "vocab_file", "predict_file", "max_seq_length")}
    again |= {"doc_stride": 8, "max_query_length": 6, "do_predict": True, "output_dir": tmp_path / "again"}
    run(SCRIPT, *spell(**again, raw_results_in=f"{tmp_path / 'raw.npz'},{tmp_path / 'raw.npz'}"))
    assert json.loads((tmp_path / "again" / "predictions.json").read_text()) == predictions
    raw = np.load(tmp_path / "raw.npz")
    assert raw["start_logits"].shape == raw["end_logits"].shape == (len(raw["unique_ids"]), 24)

    predictor = SquadPredictor.load(out)
    right = 0
    for number, context in contexts.items():
        found = predictor.answer("who lit it ?", context)
        assert context[found.start : found.end] == found.text
        right += found.text == predictions[number]
    assert right == len(contexts)
    assert len(predictor.answers("who lit it ?", next(iter(contexts.values())), top_k=3)) == 3
    assert predictor.answer("who lit it ?", " ").text == ""
    with pytest.raises(ValueError, match="question is empty"):
        predictor.answer(" ", "the ship")


@pytest.mark.slow
def test_questions_without_an_answer(flags, tmp_path):
    """The threshold is found on the set to predict, kept with the model, and taken by the next run."""
    flags |= {
        "train_file": write_questions(tmp_path / "train.json", 160, seed=0, has_impossible=True),
        "predict_file": write_questions(tmp_path / "dev.json", 30, seed=1, has_impossible=True),
        "version_2_with_negative": True,
        "do_predict": True,
    }
    said = run(SCRIPT, *spell(**flags, do_train=True, num_train_epochs=8, null_score_diff_threshold="auto"))
    assert "The best null_score_diff_threshold is" in said
    results = dict(line.split(" = ") for line in (tmp_path / "out" / "eval_results.txt").read_text().splitlines())
    assert {"HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh", "exact", "f1"} <= set(results)
    assert float(results["f1"]) == float(results["best_f1"])  # the threshold is the best there is
    odds = json.loads((tmp_path / "out" / "null_odds.json").read_text())
    predictions = json.loads((tmp_path / "out" / "predictions.json").read_text())
    threshold = json.loads((tmp_path / "out" / "bert_task.json").read_text())["null_score_diff_threshold"]
    assert all((predictions[number] == "") == (odds[number] > threshold) for number in odds)

    alone = spell(output_dir=tmp_path / "out", predict_file=flags["predict_file"], do_predict=True)
    said = run(SCRIPT, *alone)
    assert "is there already" in said
    assert json.loads((tmp_path / "out" / "predictions.json").read_text()) == predictions


@pytest.mark.slow
def test_a_dry_run_reads_logits_and_writes_nothing(flags, tmp_path):
    np.savez(tmp_path / "raw.npz", unique_ids=np.arange(7), start_logits=np.ones([7, 24]), end_logits=np.ones([7, 24]))
    flags |= {"predict_file": write_questions(tmp_path / "dev.json", 5, seed=1), "raw_results_in": tmp_path / "raw.npz"}
    said = run(SCRIPT, *spell(**flags, do_predict=True, dry_run=True))
    assert "nothing was written" in said and "7 windows" in said and "5 examples" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_trained(flags, tmp_path):
    good = write_questions(tmp_path / "good.json", 10, seed=0)
    broken = tmp_path / "broken.json"
    broken.write_text('{"data": [')
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, unique_ids=np.array([1]), start_logits=np.zeros([1, 24]), end_logits=np.zeros([1, 24]))
    flags |= {"train_file": good, "predict_file": good, "do_train": True, "do_predict": True}
    only = {"do_train": None, "train_file": None}
    mistakes = [
        ({"train_file": None}, "--do_train needs --train_file"),
        ({"do_train": None, "do_predict": None}, "At least one of"),
        ({"train_file": broken}, "broken.json"),
        ({"max_seq_length": 64}, "max_position_embeddings is 48"),
        ({"null_score_diff_threshold": "often"}, "should be a number, or auto"),
        ({"null_score_diff_threshold": "auto"}, "needs --version_2_with_negative"),
        ({"max_query_length": 30}, "max_query_length"),
        ({"raw_results_in": foreign}, "use it with --do_predict alone"),
        (only | {"raw_results_in": tmp_path / "nowhere.npz"}, "There is no file of logits"),
        (only | {"raw_results_in": foreign}, "has logits of 1 windows"),
        (only, "There is no model"),
        (only | {"output_dir": good}, "good.json is a file. Name a directory"),
        (only | {"raw_results_in": foreign, "output_dir": good / "out"}, "good.json/out cannot be written"),
        ({"raw_results_out": tmp_path}, "is a directory. Name a file in it"),
        ({"max_query_length": 30, "dry_run": True}, "max_query_length"),
        (only | {"raw_results_in": tmp_path / "nowhere.npz", "dry_run": True}, "There is no file of logits"),
    ]
    told = complaints(SCRIPT, *(spell(**flags | changes) for changes, _ in mistakes))
    for (_, wanted), said in zip(mistakes, told, strict=True):
        assert wanted in said
