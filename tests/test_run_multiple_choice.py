"""The script as a person runs it, on data that it can learn: the right ending is the one about the sea."""

import csv
import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from modeling.config import BertConfig
from modeling.google import read_variables
from tasks.choice_predictor import ChoicePredictor
from tests.scripts import complaints, run, spell, write_tiny_model
from training.memory_estimate import estimate
from training.reports import read_metrics

SCRIPT = "run_multiple_choice.py"
SEA, LAND = ["ship", "wave", "sail"], ["field", "horse", "barn"]
FILLERS = ["the", "old", "a"]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    return write_tiny_model(
        tmp_path_factory.mktemp("model"), [*SEA, *LAND, *FILLERS], hidden_size=16, num_hidden_layers=1
    )


@pytest.fixture
def flags(model_files, tmp_path):
    return {
        "output_dir": tmp_path / "out",
        "bert_config_file": model_files / "config.json",
        "vocab_file": model_files / "vocab.txt",
        "max_seq_length": 24,
        "train_batch_size": 8,
        "learning_rate": 5e-3,
        "seed": 1,
    }


def choices(count, num_endings, seed=0):
    """Contexts that tell nothing, each with one ending that names something of the sea."""
    rng = random.Random(seed)

    def text(words):
        filler = [rng.choice(FILLERS) for _ in range(rng.randrange(1, 8))]
        filler.insert(rng.randrange(len(filler) + 1), rng.choice(words))
        return " ".join(filler)

    rows = []
    for number in range(count):
        label = rng.randrange(num_endings)
        endings = [text(SEA if ending == label else LAND) for ending in range(num_endings)]
        rows.append({"id": f"c{number}", "context": text(FILLERS), "endings": endings, "label": label})
    return rows


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_codah(path, rows):
    path.write_text("".join("\t".join(["o", r["context"], *r["endings"], str(r["label"])]) + "\n" for r in rows))
    return path


def write_swag(path, rows):
    """As the test set is: without labels. Each second sentence starts with its first filler."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "video-id", "startphrase", "sent1", "sent2", *(f"ending{i}" for i in range(3))])
        for number, row in enumerate(rows):
            writer.writerow([number, "v", f"{row['context']} the", row["context"], "the", *row["endings"]])
    return path


def results_in(directory):
    return dict(line.split(" = ") for line in (directory / "eval_results.txt").read_text().splitlines())


def predictions_in(directory):
    return [json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_training_evaluation_prediction_and_the_same_in_python(flags, tmp_path):
    evaluation, questions = choices(40, 3, seed=1), choices(11, 3, seed=2)
    flags |= {
        "train_file": write_jsonl(tmp_path / "train.jsonl", choices(160, 3)),
        "eval_file": write_jsonl(tmp_path / "dev.jsonl", evaluation),
        "predict_file": write_jsonl(tmp_path / "test.jsonl", questions),
    }
    training = {"num_train_epochs": 4, "eval_every_steps": 40, "batching": "bucketed", "do_train": True}
    run(SCRIPT, *spell(**flags | training, do_eval=True, do_predict=True))
    out = tmp_path / "out"
    results = results_in(out)
    assert set(results) == {"eval_accuracy", "eval_loss", "global_step", "loss"}
    evaluations = read_metrics(out, "eval")
    assert [line["step"] for line in evaluations] == [40, 80]
    assert float(results["eval_accuracy"]) == evaluations[-1]["eval_accuracy"] > 0.9
    assert read_variables(out / "bert_model.ckpt")["output_weights"].shape == (1, 16)
    assert json.loads((out / "bert_task.json").read_text())["num_choices"] == 3
    predictions = predictions_in(out)
    assert [p["id"] for p in predictions] == [f"c{number}" for number in range(11)]
    rows = [list(map(float, line.split("\t"))) for line in (out / "test_results.tsv").read_text().splitlines()]
    np.testing.assert_allclose(rows, [p["probabilities"] for p in predictions])
    np.testing.assert_allclose(np.sum(rows, axis=1), 1.0, atol=1e-5)
    record = tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(str(out / "train.tf_record")))).numpy())
    sizes = {name: len(value.int64_list.value) for name, value in record.features.feature.items()}
    assert sizes == {"input_ids": 72, "input_mask": 72, "segment_ids": 72, "label_ids": 1}

    predictor = ChoicePredictor.load(out)
    asked = [(row["context"], row["endings"]) for row in questions]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda question: predictor.predict([question])[0], asked))
    for alone, theirs, batched in zip(together, predictions, predictor.predict(asked), strict=True):
        assert alone.index == batched.index == theirs["label"]
        np.testing.assert_allclose(alone.probabilities, theirs["probabilities"], atol=1e-5)
        np.testing.assert_allclose(batched.probabilities, theirs["probabilities"], atol=1e-5)

    # A trained model needs no more than its directory, and another format than it was trained on will do.
    swag = write_swag(tmp_path / "test.csv", questions)
    again = {"output_dir": out, "eval_file": flags["eval_file"], "predict_file": swag, "eval_batch_size": 3}
    said = run(SCRIPT, *spell(**again, do_eval=True, dry_run=True))
    assert "40 examples" in said and "MB for weights" in said
    run(SCRIPT, *spell(**again, do_eval=True, do_predict=True))
    assert float(results_in(out)["eval_loss"]) == pytest.approx(float(results["eval_loss"]), abs=1e-5)
    assert results_in(out)["eval_accuracy"] == results["eval_accuracy"]
    wanted = predictor.predict([(context, [f"the {ending}" for ending in endings]) for context, endings in asked])
    assert [p["label"] for p in predictions_in(out)] == [chosen.index for chosen in wanted]


@pytest.mark.slow
def test_trials_on_two_devices_from_tables_without_a_header(flags, tmp_path):
    flags |= {
        "train_file": write_codah(tmp_path / "train.tsv", choices(96, 4)),
        "eval_file": write_codah(tmp_path / "dev.tsv", choices(21, 4, seed=1)),
        "virtual_devices": 2,
        "num_trials": 2,
        "num_train_epochs": 1,
        "max_train_examples": 64,
        "eval_every_steps": 4,
        "keep_best_metric": "eval_loss",
    }
    run(SCRIPT, *spell(**flags, do_train=True, do_eval=True))
    summary = json.loads((tmp_path / "out" / "trials.json").read_text())
    best = summary["trials"][summary["best_trial"]]
    assert summary["chosen_by"] == "eval_loss" and len(summary["trials"]) == 2
    assert best["eval_loss"] == min(trial["eval_loss"] for trial in summary["trials"])
    evaluations = read_metrics(tmp_path / "out" / f"trial-{summary['best_trial']}", "eval")
    assert [line["step"] for line in evaluations] == [4, 8]
    assert best["eval_loss"] == pytest.approx(min(line["eval_loss"] for line in evaluations), rel=1e-4)
    assert float(results_in(tmp_path / "out")["eval_loss"]) == pytest.approx(best["eval_loss"], rel=1e-4)
    asked = ("the ship", ["a wave", "a barn", "a horse", "the field"])
    assert len(ChoicePredictor.load(tmp_path / "out").predict([asked])[0].probabilities) == 4


@pytest.mark.slow
def test_a_dry_run_counts_the_memory_of_every_ending(flags, tmp_path):
    flags |= {"train_file": write_jsonl(tmp_path / "train.jsonl", choices(8, 4)), "train_batch_size": 65536}
    said = run(SCRIPT, *spell(**flags, do_train=True, dry_run=True))
    config = BertConfig.from_json_file(flags["bert_config_file"])
    taken = estimate(config, batch_size=4 * 65536, seq_length=24)
    assert f"{taken.activations / 1e9:.1f} GB for activations" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_trained(flags, tmp_path):
    rows = choices(20, 4)
    good = write_jsonl(tmp_path / "good.jsonl", rows)
    flags |= {"train_file": good, "eval_file": good, "do_train": True, "do_eval": True}
    three_of_four = rows[7] | {"endings": rows[7]["endings"][:3], "label": 0}
    short = [*rows[:7], three_of_four, *rows[8:]]
    other = tmp_path / "classifier"
    other.mkdir()
    (other / "bert_task.json").write_text('{"script": "run_classifier.py", "kind": "single_label"}')
    no_training = {"do_train": None, "do_eval": None, "do_predict": True, "predict_file": good}
    mistakes = [
        (
            {"train_file": write_jsonl(tmp_path / "short.jsonl", short)},
            "short.jsonl, line 8: the row has 3 endings, but line 1 has 4",
        ),
        (
            {"train_file": write_codah(tmp_path / "short.tsv", short)},
            "short.tsv, line 8: the row has 6 columns, but CODAH has 7",
        ),
        (
            {"eval_file": write_jsonl(tmp_path / "three.jsonl", [three_of_four])},
            "three.jsonl, line 1: the row has 3 endings, but the model is trained on 4",
        ),
        (
            {"eval_file": write_jsonl(tmp_path / "label.jsonl", [rows[0] | {"label": 4}])},
            "label.jsonl, line 1: the label 4 is not the index of an ending, which go from 0 to 3",
        ),
        ({"format": "swag"}, "there is no value in the column 'sent1'"),
        ({"train_file": tmp_path / "none.jsonl"}, "There is no file"),
        ({"train_file": None}, "--train_file is missing"),
        ({"eval_file": None}, "--eval_file is missing"),
        ({"do_predict": True}, "--predict_file is missing"),
        ({"do_train": None, "do_eval": None}, "At least one of"),
        ({"num_trials": 2, "do_eval": None}, "--num_trials needs"),
        ({"max_seq_length": 64}, "max_position_embeddings is 32"),
        ({"keep_best_metric": "eval_f1", "eval_every_steps": 5}, "should be one of eval_accuracy, eval_loss"),
        (no_training, "is not the --output_dir of a run_multiple_choice.py"),
        (no_training | {"output_dir": other}, "it is the model of a run_classifier.py"),
    ]
    told = complaints(SCRIPT, *(spell(**flags | changes) for changes, _ in mistakes))
    for (_, wanted), said in zip(mistakes, told, strict=True):
        assert wanted in said
    assert not (tmp_path / "out" / "train_state").exists()
