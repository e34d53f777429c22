import numpy as np
import pytest
import tensorflow as tf

from data.examples import Example
from data.glue import BlindSet
from data.sentence_sets import NamedExamples
from tasks.sentence_results import figures, losses_of, metric_names, per_class, prediction, write_submission
from tasks.sentences import (
    SentenceSettings,
    SentenceTask,
    balanced_weights,
    find_labels,
    label_ids,
    probabilities,
    verdict,
    vote,
)


def settings_of(kind, labels=()):
    return SentenceSettings(kind, tuple(labels), do_lower_case=True, max_seq_length=16)


def examples_of(*labels):
    return [Example(str(number), "text", None, label, f"a.tsv, line {number}") for number, label in enumerate(labels)]


def test_settings_survive_the_disk(tmp_path):
    settings = SentenceSettings("multi_label", ("가", "b"), False, 64, "windows", True, ("f1",))
    (tmp_path / "bert_task.json").write_text(settings.to_json(), encoding="utf-8")
    assert SentenceSettings.load(tmp_path) == settings
    with pytest.raises(FileNotFoundError, match="is not the --output_dir of a run_classifier.py"):
        SentenceSettings.load(tmp_path / "elsewhere")


def test_labels_are_found_in_a_sensible_order():
    assert find_labels(examples_of("10", "9", "-1"), "single_label", "x") == ("-1", "9", "10")
    assert find_labels(examples_of("no", "yes", "no"), "single_label", "x") == ("no", "yes")
    assert find_labels(examples_of(("b",), (), ("a", "b")), "multi_label", "x") == ("a", "b")
    assert find_labels(examples_of(1.0), "regression", "x") == ()
    with pytest.raises(ValueError, match="All of x has the label 'a'"):
        find_labels(examples_of("a", "a"), "single_label", "x")


def test_labels_as_numbers():
    assert label_ids(examples_of("no", "yes"), settings_of("single_label", ["no", "yes"])).tolist() == [0, 1]
    several = label_ids(examples_of(("b",), (), ("a", "b")), settings_of("multi_label", ["a", "b"]))
    assert several.tolist() == [[0, 1], [0, 0], [1, 1]]
    with pytest.raises(ValueError, match="a.tsv, line 1: the label 'new' does not occur in the training data"):
        label_ids(examples_of("no", "new"), settings_of("single_label", ["no", "yes"]))


def loss_of(task, logits, labels, weights=None):
    batch = {
        "label_ids": tf.constant(labels),
        "row_weights": tf.constant(np.ones(len(labels), np.float32) if weights is None else weights),
    }
    return float(task.loss(task.sums(tf.constant(logits), batch), task.counts(batch)))


def test_losses_by_hand():
    logits, labels = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]], np.float32), np.array([0, 2], np.int32)
    log_probs = np.log(probabilities("single_label", logits))
    plain = -(log_probs[0, 0] + log_probs[1, 2]) / 2
    assert loss_of(SentenceTask("single_label"), logits, labels) == pytest.approx(plain, rel=1e-5)
    assert loss_of(SentenceTask("single_label"), logits, labels, [1.0, 0.0]) == pytest.approx(
        -log_probs[0, 0], rel=1e-5
    )
    smoothed = 0.9 * plain + 0.1 * -log_probs.mean()
    assert loss_of(SentenceTask("single_label", 0.1), logits, labels) == pytest.approx(smoothed, rel=1e-5)
    weighted = -(3 * log_probs[0, 0] + 0.5 * log_probs[1, 2]) / 2
    assert loss_of(SentenceTask("single_label", 0.0, [3.0, 1.0, 0.5]), logits, labels) == pytest.approx(
        weighted, rel=1e-5
    )
    assert loss_of(SentenceTask("regression"), logits[:, :1], np.array([1.0, 2.0], np.float32)) == pytest.approx(1.625)
    several = np.array([[1, 0, 0], [0, 1, 1]], np.int32)
    p = probabilities("multi_label", logits)
    wanted = -np.where(several, np.log(p), np.log(1 - p)).mean()
    assert loss_of(SentenceTask("multi_label"), logits, several) == pytest.approx(wanted, rel=1e-5)


def test_balanced_weights_make_classes_count_the_same():
    labels = np.array([0] * 8 + [1] * 2)
    weights = balanced_weights(labels, 3)
    assert weights[0] * 8 == pytest.approx(weights[1] * 2) and weights[2] == 0.0


def test_windows_vote():
    voted = vote(np.array([[1.0, 0.0], [0.0, 1.0], [0.2, 0.8]]), np.array([0, 0, 1]), 2)
    np.testing.assert_allclose(voted, [[0.5, 0.5], [0.2, 0.8]])


def test_figures_against_counts_by_hand():
    settings = settings_of("single_label", ["0", "1"])
    told = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.8, 0.2]])
    labels = np.array([0, 1, 0, 1])
    found = figures(settings, told, labels, np.array([1.0, 3.0]))
    assert found == {"eval_loss": 2.0, "eval_accuracy": 0.5, "eval_matthews": 0.0, "eval_f1": 0.5}
    assert set(found) == set(metric_names(settings))
    table = per_class(settings, told, labels)
    assert table["confusion_matrix"] == [[1, 1], [1, 1]]
    assert table["labels"]["1"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}


def test_figures_of_numbers_and_of_several_labels():
    settings = settings_of("regression")
    labels = np.array([1.0, 2.0, 3.0, 5.0], np.float32)
    found = figures(settings, np.array([[2.0], [4.0], [6.0], [7.0]]), labels, np.zeros(4))
    assert found["eval_spearman"] == pytest.approx(1.0) and 0.9 < found["eval_pearson"] < 1.0
    assert set(found) == set(metric_names(settings))
    same = figures(settings, np.ones([4, 1]), labels, np.zeros(4))
    assert same["eval_pearson"] == same["eval_spearman"] == 0.0
    settings = settings_of("multi_label", ["a", "b"])
    labels = np.array([[1, 0], [1, 1]])
    found = figures(settings, np.array([[0.9, 0.2], [0.9, 0.1]]), labels, np.zeros(2))
    assert found["eval_accuracy"] == 0.5 and found["eval_f1_macro"] == 0.5
    assert found["eval_f1_micro"] == pytest.approx(0.8)
    assert set(found) == set(metric_names(settings))
    assert losses_of(settings, np.zeros([2, 2], np.float32), labels) == pytest.approx([np.log(2)] * 2)


def test_verdicts():
    assert verdict(settings_of("single_label", ["x", "y"]), np.array([0.2, 0.8])) == "y"
    assert verdict(settings_of("multi_label", ["x", "y"]), np.array([0.9, 0.8])) == ["x", "y"]
    assert verdict(settings_of("regression"), np.array([3.5])) == 3.5
    told = prediction(settings_of("single_label", ["x", "y"]), Example("7", "t", "u"), np.array([0.2, 0.8]))
    assert told == {"id": "7", "text": "t", "text_pair": "u", "label": "y", "probabilities": {"x": 0.2, "y": 0.8}}


def test_submissions_have_the_index_of_the_server(tmp_path, caplog):
    examples = [Example(str(number), "text") for number in (0, 1, 2)]
    named = NamedExamples("", examples, BlindSet("test.tsv", "RTE", 3))
    labels = settings_of("single_label", ["entailment", "not_entailment"])
    write_submission(tmp_path / "RTE.tsv", labels, named, np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    assert (tmp_path / "RTE.tsv").read_text() == (
        "index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tentailment\n"
    )
    assert caplog.text == ""
    named = NamedExamples("", examples, BlindSet("test.tsv", "STS-B", 1379))
    write_submission(tmp_path / "STS-B.tsv", settings_of("regression"), named, np.array([[-0.2], [2.34567], [5.4]]))
    assert (tmp_path / "STS-B.tsv").read_text() == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"
    assert "it has 3 rows, and should have 1379" in caplog.text


def test_one_label_of_several_is_counted_by_itself():
    settings = settings_of("multi_label", ["spam"])
    labels = np.array([[1], [0], [0], [0]])
    found = figures(settings, np.full([4, 1], 0.1), labels, np.zeros(4))
    assert found["eval_f1_micro"] == found["eval_f1_macro"] == 0.0 and found["eval_accuracy"] == 0.75
    assert per_class(settings, np.full([4, 1], 0.1), labels)["labels"]["spam"]["support"] == 1
