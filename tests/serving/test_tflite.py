import ctypes
import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from data.sentence_features import SentenceEncoder, padded
from data.tokenization import FullTokenizer
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from modeling.models import SentenceModel, SpanModel, TokenModel
from serving import mediapipe
from serving.tflite import LiteModel, convert
from serving.tflite_report import measure, on_one_core, to_markdown, write_reports
from serving.tflite_text import LiteTextModel, convert_text
from tasks.sentence_classifier import SentenceClassifier
from tasks.sentences import SentenceSettings
from tasks.vectors import TextEncoder

LENGTH = 16
WORDS = ("the", "The", "lamp", "was", "lit", "dark", "night", "cafe", "a", "film", "good", "bad", "un", "##lit", "##s")
MARKS = (",", ".", "!", "?", "[", "]")
VOCAB = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *MARKS])}
LABELS = ("bad", "good", "그저")
TEXTS = ["The lamp was lit!", "a good film, a bad film. " * 6, "unlit lamps", "", "zebra"]
# Larger than its words, so that embeddings are most of the model, as they are in small BERTs.
CONFIG = BertConfig(
    vocab_size=2000,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=24,
    type_vocab_size=2,
    initializer_range=0.2,
)


def random_features(count: int, seed: int, length: int = LENGTH) -> dict[str, np.ndarray]:
    """Pairs of random pieces, of all lengths from 3 to `length`."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[3, length], rng.integers(3, length + 1, count - 2)])[:, None]
    is_token = np.arange(length) < lengths
    return {
        "input_ids": (rng.integers(5, CONFIG.vocab_size, [count, length]) * is_token).astype(np.int32),
        "input_mask": is_token.astype(np.int32),
        "segment_ids": (is_token & (np.arange(length) >= lengths // 2)).astype(np.int32),
    }


def runner(model):
    def run(batch):
        told = model(batch, training=False)
        return told if isinstance(told, dict) else {"logits": told}

    return run


def ask(run, features) -> dict[str, np.ndarray]:
    return {name: told.numpy() for name, told in run({n: tf.constant(a) for n, a in features.items()}).items()}


@pytest.fixture(scope="module")
def run():
    return runner(SentenceModel(CONFIG, 3, seed=1))


@pytest.fixture(scope="module")
def contents(run) -> dict[str, bytes]:
    """A sentence model in every mode."""
    representative = [random_features(8, seed) for seed in (1, 2)]
    return {
        mode: convert(run, CONFIG, LENGTH, mode, representative=representative if mode == "int8" else None)
        for mode in ("float32", "float16", "dynamic_int8", "int8")
    }


class TestModes:
    @pytest.mark.parametrize(("mode", "tolerance"), [("float32", 1e-5), ("dynamic_int8", 0.1)])
    def test_exact_gelu(self, mode, tolerance):
        """As in checkpoints of Hugging Face: TFLite has no error function, only the gelu that is made of it."""
        config = dataclasses.replace(CONFIG, hidden_act="gelu_erf")
        run, features = runner(SentenceModel(config, 3, seed=1)), random_features(8, 3)
        told = LiteModel(convert(run, config, LENGTH, mode))(features)
        np.testing.assert_allclose(told["logits"], ask(run, features)["logits"], rtol=0, atol=tolerance)

    @pytest.mark.parametrize(
        ("mode", "tolerance", "size"),
        [("float32", 1e-6, 1.0), ("float16", 5e-3, 0.6), ("dynamic_int8", 0.1, 0.4), ("int8", 0.25, 0.4)],
    )
    def test_same_answers_as_keras_in_less_room(self, run, contents, mode, tolerance, size):
        features = random_features(12, 3)
        expected, told = ask(run, features)["logits"], LiteModel(contents[mode])(features)["logits"]
        assert np.ptp(expected) > 1  # or small differences would mean nothing
        np.testing.assert_allclose(told, expected, rtol=0, atol=tolerance)
        assert np.abs(told - expected).mean() < 0.05
        assert len(contents[mode]) <= size * len(contents["float32"])

    def test_takes_int32_by_our_names_and_gives_float32(self, contents):
        for content in contents.values():
            interpreter = Interpreter(model_content=content)
            inputs = {details["name"]: details["dtype"] for details in interpreter.get_input_details()}
            names = ("input_ids", "input_mask", "segment_ids")
            assert inputs == {f"serving_default_{name}:0": np.int32 for name in names}
            assert [details["dtype"] for details in interpreter.get_output_details()] == [np.float32]

    def test_shorter_batches_are_padded_and_longer_ones_refused(self, run, contents):
        features = random_features(4, 4, length=9)
        told = LiteModel(contents["float32"])(features)["logits"]
        np.testing.assert_allclose(told, ask(run, features)["logits"], atol=1e-6)
        with pytest.raises(ValueError, match="17 tokens, but the model takes 16"):
            LiteModel(contents["float32"])(random_features(2, 4, length=17))


class TestResizableLength:
    def test_values_of_tokens_at_every_length(self):
        model = TokenModel(CONFIG, 5, seed=2)
        lite = LiteModel(convert(runner(model), CONFIG, CONFIG.max_position_embeddings, resizable=True))
        features = random_features(6, 5, CONFIG.max_position_embeddings)
        told, expected = lite(features)["logits"], ask(runner(model), features)["logits"]
        is_token = features["input_mask"] > 0
        assert told.shape == expected.shape
        np.testing.assert_allclose(told[is_token], expected[is_token], atol=2e-6)
        assert not told[~is_token].any()
        for length in (1, 7, 24):
            row = {name: np.ones([1, length], np.int32) for name in features}
            np.testing.assert_allclose(lite.invoke(row)["logits"], ask(runner(model), row)["logits"], atol=2e-6)

    def test_two_outputs_in_int8(self):
        run = runner(SpanModel(CONFIG, seed=3))
        features = random_features(6, 6)
        lite = LiteModel(convert(run, CONFIG, LENGTH, "dynamic_int8", resizable=True))
        told, expected = lite(features), ask(run, features)
        assert told.keys() == {"start_logits", "end_logits"}
        is_token = features["input_mask"] > 0
        for name in told:
            np.testing.assert_allclose(told[name][is_token], expected[name][is_token], rtol=0, atol=0.1)


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"mode": "int4"}, "'int4' is not known: float32, float16"),
            ({"max_seq_length": 25}, "max_seq_length=25 should be from 1 to 24"),
            ({"max_seq_length": 0}, "max_seq_length=0 should be from 1 to 24"),
            ({"mode": "int8"}, "needs representative sequences: batches"),
            ({"mode": "int8", "representative": []}, "there are none"),
            (
                {"mode": "int8", "representative": [random_features(2, 1, 20)]},
                "20 are longer than max_seq_length=16",
            ),
            ({"mode": "int8", "representative": [{"input_ids": np.ones([1, 4])}]}, "no input_mask and no segment_ids"),
            ({"mode": "int8", "resizable": True}, "use dynamic_int8"),
            ({"mode": "float16", "representative": []}, "leave out representative"),
        ],
    )
    def test_are_told(self, run, arguments, message):
        with pytest.raises(ValueError, match=message):
            convert(run, CONFIG, **{"max_seq_length": LENGTH} | arguments)

    def test_loops_in_int8(self):
        model = SentenceModel(CONFIG, 3, bilstm=True, seed=1)
        with pytest.raises(ValueError, match="use dynamic_int8"):
            convert(runner(model), CONFIG, LENGTH, "int8", representative=[random_features(2, 1)])

    def test_weights_that_are_no_numbers(self):
        model = SentenceModel(CONFIG, 3, seed=1)
        model.classifier.output_bias.assign([0.0, np.nan, 0.0])
        with pytest.raises(ValueError, match="NaN or infinity for logits"):
            convert(runner(model), CONFIG, LENGTH)

    def test_text_with_what_tflite_does_not_have(self, run):
        tokenizer = FullTokenizer(vocab=VOCAB)
        with pytest.raises(ValueError, match="Use dynamic_int8"):
            convert_text(run, CONFIG, tokenizer, LENGTH, "int8")
        with pytest.raises(ValueError, match="Convert a model of ids"):
            convert_text(run, CONFIG, FullTokenizer(vocab=VOCAB, strip_accents=False), LENGTH)
        with pytest.raises(ValueError, match="should be at least 5"):
            convert_text(run, CONFIG, tokenizer, 4, has_pairs=True)

    def test_of_mediapipe(self, contents):
        tokenizer = FullTokenizer(vocab=VOCAB)
        with pytest.raises(ValueError, match="2 labels, but the model has 3"):
            mediapipe.classifier(contents["float32"], tokenizer, LABELS[:2])
        with pytest.raises(ValueError, match="line by line"):
            mediapipe.classifier(contents["float32"], tokenizer, ["a\nb", "c", "d"])
        with pytest.raises(ValueError, match="needs labels"):
            mediapipe.classifier(contents["float32"], tokenizer, [])


class TestText:
    def test_pairs_and_texts_are_cut_as_in_training(self, run):
        tokenizer = FullTokenizer(vocab=VOCAB)
        lite = LiteTextModel(convert_text(run, CONFIG, tokenizer, LENGTH, has_pairs=True))
        encoder = SentenceEncoder(tokenizer, LENGTH)
        pairs = [("Café lit.", "the dark night"), ("lamp", TEXTS[1]), (TEXTS[1], "lamp"), (TEXTS[1], TEXTS[1] + "!")]
        for pair in [*pairs, *((text, "") for text in TEXTS)]:
            expected = ask(run, padded(encoder(*pair)[0], LENGTH))["logits"]
            np.testing.assert_allclose(lite(*pair)["logits"], expected, atol=1e-6, err_msg=str(pair))


class TestReport:
    def test_figures_and_files(self, run, contents, tmp_path):
        features = random_features(10, 7)
        labels = ask(run, features)["logits"].argmax(-1)
        labels[0] = (labels[0] + 1) % 3  # so Keras has nine of ten

        def score(told):
            return {"accuracy": float(np.mean(told["logits"].argmax(-1) == labels))}

        reports = [measure(contents[mode], run, features, mode, score) for mode in ("float32", "dynamic_int8")]
        told = LiteModel(contents["dynamic_int8"])(features)["logits"]
        difference = np.abs(told - ask(run, features)["logits"]).max()
        assert reports[1].largest_difference["logits"] == pytest.approx(difference, abs=1e-5)
        assert reports[0].largest_difference["logits"] < 1e-6 < reports[1].largest_difference["logits"]
        assert reports[0].keras_scores == reports[0].scores == {"accuracy": 0.9}
        assert reports[1].scores == score({"logits": told})
        assert reports[1].size_bytes < reports[0].size_bytes == len(contents["float32"])
        assert all(report.milliseconds > 0 < report.keras_milliseconds for report in reports)
        write_reports(reports, tmp_path / "new")
        written = json.loads((tmp_path / "new" / "report.json").read_text())
        assert written == [dataclasses.asdict(report) for report in reports]
        lines = (tmp_path / "new" / "report.md").read_text().splitlines()
        assert len(lines) == 4 and lines[2].startswith("| float32 | 16 | ") and "0.9000 (0.9000)" in lines[2]
        assert "\n".join(lines) + "\n" == to_markdown(reports)

    def test_nothing_to_measure(self, run, contents):
        with pytest.raises(ValueError, match="nothing to measure"):
            measure(contents["float32"], run, {"input_ids": np.zeros([0, LENGTH], np.int32)}, "float32")

    def test_threads_get_their_cores_back(self):
        before = os.sched_getaffinity(0)
        with on_one_core():
            assert len(os.sched_getaffinity(0)) == 1
        assert os.sched_getaffinity(0) == before


class TestMediaPipe:
    def test_files_and_answers_stay(self, contents):
        content = mediapipe.classifier(contents["dynamic_int8"], FullTokenizer(vocab=VOCAB), LABELS)
        files = mediapipe.read_files(content)
        assert files["vocab.txt"].decode().splitlines() == list(VOCAB)
        assert files["labels.txt"].decode().splitlines() == list(LABELS)
        features = random_features(3, 8)
        before, after = LiteModel(contents["dynamic_int8"])(features), LiteModel(content)(features)
        np.testing.assert_array_equal(before["logits"], after["logits"])

    def test_its_classifier_says_what_ours_says(self, tmp_path, text_tasks):
        tokenizer = FullTokenizer(vocab=VOCAB)
        model = SentenceModel(CONFIG, 3, seed=1)
        settings = SentenceSettings("single_label", LABELS, do_lower_case=True, max_seq_length=LENGTH)
        ours = SentenceClassifier(model, SentenceEncoder(tokenizer, LENGTH), settings)
        content = convert(lambda batch: {"probabilities": tf.nn.softmax(model(batch))}, CONFIG, LENGTH)
        (tmp_path / "c.tflite").write_bytes(mediapipe.classifier(content, tokenizer, LABELS))
        with text_tasks.TextClassifier.create_from_model_path(str(tmp_path / "c.tflite")) as theirs:
            for text, expected in zip(TEXTS, ours.predict(TEXTS), strict=True):
                categories = theirs.classify(text).classifications[0].categories
                told = {category.category_name: category.score for category in categories}
                assert told == pytest.approx(expected.probabilities, abs=1e-5), text

    def test_its_embedder_gives_our_vectors_but_knows_no_case(self, tmp_path, text_tasks):
        tokenizer = FullTokenizer(vocab=VOCAB, do_lower_case=False)
        model = BertEncoder(CONFIG, seed=1)
        ours = TextEncoder(model, tokenizer, LENGTH)

        def run(batch):
            weights = tf.cast(batch["input_mask"], tf.float32)[..., tf.newaxis]  # [B, T, 1]
            total = tf.reduce_sum(model(batch)["sequence_output"] * weights, axis=1)
            return {"vector": total / tf.reduce_sum(weights, axis=1)}

        content = convert(run, CONFIG, LENGTH)
        (tmp_path / "e.tflite").write_bytes(mediapipe.embedder(content, tokenizer))
        with text_tasks.TextEmbedder.create_from_model_path(str(tmp_path / "e.tflite")) as theirs:

            def vector(text):
                return np.array(theirs.embed(text).embeddings[0].embedding)

            lower = [text.lower() for text in TEXTS]
            np.testing.assert_allclose([vector(text) for text in lower], ours.encode(lower), atol=1e-5)
            cased, uncased = ours.encode(["The lamp", "the lamp"])
            assert np.abs(cased - uncased).max() > 0.1
            np.testing.assert_allclose(vector("The lamp"), uncased, atol=1e-5)


@pytest.fixture(scope="module")
def text_tasks():
    """Skipped where the mediapipe package is missing, or what it wants of the system (libEGL, libGLESv2)."""
    try:
        from mediapipe.tasks.python import text

        ctypes.CDLL(str(Path(sys.modules["mediapipe"].__file__).parent / "tasks" / "c" / "libmediapipe.so"))
    except (ImportError, OSError) as error:
        pytest.skip(f"needs the mediapipe package: {error}")
    return text
