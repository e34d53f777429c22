import json

import numpy as np
import pytest
import tensorflow as tf

from data.batch_plans import BatchSize, evaluation_plan
from data.choices import Choice
from data.example_records import numbered_batches
from data.sentence_features import SentenceEncoder
from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.models import ChoiceModel
from tasks.choice_predictor import ChoicePredictor
from tasks.choices import (
    METRIC_NAMES,
    ChoiceSettings,
    ChoiceTask,
    EncodedChoices,
    choice_probabilities,
    parser,
    write_predictions,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
SETTINGS = ChoiceSettings(num_choices=3, do_lower_case=True, max_seq_length=16)
CHOICES = [
    Choice("x", "a", ("b", "c", "d"), 2),
    Choice("y", "a b c d a b c d", ("a", "b c", "a b c d a b c d a b"), 0),
    Choice("z", "d", ("a a", "b", "c c c c c c"), 1),
]
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    initializer_range=0.5,
)


@pytest.fixture
def encoder():
    vocab = {word: number for number, word in enumerate(WORDS)}
    return SentenceEncoder(FullTokenizer(vocab=vocab, do_lower_case=True), SETTINGS.max_seq_length)


@pytest.fixture
def encoded(encoder, tmp_path):
    return EncodedChoices.write(tmp_path / "a.tf_record", CHOICES, SETTINGS, encoder)


def words_of(ids, mask):
    return " ".join(WORDS[i] for i, is_real in zip(ids, mask, strict=True) if is_real)


def test_settings_survive_the_disk_and_are_those_of_this_task(tmp_path):
    (tmp_path / "bert_task.json").write_text(SETTINGS.to_json())
    assert ChoiceSettings.load(tmp_path) == SETTINGS
    with pytest.raises(FileNotFoundError, match="is not the --output_dir of a run_multiple_choice.py"):
        ChoiceSettings.load(tmp_path / "elsewhere")
    (tmp_path / "bert_task.json").write_text('{"script": "run_classifier.py", "kind": "single_label"}')
    with pytest.raises(
        ValueError, match="bert_task.json cannot be used: it is the model of a run_classifier.py, not of a"
    ):
        ChoiceSettings.load(tmp_path)


def test_records_hold_each_ending_behind_its_context(encoded):
    batch = parser(SETTINGS)(tf.constant(encoded.records.read(range(3))))
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        "input_ids": (3, 3, 16),
        "input_mask": (3, 3, 16),
        "segment_ids": (3, 3, 16),
        "label_ids": (3,),
    }
    texts = [
        [words_of(*of_choice) for of_choice in zip(*of_example, strict=True)]
        for of_example in zip(batch["input_ids"].numpy(), batch["input_mask"].numpy(), strict=True)
    ]
    assert texts[0] == ["[CLS] a [SEP] b [SEP]", "[CLS] a [SEP] c [SEP]", "[CLS] a [SEP] d [SEP]"]
    # 18 pieces are cut to 13, one by one from the longer of the two, and from the ending if they are as long.
    assert texts[1][2] == "[CLS] a b c d a b c [SEP] a b c d a b [SEP]"
    assert batch["segment_ids"].numpy()[2, 0].tolist() == [0, 0, 0, 1, 1, 1] + [0] * 10
    assert batch["label_ids"].numpy().tolist() == [2, 0, 1]
    assert encoded.records.lengths.tolist() == [5, 16, 10]


def test_batches_are_trimmed_to_the_longest_of_all_choices(encoded):
    plan = evaluation_plan(encoded.records.lengths, BatchSize(2), by_length=True)
    first, last = numbered_batches(encoded.records, plan, parser(SETTINGS), 16, fixed_rows=2).as_numpy_iterator()
    assert first["input_ids"].shape == (2, 3, 16) and first["record_numbers"].tolist() == [0, 2]
    assert last["record_numbers"].tolist() == [1, -1] and last["row_weights"].tolist() == [1, 0]
    [short] = numbered_batches(encoded.records, [np.array([0])], parser(SETTINGS), 16).as_numpy_iterator()
    assert short["input_ids"].shape == short["input_mask"].shape == short["segment_ids"].shape == (1, 3, 8)
    assert short["input_mask"].sum() == 3 * 5


def test_the_loss_is_a_softmax_over_choices():
    scores = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]], np.float32)
    batch = {"label_ids": tf.constant([0, 2]), "row_weights": tf.constant([1.0, 1.0])}
    task = ChoiceTask()
    counts, sums = task.counts(batch), task.sums(tf.constant(scores), batch)
    assert set(counts) | set(sums) == set(task.measures)
    wanted = (np.log(np.exp(scores[0]).sum()) - 2.0 + np.log(3.0)) / 2
    assert float(task.loss(sums, counts)) == pytest.approx(wanted, rel=1e-5)
    totals = {name: float(total) for name, total in (counts | sums).items()}
    assert task.figures(totals) == {"accuracy": 0.5}
    filled = batch | {"row_weights": tf.constant([1.0, 0.0])}
    alone = float(task.loss(task.sums(tf.constant(scores), filled), task.counts(filled)))
    assert alone == pytest.approx(np.log(np.exp(scores[0]).sum()) - 2.0, rel=1e-5)


def test_figures_by_hand(encoded):
    logits = np.log(np.array([[0.2, 0.2, 0.6], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3]], np.float32))
    found = encoded.figures(logits)
    assert found["eval_accuracy"] == pytest.approx(2 / 3)
    assert found["eval_loss"] == pytest.approx(-np.log(0.6 * 0.5 * 0.3) / 3, rel=1e-5)
    assert set(found) == set(METRIC_NAMES)


def test_predictions_on_disk(tmp_path):
    told = np.array([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    write_predictions(tmp_path, CHOICES, told)
    assert (tmp_path / "test_results.tsv").read_text().splitlines()[0] == "0.25\t0.25\t0.5"
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert lines[0] == {"id": "x", "label": 2, "probabilities": [0.25, 0.25, 0.5]}
    assert [line["label"] for line in lines] == [2, 0, 1]


def test_predictor_says_what_the_model_says_of_whole_batches(encoder, encoded):
    model = ChoiceModel(CONFIG, seed=3)
    [batch] = numbered_batches(encoded.records, [np.arange(3)], parser(SETTINGS), 16)
    wanted = choice_probabilities(model(batch).numpy())
    assert np.ptp(wanted) > 0.01
    predictor = ChoicePredictor(model, encoder, SETTINGS)
    asked = predictor.predict([(choice.context, choice.endings) for choice in CHOICES], batch_size=2)
    for row, (index, told) in zip(wanted, asked, strict=True):
        assert index == np.argmax(row)
        np.testing.assert_allclose(told, row, atol=1e-5)
    assert predictor.predict([]) == []


@pytest.mark.parametrize(
    "question, message",
    [
        (("a", ["b", "c"]), "Question 1 should have a list of 3 endings, as many as in training, but has"),
        (("a", "bcd"), "Question 1 should have a list of 3 endings"),
        (("a", ["b", "", "c"]), "Question 1 has '' where a text should be"),
        ((None, ["b", "c", "d"]), "Question 1 has None where a text should be"),
    ],
)
def test_predictor_refuses_what_files_may_not_hold_either(encoder, question, message):
    predictor = ChoicePredictor(ChoiceModel(CONFIG), encoder, SETTINGS)
    with pytest.raises(ValueError, match=message):
        predictor.predict([("a", ["b", "c", "d"]), question])
