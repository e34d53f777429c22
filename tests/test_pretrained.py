"""The model that comes with the project: small enough, whole, and it has learned something."""

import numpy as np
import pytest

from modeling.checkpoint import read_checkpoint
from tasks.fill_mask import FillMask
from tests.scripts import ROOT, complaints, run

MODEL = ROOT / "pretrained" / "bert-mini-books"


@pytest.fixture(scope="module")
def fill_mask():
    return FillMask.load(MODEL)


def test_it_is_small_and_says_what_it_is():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 12e6
    assert "Standard Ebooks" in (MODEL / "README.md").read_text()
    checkpoint = read_checkpoint(MODEL)
    assert checkpoint.do_lower_case
    assert (checkpoint.config.num_hidden_layers, checkpoint.config.hidden_size) == (4, 256)
    assert all(np.isfinite(value).all() for value in checkpoint.variables.values())


def test_it_fills_in_what_grammar_asks_for(fill_mask):
    """Words that no position of a sentence with other grammar would have; chance is one in some thousands."""
    wanted = {
        "He looked at her [MASK] said nothing.": {"and", "but"},
        "I do not [MASK] what you mean.": {"know", "see", "understand", "think", "remember", "mean"},
        "She had [MASK] seen him before.": {"never", "not", "always", "already", "often"},
        "They had been there for a long [MASK].": {"time", "while", "way", "day", "night", "moment"},
    }
    filled = fill_mask(list(wanted), top_k=10)
    right = [bool(words & {c.token for c in masks[0]}) for words, masks in zip(wanted.values(), filled, strict=True)]
    assert sum(right) >= 3, filled


def test_the_script_uses_it_by_default():
    said = run("run_fill_mask.py", "--text=He looked at her [MASK] said nothing.", "--top_k=3")
    assert "and" in said.split("\n   ")[1]


def test_a_dry_run_of_the_script_looks_at_the_texts():
    text = "--text=He looked at her [MASK] said nothing."
    assert "MB for weights" in run("run_fill_mask.py", text, "--dry_run")
    without = ["--text=He said nothing.", "--dry_run"]
    no_mask, nothing, fine = complaints("run_fill_mask.py", without, ["--text=", "--score", *without[1:]], [text])
    assert "There is no [MASK] in 'He said nothing.'" in no_mask
    assert "There is nothing to score in ''" in nothing
    assert fine == ""
