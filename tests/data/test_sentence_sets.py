import numpy as np
import pytest

from data.examples import Columns
from data.sentence_sets import Tables, TfdsSets


def test_tables_are_found_by_their_names(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,0\n")
    (tmp_path / "dev.jsonl").write_text('{"text": "c", "label": "1"}\n')
    sets = Tables.find(str(tmp_path), (None, None, None), kind="single_label", columns=Columns("text", label="label"))
    assert [example.label for example in sets.train()] == ["1", "0"]
    assert [example.text_a for [named] in [sets.evaluation()] for example in named.examples] == ["c"]
    with pytest.raises(ValueError, match="--predict_file is missing, and --data_dir has no test.tsv"):
        list(sets.prediction())


@pytest.mark.slow
def test_a_set_of_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = {
        "sentence": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["bad", "good"]),
        "score": tfds.features.Scalar(np.float32),
    }
    rows = [{"sentence": "ein Schiff", "label": 1, "score": 0.5}, {"sentence": "배", "label": 0, "score": 4.0}]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny_sentences",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": list(enumerate(rows)), "validation": list(enumerate(rows[:1]))},
        data_dir=tmp_path,
    )
    splits = ("train", "validation", "test")
    columns = Columns("sentence", label="label")
    sets = TfdsSets("tiny_sentences", str(tmp_path), "single_label", columns, splits)
    assert sets.labels == ("bad", "good")
    assert sorted((e.text_a, e.label) for e in sets.train()) == [("ein Schiff", "good"), ("배", "bad")]
    with pytest.raises(ValueError, match="no split 'test'. It has: train, validation"):
        list(sets.prediction())
    numbers = TfdsSets("tiny_sentences", str(tmp_path), "regression", Columns("sentence", label="score"), splits)
    assert sorted(e.label for e in numbers.train()) == [0.5, 4.0]
    with pytest.raises(ValueError, match="no feature 'text'. It has: "):
        TfdsSets("tiny_sentences", str(tmp_path), "single_label", Columns("text"), splits)
