"""What keeping freed memory is worth: a training step with the C library as it comes, and as we set it up.

    python -m benchmarks.allocation

Each way in a process of its own, since neither can be undone; they take turns.
"""

import subprocess
import sys

_STEP = """
import resource, sys, time
import numpy as np, tensorflow as tf
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tasks.pretraining import PretrainingTask
from training.memory import keep_freed_memory
from training.optimizer import AdamWeightDecay
from training.step import TrainStep

way = sys.argv[1]
if way == "ours":
    keep_freed_memory()
rng = np.random.default_rng(0)
ids = rng.integers(5, 8000, (32, 128)).astype(np.int32)
batch = {"input_ids": ids, "masked_lm_positions": np.tile(np.arange(20, dtype=np.int32), (32, 1)),
         "masked_lm_ids": ids[:, :20], "masked_lm_weights": np.ones((32, 20), np.float32),
         "next_sentence_labels": np.zeros((32, 1), np.int32)}
dataset = tf.data.Dataset.from_tensors(batch).repeat()
if way == "from_generator":  # what it does to the whole process: see data/records.py
    spec = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in batch.items()}
    def forever():
        while True:
            yield batch
    dataset = tf.data.Dataset.from_generator(forever, output_signature=spec)
strategy = tf.distribute.OneDeviceStrategy("CPU:0")
with strategy.scope():
    model = PretrainingModel(BertConfig.preset("mini", vocab_size=8000), seed=1)
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
step, iterator, one = TrainStep(strategy, model, PretrainingTask(), optimizer, seed=1), iter(dataset), tf.constant(1)
step.run(iterator, one)
seconds = []
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    start = time.monotonic()
    float(step.run(iterator, one)["loss"])
    seconds.append(time.monotonic() - start)
faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / 8
print(min(seconds), faults)
"""

_WAYS = {"from_generator": "after Dataset.from_generator", "plain": "as it comes", "ours": "keep_freed_memory()"}


def main() -> None:
    best: dict[str, tuple[float, float]] = {}
    for _ in range(2):
        for way in _WAYS:
            result = subprocess.run([sys.executable, "-c", _STEP, way], capture_output=True, text=True, check=True)
            seconds, faults = map(float, result.stdout.split())
            best[way] = min(best.get(way, (seconds, faults)), (seconds, faults))
    print("BERT-mini, 32 sequences of 128, one step, best of two processes")
    for way, description in _WAYS.items():
        seconds, faults = best[way]
        print(f"{description:30} {seconds:.2f} s  {seconds / best['ours'][0]:.2f} x  {faults:,.0f} page faults")


if __name__ == "__main__":
    main()
