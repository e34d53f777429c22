"""What a TPU has to be able to do: all operations of a training step, and whether XLA has a kernel for each.

python -m benchmarks.tpu_ops
"""

import tensorflow as tf
from tensorflow.python.framework import kernels

from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tasks.pretraining import PretrainingTask
from training.optimizer import OPTIMIZERS, WarmupLinearDecay
from training.step import TrainStep

# Operations that hold a value or a name, and compute nothing.
_STRUCTURE = {"Placeholder", "NoOp"}


def training_graphs(
    parts: int = 1, optimizer: str = "adamw", recompute: bool = False, dtype: str = "float32", attention="bidirectional"
) -> list[tf.Graph]:
    """The graph of a small model's step, and those of its loops; of a shape that is known beforehand."""
    config = BertConfig.preset("tiny", vocab_size=50, attention=attention)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = PretrainingModel(config, seed=1, recompute=recompute, dtype=dtype)
        built = OPTIMIZERS[optimizer](WarmupLinearDecay(1e-4, 100, 10), skip_nonfinite=True)
        built.build(model.trainable_variables)
    # As on a TPU, where all of the step is compiled, and nothing in it by itself as on CPUs.
    step = TrainStep(strategy, model, PretrainingTask(), built, seed=1, parts=parts, jit_compile=True)
    sequence, predictions = tf.TensorSpec([4, 16], tf.int32), tf.TensorSpec([4, 3], tf.int32)
    batch = {
        "input_ids": sequence,
        "input_mask": sequence,
        "segment_ids": sequence,
        "masked_lm_positions": predictions,
        "masked_lm_ids": predictions,
        "masked_lm_weights": tf.TensorSpec([4, 3], tf.float32),
        "next_sentence_labels": tf.TensorSpec([4, 1], tf.int32),
    }

    @tf.function(autograph=False)
    def run(batch):
        return strategy.run(step.replica_step, args=(batch,))

    graph = run.get_concrete_function(batch).graph
    inner = [function.graph for function in graph._functions.values() if hasattr(function, "graph")]
    return [graph, *inner]


def operations(graphs: list[tf.Graph]) -> list[str]:
    return sorted({op.type for graph in graphs for op in graph.get_operations()} - _STRUCTURE)


def without_kernel(names: list[str]) -> list[str]:
    """Those that XLA cannot compile. Kernels that are there for CPU and GPU alike are there for all of its devices."""

    def devices(name):
        return {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(name).kernel}

    return [name for name in names if not {"XLA_CPU_JIT", "XLA_GPU_JIT"} <= devices(name)]


def of_unknown_shape(graphs: list[tf.Graph]) -> list[str]:
    """Operations whose result has no fixed shape, but for those that only compute shapes from shapes."""
    return [
        op.name
        for graph in graphs
        for op in graph.get_operations()
        for output in op.outputs
        if output.dtype.is_floating and not output.shape.is_fully_defined() and op.type not in _STRUCTURE
    ]


if __name__ == "__main__":
    for parts in (1, 2):
        graphs = training_graphs(parts)
        names = operations(graphs)
        print(f"\nIn {parts} part(s): {len(names)} operations.\n{', '.join(names)}")
        print(f"Without a kernel of XLA: {without_kernel(names) or 'none'}.")
        print(f"Numbers of a shape that is not known beforehand: {of_unknown_shape(graphs) or 'none'}.")
