"""The script as a person runs it, with the golden model."""

import collections
import gzip
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from data.tokenization import FullTokenizer
from modeling import google
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.encoder import BertEncoder
from tasks.vector_files import FORMATS
from tasks.vectors import POOLINGS, TextEncoder, correlations
from tests.scripts import ROOT, complaints, run, spell

SCRIPT = "extract_features.py"
LINES = [
    "The door was swollen with salt.",
    "She rowed out ||| to the lighthouse at Pellan Point",
    "",
    "  A letter that nobody had answered ||| and ||| two loaves of bread  ",
    "No pair:||| the bars have no space before them.",
    "Naïve 빛 $5",
    "the lighthouse " * 30,
    "salt " * 30 + " ||| " + "bread and letters " * 20,
]
LAYERS = [-1, 0, -3]


@pytest.fixture(scope="module")
def vocab_file(golden, tmp_path_factory):
    """The golden vocabulary, with as many pieces as the golden model has embeddings."""
    pieces = (golden / "vocab.txt").read_text(encoding="utf-8").splitlines()
    pieces += [f"[unused{number}]" for number in range(1000 - len(pieces))]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


@pytest.fixture
def flags(golden, vocab_file, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return {
        "input_file": tmp_path / "in.txt",
        "output_file": tmp_path / "out.jsonl",
        "init_checkpoint": golden / "model" / "bert_model.ckpt",
        "bert_config_file": golden / "model" / "bert_config.json",
        "vocab_file": vocab_file,
        "do_lower_case": True,
        "max_seq_length": 40,
        "layers": ",".join(map(str, LAYERS)),
    }


def golden_features(golden, vocab_file):
    """Tokens and layers, [layers, tokens, H], of each line: the original's rules, one line at a time."""
    network = BertEncoder(BertConfig.from_json_file(golden / "model" / "bert_config.json"))
    load_checkpoint(network, golden / "model")
    tokenizer = FullTokenizer(vocab_file)
    pairs = {1: ("She rowed out", "to the lighthouse at Pellan Point")}
    pairs[3] = ("A letter that nobody had answered ||| and", "two loaves of bread")
    pairs[7] = ("salt " * 30, "bread and letters " * 20)
    for number, line in enumerate(LINES):
        a, b = (tokenizer.tokenize(text) for text in pairs.get(number, (line, "")))
        room = 40 - (3 if b else 2)
        while len(a) + len(b) > room:
            (a if len(a) > len(b) else b).pop()
        tokens = ["[CLS]", *a, "[SEP]"] + ([*b, "[SEP]"] if b else [])
        segments = [0] * (len(a) + 2) + [1] * (len(tokens) - len(a) - 2)
        ids = tokenizer.convert_tokens_to_ids(tokens)
        outputs = network({"input_ids": tf.constant([ids]), "segment_ids": tf.constant([segments])})
        yield tokens, np.stack([outputs["all_layers"][layer][0] for layer in LAYERS])


def test_neither_help_nor_mistakes_wait_for_tensorflow():
    """So choices are listed in the flags; they are those of the code behind them."""
    code = """
        import sys
        from absl import flags
        import extract_features
        for name in ("pooling", "format"):
            print(*flags.FLAGS[name].parser.enum_values)
        flags.FLAGS(["extract_features.py", "--query=a"])
        try:
            extract_features.main()
        except ValueError as error:
            print(error)
        print("tensorflow" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [tuple(line.split()) for line in told[:2]] == [POOLINGS, FORMATS]
    assert told[2:] == ["--init_checkpoint is missing: the model that makes the vectors.", "False"]


@pytest.mark.slow
def test_writes_what_the_original_wrote(flags, golden, vocab_file):
    tpu = {"use_tpu": True, "master": "grpc://nowhere", "num_tpu_cores": 8, "use_one_hot_embeddings": True}
    said = run(SCRIPT, *spell(**flags, **tpu, batch_size=3))
    assert "on the devices of this machine" in said
    assert "2 of 8 texts have more than 40 pieces" in said
    assert "lines/s" in said
    text = flags["output_file"].read_text(encoding="ascii")
    lines = text.splitlines()
    assert text == "".join(f"{line}\n" for line in lines)
    for number, (line, (tokens, layers)) in enumerate(zip(lines, golden_features(golden, vocab_file), strict=True)):
        found = json.loads(line, object_pairs_hook=collections.OrderedDict)
        assert json.dumps(found) == line  # Python's own form
        assert list(found) == ["linex_index", "features"] and found["linex_index"] == number
        assert [feature["token"] for feature in found["features"]] == tokens
        for i, feature in enumerate(found["features"]):
            assert list(feature) == ["token", "layers"]
            assert [list(layer) for layer in feature["layers"]] == [["index", "values"]] * 3
            assert [layer["index"] for layer in feature["layers"]] == LAYERS
            values = np.array([layer["values"] for layer in feature["layers"]])
            np.testing.assert_allclose(values, layers[:, i], rtol=0, atol=1e-5)
            assert (np.round(values, 6) == values).all()


@pytest.mark.slow
def test_formats_and_poolings(flags, golden, tmp_path):
    """Several runs in one process: each way to pool, and each kind of file."""
    with gzip.open(tmp_path / "in.txt.gz", "wb") as file:
        file.write(flags["input_file"].read_bytes())
    common = flags | {"layers": None, "input_file": tmp_path / "in.txt.gz"}
    poolings = ["cls", "mean", "max", "second_to_last"]  # the golden model has three layers
    runs = [common | {"output_file": tmp_path / name, "pooling": name, "format": "npz"} for name in poolings]
    runs[0] |= {"batch_size": 1}  # so that there are some for each core
    runs.append(runs[1] | {"output_file": tmp_path / "joined", "layers": "0,-1", "normalize": True})
    runs.append(runs[1] | {"output_file": tmp_path / "records", "format": "tfrecord"})
    runs.append(flags | {"output_file": tmp_path / "tokens.npz", "format": "npz"})
    runs.append(flags | {"output_file": tmp_path / "tokens.tfrecord", "format": "tfrecord", "pooling": "none"})
    assert complaints(SCRIPT, *(spell(**line) for line in runs)) == [""] * len(runs)

    encoder = TextEncoder.load(golden / "model", str(flags["vocab_file"]), max_seq_length=40)
    texts = [tuple(line.strip().rsplit(" ||| ", 1)) if " ||| " in line else line.strip() for line in LINES]
    for name in poolings:
        np.testing.assert_allclose(np.load(tmp_path / name)["vectors"], encoder.encode(texts, name), atol=1e-5)
    joined = encoder.encode(texts, "mean", [0, -1], normalize=True)
    np.testing.assert_allclose(np.load(tmp_path / "joined")["vectors"], joined, atol=1e-5)
    mean = encoder.encode(texts)
    for number, record in enumerate(tf.data.TFRecordDataset(str(tmp_path / "records"))):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        assert features["linex_index"].int64_list.value == [number]
        np.testing.assert_allclose(features["vector"].float_list.value, mean[number], atol=1e-5)
    arrays = np.load(tmp_path / "tokens.npz")
    assert len(arrays["offsets"]) == len(LINES) + 1 and arrays["values"].shape[1:] == (3, 64)
    assert len(list(tf.data.TFRecordDataset(str(tmp_path / "tokens.tfrecord")))) == len(LINES)


@pytest.mark.slow
def test_finds_lines_and_scores_pairs(flags, golden, tmp_path):
    search = flags | {"output_file": None, "layers": None, "top_k": 2}
    said = run(SCRIPT, *spell(**search), "--query=The door was swollen with salt.", "--query=She rowed out ||| at dawn")
    told = [line for line in said.splitlines() if line.startswith(("The door", "She rowed", "   "))]
    assert len(told) == 6 and told[3] == "She rowed out ||| at dawn"
    assert told[1] == "   1.0000  line 1: The door was swollen with salt."

    rows = [("sentence1", "sentence2", "score"), ("the door", "the door", "5.0"), ("the salt", "a letter", "0.5")]
    rows += [("She rowed out", "Marta rowed", "3.0"), ("the door", 'a "salt" letter', "1.0")]
    (tmp_path / "sts.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    said = run(SCRIPT, *spell(**search | {"input_file": None, "sts_file": tmp_path / "sts.tsv", "pooling": "max"}))
    encoder = TextEncoder.load(golden / "model", str(flags["vocab_file"]), max_seq_length=40)
    cosines = encoder.similarities([row[:2] for row in rows[1:]], "max")
    for name, value in correlations(cosines, [float(row[2]) for row in rows[1:]]).items():
        assert f"{name} = {value:.4f}" in said
    assert "pairs = 4" in said


@pytest.mark.slow
def test_draws_attention(flags, tmp_path):
    common = flags | {"output_file": None, "input_file": None, "layers": None}
    (tmp_path / "two.txt").write_text("The door was swollen with salt.\n\nShe rowed out ||| to the lighthouse\n")
    runs = [
        common | {"text": "She rowed out ||| to the lighthouse", "attention_plot": tmp_path / "pair"},
        common | {"input_file": tmp_path / "two.txt", "attention_plot": tmp_path / "two", "layers": "0,-1"},
        common | {"text": "the lighthouse " * 30, "attention_plot": tmp_path / "cut", "layers": "-1"},
    ]
    assert complaints(SCRIPT, *(spell(**line) for line in runs)) == [""] * 3
    every_layer = ["layer-00.png", "layer-01.png", "layer-02.png"]
    assert sorted(path.name for path in (tmp_path / "pair").iterdir()) == every_layer
    assert [path.name for path in (tmp_path / "cut").iterdir()] == every_layer[-1:]
    drawn = {str(path.relative_to(tmp_path / "two")) for path in (tmp_path / "two").rglob("*.png")}
    assert drawn == {f"line-{line}/layer-{layer}.png" for line in ("01", "03") for layer in ("00", "02")}

    said = run(SCRIPT, *spell(**runs[0] | {"layers": "1", "attention_plot": tmp_path / "one"}))
    assert f"Pictures written to {tmp_path / 'one'}: 1." in said and "Drawing" in said


@pytest.mark.slow
def test_a_dry_run_tells_the_memory_and_writes_nothing(flags, golden):
    said = run(SCRIPT, *spell(**flags, dry_run=True))
    variables = google.read_variables(golden / "model")
    megabytes = 4e-6 * sum(value.size for name, value in variables.items() if name.startswith("bert/"))
    assert f"about {megabytes:.1f} MB for weights" in said
    assert not flags["output_file"].exists()


@pytest.mark.slow
def test_mistakes_are_told(flags, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.tsv").write_text("sentence1\tsentence2\tscore\na\tb\tmany\n")
    (tmp_path / "other.tsv").write_text("a\tb\n1\t2\n")
    query = {"output_file": None, "query": "a ship"}
    sts = {"output_file": None, "input_file": None}
    plot = {"output_file": None, "attention_plot": tmp_path / "pictures"}
    (tmp_path / "blank.txt").write_text("\n  \n")
    (tmp_path / "many.txt").write_text("a ship\n" * 17)
    mistakes = [
        ({"output_file": None}, "by one of --output_file, --query, --sts_file and --attention_plot"),
        ({"query": "a ship"}, "by one of --output_file, --query, --sts_file and --attention_plot"),
        ({"init_checkpoint": None}, "--init_checkpoint is missing"),
        ({"input_file": None}, "--input_file is missing"),
        ({"input_file": tmp_path / "nothing.txt"}, "nothing.txt (--input_file)"),
        ({"input_file": tmp_path / "empty.txt"}, "empty.txt is empty. It should have a text a line"),
        ({"output_file": tmp_path}, "is a directory. Name a file in it"),
        ({"output_file": tmp_path / "in.txt" / "out.jsonl"}, "out.jsonl cannot be written"),
        ({"layers": "-1,x"}, "--layers=-1,x should be numbers"),
        ({"layers": "-1,-2,-3,-4"}, "There is no layer -4: the model has 3"),
        ({"layers": "-9", "dry_run": True}, "There is no layer -9: the model has 3"),
        ({"layers": None}, "There is no layer -4: the model has 3"),  # the original's default
        ({"pooling": "mean"}, "write them with --format=npz or tfrecord"),
        ({"normalize": True}, "--normalize is for vectors of texts: set --pooling"),
        ({"pooling": "second_to_last", "format": "npz"}, "second_to_last has its own layers"),
        ({"pooling": "concat_last_4", "format": "npz", "layers": None}, "There is no layer -4"),
        ({"max_seq_length": 64}, "max_seq_length=64 is longer than what the model has learned"),
        ({"vocab_file": None}, "name it by --vocab_file"),
        (query | {"pooling": "none"}, "use another --pooling than none"),
        (query | {"query": " "}, "A --query is empty"),
        (sts | {"sts_file": tmp_path / "none.tsv"}, "none.tsv"),
        (sts | {"sts_file": tmp_path / "bad.tsv"}, "bad.tsv, line 2: the label 'many' is not a number"),
        (sts | {"sts_file": tmp_path / "other.tsv"}, "line 2 has no 'sentence1'"),
        (sts | {"sts_file": tmp_path / "bad.tsv", "input_file": tmp_path / "in.txt"}, "leave out --input_file"),
        (sts | {"sts_file": tmp_path / "bad.tsv", "text": "a ship"}, "leave out --input_file and --text"),
        ({"text": "a ship"}, "by --text or by --input_file, not by both"),
        (plot | {"query": "a ship"}, "by one of --output_file, --query, --sts_file and --attention_plot"),
        (plot | {"attention_plot": tmp_path / "a.png"}, "should be a directory: there is a picture for each layer"),
        (plot | {"attention_plot": tmp_path / "in.txt"}, "in.txt should be a directory"),
        (plot | {"attention_plot": tmp_path / "in.txt" / "plots"}, "plots cannot be written"),
        (plot | {"pooling": "mean"}, "leave out --pooling and --normalize"),
        (plot | {"layers": "3"}, "There is no layer 3: the model has 3"),
        (plot | {"input_file": tmp_path / "blank.txt"}, "nothing to draw: all texts are blank"),
        (plot | {"input_file": tmp_path / "many.txt"}, "no more than 16 texts"),
    ]
    written = {"empty.txt", "bad.tsv", "other.tsv", "blank.txt", "many.txt"}
    told = complaints(SCRIPT, *(spell(**flags | changes) for changes, _ in mistakes))
    for (_, wanted), said in zip(mistakes, told, strict=True):
        assert wanted in said
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", *written}
