"""The script itself, as a person runs it."""

import shutil

import numpy as np
import pytest

from modeling import google
from modeling.checkpoint import read_checkpoint
from tests import scripts


def run(*flags: str, code: int = 0) -> str:
    return scripts.run("convert_checkpoint.py", *flags, code=code)


@pytest.fixture
def model(golden, tmp_path):
    """The golden model with a vocabulary of its size."""
    directory = shutil.copytree(golden / "model", tmp_path / "google")
    pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(994))]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return directory


@pytest.mark.slow
def test_converts_verifies_and_adds_tokens(model, tmp_path):
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("[COMPANY]\n[PERSON]\n")
    said = run(f"--input={model}", "--format=hugging_face", f"--output={tmp_path / 'hf'}", f"--extra_tokens={tokens}")
    assert "Wrote 62 variables" in said
    assert "Largest difference of outputs on random tokens and of heads: 0.0e+00." in said
    written = read_checkpoint(tmp_path / "hf")
    assert written.config.vocab_size == 1001
    assert written.do_lower_case is True
    vocab = (tmp_path / "hf" / "vocab.txt").read_text().split("\n")
    assert (vocab[1], vocab[1000]) == ("[COMPANY]", "[PERSON]")


def test_a_config_from_elsewhere_and_variables_from_nowhere(model, tmp_path):
    config = (model / "bert_config.json").rename(tmp_path / "config.json")
    assert "--bert_config_file" in run(f"--input={model}", "--inspect", code=1)
    run(f"--input={model}", "--inspect", f"--bert_config_file={config}")
    config.rename(model / "bert_config.json")
    google.write_variables(google.read_variables(model) | {"crf": np.zeros(2, np.float32)}, model / "bert_model.ckpt")
    command = [f"--input={model}", "--format=google", f"--output={tmp_path / 'out'}"]
    assert "holds what no BERT has: crf." in run(*command, code=1)
    run(*command, "--drop_unknown")
    assert "crf" not in read_checkpoint(tmp_path / "out").variables


def test_inspects(model):
    said = run(f"--input={model}", "--inspect")
    assert "cls/seq_relationship/output_weights" in said
    assert "1000 pieces, uncased; its own." in said


def test_a_dry_run_tells_the_memory_and_writes_nothing(model, tmp_path):
    said = run(f"--input={model}", "--format=google", f"--output={tmp_path / 'out'}", "--dry_run")
    num_bytes = sum(value.nbytes for value in read_checkpoint(model).variables.values())
    assert f"about {num_bytes / 1e6:.1f} MB for weights" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format=google"], "--input is missing"),
        (["--input={model}", "--format=google"], "--output is missing"),
        (["--input={model}", "--output={model}", "--format=google"], "is there and not empty"),
        (["--input={model}", "--output={model}/vocab.txt/x", "--format=google"], "vocab.txt/x cannot be written"),
        (["--input=nowhere", "--inspect"], "There is no checkpoint nowhere"),
        (
            ["--input={model}", "--inspect", "--vocab_file={golden}"],
            "has 700 pieces, but the model has",
        ),
        (
            ["--input={model}", "--output=x", "--format=hugging_face", "--architecture=Bart"],
            "'Bart' is none of: BertModel",
        ),
        (
            ["--input={model}", "--output=x", "--format=hugging_face", "--architecture=Bart", "--dry_run"],
            "'Bart' is none of: BertModel",
        ),
    ],
)
def test_mistakes_are_told_in_one_message(model, golden, flags, message):
    said = run(*(flag.format(model=model, golden=golden / "vocab.txt") for flag in flags), code=1)
    assert message in said
    assert "Traceback" not in said
