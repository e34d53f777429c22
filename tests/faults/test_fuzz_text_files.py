"""Every reader of text files, on files that something happened to: it reads them, or says which file cannot be read."""

import dataclasses
import gzip
import json
import os
import random
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.choices import read_choices
from data.examples import Columns, number_label, read_examples, several_labels, single_label
from data.glue import GLUE_TASKS, Xnli, read_split
from data.metadata import load_metadata
from data.ner import read_tagged
from data.squad import read_questions
from data.tables import read_table
from data.text_files import read_lines
from data.tokenization import FullTokenizer, load_vocab
from modeling.config import BertConfig
from tasks.sentences import SentenceSettings
from tests.faults.damage import accidents, bounded, damaged, inflated, refused_properly, with_other_values
from tests.scripts import ROOT

_ROWS = [{"text": "Ein Satz, “so”", "label": "a", "id": 1}, {"text": "文 \t zwei", "label": "b", "id": 2}]
_JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _ROWS).encode()
_TSV = b'text\tlabel\nA sentence.\t1\nAn"other one\t0\n'
_CSV = b'text,label\n"A, sentence\nof two lines",1.5\nAnother,-3\n'
_CHOICE = {"context": "He", "endings": ["goes.", "blue."], "label": 0}
_SPANS = {"text": "Ada was there.", "entities": [{"start": 0, "end": 3, "type": "person"}]}
_SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Ada wrote it in 1843.",
                    "qas": [
                        {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
                        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ]
}
_CONFIG = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "gelu"}
_METADATA = {
    "num_records": 1,
    "num_bytes": 20,
    "block_offsets": [0],
    "vocab_size": 30,
    "vocab_sha256": "00",
    "flags": {"max_seq_length": 8},
    "inputs": [["a.txt", "00"]],
    "shard": [0, 1],
    "num_documents": 1,
    "num_sentences": 2,
    "num_tokens": 3,
}


def _written(rows) -> None:
    """As scripts write into bert_task.json and predictions.jsonl what they have read."""
    json.dumps([dataclasses.asdict(row) for row in rows], ensure_ascii=False).encode()


def _examples(read_label):
    return lambda path: _written(read_examples(path, Columns("text", label="label"), read_label))


def _use_vocab(path):
    vocab = load_vocab(path)
    if "[UNK]" in vocab:
        FullTokenizer(vocab=vocab).tokenize_to_ids("A sentence, 文.")


# name of the file -> contents that are right, and what reads them.
READERS = {
    "table.tsv": ([_TSV, b"a\tb\r\n1\t2\r\n"], lambda path: list(read_table(path))),
    "table.csv": ([_CSV], lambda path: list(read_table(path))),
    "rows.jsonl": ([_JSONL], _examples(single_label)),
    "rows.json": ([json.dumps(_ROWS).encode()], _examples(several_labels(","))),
    "numbers.csv": ([_CSV], _examples(number_label)),
    "numbers.jsonl": ([b'{"text": "a", "label": 1}\n{"text": "b", "label": -2.5}\n'], _examples(number_label)),
    "sst.tsv": ([b"sentence\tlabel\nfine .\t1\nbad .\t0\n"], lambda path: read_split(GLUE_TASKS["sst-2"], path, True)),
    "stsb.tsv": (
        [b"index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n"],
        lambda path: read_split(GLUE_TASKS["sts-b"], path, True),
    ),
    "xnli.dev.tsv": (
        [b"language\tgold_label\tsentence1\tsentence2\nzh\tneutral\ta\tb\n"],
        lambda path: Xnli("zh").labelled(path.parent, "dev"),
    ),
    "words.conll": (
        [b"-DOCSTART- O\n\nAda B-PER\nwrote O\n\n", b"Ada\tNN\tI-PER\nB.\tNN\tI-PER\n", b"Ada S-PER\n"],
        read_tagged,
    ),
    "klue.tsv": (["## 1\tx\n가\tB-PS\n \tO\n나\tO\n".encode()], read_tagged),
    "spans.jsonl": ([json.dumps(_SPANS).encode()], lambda path: _written(read_tagged(path))),
    "squad.json": ([json.dumps(_SQUAD).encode()], lambda path: read_questions(path, True, True)),
    "predict.json": ([json.dumps(_SQUAD).encode()], lambda path: read_questions(path, False, False)),
    "swag.csv": ([b",sent1,sent2,ending0,ending1,label\n0,He,goes,home,blue,1\n"], read_choices),
    "codah.tsv": ([b"i\tHe\tgoes\truns\tis\tblue\t2\n"], read_choices),
    "choices.jsonl": ([json.dumps(_CHOICE).encode()], read_choices),
    "bert_config.json": (
        [
            json.dumps(_CONFIG).encode(),
            json.dumps(_CONFIG | {"model_type": "bert", "transformers_version": "4"}).encode(),
        ],
        BertConfig.from_json_file,
    ),
    "bert_task.json": (
        [SentenceSettings("single_label", ("a", "b"), True, 32).to_json().encode()],
        lambda path: SentenceSettings.load(path.parent),
    ),
    "vocab.txt": ([b"[PAD]\n[UNK]\n[CLS]\na\n##b\n", "[UNK]\r\n文\r\n".encode()], _use_vocab),
    "tokenizer.json": ([json.dumps({"model": {"vocab": {"[UNK]": 0, "a": 1, "##b": 2}}}).encode()], _use_vocab),
    "out.metadata.json": (
        [json.dumps(_METADATA).encode()],
        lambda path: load_metadata(path.with_name("out.tfrecord")),
    ),
    "text.txt.gz": (
        [gzip.compress(b"a line\nanother\n" * 20, mtime=0)],
        lambda path: list(read_lines(str(path))),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_what_cannot_be_read_is_named(name, tmp_path):
    valid, read = READERS[name]
    path = tmp_path / name
    for content in valid:
        path.write_bytes(content)
        assert not refused_properly(read, path)  # a reader that refuses everything would pass the rest
    refused = []

    @bounded(150)
    @given(damaged(valid))
    def check(content):
        path.write_bytes(content)
        refused.append(refused_properly(read, path))

    check()
    is_forgiving = name in ("vocab.txt", "table.tsv")
    assert sum(refused) > (0 if is_forgiving else 20)


_OF_JSON = [name for name in READERS if name.endswith((".json", ".jsonl"))]


@pytest.mark.parametrize("name", _OF_JSON)
def test_any_value_at_any_place(name, tmp_path):
    valid, read = READERS[name]
    refused = 0
    for case in (case for content in valid for case in with_other_values(content)):
        (tmp_path / name).write_bytes(case)
        refused += refused_properly(read, tmp_path / name)
    assert refused > 50


@pytest.mark.parametrize("name", _OF_JSON)
def test_deep_nesting_is_refused(name, tmp_path):
    """What Python's own parser ends with is no ValueError."""
    _, read = READERS[name]
    for deep in (b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000):
        (tmp_path / name).write_bytes(deep)
        assert refused_properly(read, tmp_path / name)


# Reads every file named on standard input. More memory than 512 MiB, or ten seconds for one of them, would end it.
_READ_ALL = """
    import resource, signal, sys
    from pathlib import Path
    from tests.faults.damage import refused_properly
    from tests.faults.test_fuzz_text_files import READERS

    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
    for line in sys.stdin:
        print(line, end="", flush=True)
        path = Path(line.strip())
        signal.alarm(10)
        refused_properly(READERS[path.name][1], path)
"""


def test_no_file_takes_all_time_or_all_memory(tmp_path):
    rng = random.Random(4)
    paths = []
    for name, (valid, _) in READERS.items():
        for content in accidents(valid[0], 12, rng) + inflated(valid[0]):
            paths.append(tmp_path / str(len(paths)) / name)
            paths[-1].parent.mkdir()
            paths[-1].write_bytes(content)
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_READ_ALL)],
        input="".join(f"{path}\n" for path in paths),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    begun = [line for line in result.stdout.splitlines() if line.startswith(str(tmp_path))]
    assert result.returncode == 0, f"{begun[-1:]}: {result.returncode}, {result.stderr[-800:]}"
    assert len(begun) == len(paths) > 500


@bounded(150)
@given(st.lists(st.text(max_size=12), max_size=40), st.text(max_size=60), st.booleans())
def test_any_vocabulary_cuts_any_text(pieces, text, lower):
    """Whatever stands in vocab.txt: ids and pieces are of it, and they agree."""
    vocab = {piece: index for index, piece in enumerate(["[UNK]", *pieces])}
    vocab["[UNK]"] = 0
    tokenizer = FullTokenizer(vocab=vocab, do_lower_case=lower)
    tokens = tokenizer.tokenize(text)
    assert tokenizer.tokenize_to_ids(text) == [vocab[token] for token in tokens]
