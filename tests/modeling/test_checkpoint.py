import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from modeling.checkpoint import load_checkpoint, save_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.errors import CheckpointError
from modeling.google import find_checkpoint, read_variables, write_variables
from modeling.models import PretrainingModel, SentenceModel


@pytest.fixture
def config(golden):
    return BertConfig.from_json_file(golden / "model" / "bert_config.json")


@pytest.fixture
def model_dir(golden, tmp_path):
    """A copy of the golden checkpoint that a test may damage."""
    return shutil.copytree(golden / "model", tmp_path / "model")


def test_write_then_read_is_bit_identical_and_leaves_nothing_else(golden, config, tmp_path):
    model = PretrainingModel(config)
    report = load_checkpoint(model, golden / "model")
    assert (len(report.loaded), report.missing, report.unexpected) == (62, (), ())
    save_checkpoint(model, tmp_path / "out" / "bert_model.ckpt")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    original, written = read_variables(golden / "model"), read_variables(tmp_path / "out")
    assert original.keys() == written.keys()
    for name, value in original.items():
        assert value.dtype == written[name].dtype
        assert value.tobytes() == written[name].tobytes(), name


def test_writing_again_replaces_the_old_one(config, tmp_path):
    for seed in (1, 2):
        model = BertEncoder(config, seed=seed)
        save_checkpoint(model, tmp_path / "bert_model.ckpt")
    again = BertEncoder(config, seed=3)
    load_checkpoint(again, tmp_path)
    np.testing.assert_array_equal(again.embedding_table.numpy(), model.embedding_table.numpy())


def test_reads_what_the_originals_own_training_wrote(shared):
    """139 variables of a TF1 run: weights, adam_m, adam_v and global_step."""
    directory = shared / "golden" / "extended" / "tf1_run_pretraining"
    model = PretrainingModel(BertConfig.from_json_file(directory / "bert_config.json"))
    report = load_checkpoint(model, directory)
    assert (report.missing, report.unexpected) == ((), ())
    assert len(report.loaded) * 3 + 1 == 139


@pytest.mark.parametrize(
    "path",
    ["model", "model/bert_model.ckpt", "model/bert_model.ckpt.index", "model/bert_model.ckpt.data-00000-of-00001"],
)
def test_takes_whatever_path_a_person_has(model_dir, path):
    (model_dir / "after_training.ckpt.index").unlink()
    assert find_checkpoint(model_dir.parent / path) == str(model_dir / "bert_model.ckpt")


def test_takes_a_directory_of_tensorflow_output(config, tmp_path):
    for step in (1, 2):
        save_checkpoint(BertEncoder(config), tmp_path / f"model.ckpt-{step}")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    assert find_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-1")
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(CheckpointError, match=r"several checkpoints .*model\.ckpt-1, .*model\.ckpt-2"):
        find_checkpoint(tmp_path)


def test_a_checkpoint_without_the_heads_leaves_them_and_says_so(config, tmp_path):
    save_checkpoint(BertEncoder(config, seed=1), tmp_path / "bert_model.ckpt")
    model = SentenceModel(config, num_labels=3)
    before = model.classifier.output_weights.numpy()
    report = load_checkpoint(model, tmp_path)
    assert sorted(report.missing) == ["output_bias", "output_weights"]
    assert "Missing there, so left as they were: output_weights, output_bias" in str(report)
    np.testing.assert_array_equal(model.classifier.output_weights.numpy(), before)


def test_variables_that_the_model_lacks_are_reported_but_optimizer_state_is_not(golden, config, tmp_path):
    variables = read_variables(golden / "model")
    table = variables["bert/embeddings/word_embeddings"]
    state = {"bert/embeddings/word_embeddings/adam_m": table, "global_step": np.int64(5)}
    write_variables(variables | state, tmp_path / "bert_model.ckpt")
    report = load_checkpoint(BertEncoder(config), tmp_path)
    assert report.missing == ()
    assert {name.split("/")[0] for name in report.unexpected} == {"cls"}


def test_a_foreign_prefix_is_taken_off_and_named(golden, config, tmp_path):
    variables = {f"tagger/{name}": value for name, value in read_variables(golden / "model").items()}
    write_variables(variables | {"tagger/crf": np.zeros(3, np.float32)}, tmp_path / "bert_model.ckpt")
    model = PretrainingModel(config)
    report = load_checkpoint(model, tmp_path)
    assert (len(report.loaded), report.missing, report.unexpected) == (62, (), ("crf",))
    assert 'start with "tagger/"' in str(report)


def test_two_encoders_in_one_checkpoint_are_not_guessed(golden, config, tmp_path):
    variables = read_variables(golden / "model")
    both = {f"{side}/{name}": value for side in ("query", "passage") for name, value in variables.items()}
    write_variables(both, tmp_path / "bert_model.ckpt")
    with pytest.raises(CheckpointError, match="several encoders, under passage/, query/"):
        load_checkpoint(BertEncoder(config), tmp_path)


def test_nothing_of_an_encoder_is_an_error(config, tmp_path):
    write_variables({"resnet/conv1/kernel": np.zeros(3, np.float32)}, tmp_path / "bert_model.ckpt")
    with pytest.raises(CheckpointError, match=r"nothing of a BERT encoder.*resnet/conv1/kernel"):
        load_checkpoint(BertEncoder(config), tmp_path)


def test_a_shape_that_differs_names_both_and_changes_nothing(golden, config):
    model = BertEncoder(dataclasses.replace(config, vocab_size=999))
    before = [variable.numpy() for variable in model.weights]
    with pytest.raises(
        CheckpointError, match=r"word_embeddings has the shape \[1000, 64\] .* \[999, 64\] in the model"
    ):
        load_checkpoint(model, golden / "model")
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize(
    ("suffix", "size"), [(s, n) for s in (".index", ".data-00000-of-00001") for n in (0, 1000, -1)]
)
def test_a_truncated_file_is_named_and_changes_nothing(config, model_dir, suffix, size):
    damaged = model_dir / f"bert_model.ckpt{suffix}"
    damaged.write_bytes(damaged.read_bytes()[:size])
    model = PretrainingModel(config)
    before = model.encoder.embedding_table.numpy()
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt.*damaged or cut short"):
        load_checkpoint(model, model_dir)
    np.testing.assert_array_equal(model.encoder.embedding_table.numpy(), before)


def test_a_flipped_bit_is_found(config, model_dir):
    damaged = model_dir / "bert_model.ckpt.data-00000-of-00001"
    data = bytearray(damaged.read_bytes())
    data[1000] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(PretrainingModel(config), model_dir)


def test_places_without_a_checkpoint(model_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*empty: no file there ends in \.index"):
        find_checkpoint(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"directory .*nowhere does not exist"):
        find_checkpoint(tmp_path / "nowhere" / "bert_model.ckpt")
    with pytest.raises(
        CheckpointError, match=r"bert\.ckpt\.index is not in .* Checkpoints there: after_training\.ckpt, bert_model"
    ):
        find_checkpoint(model_dir / "bert.ckpt")


def test_a_failed_write_leaves_the_old_checkpoint(config, tmp_path, monkeypatch):
    save_checkpoint(BertEncoder(config, seed=1), tmp_path / "bert_model.ckpt")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(**kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "no space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        save_checkpoint(BertEncoder(config, seed=2), tmp_path / "bert_model.ckpt")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
