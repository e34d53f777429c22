"""Rows of the shape that the real files have, made up; and the real files themselves, where they are."""

import pytest

from data.glue import DIAGNOSTIC, GLUE_TASKS, BlindSet, read_split, task_name
from data.sentence_sets import GlueSets, XnliSets

MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\tgold_label"
)
NLI_ROW = "\t".join(["0", "1", "1c", "fiction", "p", "q", "r", "s", "A dog ran.", "It moved.", "neutral", "entailment"])

# task -> (train.tsv, test.tsv): header and one row each, and what should come of them.
SHAPES = {
    "cola": (
        "src\t0\t*\tHim slept.",
        "index\tsentence\n3\tShe slept.",
        ("Him slept.", None, "0"),
        ("3", "She slept.", None),
    ),
    "sst-2": (
        'sentence\tlabel\na "quiet" joy \t1',
        "index\tsentence\n0\tdull",
        ('a "quiet" joy ', None, "1"),
        ("0", "dull", None),
    ),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t12\t13\tHe said " no .\tHe refused .',
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t12\t13\tA .\tB .",
        ('He said " no .', "He refused .", "1"),
        ("5", "A .", "B ."),
    ),
    "sts-b": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\t2012\t1\tnone\tnone\tA cat.\tA tiger.\t3.250",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n9\tg\tf\t2012\t1\tn\tn\tC\tD",
        ("A cat.", "A tiger.", 3.25),
        ("9", "C", "D"),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWhy?\tHow come?\t1",
        "id\tquestion1\tquestion2\n4\tWho?\tWhom?",
        ("Why?", "How come?", "1"),
        ("4", "Who?", "Whom?"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWho ran?\tA dog ran.\tentailment",
        "index\tquestion\tsentence\n1\tQ\tS",
        ("Who ran?", "A dog ran.", "entailment"),
        ("1", "Q", "S"),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA dog ran.\tA cat ran.\tnot_entailment",
        "index\tsentence1\tsentence2\n2\tS\tT",
        ("A dog ran.", "A cat ran.", "not_entailment"),
        ("2", "S", "T"),
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tIt fell.\tThe cup fell.\t1",
        "index\tsentence1\tsentence2\n0\tS\tT",
        ("It fell.", "The cup fell.", "1"),
        ("0", "S", "T"),
    ),
}


def write(path, text, newline="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((text + "\n").replace("\n", newline).encode("utf-8"))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_the_real_shape(tmp_path, name, newline):
    train, test, wanted_train, wanted_test = SHAPES[name]
    write(tmp_path / "train.tsv", train, newline)
    write(tmp_path / "dev.tsv", train, newline)
    write(tmp_path / "test.tsv", test, newline)
    sets = GlueSets(name, str(tmp_path))
    [example] = sets.train()
    assert (example.text_a, example.text_b, example.label) == wanted_train
    [dev] = sets.evaluation()
    assert [e.label for e in dev.examples] == [wanted_train[2]] and dev.suffix == ""
    [predicted] = sets.prediction()
    assert (predicted.examples[0].id, predicted.examples[0].text_a, predicted.examples[0].text_b) == wanted_test


def test_mnli_has_two_of_each_and_the_diagnostic_set(tmp_path):
    for name in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path / f"{name}.tsv", f"{MNLI_HEADER}\n{NLI_ROW}")
    header, row = MNLI_HEADER.rsplit("\t", 2)[0], NLI_ROW.rsplit("\t", 2)[0]
    for name in ("test_matched", "test_mismatched"):
        write(tmp_path / f"{name}.tsv", f"{header}\n{row}")
    write(tmp_path / "diagnostic.tsv", "index\tsentence1\tsentence2\n0\tA\tB")
    sets = GlueSets("MNLI", str(tmp_path))
    assert [(e.text_a, e.text_b, e.label) for e in sets.train()] == [("A dog ran.", "It moved.", "entailment")]
    assert [named.suffix for named in sets.evaluation()] == ["", "_mismatched"]
    assert [(n.suffix, n.test_set.submission) for n in sets.prediction()] == [
        ("", "MNLI-m"),
        ("_mismatched", "MNLI-mm"),
        ("_diagnostic", "AX"),
    ]
    [diagnostic] = GlueSets("ax", str(tmp_path)).prediction()
    assert diagnostic.suffix == "" and diagnostic.test_set is DIAGNOSTIC


def test_short_rows_are_counted_and_left_out(tmp_path, caplog):
    write(tmp_path / "train.tsv", SHAPES["qqp"][0] + "\n1\t3\t4\tOnly one question\n")
    assert len(GlueSets("qqp", str(tmp_path)).train()) == 1
    assert "1 short rows were left out (line 3 has no 'question2')" in caplog.text


def test_a_label_that_the_set_does_not_have(tmp_path):
    write(tmp_path / "train.tsv", SHAPES["rte"][0].replace("not_entailment", "maybe"))
    with pytest.raises(ValueError, match="train.tsv, line 2: the label is 'maybe', but should be one of entailment"):
        GlueSets("rte", str(tmp_path)).train()


def test_xnli_across_languages(tmp_path):
    write(tmp_path / "multinli" / "multinli.train.en.tsv", "premise\thypo\tlabel\nA\tB\tcontradictory")
    header = "language\tgold_label\t2\t3\t4\t5\tsentence1\tsentence2"
    rows = "zh\tneutral\t\t\t\t\t狗\t猫\nde\tentailment\t\t\t\t\tHund\tTier"
    write(tmp_path / "xnli.dev.tsv", f"{header}\n{rows}")
    write(tmp_path / "xnli.test.tsv", f"{header}\n{rows}")
    sets = XnliSets(str(tmp_path), "de", "en")
    assert [e.label for e in sets.train()] == ["contradiction"]
    [dev] = sets.evaluation()
    assert [(e.text_a, e.text_b, e.label) for e in dev.examples] == [("Hund", "Tier", "entailment")]
    with pytest.raises(ValueError, match="no rows of the language 'sw'"):
        list(XnliSets(str(tmp_path), "sw", None).evaluation())


def test_names():
    assert [task_name(name) for name in ("MRPC", "SST-2", "sst2", "STS-B", "Diagnostic")] == [
        "mrpc",
        "sst-2",
        "sst-2",
        "sts-b",
        "ax",
    ]


COUNTS = {
    "CoLA": (8551, 1043),
    "SST-2": (67349, 872),
    "MRPC": (3667, 408),
    "STS-B": (5749, 1500),
    "RTE": (2490, 277),
    "WNLI": (635, 71),
    "QNLI": (None, 5463),
}


@pytest.mark.parametrize("name", COUNTS)
def test_official_counts(shared, name):
    sets = GlueSets(name, str(shared / "datasets" / "glue" / name))
    train, dev = COUNTS[name]
    if train is not None:
        assert len(sets.train()) == train
    assert [len(named.examples) for named in sets.evaluation()] == [dev]
    for named in sets.prediction():
        assert len(named.examples) == named.test_set.size
        assert [e.id for e in named.examples] == [str(number) for number in range(named.test_set.size)]


def test_the_diagnostic_set(shared):
    assert isinstance(DIAGNOSTIC, BlindSet)
    path = shared / "datasets" / "glue" / "diagnostic" / DIAGNOSTIC.file
    assert len(read_split(GLUE_TASKS["mnli"], path, has_labels=False)) == DIAGNOSTIC.size == 1104
