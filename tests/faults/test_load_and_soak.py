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
    from training.memory import keep_freed_memory
    flags.FLAGS(sys.argv[:1])
    sys.stderr = open("/dev/null", "w")
    keep_freed_memory()

    def held():
        gc.collect()
        things = gc.get_objects()
        graphs = sum(isinstance(thing, func_graph.FuncGraph) for thing in things)
        return [graphs, len(ops.gradient_registry.list()), len(things), *Usage.now()]

    def is_over():
        found.append(held())
        return len(found) == 12

    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(Path(directory))
        found = []
        if sys.argv[1] == "one run":
            soak.go_on(is_over)
        else:
            for _ in range(3):
                soak.round()
                found.append(held())
    print()
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_all_requests_of_many_clients_are_answered_rightly():
    count, difference, megabytes = answer_of(_LOAD, "250")
    assert count >= 250
    assert difference < 1e-5
    # After a hundred requests it still takes some 35 MB more. A third of a megabyte kept of each would be found.
    assert megabytes[-1] < megabytes[1] + 60


@pytest.mark.slow
def test_a_new_model_leaves_nothing_behind():
    """Graphs, registered gradients, descriptors and threads; memory itself needs the long run."""
    graphs, gradients, _, _, descriptors, threads = zip(*answer_of(_SOAK, "new models"), strict=True)
    assert graphs[-1] == graphs[1]
    assert gradients[-1] == gradients[1]
    assert descriptors[-1] == descriptors[1]
    assert threads[-1] <= threads[1] + 2  # TensorFlow starts some of its own when it needs them


@pytest.mark.slow
def test_one_run_that_goes_on_keeps_what_it_has():
    """Twelve rounds, each of twelve steps, three states, an evaluation and forty questions."""
    graphs, gradients, objects, megabytes, descriptors, threads = zip(*answer_of(_SOAK, "one run"), strict=True)
    assert len(set(graphs[1:])) == len(set(gradients[1:])) == len(set(descriptors[1:])) == 1
    assert threads[-1] <= threads[1] + 2
    assert objects[-1] < objects[3] + 8 * 300  # figures of each round, and what TensorFlow knows of each new shape
    # Memory still fills up, by some 60 MB here. Eight megabytes kept of each round would be found.
    assert megabytes[-1] < megabytes[3] + 120
