"""The benchmark of served models: its queue, and one run of all of it on the tiny model."""

import threading
import time

import numpy as np
import pytest

from benchmarks.joining import JoiningQueue
from tests import scripts
from tests.serving import tiny_model


def _ask_together(joining: JoiningQueue, requests: list[list[int]]) -> list:
    answers: list = [None] * len(requests)

    def ask(place: int) -> None:
        try:
            answers[place] = joining.ask({"x": np.array(requests[place])})["y"].tolist()
        except ValueError as error:
            answers[place] = str(error)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    joining.close()
    return answers


@pytest.mark.parametrize("num_threads", [1, 3])
def test_joins_requests_and_gives_each_its_rows(num_threads):
    sizes = []

    def run(inputs):
        sizes.append(len(inputs["x"]))
        time.sleep(0.01)  # the others wait meanwhile
        return {"y": inputs["x"] * 10}

    requests = [[number] * (number % 3 + 1) for number in range(40)]
    answers = _ask_together(JoiningQueue(run, 8, 0.005, num_threads), requests)
    assert answers == [[10 * value for value in request] for request in requests]
    assert sum(sizes) == sum(map(len, requests))
    assert max(sizes) <= 8 and len(sizes) < len(requests)


def test_an_error_reaches_whoever_asked():
    def run(inputs):
        raise ValueError("no")

    assert _ask_together(JoiningQueue(run, 8, 0.0, 1), [[1], [2]]) == ["no", "no"]


@pytest.mark.slow
def test_measures_both_ways(tmp_path):
    tiny_model.export(tmp_path / "1")
    (tmp_path / "lines.txt").write_text("one line\n\nanother, 더 긴 줄\n" * 20)
    flags = scripts.spell(saved_model_dir=tmp_path / "1", input_file=tmp_path / "lines.txt", max_seq_length=16)
    told = scripts.run("benchmarks.serving", *flags, "--lines_per_turn=25")
    assert "of 40 lines" in told
    assert "padded to 16" in told and "free length" in told and "requests/s" in told
