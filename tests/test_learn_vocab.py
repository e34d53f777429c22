"""The script as a person runs it: in a process of its own."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from data.tokenization import FullTokenizer, load_vocab

ROOT = Path(__file__).parents[1]


def run(*flags) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "learn_vocab.py", *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_from_text_to_vocabulary(golden, tmp_path):
    text, output = golden / "sample_text.txt", tmp_path / "new" / "vocab.txt"
    result = run(f"--input_file={text}", f"--output_file={output}", "--vocab_size=250", "--num_unused=3")
    assert result.returncode == 0, result.stderr
    assert "Wrote 250 pieces" in result.stderr
    assert "Counting" in result.stderr and "Learning" in result.stderr and "gain" in result.stderr
    pieces = list(load_vocab(output))
    assert len(pieces) == 250
    assert pieces[:8] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "[unused2]"]
    assert FullTokenizer(output).tokenize("The clock and the lamp") == ["the", "clock", "and", "the", "lamp"]
    assert [path.name for path in output.parent.iterdir()] == ["vocab.txt"]


def test_the_file_depends_neither_on_processes_nor_on_how_the_text_is_stored(golden, tmp_path):
    text = (golden / "sample_text.txt").read_bytes()
    half = text.index(b"\n", len(text) // 2) + 1
    (tmp_path / "a.txt").write_bytes(text[:half])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text[half:]))
    whole, parts = tmp_path / "whole.vocab", tmp_path / "parts.vocab"
    assert run(f"--input_file={golden}/sample_text.txt", f"--output_file={whole}", "--vocab_size=200").returncode == 0
    globs = f"--input_file={tmp_path}/a*.txt,{tmp_path}/*.gz"
    result = run(globs, f"--output_file={parts}", "--vocab_size=200", "--num_workers=2")
    assert result.returncode == 0, result.stderr
    assert whole.read_bytes() == parts.read_bytes()


def test_cased_and_with_accents(tmp_path):
    (tmp_path / "text.txt").write_text("Müller müller Müller müller " * 5)
    for flags, expected in (
        ((), ["muller"]),
        (("--nodo_lower_case",), ["Müller", "müller"]),
        (("--nostrip_accents",), ["müller"]),
        (("--nodo_lower_case", "--strip_accents"), ["Muller", "muller"]),
    ):
        output = tmp_path / "vocab.txt"
        assert run(f"--input_file={tmp_path}/text.txt", f"--output_file={output}", *flags).returncode == 0
        assert {"muller", "Muller", "müller", "Müller"} & load_vocab(output).keys() == set(expected)


def test_learner_of_tensorflow_text(golden, tmp_path):
    output = tmp_path / "vocab.txt"
    result = run(
        f"--input_file={golden}/sample_text.txt",
        f"--output_file={output}",
        "--learner=tensorflow_text",
        "--min_count=1",
        "--vocab_size=200",
    )
    assert result.returncode == 0, result.stderr
    pieces = list(load_vocab(output))
    assert 150 < len(pieces) <= 200
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert f"write {len(pieces)} into bert_config.json" in result.stderr


def test_help_comes_without_waiting_for_tensorflow():
    code = "import sys, learn_vocab; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    result = run("--help")
    assert "--input_file" in result.stdout and "tensorflow_text" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input_file=nowhere/*.txt"], "No file matches 'nowhere/*.txt' of --input_file"),
        (["--input_file={text},nowhere"], "No file matches 'nowhere' of --input_file"),
        (["--input_file={empty}"], "are empty. Name files with text in them"),
        (["--input_file={blank}"], "There are no words to learn from"),
        (["--input_file={text}", "--vocab_size=5"], "--vocab_size=5 leaves no room beside 5 special tokens"),
        (["--input_file={text}", "--vocab_size=20"], "vocab_size=20 is too small: 5 reserved tokens and "),
        (["--input_file={text}", "--special_tokens=[PAD],[PAD]"], "lacks [UNK], [CLS], [SEP], [MASK]"),
        (["--input_file={text}", "--special_tokens=[PAD],[UNK],[CLS],[SEP],[MASK],[SEP]"], "[SEP] more than once"),
        (["--input_file={text}", "--output_file={directory}"], "is a directory. Name a file"),
        (["--input_file={text}", "--output_file={text}/vocab.txt"], "sample_text.txt/vocab.txt cannot be written"),
        (["--input_file={cut}"], "cut.txt.gz is not a whole gzip file"),
        ([], "--input_file is missing"),
    ],
)
def test_errors_name_the_fix(golden, tmp_path, flags, message):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"some text")[:-9])
    places = {
        "text": golden / "sample_text.txt",
        "empty": tmp_path / "empty.txt",
        "blank": tmp_path / "blank.txt",
        "cut": tmp_path / "cut.txt.gz",
        "directory": tmp_path,
    }
    output = tmp_path / "vocab.txt"
    result = run(f"--output_file={output}", *(flag.format(**places) for flag in flags))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not output.exists()
