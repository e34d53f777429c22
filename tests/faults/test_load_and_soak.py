"""Short versions of benchmarks/load.py and benchmarks/soak.py: nothing is answered wrongly, and nothing grows."""

import pytest

from tests.scripts import answer_of

_LOAD = """
    import json, sys
    from absl import flags
    from benchmarks.load import measure
    flags.FLAGS(sys.argv[:1])
    load = measure(int(sys.argv[1]), 8)
    print(json.dumps([len(load.seconds), load.largest_difference, list(load.megabytes.values())]))
"""
_SOAK = """
    import gc, json, sys, tempfile
    from pathlib import Path
    from absl import flags
    from benchmarks.soak import Soak, Usage
    from tensorflow.python.framework import func_graph, ops
    flags.FLAGS(sys.argv[:1])
    sys.stderr = open("/dev/null", "w")

    def held():
        gc.collect()
        graphs = sum(isinstance(thing, func_graph.FuncGraph) for thing in gc.get_objects())
        return [graphs, len(ops.gradient_registry.list()), *Usage.now()[1:]]

    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(Path(directory))
        found = []
        for _ in range(int(sys.argv[1])):
            soak.round()
            found.append(held())
    print()
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_all_requests_of_many_clients_are_answered_rightly():
    count, difference, megabytes = answer_of(_LOAD, "200")
    assert count >= 200
    assert difference < 1e-5
    assert megabytes[-1] < megabytes[0] + 200  # the first requests still allocate; the docs have a long run


@pytest.mark.slow
def test_a_round_leaves_nothing_behind():
    """Graphs, registered gradients, descriptors and threads; memory itself needs the long run."""
    found = answer_of(_SOAK, "3")
    graphs, gradients, descriptors, threads = zip(*found, strict=True)
    assert graphs[-1] == graphs[1]
    assert gradients[-1] == gradients[1]
    assert descriptors[-1] == descriptors[1]
    assert threads[-1] <= threads[1] + 2  # TensorFlow starts some of its own when it needs them
