"""Where the time of a training step goes: kinds of operations, one after the other, beside a plain product of matrices.

    python -m benchmarks.profile_step --model=12x768 --batch=8x128

One operation runs at a time, on all cores, so that each row is what that kind costs by itself; a real step overlaps
them, and is shorter than their sum.

In the end it tells what no step can be faster than here: one that did nothing but the products, as they are, and what
the optimizer has to read and write.
"""

import collections
import os
import tempfile
import time
from pathlib import Path

from absl import flags

import command_line

_MODEL = flags.DEFINE_string("model", "12x768", "Layers x hidden size.")
_BATCH = flags.DEFINE_string("batch", "8x128", "Sequences x pieces.")
_STEPS = flags.DEFINE_integer("steps", 5, "How many steps to look at.", lower_bound=1)

# Kinds of operations, by the names of TensorFlow's kernels; what has no kind is told by its name.
_KINDS = {
    "products with weights": ("_MklMatMul", "_MklNativeFusedMatMul", "MatMul"),
    "products of attention": ("_MklBatchMatMulV2", "BatchMatMulV2"),
    "gelu, norms, dropout and Adam, by XLA": ("ExecuteAsyncOnStream",),
    "norm of the gradients": ("L2Loss",),
    "gradients of biases": ("BiasAddGrad",),
    "transposes": ("_MklTranspose", "Transpose"),
}
_PRODUCTS = ("products with weights", "products of attention")

# Adam reads a gradient, a weight and its two moments, and writes the last three; before, the norm of all gradients is
# known, which reads them once more.
_BYTES_OF_STEP = 4 * (4 + 3 + 1)

_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


def sizes(flag) -> tuple[int, int]:
    try:
        first, second = map(int, flag.value.split("x"))
    except ValueError:
        raise ValueError(f"--{flag.name}={flag.value} should be two numbers, like {flag.default}.") from None
    return first, second


def milliseconds_by_kind(directory: str, steps: int) -> dict[str, float]:
    """Of the operations that a profile saw, a step."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    [path] = Path(directory).rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    found: collections.Counter = collections.Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                # "place/in/the/model:operation", and XLA as a whole; everything else is within or around these.
                place, _, operation = plane.event_metadata[event.metadata_id].name.rpartition(":")
                if "/" in place or operation == "ExecuteAsyncOnStream":
                    found[_KIND_OF.get(operation, operation)] += event.duration_ps / 1e9 / steps
    return dict(found.most_common())


def gigabytes_per_second() -> float:
    """How fast memory is read and written by what goes over it in place, as the optimizer does."""
    import tensorflow as tf

    total, more = tf.Variable(tf.zeros([1 << 27])), tf.ones([1 << 27])
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        total.assign_add(more)
        seconds.append(time.perf_counter() - begin)
    return 3 * 4 * (1 << 27) / min(seconds) / 1e9


def main() -> None:
    (layers, hidden), (rows, length) = sizes(_MODEL), sizes(_BATCH)
    os.environ["TF_NUM_INTEROP_THREADS"] = "1"  # one operation at a time
    command_line.load_tensorflow()
    import tensorflow as tf

    from benchmarks.peers.ours_training import Training
    from benchmarks.peers.shapes import pretraining_batch, released, training_gflop
    from benchmarks.peers.worker import best_gflops

    config, predictions = released(layers, hidden), length * 20 // 128
    training = Training(config, jit_compile=False)
    batch = pretraining_batch(config, rows, length, predictions)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    training.run(batches, 3)
    matrix = tf.random.stateless_normal([2048, 2048], seed=[1, 1])
    plain = best_gflops(lambda: tf.matmul(matrix, matrix).numpy(), rounds=5)
    seconds = min(training.run(batches, 1) for _ in range(_STEPS.value))
    with tempfile.TemporaryDirectory() as directory:
        tf.profiler.experimental.start(directory)
        training.run(batches, _STEPS.value)
        tf.profiler.experimental.stop()
        found = milliseconds_by_kind(directory, _STEPS.value)
    bandwidth = gigabytes_per_second()
    gflop = training_gflop(config, rows, length, predictions)
    print(f"A step of {gflop:.0f} GFLOP takes {1e3 * seconds:.0f} ms with one operation at a time.")
    print(
        f"A product of 2048 x 2048 runs at {plain:.0f} GFLOP/s; at that speed it would be {1e3 * gflop / plain:.0f} ms."
    )
    print("| | ms |\n|---|---|")
    for kind, milliseconds in found.items():
        if milliseconds > 1.0:
            print(f"| {kind} | {milliseconds:.0f} |")
    products = sum(found[kind] for kind in _PRODUCTS)
    gigabytes = _BYTES_OF_STEP * training.model.count_params() / 1e9
    updating = 1e3 * gigabytes / bandwidth
    print(f"The products alone take {products:.0f} ms.")
    print(f"The optimizer moves {gigabytes:.2f} GB, at {bandwidth:.0f} GB/s, in {updating:.0f} ms at the least.")
    print(f"A step of nothing else would be at {1e3 * gflop / plain / (products + updating):.2f} of the plain product.")


if __name__ == "__main__":
    command_line.run(main)
