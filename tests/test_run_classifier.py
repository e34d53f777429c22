"""The script as a person runs it, on data that it can learn: whether a sentence is about the sea."""

import json
import random
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from modeling.google import read_variables
from tasks.sentence_classifier import SentenceClassifier
from tests.scripts import KILLED, complaints, run, spell, write_tiny_model
from training.reports import read_metrics

SCRIPT = "run_classifier.py"
SEA, LAND = ["ship", "wave", "sail", "harbour", "tide"], ["field", "horse", "barn", "plough", "hill"]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model"), [*SEA, *LAND, "the", "old", "a"])


@pytest.fixture
def flags(model_files, tmp_path):
    return {
        "task_name": "custom",
        "output_dir": tmp_path / "out",
        "bert_config_file": model_files / "config.json",
        "vocab_file": model_files / "vocab.txt",
        "max_seq_length": 16,
        "train_batch_size": 8,
        "learning_rate": 1e-3,
        "seed": 1,
    }


def sentences(count, seed=0):
    """Texts of 2 to 12 words, and whether they name something of the sea."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = rng.random() < 0.5
        filler = [rng.choice(["the", "old", "a"]) for _ in range(rng.randrange(1, 11))]
        filler.insert(rng.randrange(len(filler) + 1), rng.choice(SEA if label else LAND))
        rows.append({"id": f"s{number}", "text": " ".join(filler), "label": "sea" if label else "land"})
    return rows


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_tsv(path, rows, columns):
    lines = ["\t".join(columns), *("\t".join(str(row[name]) for name in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_learns_evaluates_and_labels(flags, tmp_path):
    """From tables to labels: the best evaluation kept, killed in the middle and continued, asked in three ways."""
    flags |= {
        "train_file": write_jsonl(tmp_path / "train.jsonl", sentences(160)),
        "eval_file": write_jsonl(tmp_path / "dev.jsonl", sentences(40, seed=1)),
        "predict_file": write_jsonl(tmp_path / "test.jsonl", sentences(11, seed=2)),
        "id_column": "id",
        "num_train_epochs": 6,
        "eval_every_steps": 30,
        "keep_best_metric": "eval_accuracy",
        "save_checkpoints_steps": 30,
        "log_every_steps": 10,
        "batching": "bucketed",
        "deterministic": True,
    }
    everything = spell(**flags, do_train=True, do_eval=True, do_predict=True)
    dies = """
        import os, signal
        import training.loop
        whole = training.loop._Loop._save
        def dying(self, step, is_best, is_saved):
            if step == 60:
                os.kill(os.getpid(), signal.SIGKILL)
            whole(self, step, is_best, is_saved)
        training.loop._Loop._save = dying
    """
    run(SCRIPT, *everything, code=KILLED, before=dies)
    said = run(SCRIPT, *everything)
    assert "Continuing the run" in said and "from step 30" in said
    undisturbed = tmp_path / "undisturbed"
    run(SCRIPT, *spell(**flags | {"output_dir": undisturbed}, do_train=True, do_eval=True, do_predict=True))
    out = tmp_path / "out"
    for name in ("eval_results.txt", "eval_results.json", "predictions.jsonl", "test_results.tsv", "bert_task.json"):
        assert (out / name).read_text() == (undisturbed / name).read_text(), name
    ours, theirs = (read_variables(directory / "bert_model.ckpt") for directory in (out, undisturbed))
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)

    results = dict(line.split(" = ") for line in (out / "eval_results.txt").read_text().splitlines())
    assert set(results) == {"eval_accuracy", "eval_f1", "eval_loss", "eval_matthews", "global_step", "loss"}
    evaluations = read_metrics(out, "eval")
    assert [line["step"] for line in evaluations] == [30, 60, 90, 120]
    assert float(results["eval_accuracy"]) == max(line["eval_accuracy"] for line in evaluations) > 0.9
    details = json.loads((out / "eval_results.json").read_text())
    assert sum(map(sum, details["confusion_matrix"])) == 40 and set(details["labels"]) == {"land", "sea"}
    assert (out / "eval_results.png").read_bytes().startswith(b"\x89PNG")

    predictions = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [p["id"] for p in predictions] == [f"s{number}" for number in range(11)]
    rows = [list(map(float, line.split("\t"))) for line in (out / "test_results.tsv").read_text().splitlines()]
    np.testing.assert_allclose(rows, [[p["probabilities"][name] for name in ("land", "sea")] for p in predictions])
    record = tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(str(out / "train.tf_record")))).numpy())
    assert {name: len(value.int64_list.value) for name, value in record.features.feature.items()} == {
        "input_ids": 16,
        "input_mask": 16,
        "segment_ids": 16,
        "label_ids": 1,
        "is_real_example": 1,
    }

    lines = "the old ship\na hill ||| the plough\n"
    told = run(SCRIPT, *spell(output_dir=out, do_predict=True, predict_file="-"), given=lines).splitlines()
    assert [line.split("\t")[:2] for line in told if "\t" in line] == [
        ["sea", "the old ship"],
        ["land", "a hill ||| the plough"],
    ]

    classifier = SentenceClassifier.load(out)
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(classifier.predict, [[p["text"]] for p in predictions]))
    assert [answer.label for [answer] in together] == [p["label"] for p in predictions]
    asked = classifier.predict([p["text"] for p in predictions])
    for ours, theirs in zip(asked, predictions, strict=True):
        assert ours.label == theirs["label"]
        assert ours.probabilities == pytest.approx(theirs["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_trials_numbers_several_labels_windows_and_replicas(flags, tmp_path):
    numbers = [row | {"score": row["text"].count("the")} for row in sentences(96)]
    common = flags | {"train_file": write_tsv(tmp_path / "a.tsv", numbers, ["text", "score"]), "do_train": True}
    common |= {"eval_file": common["train_file"], "do_eval": True}
    run(
        SCRIPT,
        *spell(**common, regression=True, label_column="score", num_trials=2, num_train_epochs=12),
        *spell(long_text="windows", freeze_layers=1, layerwise_lr_decay=0.9, max_seq_length=8),
    )
    summary = json.loads((tmp_path / "out" / "trials.json").read_text())
    best = summary["trials"][summary["best_trial"]]
    assert best["eval_pearson"] == max(trial["eval_pearson"] for trial in summary["trials"])
    assert [trial["seed"] for trial in summary["trials"]] == [1, 2]
    results = dict(line.split(" = ") for line in (tmp_path / "out" / "eval_results.txt").read_text().splitlines())
    assert float(results["eval_pearson"]) == pytest.approx(best["eval_pearson"])
    assert best["eval_pearson"] > 0.3

    # The best trial can be asked by the script alone.
    alone = {"output_dir": tmp_path / "out", "task_name": "custom", "predict_file": common["train_file"]}
    run(SCRIPT, *spell(**alone, do_predict=True))
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 96

    several = [row | {"label": [row["label"]] + (["old"] if "old" in row["text"] else [])} for row in sentences(64)]
    common |= {"train_file": write_jsonl(tmp_path / "b.jsonl", several), "output_dir": tmp_path / "several"}
    run(
        SCRIPT,
        *spell(**common | {"eval_file": common["train_file"]}, multi_label=True, num_train_epochs=12),
        *spell(virtual_devices=2, distribution_strategy="mirrored", gradient_accumulation_steps=2),
        *spell(batching="bucketed", train_batch_tokens=128, bilstm_head=True),
    )
    results = dict(line.split(" = ") for line in (tmp_path / "several" / "eval_results.txt").read_text().splitlines())
    assert float(results["eval_f1_micro"]) > 0.7
    predicted = SentenceClassifier.load(tmp_path / "several").predict(["the old ship", ("a hill", "the barn")])
    assert set(predicted[0].probabilities) == {"land", "old", "sea"}


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_trained(flags, tmp_path):
    rows = sentences(20)
    good = write_jsonl(tmp_path / "good.jsonl", rows)
    flags |= {"train_file": good, "eval_file": good, "do_train": True, "do_eval": True}

    def table(name, *more):
        return write_tsv(tmp_path / name, [*rows, *more], ["text", "label"])

    numbers = [{"text": "a ship", "label": 1.5}, {"text": "a hill", "label": float("nan")}]
    numbers = write_tsv(tmp_path / "numbers.tsv", numbers, ["text", "label"])
    mistakes = [
        ({"eval_file": table("new.tsv", {"text": "a ship", "label": "sky"})}, "new.tsv, line 22: the label 'sky'"),
        ({"train_file": table("empty.tsv", {"text": "", "label": "sea"})}, "empty.tsv, line 22: the text"),
        ({"text_column": "review"}, "no value in the column 'review'"),
        ({"train_file": write_tsv(tmp_path / "c.csv", rows, ["text", "label"])}, "parted by another sign"),
        ({"train_file": write_jsonl(tmp_path / "one.jsonl", [rows[0]] * 9)}, "nothing to tell apart"),
        ({"regression": True}, "is not a number"),
        ({"regression": True, "train_file": numbers}, "numbers.tsv, line 3: the label 'nan' is not a finite number"),
        ({"train_file": None}, "--train_file is missing"),
        ({"task_name": "colla"}, "--task_name=colla is not known"),
        ({"task_name": "cola"}, "--data_dir is missing"),
        ({"max_seq_length": 64}, "max_position_embeddings is 32"),
        ({"keep_best_metric": "eval_f2", "eval_every_steps": 5}, "should be one of eval_accuracy"),
        ({"train_batch_tokens": 64}, "needs --batching=bucketed"),
        ({"num_trials": 2, "do_eval": None}, "--num_trials needs"),
        ({"vocab_file": None}, "name it by --vocab_file"),
        ({"do_train": None, "do_eval": None}, "At least one of"),
    ]
    told = complaints(SCRIPT, *(spell(**flags | changes) for changes, _ in mistakes))
    for (_, wanted), said in zip(mistakes, told, strict=True):
        assert wanted in said
    assert not (tmp_path / "out" / "train_state").exists()


@pytest.mark.slow
def test_korean(shared, flags, tmp_path):
    """NSMC as classes and KorSTS as numbers, with the multilingual vocabulary and a small random model."""
    vocab = shared / "datasets" / "vocab" / "bert-base-multilingual-cased-vocab.txt"
    korean = shared / "datasets" / "korean"
    config = json.loads(flags["bert_config_file"].read_text()) | {"vocab_size": 119547, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags |= {"bert_config_file": tmp_path / "config.json", "vocab_file": vocab, "do_lower_case": False}
    flags |= {"do_train": True, "do_eval": True, "max_seq_length": 48, "num_train_epochs": 1, "eval_batch_size": 64}
    nsmc = {"train_file": korean / "nsmc_train.txt", "eval_file": korean / "nsmc_dev.txt", "text_column": "document"}
    said = run(SCRIPT, *spell(**flags | nsmc, max_train_examples=800, skip_bad_rows=True))
    assert "eval_accuracy" in said
    assert json.loads((tmp_path / "out" / "bert_task.json").read_text())["labels"] == ["0", "1"]
    korsts = {
        "train_file": korean / "sts-train.tsv",
        "eval_file": korean / "sts-dev.tsv",
        "output_dir": tmp_path / "sts",
    }
    korsts |= {"text_column": "sentence1", "text_pair_column": "sentence2", "label_column": "score", "regression": True}
    assert "eval_spearman" in run(SCRIPT, *spell(**flags | korsts, max_train_examples=400))
    text = "안전모를 가진 한 남자"
    classifier = SentenceClassifier.load(tmp_path / "out")
    whole, apart = classifier.predict([text, unicodedata.normalize("NFD", text)])
    assert set(whole.probabilities) == set(apart.probabilities) == {"0", "1"}
