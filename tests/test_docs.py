"""The commands in README.md and docs/ are true: every one has flags that there are, and those marked run are run.

A block behind `<!-- run -->` is run in a directory that has, under the names of the docs, data and models of a few
kilobytes; steps are cut to what takes seconds.
"""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modeling.checkpoint import save_checkpoint
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tests.warm import ROOT, warm

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted(path.name for path in ROOT.glob("*.py") if 'if __name__ == "__main__"' in path.read_text())
_BLOCK = re.compile(r"(<!-- run -->\n)?^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[bool, str]]:
    """The code blocks of a page, and whether each is to be run. Lines that go on are joined."""
    return [(bool(mark), re.sub(r"\\\n\s*", "", text)) for mark, text in _BLOCK.findall(page.read_text())]


def commands(page: Path) -> list[list[str]]:
    """The words of all commands of a page that run Python on something of ours, from the script or module on."""
    lines = [line for _, text in blocks(page) for line in text.splitlines()]
    lines += re.findall(r"(?<!`)`(python [^`…]+)`(?!`)", page.read_text().replace("\n", " "))
    found = []
    for line in lines:
        match = re.search(r"(?:^|[|;] *|^\s+)python (?=[-\w/.]+)(.*)", line)
        if match and not match[1].startswith(("-c", "-m pip")):
            found.append(shlex.split(match[1].split(" #")[0].removesuffix("…")))
    return found


def script_and_flags(words: list[str]) -> tuple[str, list[str]]:
    if words[0] == "-m":
        return words[1], words[2:]
    return words[0], words[1:]


ALL_COMMANDS = [(page.name, *script_and_flags(words)) for page in PAGES for words in commands(page)]

# Each script is loaded in a process of its own, since many flags have the same names. TensorFlow, which takes most of
# the time, is loaded before they part.
_PARSE = """
import importlib, json, os, sys
import keras
from absl import flags
import command_line

def complaints(name, lines):
    module = importlib.import_module(name)
    if hasattr(module, "_define_flags"):  # a module that others import without its flags
        module._define_flags()
    for line in lines:
        try:
            flags.FLAGS([name, *line])
        except flags.Error as error:
            yield str(error)

for name, lines in json.load(sys.stdin).items():
    if os.fork() == 0:
        told = list(complaints(name, lines))
        print(json.dumps([name, told]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_there_are_commands_of_every_script():
    assert len(ALL_COMMANDS) > 50
    assert {script for _, script, _ in ALL_COMMANDS} >= set(SCRIPTS)


def flags_of(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("--") and "$" not in word]


@pytest.mark.slow
def test_every_command_has_flags_that_there_are():
    lines: dict[str, list[list[str]]] = {}
    for page, script, words in ALL_COMMANDS:
        module = script.removesuffix(".py").replace("/", ".")
        assert importlib.util.find_spec(module), f"{page}: there is no {script}."
        lines.setdefault(module, []).append(flags_of(words))
    result = subprocess.run(
        [sys.executable, "-c", _PARSE],
        input=json.dumps(lines),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    told = dict(json.loads(line) for line in result.stdout.splitlines() if line.startswith("["))
    assert told == {module: [] for module in lines}


# What makes a documented command one of seconds; the last value of a flag counts.
_SOONER = {
    "run_pretraining.py": ["--num_train_steps=2", "--num_warmup_steps=1", "--train_batch_size=4"],
    "run_classifier.py": ["--num_train_epochs=1", "--train_batch_size=4"],
    "run_squad.py": ["--num_train_epochs=1", "--train_batch_size=4"],
    "run_ner.py": ["--num_train_epochs=1", "--train_batch_size=4"],
    "run_multiple_choice.py": ["--num_train_epochs=1", "--train_batch_size=2"],
}
_WORDS = "the a lamp was lit by an old man and she saw it from her room at night in rain film good bad charming what"
_WORDS = _WORDS.split()


def write_config(path: Path, vocab_size: int) -> BertConfig:
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=512,
        type_vocab_size=2,
    )
    path.write_text(config.to_json_string())
    return config


def write_model(directory: Path) -> None:
    """A checkpoint of Google's, with a vocabulary."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *"abcdefghijklmnopqrstuvwxyz.?", "##s"]
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(vocab) + "\n")
    config = write_config(directory / "bert_config.json", len(vocab))
    save_checkpoint(PretrainingModel(config, seed=1), directory / "bert_model.ckpt")


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(_WORDS, rng.integers(5, 12))) + " ."


def write_questions(path: Path, rng: np.random.Generator) -> None:
    asked = []
    for number in range(8):
        context = sentence(rng)
        answer = {"text": context.split()[2], "answer_start": len(" ".join(context.split()[:2])) + 1}
        question = {"id": f"q{number}", "question": "what was it ?", "answers": [answer]}
        asked.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "lamps", "paragraphs": asked}]}))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with everything that the marked commands name."""
    place, rng = tmp_path_factory.mktemp("docs"), np.random.default_rng(1)
    for name in ("uncased", "cased", "multi_cased"):
        write_model(place / f"{name}_L-12_H-768_A-12")
    write_model(place / "all-MiniLM-L6-v2")
    for name in ("books", "korean", "swag"):
        (place / name).mkdir()
    documents = "\n\n".join("\n".join(sentence(rng) for _ in range(6)) for _ in range(4))
    for name in ("books/a.txt", "books/b.txt", "heldout.txt", "input.txt"):
        (place / name).write_text(documents + "\n")
    korean = ["오래된 등대에 불이 켜졌다.", "그는 창가에서 비를 보았다.", "밤이 되자 배가 떠났다."]
    (place / "korean" / "a.txt").write_text(
        "\n".join(korean) + "\n\n" + "\n".join(korean[::-1]) + "\n", encoding="utf-8"
    )
    for name in ("train.tsv", "dev.tsv", "ratings_train.txt", "ratings_test.txt"):
        rows = [f"{number}\t{sentence(rng)}\t{number % 2}" for number in range(8)]
        header = "id\tdocument\tlabel" if name.startswith("ratings") else "id\treview\tstars"
        (place / name).write_text("\n".join([header, *rows]) + "\n")
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        write_questions(place / name, rng)
    for name in ("train.conll", "dev.conll", "test.conll"):
        (place / name).write_text("the O\nold B-person\nman I-person\nwas O\nlit O\n\n" * 6)
    for name in ("train.csv", "val.csv"):
        header = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
        rows = [f"v,{n},the lamp,the lamp was,by,gold,lit,old,good,bad,{n % 4}" for n in range(4)]
        (place / "swag" / name).write_text("\n".join([header, *rows]) + "\n")
    return place


def run_in(place: Path, script: str, flags: list[str], typed: str) -> str:
    """What a script or module prints."""
    path = str(ROOT / script) if script.endswith(".py") else script
    return warm().run(path, *flags, given=typed, directory=place)


def snapshot(directory: Path) -> dict[str, int]:
    """All files, with the moments they were last written."""
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def check_dry_run(place: Path, script: str, flags: list[str], typed: str = "") -> None:
    before = snapshot(place)
    said = run_in(place, script, [*flags, "--dry_run"], typed)
    assert "Dry run: everything was checked, and nothing was written." in said, (script, flags)
    assert snapshot(place) == before, f"{script} {' '.join(flags)} --dry_run wrote something."


@pytest.mark.slow
def test_the_marked_commands_run(place):
    told = {}
    for page in PAGES:
        for line in (line for is_run, text in blocks(page) if is_run for line in text.splitlines()):
            piped = re.match(r"echo '(.*?)' \| (.*)", line)
            words = shlex.split(piped[2] if piped else line)
            assert words.pop(0) == "python", f"{page.name}: only commands of Python can be run, not {line!r}."
            script, flags = script_and_flags(words)
            flags += _SOONER.get(script, [])
            if script in SCRIPTS and script not in told:
                check_dry_run(place, script, flags, typed=piped[1] if piped else "")
            told[script] = run_in(place, script, flags, typed=piped[1] if piped else "")
            if script == "learn_vocab.py":  # of so little text, it learns fewer pieces than it was asked for
                write_config(place / "bert_config.json", len((place / "vocab.txt").read_text().splitlines()))
    assert told.keys() >= set(SCRIPTS)
    for name in ("vocab.txt", "out/bert_model.ckpt.index", "out/squad/predictions.json", "export/models.config"):
        assert (place / name).is_file(), name
    assert re.search(r"^[01] 0\.\d+  What a charming film", told["examples.ask_tflite"], re.MULTILINE)
