"""How we are measured beside peers: what counts of a pair, and what is told of it. No peer is needed for that."""

import contextlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import report
from benchmarks.peers.measuring import Turns, disagreements, take_turns, time_to_loss, times_to_the_same_loss
from benchmarks.peers.running import Row, Run
from benchmarks.peers.shapes import pretraining_batch, released, training_gflop
from benchmarks.peers.texts import Inputs
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.works import WORKS, Goal, Way, Work


class FakeWorker:
    """Gives prepared figures, one after the other, and writes down when it was asked."""

    def __init__(self, name, figures, log=None):
        self.name, self._figures, self._log = name, iter(figures), [] if log is None else log

    def prepare(self):
        self._log.append(f"prepare {self.name}")
        return {"versions": {self.name: "1"}}

    def measure(self, count):
        self._log.append(f"{self.name} {count}")
        figures = next(self._figures)
        if isinstance(figures, Exception):
            raise figures
        return figures

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._log.append(f"close {self.name}")


def told(value, before=100.0, after=100.0, **more):
    return {"value": value, "reference": [before, after]} | more


class TestTurns:
    def test_sides_alternate_and_the_best_of_each_counts(self):
        log = []
        ours = FakeWorker("ours", [told(10), told(12), told(11)], log)
        peer = FakeWorker("peer", [told(8), told(7), told(9)], log)
        measured = take_turns([ours, peer], Turns(count=5, wanted=3))
        assert log == ["ours 5", "peer 5"] * 3
        assert measured.best(0, lower_is_better=False)["value"] == 12
        assert measured.best(1, lower_is_better=False)["value"] == 9
        assert measured.best(1, lower_is_better=True)["value"] == 7
        assert not measured.has_moved

    @pytest.mark.parametrize(
        ("ours", "peer"),
        [
            (told(50, 100, 100), told(1, 100, 89)),  # slower at the end
            (told(50, 112, 112), told(1, 100, 100)),  # each steady, but another machine for the one than for the other
            (told(50, 80, 100), told(1, 100, 100)),
        ],
    )
    def test_a_turn_in_which_the_machine_moved_is_taken_again_and_does_not_count(self, ours, peer):
        still = told(10), told(10, 105, 96.0)
        sides = [FakeWorker("x", [moved, steady, steady]) for moved, steady in zip((ours, peer), still, strict=True)]
        measured = take_turns(sides, Turns(count=1, wanted=2, spare=3))
        assert [turn.move <= 0.1 for turn in measured.turns] == [False, True, True]
        assert measured.best(0, lower_is_better=False)["value"] == 10
        assert measured.best(1, lower_is_better=True)["value"] == 10

    def test_a_pair_that_always_moved_is_marked_and_ends(self):
        sides = [FakeWorker("x", [told(value, 100, 50)] * 9) for value in (3.0, 2.0)]
        measured = take_turns(sides, Turns(count=1, wanted=2, spare=3))
        assert len(measured.turns) == 5 and measured.has_moved and not measured.counted
        assert measured.best(0, lower_is_better=False)["value"] == 3.0

    def test_memory_counts_whatever_the_speed(self):
        measured = take_turns([FakeWorker("x", [told(1, 100, 50)])], Turns(count=1, wanted=1, is_timed=False))
        assert len(measured.turns) == 1 and not measured.has_moved


def test_times_to_the_same_loss():
    curve = [(0.0, 10.0), (1.0, 8.0), (2.0, 4.0), (3.0, 5.0)]
    assert time_to_loss(curve, 8.0) == 1.0
    assert time_to_loss(curve, 6.0) == 1.5
    assert time_to_loss(curve, 3.9) == math.inf
    # The other one ends at 6, so that is what both are asked for: after 1.5 s and after 3 s.
    other = [(0.0, 10.0), (3.0, 6.0)]
    assert times_to_the_same_loss({"curve": curve}, {"curve": other}) == (1.5, 3.0)


def test_sides_that_do_not_do_the_same_work_are_found_out():
    assert not list(disagreements({"fingerprint": "a", "sample": [1.0]}, {"fingerprint": "a", "sample": [1.0005]}))
    assert list(disagreements({"fingerprint": "a"}, {"fingerprint": "b"})) == ["a and b"]
    assert list(disagreements({"sample": [1.0, 2.0]}, {"sample": [1.0, math.nan]}))
    assert list(disagreements({"sample": [1.0, 2.0]}, {"sample": [1.0, 2.01]})) == ["numbers differ by 0.01"]


OURS, OURS_XLA, PEER, OTHER = (Way(name, "x:x") for name in ("ours", "ours, XLA", "peer", "other"))


def work(*goals, ours=(OURS,), **changes) -> Work:
    settings = {"name": "w", "title": "a work", "unit": "m/s", "ours": ours, "goals": goals}
    return Work(**settings | {"turns": Turns(count=4, wanted=2, spare=2)} | changes)


def rows_of(work, figures, log=None) -> list[Row]:
    """Rows where the worker of each way, by name, gives these figures."""
    return Run(work, lambda way: FakeWorker(way.name, figures[way.name], log)).rows()


class TestRows:
    def test_ratio_goal_and_names(self):
        goal = Goal("the peer", at_least=1.2, against=(PEER,))
        [row] = rows_of(work(goal), {"ours": [told(9), told(12)], "peer": [told(10), told(8)]})
        assert (row.ours, row.peer, row.our_figure, row.peer_figure, row.unit) == ("ours", "peer", 12, 10, "m/s")
        assert row.found == 1.2 and row.is_reached and row.goal == "at least 1.2" and not row.problem
        assert (row.turns, row.turns_counted, row.has_moved) == (2, 2, False)

    def test_little_is_good(self):
        goal = Goal("the peer", at_most=0.5, against=(PEER,))
        figures = {"ours": [told(3), told(4)], "peer": [told(5), told(9)]}
        [row] = rows_of(work(goal, lower_is_better=True), figures)
        assert row.found == 0.6 and not row.is_reached
        assert row.advantage == pytest.approx(5 / 3) and row.wanted_advantage == 2

    def test_the_better_of_our_ways_is_chosen_and_the_other_closed_before_peers_start(self):
        log = []
        goal = Goal("the peer", at_least=1.0, against=(PEER,))
        figures = {"ours": [told(1)], "ours, XLA": [told(2)] * 3, "peer": [told(1)] * 2}
        [row] = rows_of(work(goal, ours=(OURS, OURS_XLA)), figures, log)
        assert row.ours == "ours, XLA" and row.found == 2
        assert row.details["choice"] == {"ours": 1, "ours, XLA": 2}
        assert log.index("close ours") < log.index("prepare peer") < log.index("close ours, XLA")

    def test_the_strongest_of_several_peers_counts(self):
        goal = Goal("peers", at_least=1.0, against=(PEER, OTHER))
        figures = {"ours": [told(10)] * 4, "peer": [told(5)] * 2, "other": [told(20)] * 2}
        [row] = rows_of(work(goal), figures)
        assert row.peer == "other" and row.found == 0.5 and not row.is_reached

    def test_a_figure_beside_and_by_itself_from_one_measurement(self):
        goals = (
            Goal("peer, memory", at_most=1.0, against=(PEER,), figure="peak_mb", unit="MB"),
            Goal("by itself", at_least=0.9, figure="of_matmul", unit="share"),
        )
        ours = [told(10, peak_mb=300, of_matmul=0.8), told(11, peak_mb=310, of_matmul=0.85)]
        beside, alone = rows_of(work(*goals), {"ours": ours, "peer": [told(1, peak_mb=620)] * 2})
        assert beside.found == 0.5 and beside.is_reached and beside.unit == "MB"
        assert alone.found == 0.85 and not alone.is_reached and alone.peer == ""

    def test_other_work_does_not_reach_a_goal(self):
        goal = Goal("the peer", at_least=1.0, against=(PEER,))
        figures = {"ours": [told(9, fingerprint="a")] * 2, "peer": [told(1, fingerprint="b")] * 2}
        [row] = rows_of(work(goal), figures)
        assert row.found == 9 and not row.is_reached and "not the same work" in row.problem

    def test_a_peer_that_fails_does_not_take_the_others_along(self):
        goals = [Goal(way.name, at_least=1.0, against=(way,)) for way in (PEER, OTHER)]
        figures = {"ours": [told(2)] * 4, "peer": [WorkerError("ended with 1: no torch")], "other": [told(1)] * 2}
        failed, fine = rows_of(work(*goals), figures)
        assert failed.found is None and failed.problem == "peer ended with 1: no torch" and not failed.is_reached
        assert fine.found == 2

    def test_where_we_fail_all_rows_say_so(self):
        goals = [Goal("peer", at_least=1.0, against=(PEER,)), Goal("alone", at_most=1.0)]

        @contextlib.contextmanager
        def start(way):
            raise WorkerError("ended with 1: no memory")
            yield

        rows = Run(work(*goals), start).rows()
        assert [row.problem for row in rows] == ["ours ended with 1: no memory"] * 2


def some_rows() -> list[Row]:
    goals = (Goal("the peer", at_least=1.0, against=(PEER,)), Goal("by itself", at_most=2.0, figure="late", unit="s"))
    figures = {"ours": [told(1500, late=3.0)] * 4, "peer": [told(1000)] * 4}
    moved = {"ours": [told(1, 100, 50)] * 4, "peer": [told(2)] * 4}
    failed = {"ours": [told(1)], "peer": [WorkerError("ended with 1: gone")]}
    return [*rows_of(work(*goals), figures), *rows_of(work(goals[0]), moved), *rows_of(work(goals[0]), failed)]


def test_a_load_that_does_not_move_is_told():
    goal = Goal("the peer", at_least=1.0, against=(PEER,))
    figures = {"ours": [told(2, others=0.05)] * 2, "peer": [told(1, others=0.05), told(1, others=0.4)]}
    [row] = rows_of(work(goal), figures)
    assert row.others == 0.4 and report.verdict(row) == "yes, but others used 40% of the machine"
    [row] = rows_of(work(goal), {"ours": [told(2, others=0.05)] * 2, "peer": [told(1, others=0.09)] * 2})
    assert report.verdict(row) == "yes"


class TestReport:
    about = {"date": "today", "quick": False, "stand_ins": ["books"], "versions": {"torch": "2"}}
    about |= {"machine": {"cpu": "a CPU", "cores": 2, "features": ["avx2"]}}

    def test_table(self):
        lines = report.table(some_rows()).splitlines()
        assert lines[2] == "| a work | 1,500 m/s (ours) | the peer | 1,000 (peer) | 1.5 | at least 1 | yes |"
        assert lines[3] == "| a work | 3 s (ours) | by itself |  | 3 | at most 2 | no |"
        assert lines[4].endswith("| 0.5 | at least 1 | no, but the machine moved |")
        assert lines[5].endswith("| not measured: peer ended with 1: gone |")

    def test_files(self, tmp_path):
        page = report.write(some_rows(), self.about, tmp_path / "results.json")
        assert "2 cores of a CPU (avx2)" in page and "50 to 100 GFLOP/s" in page and "books" in page
        assert (tmp_path / "results.md").read_text() == page
        rows = json.loads((tmp_path / "results.json").read_text())["rows"]
        assert [Row(**row) for row in rows] == some_rows()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]

    def test_a_document_gets_the_page_between_its_marks_again_and_again(self, tmp_path):
        document = tmp_path / "page.md"
        document.write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n")
        for _ in range(2):
            report.write_into(document, "new\n")
            assert document.read_text() == f"above\n{report.BEGIN}\nnew\n{report.END}\nbelow\n"
        document.write_text("no marks\n")
        with pytest.raises(ValueError, match=r"page\.md should have one line"):
            report.write_into(document, "new\n")

    def test_picture(self, tmp_path):
        report.draw(some_rows(), tmp_path / "bars.png")
        assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_gflop_are_those_of_the_matrices_of_the_model():
    from modeling.config import BertConfig
    from modeling.models import PretrainingModel

    config, rows, length, predictions = released(3, 128, vocab_size=500), 4, 32, 5
    sizes = {v.path: math.prod(v.shape) for v in PretrainingModel(BertConfig.from_dict(config)).weights}
    of_tokens = sum(size for path, size in sizes.items() if "/layer_" in path and path.endswith("kernel"))
    of_words = sizes["cls/predictions/transform/dense/kernel"] + sizes["bert/embeddings/word_embeddings"]
    of_rows = sizes["bert/pooler/dense/kernel"] + sizes["cls/seq_relationship/output_weights"]
    products = rows * (of_tokens * length + of_words * predictions + of_rows)
    scores = 3 * rows * length * length * 128 * 2  # of all heads; and as much again for the values
    assert training_gflop(config, rows, length, predictions) == pytest.approx(6 * (products + scores) / 1e9)
    batch = pretraining_batch(config, rows, length, predictions)
    assert all(len(set(row)) == predictions for row in batch["masked_lm_positions"].tolist())


def test_stand_ins_have_the_shape_of_what_they_stand_for(tmp_path, monkeypatch):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{a}{b}\n" for a in "bcdfgh" for b in "aeiou"))
    monkeypatch.setattr(Inputs, "vocab_file", str(vocab))
    inputs = Inputs(tmp_path / "made", book_megabytes=0.05, num_books=2)
    first, second = inputs.books
    text, other = (Path(book).read_text(encoding="utf-8") for book in (first, second))
    assert 5e4 <= len(text) < 8e4 and "\n\n" in text and text != other
    lengths = [len(line.split()) for line in text.splitlines() if line]
    assert 12 <= np.median(lengths) <= 18 and max(lengths) > 50
    assert len((Path(inputs.mrpc_dir) / "train.tsv").read_text(encoding="utf-8").splitlines()) == 3669
    assert inputs.stand_ins == ["books", "MRPC"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="--books_dir"):
        _ = Inputs(tmp_path, books_dir=str(tmp_path / "empty")).books


def test_every_work_has_a_goal_and_ways_of_different_names(tmp_path, monkeypatch):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{a}{b}\n" for a in "bcdfgh" for b in "aeiou"))
    monkeypatch.setattr(Inputs, "vocab_file", str(vocab))
    monkeypatch.setattr(Inputs, "minilm", str(tmp_path))
    inputs = Inputs(tmp_path / "made", book_megabytes=0.01, num_books=5)
    for name, make in WORKS.items():
        for quick in (False, True):
            made = make(inputs, quick)
            assert made.name == name and made.goals
            assert all((goal.at_least is None) != (goal.at_most is None) for goal in made.goals)
            ways = {*map(id, made.ours), *(id(way) for goal in made.goals for way in goal.against)}
            names = {*(way.name for way in made.ours), *(way.name for goal in made.goals for way in goal.against)}
            assert len(names) == len(ways)
            json.dumps([way.settings for way in made.ours])


@pytest.mark.slow
def test_a_worker_is_a_process_that_measures_and_tells_why_it_cannot(tmp_path):
    write = "import sys; print('noise'); open(sys.argv[1] + '/eval_results.txt', 'w').write('eval_f1 = 0.5\\n')"
    commands = {"fine": [sys.executable, "-c", write, "OUTPUT_DIR"], "wrong": [sys.executable, "-c", "1 / 0"]}
    with Worker(sys.executable, "commands:whole", {"command": commands["fine"]}, tmp_path / "log") as worker:
        assert worker.prepare()["versions"]["numpy"] == np.__version__
        for _ in range(2):
            figures = worker.measure(1)
            assert 0 < figures["value"] < 60 and figures["eval_f1"] == 0.5 and figures["peak_mb"] > 10
            assert len(figures["reference"]) == 2 and min(figures["reference"]) > 0 and 0 <= figures["others"] <= 1
    with Worker(sys.executable, "commands:whole", {"command": commands["wrong"]}, tmp_path / "log") as worker:
        worker.prepare()
        with pytest.raises(WorkerError, match="ended with 1: RuntimeError: .*1 / 0 ended with 1"):
            worker.measure(1)
