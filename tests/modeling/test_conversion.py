import dataclasses
import json
import re
from pathlib import Path

import keras_nlp
import numpy as np
import pytest
import tensorflow as tf

from modeling import conversion, hugging_face, keras_hub
from modeling.checkpoint import Checkpoint, load_checkpoint, read_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.errors import CheckpointError
from modeling.models import PretrainingModel, SpanModel


@pytest.fixture(scope="module")
def source(golden):
    return read_checkpoint(str(golden / "model"))


def test_round_trip_through_all_formats_is_bit_identical(source, tmp_path):
    """Google -> Hugging Face -> KerasHub -> Google."""
    vocab = [f"piece{i}" for i in range(source.config.vocab_size)]
    vocab[:5] = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
    current = source
    for target_format in ("hugging_face", "keras_hub", "google"):
        conversion.write(current, str(tmp_path / target_format), target_format, vocab, do_lower_case=False)
        current = read_checkpoint(str(tmp_path / target_format))
        assert current.format == target_format
        assert current.config == source.config
        assert all(path.stat().st_mode & 0o044 for path in (tmp_path / target_format).iterdir())
        with open(current.vocab_file, encoding="utf-8") as file:
            assert file.read().split("\n")[: len(vocab)] == vocab
        assert current.do_lower_case is (None if target_format == "google" else False)
    assert current.variables.keys() == source.variables.keys()
    for name, value in source.variables.items():
        assert value.tobytes() == current.variables[name].tobytes(), name


def test_a_write_that_fails_leaves_the_texts_that_were_there(source, tmp_path, monkeypatch):
    conversion.write(source, tmp_path, "google", ["[PAD]", "old"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith("bert_model")}

    def fill_up(path, text, encoding):
        path.write_bytes(text.encode(encoding)[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill_up)
    with pytest.raises(OSError, match="No space left"):
        conversion.write(source, tmp_path, "google", ["[PAD]", "new"])
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith("bert_model")}
    assert after == before


def test_verification_finds_a_changed_weight(source, tmp_path):
    conversion.write(source, str(tmp_path), "hugging_face")
    assert conversion.largest_difference(source, str(tmp_path)) == 0.0
    name = "bert/encoder/layer_2/output/dense/bias"
    changed = dict(source.variables) | {name: source.variables[name] + np.arange(64) / 640}
    conversion.write(dataclasses.replace(source, variables=changed), str(tmp_path), "hugging_face")
    assert conversion.largest_difference(source, str(tmp_path)) > 1e-3


def test_keras_hub_loads_our_presets_by_itself(source, tmp_path, golden_batch):
    conversion.write(source, str(tmp_path), "keras_hub")
    assert conversion.largest_difference(source, str(tmp_path)) < 2e-5
    backbone = keras_nlp.models.BertBackbone.from_preset(str(tmp_path))
    head = keras_nlp.models.BertMaskedLM.from_preset(str(tmp_path), preprocessor=None)
    for model in (backbone, head):
        for name, value in keras_hub.get_weights(model).items():
            np.testing.assert_array_equal(value, source.variables[name])


def test_reads_presets_that_keras_hub_wrote(tmp_path):
    backbone = keras_nlp.models.BertBackbone(
        vocabulary_size=40, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=12
    )
    backbone.save_to_preset(str(tmp_path))
    encoder = BertEncoder(read_checkpoint(tmp_path).config)
    report = load_checkpoint(encoder, tmp_path)
    assert (report.missing, report.unexpected) == ((), ())
    ids = np.array([[1, 2, 3, 4]], np.int32)
    theirs = backbone({"token_ids": ids, "segment_ids": ids * 0, "padding_mask": ids * 0 + 1})
    np.testing.assert_allclose(
        encoder({"input_ids": tf.constant(ids)})["pooled_output"], theirs["pooled_output"], atol=1e-5
    )


def test_keras_hub_cannot_take_the_exact_gelu(source, tmp_path):
    exact = dataclasses.replace(source, config=dataclasses.replace(source.config, hidden_act="gelu_erf"))
    with pytest.raises(CheckpointError, match="only the tanh form of gelu"):
        conversion.write(exact, str(tmp_path), "keras_hub")


def test_growing_keeps_old_words_and_adds_small_ones(source):
    grown = conversion.grow(source, 1010, np.random.default_rng(0))
    table = grown.variables["bert/embeddings/word_embeddings"]
    assert grown.config.vocab_size == len(table) == len(grown.variables["cls/predictions/output_bias"]) == 1010
    np.testing.assert_array_equal(table[:1000], source.variables["bert/embeddings/word_embeddings"])
    assert 0.005 < table[1000:].std() < 0.04
    report = load_checkpoint(PretrainingModel(grown.config), grown)
    assert report.missing == ()
    assert conversion.grow(source, 1000, np.random.default_rng(0)) is source


def test_positions_are_cut_off_and_repeated(source):
    name = "bert/embeddings/position_embeddings"
    table = source.variables[name]
    shorter = conversion.with_positions(source, 10)
    np.testing.assert_array_equal(shorter.variables[name], table[:10])
    longer = conversion.with_positions(shorter, 25)
    assert longer.config.max_position_embeddings == 25
    for position in range(25):
        np.testing.assert_array_equal(longer.variables[name][position], table[position % 10])


def test_what_no_bert_has_is_found(source):
    strange = dataclasses.replace(source, variables=dict(source.variables) | {"crf/transitions": np.zeros((2, 2))})
    assert conversion.unknown_variables(source) == []
    assert conversion.unknown_variables(strange) == ["crf/transitions"]
    assert "Not part of any BERT: crf/transitions" in conversion.describe(strange)


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_an_architecture_takes_what_it_has_a_place_for(source, tmp_path, architecture):
    conversion.write(source, str(tmp_path), "hugging_face", architecture=architecture)
    names = read_checkpoint(tmp_path).variables.keys()
    assert ("cls/predictions/output_bias" in names) == (architecture != "BertModel")
    assert ("cls/seq_relationship/output_bias" in names) == (architecture == "BertForPreTraining")
    assert ("bert/pooler/dense/bias" in names) == (architecture != "BertForMaskedLM")
    assert conversion.largest_difference(source, str(tmp_path)) == 0.0


def test_an_architecture_whose_head_is_missing(source, tmp_path):
    with pytest.raises(CheckpointError, match="BertForQuestionAnswering needs variables cls/squad/"):
        conversion.write(source, str(tmp_path), "hugging_face", architecture="BertForQuestionAnswering")


def test_spans_are_compared_though_their_class_has_no_pooler(tmp_path):
    config = BertConfig.preset("tiny", vocab_size=20)
    variables = {variable.path: variable.numpy() for variable in SpanModel(config).weights}
    checkpoint = Checkpoint("spans", "google", variables, config)
    conversion.write(checkpoint, str(tmp_path), "hugging_face")
    assert conversion.largest_difference(checkpoint, str(tmp_path)) == 0.0


def test_description(source):
    text = conversion.describe(source)
    assert re.search(r"^bert/pooler/dense/kernel +\[64, 64\]$", text, re.MULTILINE)
    parameters = sum(variable.numpy().size for variable in PretrainingModel(source.config).weights)
    assert f"62 variables, {parameters:,} parameters" in text
    assert "3 layers of 64, 4 heads, gelu, 48 positions, 1000 pieces" in text
    assert "fill in masked words; tell whether one sentence follows another." in text


def test_hub_names_use_the_cache_and_say_when_it_is_empty(source, tmp_path, monkeypatch):
    """`hf://` without a network: found in the cache, or a message with the way out."""
    import huggingface_hub

    conversion.write(source, str(tmp_path / "model"), "hugging_face")
    seen = []

    def cached(repository, allow_patterns):
        seen.append((repository, allow_patterns))
        if repository == "owner/name":
            return str(tmp_path / "model")
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    checkpoint = read_checkpoint("hf://owner/name")
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.source == "hf://owner/name"
    assert "*.safetensors" in seen[0][1]
    assert not any("bin" in pattern for pattern in seen[0][1])  # pickle is not even fetched
    with pytest.raises(CheckpointError, match="hf://a/b is not in the local cache"):
        read_checkpoint("hf://a/b")


def test_kaggle_names_are_presets(source, tmp_path, monkeypatch):
    import kagglehub

    conversion.write(source, str(tmp_path), "keras_hub")

    def cached(handle):
        if handle == "keras/bert/keras/tiny":
            return str(tmp_path)
        raise OSError("no network")

    monkeypatch.setattr(kagglehub, "model_download", cached)
    assert read_checkpoint("kaggle://keras/bert/keras/tiny").config == source.config
    with pytest.raises(CheckpointError, match="kaggle://a/b cannot be fetched: no network"):
        read_checkpoint("kaggle://a/b")


def test_architectures_by_heads(source):
    names = set(source.variables)
    encoder = {name for name in names if name.startswith("bert/")}
    assert hugging_face.architecture_of(names) == "BertForPreTraining"
    assert hugging_face.architecture_of(names - {"cls/seq_relationship/output_weights"}) == "BertForMaskedLM"
    assert hugging_face.architecture_of(encoder) == "BertModel"
    assert hugging_face.architecture_of(encoder | {"output_weights"}) == "BertForSequenceClassification"
    assert hugging_face.architecture_of(encoder | {"cls/squad/output_weights"}) == "BertForQuestionAnswering"


def test_labels_come_along(tmp_path):
    config = BertConfig.from_dict(
        {"vocab_size": 9, "hidden_size": 12, "id2label": {"0": "no", "1": "yes"}, "model_type": "bert"}
    )
    config = dataclasses.replace(config, num_hidden_layers=1)
    variables = {"output_weights": np.zeros((2, 12), np.float32), "output_bias": np.zeros(2, np.float32)}
    variables |= {"bert/pooler/dense/bias": np.zeros(12, np.float32)}
    hugging_face.write(variables, config, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["label2id"] == {"no": 0, "yes": 1}
    assert written["architectures"] == ["BertForSequenceClassification"]
    assert written["hidden_act"] == "gelu"
