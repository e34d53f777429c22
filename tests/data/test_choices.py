import json

import pytest

from data.choices import Choice, read_choices

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
SWAG_ROW = (
    '0,v1,4,"On stage, a man sings. He","On stage, a man sings.",He,gold,bows.,"sleeps, deeply.",flies.,swims.,2\n'
)
CODAH_ROW = 'o\tShe said "no". He\tleft.\tsang.\tate.\tran.\t3\n'
GOOD = {"context": "It rained. We", "endings": ["got wet.", "burned.", "flew."], "label": 0}


def write(path, content: str):
    path.write_text(content, encoding="utf-8")
    return path


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_swag_puts_the_start_of_the_second_sentence_before_each_ending(tmp_path):
    path = write(tmp_path / "train.csv", SWAG_HEADER + SWAG_ROW)
    assert read_choices(path) == [
        Choice(
            "0",
            "On stage, a man sings.",
            ("He bows.", "He sleeps, deeply.", "He flies.", "He swims."),
            2,
            f"{path}, line 2",
        )
    ]
    blind = write(tmp_path / "test.csv", SWAG_HEADER.replace(",label", "") + SWAG_ROW.replace(",2\n", "\n"))
    [choice] = read_choices(blind, has_labels=False)
    assert choice.label is None and len(choice.endings) == 4


def test_codah_has_no_header_and_takes_quotes_for_letters(tmp_path):
    path = write(tmp_path / "dev.tsv", CODAH_ROW + "\tTwo and two are\t1\t2\t3\t4\t\n")
    first, second = read_choices(path, has_labels=False)
    assert (first.context, first.endings) == ('She said "no". He', ("left.", "sang.", "ate.", "ran."))
    assert (second.id, second.endings, second.place) == ("1", ("1", "2", "3", "4"), f"{path}, line 2")
    assert read_choices(write(tmp_path / "a.txt", CODAH_ROW), format="codah")[0].label == 3


def test_json_lines_have_any_number_of_endings_and_ids_of_their_own(tmp_path):
    named = GOOD | {"id": 17, "label": "2", "context": "비가 왔다. 우리는"}
    path = write(tmp_path / "a.jsonl", "\ufeff" + lines(GOOD, named))
    first, second = read_choices(path)
    assert (first.id, first.endings, first.label) == ("0", ("got wet.", "burned.", "flew."), 0)
    assert (second.id, second.context, second.label) == ("17", "비가 왔다. 우리는", 2)
    array = write(tmp_path / "a.json", json.dumps([GOOD, named]))
    assert [c.endings for c in read_choices(array)] == [c.endings for c in (first, second)]


def test_codah_as_it_is_published(shared):
    sizes = {"train": 1665, "dev": 556, "test": 555}
    for split, size in sizes.items():
        choices = read_choices(shared / "datasets" / "choice" / f"fold_0-{split}.tsv")
        assert len(choices) == size
        assert {choice.label for choice in choices} == {0, 1, 2, 3}


SHORT_SWAG = SWAG_HEADER + SWAG_ROW + SWAG_ROW.replace("flies.,", "")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", lines(GOOD, GOOD | {"endings": ["a", "b"]}), "line 2: the row has 2 endings, but line 1 has 3"),
        ("a.jsonl", lines(GOOD | {"endings": ["a"]}), "line 1: the row should have two endings or more, but has 1"),
        ("a.jsonl", lines(GOOD, GOOD | {"endings": ["a", " ", "c"]}), "line 2: ending 1 is empty"),
        ("a.jsonl", lines(GOOD | {"endings": "abc"}), "line 1: \"endings\" should be a list, but is 'abc'"),
        ("a.jsonl", lines({"question": "x"}), 'line 1: "endings" should be a list, but is None'),
        ("a.jsonl", lines(GOOD | {"endings": ["a", 2, "c"]}), "line 1: ending 1 should be a text, but is 2"),
        ("a.jsonl", lines(GOOD | {"context": None}), "line 1: the context is empty"),
        ("a.jsonl", lines(GOOD, GOOD | {"label": 3}), "line 2: the label 3 is not the index .* from 0 to 2"),
        ("a.jsonl", lines(GOOD | {"label": -1}), "line 1: the label -1 is not the index"),
        ("a.jsonl", lines(GOOD | {"label": True}), "line 1: the label True is not the index"),
        ("a.jsonl", lines(GOOD | {"label": None}), "line 1: there is no label"),
        ("a.jsonl", "", "There is no row with endings in"),
        (
            "a.tsv",
            CODAH_ROW + CODAH_ROW.replace("sang.\t", ""),
            "line 2: the row has 6 columns, but CODAH has 7: .*Is an",
        ),
        (
            "a.tsv",
            CODAH_ROW.replace("sang.", "sang.\tdanced."),
            "line 1: the row has too many columns, but CODAH has 7",
        ),
        ("a.tsv", CODAH_ROW.replace("sang.", ""), "line 1: ending 1 is empty"),
        ("a.tsv", CODAH_ROW.replace("\t3\n", "\t4\n"), "line 1: the label '4' is not the index"),
        ("a.csv", SHORT_SWAG, "line 3: the row has 11 columns, but line 2 has 12. Is an ending missing"),
        ("a.csv", SWAG_HEADER + SWAG_ROW.replace("flies.", ""), "line 2: ending 2 is empty"),
        ("a.csv", "context,label\nx,1\n", "line 2: there is no value in the column 'sent1'.* set --format"),
        ("a.txt", CODAH_ROW, "does not tell its format: .*Set --format to swag, codah, jsonl"),
    ],
)
def test_mistakes_are_told_with_file_and_line(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        read_choices(write(tmp_path / name, content))
    assert str(tmp_path / name) in str(error.value)


def test_a_file_to_predict_is_checked_as_well(tmp_path):
    with pytest.raises(ValueError, match="line 3: the row has 11 columns"):  # not with its label for an ending
        read_choices(write(tmp_path / "a.csv", SHORT_SWAG), has_labels=False)
    with pytest.raises(ValueError, match="a.jsonl, line 1: the row has 3 endings, but the model is trained on 4"):
        read_choices(write(tmp_path / "a.jsonl", lines(GOOD)), has_labels=False, num_choices=4)
