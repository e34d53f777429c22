import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

import data.squad_records
from data.squad import Answer, Context, Question, read_questions
from data.squad_features import WindowEncoder, WindowTable, _best_windows, _spans, question_windows
from data.squad_records import WindowRecords, window_records
from data.tfrecord import read_records
from data.tokenization import FullTokenizer

VERSIONS = {"squad_v1": False, "squad_v2": True}


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(golden / "vocab.txt")


def golden_encoder(golden, version, tokenizer):
    flags = json.loads((golden / version / "flags.json").read_text())
    assert flags["do_lower_case"] and flags["version_2_with_negative"] == VERSIONS[version]
    return WindowEncoder(tokenizer, *(flags[name] for name in ("max_seq_length", "doc_stride", "max_query_length")))


def golden_lines(golden, version, kind):
    with gzip.open(golden / version / f"{kind}_features.jsonl.gz", "rt", encoding="utf-8") as lines:
        return list(map(json.loads, lines))


def in_the_original_form(window, tokenizer, length):
    ids, first = window.input_ids, window.document_start
    padding = [0] * (length - len(ids))
    return {
        "unique_id": window.unique_id,
        "example_index": window.example_index,
        "doc_span_index": window.doc_span_index,
        "tokens": tokenizer.convert_ids_to_tokens(ids),
        "input_ids": ids + padding,
        "segment_ids": [0] * first + [1] * (len(ids) - first) + padding,
        "token_to_orig_map": {str(n): word for n, word in enumerate(window.word_indices.tolist(), first)},
        "token_is_max_context": {str(n): best for n, best in enumerate(window.is_max_context.tolist(), first)},
        "start_position": window.start_position,
        "end_position": window.end_position,
        "is_impossible": window.is_impossible,
    }


@pytest.mark.parametrize("kind", ["train", "predict"])
@pytest.mark.parametrize("version", VERSIONS)
def test_windows_of_the_original(golden, tokenizer, version, kind):
    encoder = golden_encoder(golden, version, tokenizer)
    questions = read_questions(golden / f"{version}.json", kind == "train", VERSIONS[version])
    lines = golden_lines(golden, version, kind)
    windows = list(question_windows(questions, encoder))
    assert len(windows) == len(lines) > 50
    for window, line in zip(windows, lines, strict=True):
        found = in_the_original_form(window, tokenizer, encoder.max_seq_length)
        assert {name: found[name] for name in line} == line


@given(st.integers(0, 300), st.integers(1, 80), st.integers(1, 100))
@example(479, 350, 128)  # a last window that is more than a hundred pieces shorter: that outweighs a piece of context
def test_windows_cover_a_document_and_the_best_is_known(num_pieces, size, stride):
    spans = _spans(num_pieces, size, stride)
    best = _best_windows(num_pieces, spans)
    assert bool(spans) == bool(num_pieces)
    assert all(0 < end - start <= size for start, end in spans)
    for piece in range(num_pieces):
        scores = {
            number: min(piece - start, end - 1 - piece) + 0.01 * (end - start)
            for number, (start, end) in enumerate(spans)
            if start <= piece < end
        }
        assert best[piece] == max(scores, key=scores.get)  # the first of equals


def question_about(text, answer=None, words=(None, None), question="what ?"):
    answers = () if answer is None else (Answer(answer, text.index(answer)),)
    return Question("q", question, Context.of(text), answers, False, *words)


def test_an_answer_within_words(tokenizer):
    encoder = WindowEncoder(tokenizer, 40, 16, 8)
    [window] = question_windows([question_about("it was ,the light. so", "the light", (2, 3))], encoder)
    pieces = tokenizer.convert_ids_to_tokens(window.input_ids)
    assert " ".join(pieces[window.start_position : window.end_position + 1]) == "the light"
    # Where the pieces of the answer are not among those of its words, all of these are taken.
    [window] = question_windows([question_about("it was ,the light. so", "he light", (2, 3))], encoder)
    assert pieces[window.start_position : window.end_position + 1] == [",", "the", "light", "."]


def test_words_of_no_pieces(tokenizer):
    encoder = WindowEncoder(tokenizer, 40, 16, 8)
    assert not list(question_windows([question_about(""), question_about("\u200b \u200b")], encoder))
    # A question without windows leaves a gap in the table.
    questions = [question_about("the light"), question_about(""), question_about("the light")]
    table = WindowTable.of(list(question_windows(questions, encoder)))
    assert [list(table.windows_of(index)) for index in range(3)] == [[0], [], [1]]
    [window] = question_windows([question_about("the \u200b light", "\u200b", (1, 1))], encoder)
    assert (window.start_position, window.end_position) == (0, 0)
    assert window.word_indices.tolist() == [0, 2]


def test_settings_that_leave_no_room(tokenizer):
    with pytest.raises(ValueError, match="max_seq_length is 67: .* leaves no room"):
        WindowEncoder(tokenizer, max_seq_length=67)
    WindowEncoder(tokenizer, max_seq_length=68)
    for wrong in {"doc_stride": 0}, {"max_query_length": 0}:
        with pytest.raises(ValueError, match="at least 1"):
            WindowEncoder(tokenizer, **wrong)
    with pytest.raises(ValueError, match="not one of BERT's"):
        WindowEncoder(FullTokenizer(vocab={"[UNK]": 0, "a": 1}))


def parsed(path):
    with open(path, "rb") as file:
        for record in read_records(file, str(path)):
            features = tf.train.Example.FromString(record.data).features.feature
            yield {name: list(feature.int64_list.value) for name, feature in features.items()}


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_the_original(golden, tokenizer, tmp_path, version, is_training):
    encoder = golden_encoder(golden, version, tokenizer)
    questions = read_questions(golden / f"{version}.json", is_training, VERSIONS[version])
    written = WindowRecords.write(tmp_path / "x.tf_record", questions, encoder, is_training)
    lines = golden_lines(golden, version, "train" if is_training else "predict")
    assert written.records.lengths.tolist() == [len(line["tokens"]) for line in lines]
    for record, line in zip(parsed(tmp_path / "x.tf_record"), lines, strict=True):
        length = len(line["tokens"])
        wanted = {
            "unique_ids": [line["unique_id"]],
            "input_ids": line["input_ids"],
            "input_mask": [1] * length + [0] * (encoder.max_seq_length - length),
            "segment_ids": line["segment_ids"],
        }
        if is_training:
            wanted["start_positions"] = [line["start_position"]]
            wanted["end_positions"] = [line["end_position"]]
            wanted["is_impossible"] = [int(line["is_impossible"])]
        assert record == wanted
    if is_training:
        assert written.table is None
        return
    assert len(written.table) == len(lines)
    for number, line in enumerate(lines):
        pieces, first = written.table.pieces(number), written.table.document_starts[number]
        assert pieces.ids.tolist() == line["input_ids"][first : len(line["tokens"]) - 1]
        assert pieces.word_indices.tolist() == list(line["token_to_orig_map"].values())
        assert pieces.is_max_context.tolist() == list(line["token_is_max_context"].values())
        assert str(first) == next(iter(line["token_to_orig_map"]))
        assert number in written.table.windows_of(line["example_index"])
    assert sum(len(written.table.windows_of(index)) for index in range(len(questions))) == len(lines)


@pytest.fixture(scope="module")
def many_questions(golden, tmp_path_factory):
    """A file of enough questions for several blocks."""
    content = json.loads((golden / "squad_v2.json").read_text(encoding="utf-8"))
    articles = []
    for copy in range(12):
        for article in json.loads(json.dumps(content["data"])):
            for question in article["paragraphs"][0]["qas"]:
                question["id"] += f"-{copy}"
            articles.append(article)
    path = tmp_path_factory.mktemp("squad") / "many.json"
    path.write_text(json.dumps({"data": articles}), encoding="utf-8")
    return path


def assert_same(a, b):
    assert (a.records.sha256, a.num_questions) == (b.records.sha256, b.num_questions)
    assert Path(a.records.path).read_bytes() == Path(b.records.path).read_bytes()
    for name in "offsets", "lengths":
        np.testing.assert_array_equal(getattr(a.records, name), getattr(b.records, name), strict=True)
    assert (a.table is None) == (b.table is None)
    if a.table is not None:
        for name in (field.name for field in dataclasses.fields(WindowTable)):
            np.testing.assert_array_equal(getattr(a.table, name), getattr(b.table, name), strict=True)


@pytest.mark.parametrize("is_training", [True, False])
def test_processes_write_what_one_writes(many_questions, golden, tokenizer, tmp_path, is_training):
    encoder = golden_encoder(golden, "squad_v2", tokenizer)
    questions = read_questions(many_questions, is_training, True)
    assert len(questions) == 12 * 26
    alone = WindowRecords.write(tmp_path / "alone.tf_record", questions, encoder, is_training)
    shared_out = WindowRecords.write(tmp_path / "shared.tf_record", questions, encoder, is_training, num_workers=2)
    assert_same(alone, shared_out)
    ids = [record["unique_ids"] for record in parsed(alone.records.path)]
    assert ids == [[1_000_000_000 + number] for number in range(len(ids))]


def test_processes_start_without_the_script_and_tensorflow(many_questions, golden, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
print("The script runs.", flush=True)
import sys
from data.squad import read_questions
from data.squad_features import WindowEncoder, encode_blocks
from data.tokenization import FullTokenizer
assert "tensorflow" not in sys.modules
if __name__ == "__main__":
    questions = read_questions({str(many_questions)!r}, True, True)
    encoder = WindowEncoder(FullTokenizer({str(golden / "vocab.txt")!r}), 128, 48, 32)
    print(sum(block.num_questions for block in encode_blocks(questions, encoder, True, num_workers=2)))
    assert __spec__ is None and __file__
""")
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout.split("\n") == ["The script runs.", "312", ""], result.stderr


def test_questions_that_are_cut_are_counted(tokenizer, tmp_path, caplog):
    questions = [question_about("the light", question="the light " * count) for count in (1, 2, 3, 4)]
    encoder = WindowEncoder(tokenizer, 40, 16, 4)
    WindowRecords.write(tmp_path / "x.tf_record", questions, encoder, False)
    assert [len(window.input_ids) for window in question_windows(questions, encoder)] == [7, 9, 9, 9]
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "x: questions cut to 4 pieces (--max_query_length): 2, e.g. 'q'."


@pytest.fixture
def cached(golden, tokenizer, tmp_path, monkeypatch):
    """Asks for records of a set twice the same way or not, and tells with them whether they were made anew."""
    source = tmp_path / "set.json"
    source.write_bytes((golden / "squad_v2.json").read_bytes())
    made = []
    write = WindowRecords.write

    def counting_write(*args, **kwargs):
        made.append(args)
        return write(*args, **kwargs)

    monkeypatch.setattr(WindowRecords, "write", counting_write)

    def ask(doc_stride=48, is_training=False, version_2=True, tokenizer=tokenizer, path="x.tf_record"):
        before = len(made)
        encoder = WindowEncoder(tokenizer, 128, doc_stride, 32)
        return window_records(tmp_path / path, source, encoder, is_training, version_2), len(made) > before

    ask.directory, ask.source = tmp_path, source
    return ask


@pytest.mark.parametrize("is_training", [True, False])
def test_records_are_found_again(cached, monkeypatch, is_training):
    first, is_new = cached(is_training=is_training)
    assert is_new
    assert sorted(path.name for path in cached.directory.iterdir()) == [
        "set.json",
        "x.index.json",
        "x.index.npz",
        "x.tf_record",
    ]
    monkeypatch.setattr(data.squad_records, "read_questions", None)
    second, is_new = cached(is_training=is_training)
    assert not is_new and second.num_questions == 26
    assert_same(first, second)
    assert second.records.read([5, 0]) == first.records.read([5, 0])


def test_records_of_something_else_are_made_anew(cached, golden):
    cached()
    cased = FullTokenizer(golden / "vocab.txt", do_lower_case=False)
    larger = FullTokenizer(vocab=cased.vocab | {"zzz": len(cased.vocab)}, do_lower_case=False)
    for change in (
        {"doc_stride": 47},
        {"is_training": True},
        {"is_training": False, "version_2": False},
        {"tokenizer": cased},
        {"tokenizer": larger},
    ):
        assert cached(**change)[1], change
        assert not cached(**change)[1], change
    cached()
    cached.source.write_text(cached.source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert cached()[1]


def test_what_is_damaged_is_made_anew(cached, monkeypatch):
    whole, _ = cached(path="whole.tf_record")
    cached()
    index, arrays, records = (cached.directory / f"x.{end}" for end in ("index.json", "index.npz", "tf_record"))

    def foreign_arrays():
        cached(doc_stride=40, path="other.tf_record")
        arrays.write_bytes((cached.directory / "other.index.npz").read_bytes())

    def flipped():
        data = bytearray(arrays.read_bytes())
        data[len(data) // 2] ^= 255
        arrays.write_bytes(data)

    for damage in (
        lambda: index.write_text(index.read_text()[:-20]),
        lambda: index.write_text("[]"),
        lambda: index.write_text('{"origin": null, "state": 1}'),
        lambda: arrays.write_bytes(arrays.read_bytes()[:-100]),
        lambda: arrays.write_bytes(b""),
        lambda: arrays.unlink(),
        flipped,
        foreign_arrays,
        lambda: records.unlink(),
        lambda: records.write_bytes(records.read_bytes()[:-1]),
        lambda: records.write_bytes(bytes(records.stat().st_size)),
    ):
        damage()
        again, is_new = cached()
        assert is_new
        assert_same(whole, again)

    # A run that breaks off leaves no index behind that tells of records that are gone.
    def broken(*args):
        yield from ()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(data.squad_records, "encode_blocks", broken)
        cached(doc_stride=40)
    assert not index.exists() and not arrays.exists()
    assert cached()[1]
