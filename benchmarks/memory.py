"""Peak memory of training steps, measured beside what `training.memory_estimate` says; and which batch fits.

    python -m benchmarks.memory --settings=base/8x512,base/8x512/recompute,base/32x128/mixed_bfloat16/parts4
    python -m benchmarks.memory --fits_gigabytes=11

A setting is a preset of BertConfig, batch x length, and whatever differs from float32, kept activations and one part.
Each runs in a process of its own: its peak is the largest resident size that the system saw of it, less that of the
imports. Three steps of pre-training are taken: the optimizer's variables and all buffers are then there.
"""

import dataclasses
import json
import re
import resource
import subprocess
import sys

from absl import flags

import command_line

_SETTINGS = flags.DEFINE_list("settings", ["base/8x512", "base/8x512/recompute"], "What to measure, one or more.")
_FITS_GIGABYTES = flags.DEFINE_float("fits_gigabytes", None, "Tell the largest batches that fit instead of measuring.")
_RESERVED_GIGABYTES = flags.DEFINE_float("reserved_gigabytes", 0.8, "What the device's own libraries take of that.")
_JIT_COMPILE = flags.DEFINE_bool("jit_compile", False, "Compile the step with XLA.")
_MEASURE = flags.DEFINE_string("measure", None, "Measure one setting in this process, and print it as JSON.")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One step of training."""

    preset: str
    batch_size: int
    seq_length: int
    dtype: str = "float32"
    recompute: bool = False
    parts: int = 1

    @classmethod
    def read(cls, text: str) -> "Setting":
        preset, size, *options = text.split("/")
        match = re.fullmatch(r"(\d+)x(\d+)", size)
        parts = next((int(option[5:]) for option in options if re.fullmatch(r"parts\d+", option)), 1)
        dtype = next((option for option in options if option.startswith("mixed_")), "float32")
        if not match or set(options) - {"recompute", dtype, f"parts{parts}"}:
            raise ValueError(f"{text!r} (--settings) should be like base/8x512/mixed_bfloat16/recompute/parts4.")
        return cls(preset, int(match[1]), int(match[2]), dtype, "recompute" in options, parts)

    @property
    def predictions(self) -> int:
        return self.seq_length * 20 // 128  # as many masked words as the original's defaults have

    def estimate(self, on_one_cpu: bool):
        from modeling.config import BertConfig
        from training.memory_estimate import estimate

        return estimate(
            BertConfig.preset(self.preset),
            self.batch_size,
            self.seq_length,
            self.predictions,
            self.dtype,
            self.recompute,
            self.parts,
            on_one_cpu,
        )


def peak_bytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def measure(setting: Setting) -> float:
    """The peak of three training steps, in bytes."""
    import numpy as np
    import tensorflow as tf

    from modeling.config import BertConfig
    from modeling.models import PretrainingModel
    from tasks.pretraining import PretrainingTask
    from training.optimizer import AdamWeightDecay
    from training.step import TrainStep

    imports = peak_bytes()
    config = BertConfig.preset(setting.preset)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocab_size, (setting.batch_size, setting.seq_length), np.int32)
    positions = rng.integers(0, setting.seq_length, (setting.batch_size, setting.predictions), np.int32)
    batch = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": positions,
        "masked_lm_ids": positions,
        "masked_lm_weights": np.ones_like(positions, np.float32),
        "next_sentence_labels": np.zeros([setting.batch_size, 1], np.int32),
    }
    model = PretrainingModel(config, recompute=setting.recompute, dtype=setting.dtype)
    optimizer = AdamWeightDecay()
    optimizer.build(model.trainable_variables)
    strategy = tf.distribute.get_strategy()
    step = TrainStep(
        strategy, model, PretrainingTask(), optimizer, 1, parts=setting.parts, jit_compile=_JIT_COMPILE.value
    )
    float(step.run(iter(tf.data.Dataset.from_tensors(batch).repeat()), tf.constant(3))["loss"])
    return peak_bytes() - imports


def measured_elsewhere(text: str) -> float:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:], f"--measure={text}"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def tell_what_fits() -> None:
    """A table of the largest batches, by model, length and what is done to need less."""
    room = (_FITS_GIGABYTES.value - _RESERVED_GIGABYTES.value) * 1e9
    lengths = (64, 128, 256, 384, 512)
    print("| | " + " | ".join(map(str, lengths)) + " |\n|---" + "|---" * len(lengths) + "|")
    for preset in ("base", "large"):
        for options in ((), ("mixed_bfloat16",), ("recompute",), ("mixed_bfloat16", "recompute")):
            told = [largest_batch(preset, length, options, room) for length in lengths]
            print(f"| {' '.join((preset, *options))} | " + " | ".join(str(rows or "none") for rows in told) + " |")


def largest_batch(preset: str, length: int, options: tuple[str, ...], room: float) -> int:
    rows = 0
    while Setting.read("/".join((preset, f"{rows + 1}x{length}", *options))).estimate(on_one_cpu=False).total <= room:
        rows += 1
    return rows


def main() -> None:
    if _MEASURE.value:
        print(json.dumps(measure(Setting.read(_MEASURE.value))))
        return
    if _FITS_GIGABYTES.value:
        tell_what_fits()
        return
    settings = {text: Setting.read(text) for text in _SETTINGS.value}
    print("| | measured, MB | estimated, MB | of that activations |\n|---|---|---|---|")
    for text, setting in settings.items():
        taken = setting.estimate(on_one_cpu=not _JIT_COMPILE.value)
        megabytes = (measured_elsewhere(text) / 1e6, taken.total / 1e6, taken.activations / 1e6)
        print(f"| {text.replace('/', ' ')} | " + " | ".join(f"{value:,.0f}" for value in megabytes) + " |", flush=True)


if __name__ == "__main__":
    command_line.run(main)
