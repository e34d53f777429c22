import json

import pytest

from data.examples import Columns, number_label, read_examples, several_labels, single_label
from data.tables import read_table


def write(path, content: bytes | str):
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def values(rows):
    return [dict(row.values) for row in rows]


def test_tsv_takes_quotes_for_letters_and_a_mark_at_the_start_for_nothing(tmp_path):
    path = write(tmp_path / "a.tsv", '\ufefftext\tlabel\r\n"Yes\t1\r\nhe said "no"\t0\r\n\r\nshort\r\n')
    assert values(read_table(path)) == [
        {"text": '"Yes', "label": "1"},
        {"text": 'he said "no"', "label": "0"},
        {"text": "short"},
    ]


def test_csv_takes_quotes_for_quotes_and_counts_lines_within_them(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"two\nlines, and a ""word""",x\nplain,y\n')
    rows = list(read_table(path))
    assert values(rows) == [{"text": 'two\nlines, and a "word"', "label": "x"}, {"text": "plain", "label": "y"}]
    assert [row.line for row in rows] == [2, 4]


def test_lines_and_arrays_of_json(tmp_path):
    rows = [{"text": "가", "label": 1}, {"text": "b", "label": ["x"]}]
    lines = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    array = write(tmp_path / "a.json", json.dumps(rows))
    assert values(read_table(lines)) == rows == values(read_table(array))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", '{"text": "a"}\n{"text"\n', "a.jsonl, line 2 is not JSON"),
        ("a.jsonl", '["a"]\n', "line 1: .* is not an object"),
        ("a.json", '{"text": "a"}', "should hold an array of objects, not dict"),
        ("a.tsv", b"text\tlabel\ncaf\xe9\t1\n", "line 2: byte 0xe9 is not UTF-8"),
        ("a.csv", "text,text\na,b\n", "two columns are called 'text'"),
        ("a.xlsx", "", "its name should end in"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        list(read_table(write(tmp_path / name, content)))


COLUMNS = Columns("text", label="label")


@pytest.mark.parametrize(
    "name, content, columns, read_label, message",
    [
        (
            "a.tsv",
            "text\tlabel\ngood\t1\n \t0\n",
            COLUMNS,
            single_label,
            "line 3: the text in the column 'text' is empty",
        ),
        (
            "a.tsv",
            "text\tlabel\ngood\n",
            COLUMNS,
            single_label,
            "line 2: there is no .*'label'|line 2: there is no column",
        ),
        ("a.tsv", "text\tlabel\ngood\t\n", COLUMNS, single_label, "line 2: the label is empty"),
        ("a.tsv", "text\tmark\ngood\t1\n", COLUMNS, single_label, "no value in the column 'label'.*'text', 'mark'"),
        (
            "a.tsv",
            "text,label\ngood,1\n",
            COLUMNS,
            single_label,
            "single column, called 'text,label'.*commas belong to",
        ),
        ("a.csv", "text\tlabel\ngood\t1\n", COLUMNS, single_label, r"single column, called 'text\\tlabel'"),
        ("a.tsv", "text\tlabel\na\t1.5\nb\tnan\n", COLUMNS, number_label, "line 3: the label 'nan' is not a finite"),
        ("a.tsv", "text\tlabel\na\thigh\n", COLUMNS, number_label, "line 2: the label 'high' is not a number"),
        ("a.tsv", "a\tb\n", Columns("0", label="3"), single_label, "line 1: there is no column 3; the row has 2"),
        ("a.tsv", "text\tlabel\n", COLUMNS, single_label, "no example in"),
    ],
)
def test_mistakes_are_told_with_file_and_line(tmp_path, name, content, columns, read_label, message):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message) as error:
        read_examples(path, columns, read_label)
    assert name in str(error.value)


def test_bad_rows_can_be_left_out(tmp_path, caplog):
    path = write(tmp_path / "a.tsv", "text\tlabel\n\t1\ngood\t1\nbad\t\nfine\t0\n")
    examples = read_examples(path, COLUMNS, single_label, skip_bad_rows=True)
    assert [(e.text_a, e.label) for e in examples] == [("good", "1"), ("fine", "0")]
    assert "2 rows were left out" in caplog.text


def test_a_header_of_very_many_columns(tmp_path):
    """Each name is looked up once: compared with all others, these would take minutes."""
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{number}" for number in range(200_000)) + ",c7\n")
    with pytest.raises(ValueError, match=r"wide\.csv, line 1: two columns are called 'c7'"):
        list(read_table(path))


def test_tables_without_a_header(tmp_path):
    path = write(tmp_path / "a.tsv", "7\tone\ttwo\tx\n")
    [example] = read_examples(path, Columns("1", "2", "3", "0"), single_label)
    assert (example.id, example.text_a, example.text_b, example.label) == ("7", "one", "two", "x")


def test_several_labels():
    read = several_labels("|")
    assert read("a| b |a|") == ("a", "b")
    assert read(["x", "y"]) == ("x", "y")
    assert read("") == read(None) == ()
