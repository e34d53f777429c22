"""The flags that all training scripts share, and what is built from them. Each defaults to what the original did.

TensorFlow takes seconds to load, and --help should not: what needs it imports it where it is used.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from flag_help import heading

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from modeling.config import BertConfig
    from training.loop import LoopOptions

heading("Model")
_DTYPE = flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "mixed_bfloat16", "mixed_float16"],
    "The network computes in this arithmetic. Weights are float32 in any case; float16 scales its loss.",
)
_RECOMPUTE_ACTIVATIONS = flags.DEFINE_bool(
    "recompute_activations",
    False,
    "Whether to keep only the input of each layer for the backward pass and compute the rest again: about half of "
    "the memory for a third more arithmetic.",
)

heading("Training")
_OPTIMIZER = flags.DEFINE_enum(
    "optimizer", "adamw", ["adamw", "lamb"], "The original trains with adamw; lamb is for batches of thousands."
)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate", 5e-5, "The learning rate rises to this peak, and falls from it to 0.", lower_bound=0.0
)
_BIAS_CORRECTION = flags.DEFINE_bool(
    "bias_correction",
    None,
    "Whether Adam's averages are corrected for their start at zero. The original does not; LAMB does unless told "
    "otherwise, so the default is no with --optimizer=adamw and yes with lamb. Small data sets train more reliably "
    "with it.",
)
_LAYERWISE_LR_DECAY = flags.DEFINE_float(
    "layerwise_lr_decay",
    1.0,
    "The learning rate of each block of the encoder is that of the block above it times this; 0.9 is usual, where "
    "fine-tuning forgets too much.",
    lower_bound=0.0,
    upper_bound=1.0,
)
_CONTINUOUS_SCHEDULE = flags.DEFINE_bool(
    "continuous_schedule",
    False,
    "Whether the learning rate falls in one line from its peak. The original counts the fall from step 0, so that the "
    "rate drops where the warm-up ends.",
)
_CLIP_EACH_REPLICA = flags.DEFINE_bool(
    "clip_each_replica",
    False,
    "Whether gradients are clipped in each replica before they are summed, as the original did on TPUs. The result "
    "then depends on the number of replicas.",
)
_GRADIENT_ACCUMULATION_STEPS = flags.DEFINE_integer(
    "gradient_accumulation_steps",
    1,
    "Each replica goes through its share of a batch in this many parts. More parts need less memory; the batch, and "
    "what is learned from it, stay the same.",
    lower_bound=1,
)
_SEED = flags.DEFINE_integer(
    "seed",
    None,
    "The first weights, dropout and the order of the data are drawn from this seed. One is drawn, and kept for when "
    "the run is continued, if none is given.",
    lower_bound=0,
    upper_bound=2**31 - 1,
)
_DETERMINISTIC = flags.DEFINE_bool(
    "deterministic",
    False,
    "Whether the same command gives the same bits: operations whose order is left to chance give way to slower ones.",
)
_MAX_BAD_STEPS = flags.DEFINE_integer(
    "max_bad_steps",
    0,
    "Leave out this many steps whose loss or gradients are NaN or infinite, before one more ends the run.",
    lower_bound=0,
)
_JIT_COMPILE = flags.DEFINE_bool("jit_compile", False, "Whether to compile the training step with XLA.")
_ITERATIONS_PER_LOOP = flags.DEFINE_integer(
    "iterations_per_loop",
    1000,
    "The device does this many training steps between two returns to Python. Where there is no TPU, it does only one "
    "unless this is set: a run that is told to stop does so when it returns.",
    lower_bound=1,
)

heading("Devices")
_DISTRIBUTION_STRATEGY = flags.DEFINE_enum(
    "distribution_strategy",
    "auto",
    ["auto", "one_device", "mirrored", "multi_worker", "tpu"],
    "Train on one_device, mirrored (on all GPUs of this machine), multi_worker (on the machines named in TF_CONFIG) or "
    "on a tpu; auto takes what it finds.",
)
_VIRTUAL_DEVICES = flags.DEFINE_integer(
    "virtual_devices", 1, "Split the CPU into this many devices, to try out mirrored without GPUs.", lower_bound=1
)
_USE_TPU = flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU: the same as --distribution_strategy=tpu.")
_TPU_NAME = flags.DEFINE_string(
    "tpu_name", None, "Use this TPU: the name of a Cloud TPU, grpc://host:port, or local on a TPU VM."
)
_TPU_ZONE = flags.DEFINE_string("tpu_zone", None, "The Cloud TPU is in this zone, if that cannot be found out.")
_GCP_PROJECT = flags.DEFINE_string(
    "gcp_project", None, "The Cloud TPU is of this project, if that cannot be found out."
)
_MASTER = flags.DEFINE_string("master", None, "Use the TPU at this address; --tpu_name is the newer name of this flag.")
_NUM_TPU_CORES = flags.DEFINE_integer(
    "num_tpu_cores", 8, "The TPU should have this many cores; all that are there are used.", lower_bound=1
)

heading("Output")
_SAVE_CHECKPOINTS_STEPS = flags.DEFINE_integer(
    "save_checkpoints_steps", 1000, "Save the state of the run whenever this many more steps are done.", lower_bound=1
)
_KEEP_CHECKPOINT_MAX = flags.DEFINE_integer(
    "keep_checkpoint_max", 5, "Keep this many states, the newest ones.", lower_bound=1
)
_LOG_EVERY_STEPS = flags.DEFINE_integer(
    "log_every_steps",
    100,
    "Add a line to metrics.jsonl, and a point to TensorBoard, whenever this many more steps are done.",
    lower_bound=1,
)
_EVAL_EVERY_STEPS = flags.DEFINE_integer(
    "eval_every_steps", 0, "Evaluate whenever this many more steps are done; 0 for only at the end.", lower_bound=0
)
_KEEP_BEST_METRIC = flags.DEFINE_string(
    "keep_best_metric",
    None,
    "End with the weights of the evaluation that was best by this figure (see eval_results.txt for their names) "
    "instead of the last ones, which are kept by default. Needs --eval_every_steps.",
)
_EARLY_STOPPING_PATIENCE = flags.DEFINE_integer(
    "early_stopping_patience",
    0,
    "End the run after this many evaluations without a new best; 0 for never. Needs --keep_best_metric.",
    lower_bound=0,
)

# Flags above whose value decides what is learned, beyond the last digits; parts of a batch draw dropout apart.
_DECIDING = (
    _DTYPE,
    _GRADIENT_ACCUMULATION_STEPS,
    _DETERMINISTIC,
    _OPTIMIZER,
    _LEARNING_RATE,
    _BIAS_CORRECTION,
    _LAYERWISE_LR_DECAY,
    _CONTINUOUS_SCHEDULE,
    _CLIP_EACH_REPLICA,
    _KEEP_BEST_METRIC,
    _EARLY_STOPPING_PATIENCE,
)


def start() -> tf.distribute.Strategy:
    """Sets TensorFlow up as the flags say; before anything else of it is used."""
    import keras
    import tensorflow as tf

    from training.memory import keep_freed_memory
    from training.strategy import TpuAddress, make_strategy

    _validate()
    keep_freed_memory()
    if _DETERMINISTIC.value:
        tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(_DTYPE.value)
    wants_tpu = _USE_TPU.value or _DISTRIBUTION_STRATEGY.value == "tpu"
    tpu = TpuAddress(_TPU_NAME.value or _MASTER.value, _TPU_ZONE.value, _GCP_PROJECT.value, _NUM_TPU_CORES.value)
    name = "tpu" if wants_tpu else _DISTRIBUTION_STRATEGY.value
    strategy = make_strategy(name, tpu if wants_tpu else None, _VIRTUAL_DEVICES.value)
    logging.getLogger(__name__).info(
        "Devices: %s with %d replica(s).", type(strategy).__name__, strategy.num_replicas_in_sync
    )
    return strategy


def _validate() -> None:
    """Refuses flags that contradict each other."""
    if _USE_TPU.value and _DISTRIBUTION_STRATEGY.value not in ("auto", "tpu"):
        raise ValueError(f"--use_tpu and --distribution_strategy={_DISTRIBUTION_STRATEGY.value} contradict each other.")
    if _VIRTUAL_DEVICES.value > 1 and _DISTRIBUTION_STRATEGY.value not in ("auto", "mirrored"):
        raise ValueError("--virtual_devices is for --distribution_strategy=mirrored.")
    if _DTYPE.value == "mixed_float16" and _CLIP_EACH_REPLICA.value:
        raise ValueError("--clip_each_replica does not go with --dtype=mixed_float16: use mixed_bfloat16.")
    if not math.isfinite(_LEARNING_RATE.value):
        raise ValueError(f"--learning_rate={_LEARNING_RATE.value} is not a finite number.")
    if _DETERMINISTIC.value and _SEED.value is None:
        raise ValueError("--deterministic needs a --seed: without one, every new run draws its own.")
    if _KEEP_BEST_METRIC.value and not _EVAL_EVERY_STEPS.value:
        raise ValueError("--keep_best_metric needs evaluations to choose from: set --eval_every_steps.")
    if _EARLY_STOPPING_PATIENCE.value and not _KEEP_BEST_METRIC.value:
        raise ValueError("--early_stopping_patience needs to know what is better: set --keep_best_metric.")


def seed(output_dir: str, strategy: tf.distribute.Strategy) -> int:
    """The seed of the run: the flag, or what the run in `output_dir` had, or a new one."""
    import tensorflow as tf

    from training.state import RunRecord

    if _SEED.value is not None:
        return _SEED.value
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError("Several workers have to draw the same numbers: give all of them the same --seed.")
    before = RunRecord(output_dir).load() or {}
    return before.get("seed", secrets.randbelow(2**31))  # one that lacks it is refused by name, with the other flags


def model_options(seed: int) -> dict[str, Any]:
    """Arguments for a model of modeling/models.py."""
    return {"recompute": _RECOMPUTE_ACTIVATIONS.value, "seed": seed}


def optimizer_for(model: keras.Model, num_train_steps: int, num_warmup_steps: int):
    """The optimizer, built; and the loss scale, or None. Under the scope of the strategy."""
    from training.loss_scale import DynamicLossScale
    from training.optimizer import OPTIMIZERS, WarmupLinearDecay

    correction = {} if _BIAS_CORRECTION.value is None else {"bias_correction": _BIAS_CORRECTION.value}
    is_float16 = _DTYPE.value == "mixed_float16"
    optimizer = OPTIMIZERS[_OPTIMIZER.value](
        WarmupLinearDecay(_LEARNING_RATE.value, num_train_steps, num_warmup_steps, _CONTINUOUS_SCHEDULE.value),
        clip_each_replica=_CLIP_EACH_REPLICA.value,
        layerwise_lr_decay=_LAYERWISE_LR_DECAY.value,
        skip_nonfinite=True,
        **correction,
    )
    optimizer.build(model.trainable_variables)
    return optimizer, DynamicLossScale() if is_float16 else None


def parts() -> int:
    """In how many parts a replica goes through its share of a batch."""
    return _GRADIENT_ACCUMULATION_STEPS.value


def shares(strategy: tf.distribute.Strategy) -> int:
    """In how many parts a batch is shared: among replicas, each of which goes through its part in parts."""
    return strategy.num_replicas_in_sync * _GRADIENT_ACCUMULATION_STEPS.value


def loop_options(
    strategy: tf.distribute.Strategy,
    output_dir: str,
    num_train_steps: int,
    batch_size: float,
    seq_length: float,
    seed: int,
) -> LoopOptions:
    """See `LoopOptions`; sizes are means, where batches differ, and count for speeds alone."""
    from training.loop import LoopOptions
    from training.strategy import is_tpu

    stays_on_device = is_tpu(strategy) or flags.FLAGS["iterations_per_loop"].present
    return LoopOptions(
        output_dir=output_dir,
        num_train_steps=num_train_steps,
        batch_size=batch_size,
        seq_length=seq_length,
        seed=seed,
        parts=parts(),
        jit_compile=jit_compile(strategy),
        steps_per_call=_ITERATIONS_PER_LOOP.value if stays_on_device else 1,
        save_every_steps=_SAVE_CHECKPOINTS_STEPS.value,
        keep_states=_KEEP_CHECKPOINT_MAX.value,
        log_every_steps=_LOG_EVERY_STEPS.value,
        eval_every_steps=_EVAL_EVERY_STEPS.value,
        keep_best_metric=_KEEP_BEST_METRIC.value,
        patience=_EARLY_STOPPING_PATIENCE.value,
        max_bad_steps=_MAX_BAD_STEPS.value,
        default_flags=frozenset(name for name in flags.FLAGS if flags.FLAGS[name].value == flags.FLAGS[name].default),
    )


def jit_compile(strategy: tf.distribute.Strategy) -> bool:
    from training.strategy import is_tpu

    return _JIT_COMPILE.value and not is_tpu(strategy)  # a TPU compiles in any case


def evaluates_while_training() -> bool:
    return _EVAL_EVERY_STEPS.value > 0


def best_metric() -> str | None:
    return _KEEP_BEST_METRIC.value


def facts(strategy: tf.distribute.Strategy, model: keras.Model, source: str | None) -> dict[str, str]:
    """For --dry_run: what there is to train."""
    return {
        "model": f"{model.count_params() / 1e6:.1f} M parameters, {f'from {source}' if source else 'random weights'}",
        "devices": f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replica(s)",
    }


def memory(
    strategy: tf.distribute.Strategy, config: BertConfig, batch_size: int, seq_length: int, predictions: int = 0
) -> dict[str, str]:
    """For --dry_run: what a step will take on each device."""
    from training.memory_estimate import estimate
    from training.strategy import is_one_cpu

    taken = estimate(
        config,
        batch_size=batch_size // strategy.num_replicas_in_sync,
        seq_length=seq_length,
        predictions=predictions,
        dtype=_DTYPE.value,
        recompute=_RECOMPUTE_ACTIVATIONS.value,
        parts=parts(),
        on_one_cpu=is_one_cpu(strategy),
    )
    activations = taken.activations / 1e9
    return {
        "memory": f"about {taken.total / 1e9:.1f} GB a device: {(taken.total - taken.activations) / 1e9:.1f} GB for "
        f"weights, gradients and averages, {activations:.1f} GB for activations (docs/memory.md)"
    }


def check_best_metric(names: Sequence[str]) -> None:
    """Refuses a --keep_best_metric that no evaluation will tell."""
    if _KEEP_BEST_METRIC.value and _KEEP_BEST_METRIC.value not in names:
        raise ValueError(f"--keep_best_metric={_KEEP_BEST_METRIC.value} should be one of {', '.join(names)}.")


def deciding(seed: int) -> Mapping[str, Any]:
    """Name -> value of the flags here that a run cannot change when it is continued."""
    return {flag.name: flag.value for flag in _DECIDING} | {"seed": seed}
