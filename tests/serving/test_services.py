"""Services answer as the Python classes do, on whatever text, alone or in company."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from data.graph_packing import SentencePacker
from data.sentence_features import SentenceEncoder
from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.models import ChoiceModel, PretrainingModel, SentenceModel
from serving import saved_model
from serving.blanks import BlankService, BlankSettings
from serving.choices import ChoiceService
from serving.sentences import SentenceService
from serving.service import rounded_lengths
from serving.vectors import VectorService, VectorSettings
from tasks.choice_predictor import ChoicePredictor
from tasks.choices import ChoiceSettings
from tasks.fill_mask import FillMask
from tasks.sentence_classifier import SentenceClassifier
from tasks.sentences import SentenceSettings
from tasks.vectors import TextEncoder
from tests.serving.mixed_lines import mixed_lines, mixed_vocab

LINES = mixed_lines(1000)
VOCAB = {token: number for number, token in enumerate(mixed_vocab())}
LABELS = ("하나", "two", "three")
# Large weights, so that answers differ from line to line.
CONFIG = BertConfig(
    vocab_size=len(VOCAB) + 3,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    initializer_range=0.4,
)


def sentence_parts(kind="single_label", long_text="head", lower=True, has_pairs=False):
    settings = SentenceSettings(kind, () if kind == "regression" else LABELS, lower, 24, long_text, has_pairs=has_pairs)
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=lower)
    model = SentenceModel(CONFIG, settings.num_outputs, seed=3)
    service = SentenceService(model, tokenizer, settings)
    return service, SentenceClassifier(model, SentenceEncoder(tokenizer, 24, long_text), settings)


def answer(service, **texts):
    answers = tf.function(service.answer, autograph=False)(
        **{name: tf.constant(values, tf.string) for name, values in texts.items()}
    )
    return {name: values.numpy() for name, values in answers.items()}


@pytest.mark.parametrize(
    ("long_text", "lower"), [("head", True), ("tail", False), ("head_tail", True), ("windows", False)]
)
def test_labels_as_the_class_does(long_text, lower):
    service, classifier = sentence_parts(long_text=long_text, lower=lower)
    told = answer(service, text=LINES)
    expected = classifier.predict(LINES)
    wanted = np.array([[prediction.probabilities[label] for label in LABELS] for prediction in expected])
    np.testing.assert_allclose(told["probabilities"], wanted, atol=1e-5)
    assert [label.decode() for label in told["label"]] == [prediction.label for prediction in expected]
    assert len({prediction.label for prediction in expected}) == 3
    assert (told["labels"] == [label.encode() for label in LABELS]).all()
    np.testing.assert_array_equal(told["probability"], told["probabilities"].max(axis=1))


@pytest.mark.parametrize("long_text", ["head", "windows"])
def test_pairs(long_text):
    service, classifier = sentence_parts(long_text=long_text, has_pairs=True)
    others = LINES[500:] + LINES[:500]
    told = answer(service, text=LINES, text_pair=others)
    expected = classifier.predict(list(zip(LINES, others, strict=True)))
    wanted = np.array([[prediction.probabilities[label] for label in LABELS] for prediction in expected])
    np.testing.assert_allclose(told["probabilities"], wanted, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many rows"):
        answer(service, text=LINES[:2], text_pair=LINES[:3])


def test_numbers_and_several_labels():
    service, classifier = sentence_parts("regression", "windows")
    wanted = [prediction.label for prediction in classifier.predict(LINES[:200])]
    np.testing.assert_allclose(answer(service, text=LINES[:200])["value"], wanted, atol=1e-5)
    service, classifier = sentence_parts("multi_label")
    told = answer(service, text=LINES[:200])
    for row, prediction in enumerate(classifier.predict(LINES[:200])):
        assert [label for label, is_it in zip(LABELS, told["is_label"][row], strict=True) if is_it] == prediction.label
        np.testing.assert_allclose(told["probabilities"][row], list(prediction.probabilities.values()), atol=1e-5)


def test_chooses_as_the_class_does():
    settings = ChoiceSettings(num_choices=3, do_lower_case=True, max_seq_length=24)
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=True)
    model = ChoiceModel(CONFIG, seed=3)
    lines = [line for line in LINES if line.strip()][:300]
    endings = [[lines[row], lines[-row - 1], lines[row // 2]] for row in range(len(lines))]
    service = ChoiceService(model, tokenizer, settings)
    told = answer(service, context=lines, endings=endings)
    expected = ChoicePredictor(model, SentenceEncoder(tokenizer, 24), settings).predict(
        list(zip(lines, endings, strict=True))
    )
    wanted = np.array([chosen.probabilities for chosen in expected])
    np.testing.assert_allclose(told["probabilities"], wanted, atol=1e-5)
    # Endings that were cut to the same pieces are as likely as each other, and rounding decides.
    is_clear = np.diff(np.sort(wanted), axis=1)[:, -1] > 1e-4
    assert is_clear.mean() > 0.9
    labels = np.array([chosen.index for chosen in expected])
    np.testing.assert_array_equal(told["label"][is_clear], labels[is_clear])
    pieces = [
        [service._graph_tokenizer.tokenize(tf.constant(row)) for row in ([line] * 3, ends)]
        for line, ends in zip(lines[:9], endings[:9], strict=True)
    ]
    rows = [SentencePacker(VOCAB, 24)(*pair).batch for pair in pieces]  # [C, T] each
    batch = {name: tf.stack([row[name] for row in rows]) for name in rows[0]}  # [B, C, T]
    filled = {name: tf.where(batch["input_mask"] > 0, ids, ids[..., :1]) for name, ids in batch.items()}
    of_tokens = tf.function(service.answer_tokens, autograph=False)(**filled)
    np.testing.assert_allclose(of_tokens["probabilities"], told["probabilities"][:9], atol=1e-5)
    none = tf.function(service.answer_examples, autograph=False)(tf.constant([], tf.string))
    assert none["probabilities"].shape == (0, 3)


def blank_parts():
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=True, never_split=("[MASK]",))
    model = PretrainingModel(CONFIG, seed=3)
    return BlankService(model, tokenizer, BlankSettings(True, 64, top_k=4)), FillMask(model, tokenizer)


def test_fills_in_as_the_class_does():
    service, fill_mask = blank_parts()
    short = [line for line in LINES if len(line) < 25][:150]
    lines = [f"{line} [MASK]" for line in short] + [f"[MASK]{line}[MASK] and [MASK]" for line in short]
    told = answer(service, text=[*lines, "no blank here"])
    expected = fill_mask(lines, top_k=4)
    assert told["tokens"].shape == (len(lines) + 1, max(map(len, expected)), 4)
    assert told["count"].tolist() == [*map(len, expected), 0]
    for row, masks in enumerate([*expected, []]):
        for place, candidates in enumerate(masks):
            assert [token.decode() for token in told["tokens"][row, place]] == [c.token for c in candidates]
            np.testing.assert_allclose(
                told["probabilities"][row, place], [c.probability for c in candidates], atol=1e-5
            )
        assert not told["probabilities"][row, len(masks) :].any() and not any(told["tokens"][row, len(masks) :].flat)


@pytest.mark.parametrize(
    ("pooling", "normalize"), [("cls", False), ("mean", True), ("max", False), ("concat_last_4", True)]
)
def test_vectors_are_those_of_the_class(pooling, normalize):
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=False)
    config = CONFIG if pooling != "concat_last_4" else BertConfig(**CONFIG.to_dict() | {"num_hidden_layers": 4})
    model = BertEncoder(config, seed=3)
    told = answer(VectorService(model, tokenizer, VectorSettings(False, 32, pooling, normalize)), text=LINES[:300])
    wanted = TextEncoder(model, tokenizer, 32).encode(LINES[:300], pooling, normalize=normalize)
    np.testing.assert_allclose(told["vector"], wanted, atol=1e-5)


@pytest.mark.parametrize("long_text", ["head", "windows"])
def test_rows_do_not_know_each_other(long_text):
    """Bad rows, long rows, many rows: each is answered as if it were alone."""
    service, _ = sentence_parts(long_text=long_text)
    ask = tf.function(service.answer, autograph=False)
    bad = [b"\xff\xfe\x80 broken \xc3", b"", b"\x00", ("word " * 200_000).encode(), "가".encode()[:2]]
    good = [line.encode() for line in LINES[:40]]
    alone = np.concatenate([ask(text=tf.constant([line]))["probabilities"] for line in good])
    together = ask(text=tf.constant(good[:20] + bad + good[20:]))["probabilities"].numpy()
    np.testing.assert_allclose(np.delete(together, range(20, 25), axis=0), alone, atol=1e-6)
    assert np.isfinite(together).all()
    none = ask(text=tf.constant([], tf.string))
    assert none["probabilities"].shape == (0, 3) and none["label"].shape == (0,)


def test_512_rows_of_1_to_512_pieces():
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=True)
    config = BertConfig(**CONFIG.to_dict() | {"max_position_embeddings": 512})
    settings = SentenceSettings("single_label", LABELS, True, 512)
    ask = tf.function(SentenceService(SentenceModel(config, 3, seed=3), tokenizer, settings).answer, autograph=False)
    texts = ["".join("abcdefgh"[i % 8] + "." for i in range(count // 2)) + "x" * (count % 2) for count in range(1, 513)]
    together = ask(text=tf.constant(texts))["probabilities"].numpy()
    for row in (0, 1, 17, 255, 508, 509, 511):
        alone = ask(text=tf.constant(texts[row : row + 1]))["probabilities"].numpy()
        np.testing.assert_allclose(together[row : row + 1], alone, atol=1e-5)
    assert len({row.tobytes() for row in together}) > 400


def test_a_server_meets_few_shapes(monkeypatch):
    """oneDNN keeps what it has prepared for each: were there as many as there are texts, memory would not be flat."""
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=True)
    config = BertConfig(**CONFIG.to_dict() | {"max_position_embeddings": 500})
    service = SentenceService(
        SentenceModel(config, 3, seed=3), tokenizer, SentenceSettings("single_label", LABELS, True, 500)
    )
    shapes = set()

    def run(batch):
        shapes.add(tuple(batch["input_ids"].shape))
        rows = tf.zeros([len(batch["input_ids"]), 3])
        return {"logits": rows, "probabilities": rows}

    monkeypatch.setattr(service, "run", run)  # not within a graph, so it is called for each part
    rng = np.random.default_rng(1)
    for _ in range(100):
        texts = ["a " * length for length in (2 ** rng.uniform(0, 9.5, rng.integers(1, 33))).astype(int)]
        assert service.answer(text=tf.constant(texts))["probabilities"].shape == (len(texts), 3)
    lengths = rounded_lengths(500)
    assert {length for _, length in shapes} <= set(lengths)
    assert all(rows * length <= 1024 and (rows <= 8 or rows % 8 == 0) for rows, length in shapes)
    assert lengths[-1] == 500 and len(lengths) < 45
    assert all(after - before <= max(4, before // 8) for before, after in zip([0, *lengths], lengths, strict=False))


def test_tokens_and_examples():
    service, _ = sentence_parts()
    packed = service._pack(service._graph_tokenizer.tokenize(tf.constant(LINES[:50]))).batch
    told = tf.function(service.answer_tokens, autograph=False)(**packed)
    np.testing.assert_allclose(told["probabilities"], answer(service, text=LINES[:50])["probabilities"], atol=1e-6)
    # Where TF Serving joins requests of different lengths, it fills them up with the first value of each.
    filled = {name: tf.where(packed["input_mask"] > 0, ids, ids[:, :1]) for name, ids in packed.items()}
    np.testing.assert_allclose(
        tf.function(service.answer_tokens, autograph=False)(**filled)["logits"], told["logits"], atol=1e-5
    )
    # A row that is too long and ids that there are not are no error, since others may have been joined to them.
    bad = {name: tf.pad(ids[:2], [[0, 0], [0, 80]], constant_values=7) for name, ids in packed.items()}
    bad["input_ids"] = tf.where(bad["input_ids"] == 7, 10**6, bad["input_ids"])
    wide = {name: tf.concat([tf.pad(packed[name], [[0, 0], [0, 80]]), bad[name]], axis=0) for name in packed}
    of_wide = tf.function(service.answer_tokens, autograph=False)(**wide)["logits"].numpy()
    np.testing.assert_allclose(of_wide[:50], told["logits"], atol=1e-5)
    assert np.isfinite(of_wide).all()
    # As long as it takes: padding behind changes nothing, and neither does its absence.
    records = []
    for row in range(50):
        count = int(packed["input_mask"][row].numpy().sum()) + row % 3
        features = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=ids[row].numpy()[:count]))
            for name, ids in packed.items()
        }
        records.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    ask = tf.function(service.answer_examples, autograph=False)
    np.testing.assert_allclose(ask(tf.constant(records))["logits"], told["logits"], atol=1e-5)
    assert ask(tf.constant([], tf.string))["logits"].shape == (0, 3)


ALONE = """
    import json, sys
    import numpy as np
    import tensorflow as tf
    import tensorflow_text

    lines = json.load(sys.stdin)
    model = tf.saved_model.load(sys.argv[1])
    told = model.signatures["serving_default"](text=tf.constant(lines))
    tokens = model.signatures["tokens"](**{name: tf.ones([2, 7], tf.int32) for name in
                                           ("input_ids", "input_mask", "segment_ids")})
    print(json.dumps([told["probabilities"].numpy().tolist(), [l.decode() for l in told["label"].numpy()],
                      tokens["logits"].numpy().tolist()]))
"""


def test_answers_alike_where_only_tensorflow_is(tmp_path):
    service, classifier = sentence_parts(long_text="windows")
    directory = saved_model.save(service, tmp_path / "1")
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ALONE), str(directory)],
        input=json.dumps(LINES),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    probabilities, labels, logits = json.loads(result.stdout.splitlines()[-1])
    expected = classifier.predict(LINES)
    assert labels == [prediction.label for prediction in expected]
    wanted = [[prediction.probabilities[label] for label in LABELS] for prediction in expected]
    np.testing.assert_allclose(probabilities, wanted, atol=1e-5)
    ones = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tf.ones([2, 7], tf.int32))
    np.testing.assert_allclose(logits, service.run(ones)["logits"], atol=1e-5)
    assert sorted(path.name for path in (directory / "assets").iterdir()) == [
        "bert_config.json",
        "bert_task.json",
        "labels.txt",
        "vocab.txt",
    ]
    assert (directory / "assets" / "vocab.txt").read_text(encoding="utf-8").splitlines() == list(VOCAB)
    subprocess.run(["sha256sum", "--check", "--quiet", saved_model.MANIFEST], cwd=directory, check=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(tmp_path, dtype):
    tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=True)
    settings = SentenceSettings("single_label", LABELS, True, 24)
    models = [SentenceModel(CONFIG, 3, seed=3, dtype=kind) for kind in ("float32", dtype)]
    for weight, exact in zip(models[1].variables, models[0].variables, strict=True):
        weight.assign(exact)
    sizes = []
    told = []
    for number, model in enumerate(models):
        directory = saved_model.save(SentenceService(model, tokenizer, settings), tmp_path / str(number))
        sizes.append((directory / "variables" / "variables.data-00000-of-00001").stat().st_size)
        loaded = tf.saved_model.load(directory)
        told.append(loaded.signatures["serving_default"](text=tf.constant(LINES[:100]))["probabilities"].numpy())
    assert told[1].dtype == np.float32
    assert sizes[1] < 0.6 * sizes[0]
    assert np.abs(told[1] - told[0]).max() < (0.1 if dtype == "bfloat16" else 0.02)


def test_refuses_what_tf_serving_does_not_know(tmp_path):
    with pytest.raises(ValueError, match="PyFunc, WhitespaceTokenizeWithOffsetsV2"):
        saved_model.check_ops(["MatMul", "PyFunc", "WhitespaceTokenizeWithOffsetsV2", "FastBertNormalize"])
    (tmp_path / "1").mkdir()
    with pytest.raises(ValueError, match="there already"):
        saved_model.save(sentence_parts()[0], tmp_path / "1")
