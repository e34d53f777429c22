import copy
import json
import logging
import pickle

import pytest

from modeling.config import PRESETS, BertConfig


def write(path, **values):
    path.write_text(json.dumps(values))
    return path


def test_defaults_are_the_originals():
    assert BertConfig(vocab_size=10).to_dict() == {
        "vocab_size": 10,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 16,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
    }


def test_googles_gelu_is_the_tanh_form_and_hugging_faces_the_exact_one(tmp_path):
    google = write(tmp_path / "bert_config.json", vocab_size=10, hidden_act="gelu")
    hugging_face = write(tmp_path / "config.json", vocab_size=10, hidden_act="gelu", model_type="bert")
    tanh = write(tmp_path / "tanh.json", vocab_size=10, hidden_act="gelu_new", architectures=["BertModel"])
    assert BertConfig.from_json_file(google).hidden_act == "gelu"
    assert BertConfig.from_json_file(hugging_face).hidden_act == "gelu_erf"
    assert BertConfig.from_json_file(tanh).hidden_act == "gelu"


def test_hugging_face_defaults_that_its_files_leave_unsaid():
    config = BertConfig.from_dict({"vocab_size": 10, "model_type": "bert"})
    assert (config.type_vocab_size, config.hidden_act) == (2, "gelu_erf")


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf"])
def test_json_round_trip_keeps_everything(activation):
    values = {"vocab_size": 10, "hidden_act": activation, "model_type": "bert", "my_key": [1, {"a": None}]}
    if activation == "gelu":
        values["hidden_act"] = "gelu_new"
    else:
        values["hidden_act"] = "gelu"
    config = BertConfig.from_dict(values)
    again = BertConfig.from_dict(json.loads(config.to_json_string()))
    assert again == config
    assert again.hidden_act == activation
    assert again.extra["my_key"] == [1, {"a": None}]


def test_unknown_keys_are_kept_and_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        config = BertConfig.from_dict({"vocab_size": 10, "hiden_size": 5, "pooler_fc_size": 768})
    assert config.extra["hiden_size"] == 5
    assert "hiden_size" in caplog.text
    assert "pooler_fc_size" not in caplog.text  # Google's own multilingual configs have it


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", "30522"),
        ("vocab_size", True),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 2.0),
        ("hidden_size", 770),
        ("hidden_act", "gulu"),
        ("hidden_act", ["gelu"]),
        ("hidden_dropout_prob", 1.5),
        ("attention_probs_dropout_prob", None),
        ("initializer_range", float("nan")),
        ("layer_norm_eps", 0),
        ("position_embedding_type", "relative_key"),
        ("attention", "sideways"),
        ("model_type", "roberta"),
    ],
)
def test_a_wrong_value_names_the_file_and_the_key(tmp_path, key, value):
    path = write(tmp_path / "bert_config.json", **{"vocab_size": 10, key: value})
    with pytest.raises(ValueError, match=key) as error:
        BertConfig.from_json_file(path)
    assert str(path) in str(error.value)


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.json"):
        BertConfig.from_json_file(tmp_path / "no.json")
    (tmp_path / "cut.json").write_text('{"vocab_size": 1')
    with pytest.raises(ValueError, match=r"cut\.json is not a JSON file"):
        BertConfig.from_json_file(tmp_path / "cut.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"list\.json must hold one JSON object"):
        BertConfig.from_json_file(tmp_path / "list.json")
    with pytest.raises(ValueError, match="vocab_size is missing"):
        BertConfig.from_json_file(write(tmp_path / "empty.json"))


def test_can_be_copied_and_pickled():
    config = BertConfig.from_dict({"vocab_size": 10, "mine": {"a": 1}})
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config


def test_presets():
    assert len([name for name in PRESETS if name.startswith("L-")]) == 24
    assert PRESETS["mini"] == PRESETS["L-4_H-256_A-4"]
    large = BertConfig.preset("large", vocab_size=8000)
    assert (large.num_hidden_layers, large.hidden_size, large.num_attention_heads) == (24, 1024, 16)
    assert (large.intermediate_size, large.vocab_size, large.type_vocab_size) == (4096, 8000, 2)
    with pytest.raises(ValueError, match="no preset 'huge'"):
        BertConfig.preset("huge")


def test_causal_attention_is_told_only_where_it_is_used():
    assert "attention" not in BertConfig(vocab_size=10).to_dict()
    causal = BertConfig(vocab_size=10, attention="causal")
    assert BertConfig.from_dict(causal.to_dict()).attention == "causal"
    assert BertConfig.from_dict({"vocab_size": 10, "model_type": "bert", "is_decoder": True}).attention == "causal"
    assert BertConfig.from_dict({"vocab_size": 10, "model_type": "bert", "is_decoder": False}).attention != "causal"
