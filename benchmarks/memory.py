"""Peak memory and time of a pre-training step, with and without recomputation of activations.

    python -m benchmarks.memory --batch_size=8 --max_seq_length=512

Each setting runs in a process of its own, and its peak is the largest resident size the system saw of it, less that of
the imports. Two steps are taken: the optimizer's variables and the buffers of both are then there.
"""

import json
import resource
import subprocess
import sys
import time

from absl import flags

import command_line

_PRESET = flags.DEFINE_string("preset", "base", "Size of the model, a preset of BertConfig.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Sequences in a batch.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Tokens in a sequence.", lower_bound=8)
_JIT_COMPILE = flags.DEFINE_bool("jit_compile", False, "Compile the step with XLA.")
_DTYPE = flags.DEFINE_string("dtype", "float32", "Keras dtype policy: float32, mixed_bfloat16 or mixed_float16.")
_MEASURE = flags.DEFINE_enum("measure", None, ["kept", "recomputed"], "Measure one setting in this process.")


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(recompute: bool) -> dict[str, float]:
    """Takes two training steps and says what they cost."""
    import numpy as np
    import tensorflow as tf

    from modeling.config import BertConfig
    from modeling.losses import masked_lm_loss, next_sentence_loss
    from modeling.models import PretrainingModel
    from training.optimizer import AdamWeightDecay

    imports = peak_megabytes()
    config = BertConfig.preset(_PRESET.value)
    rows, length, predictions = _BATCH_SIZE.value, _MAX_SEQ_LENGTH.value, _MAX_SEQ_LENGTH.value * 20 // 128
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": tf.constant(rng.integers(0, config.vocab_size, (rows, length), np.int32)),
        "masked_lm_positions": tf.constant(rng.integers(0, length, (rows, predictions), np.int32)),
        "masked_lm_ids": tf.constant(rng.integers(0, config.vocab_size, (rows, predictions), np.int32)),
    }
    model = PretrainingModel(config, recompute=recompute, dtype=_DTYPE.value)
    optimizer = AdamWeightDecay()
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=_JIT_COMPILE.value)
    def step():
        with tf.GradientTape() as tape:
            logits = model(batch, training=True)
            loss = masked_lm_loss(logits["masked_lm_logits"], batch["masked_lm_ids"], tf.ones([rows, predictions]))
            loss += next_sentence_loss(logits["next_sentence_logits"], tf.zeros([rows], tf.int32))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    step()
    start = time.perf_counter()
    step()
    return {"megabytes": peak_megabytes() - imports, "seconds": time.perf_counter() - start}


def main() -> None:
    if _MEASURE.value:
        print(json.dumps(measure(recompute=_MEASURE.value == "recomputed")))
        return
    results = {}
    for setting in ("kept", "recomputed"):
        output = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:], f"--measure={setting}"],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        results[setting] = json.loads(output)
        print(f"{setting:>10}: {results[setting]['megabytes']:7.0f} MB, {results[setting]['seconds']:6.1f} s a step")
    kept, recomputed = results["kept"], results["recomputed"]
    print(
        f"Recomputation takes {recomputed['megabytes'] / kept['megabytes']:.2f} of the memory "
        f"and {recomputed['seconds'] / kept['seconds']:.2f} times the time."
    )


if __name__ == "__main__":
    command_line.run(main)
