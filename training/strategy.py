"""Where a model is trained: one device, several of one machine, several machines, or a TPU."""

import dataclasses
import json
import logging
import os

import tensorflow as tf

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")


@dataclasses.dataclass(frozen=True)
class TpuAddress:
    """How to find a TPU: the flags of the original."""

    name: str | None = None  # "local" on a TPU VM, the name of a Cloud TPU, or grpc://host:port
    zone: str | None = None
    project: str | None = None
    num_cores: int = 8


def make_strategy(
    name: str = "auto", tpu: TpuAddress | None = None, virtual_devices: int = 1
) -> tf.distribute.Strategy:
    """Builds a strategy. Call it before anything else of TensorFlow: it decides which devices there are.

    Args:
        name: one of `STRATEGIES`. "auto" takes several workers if TF_CONFIG names them, all GPUs (or virtual devices)
            if there is more than one, and else one device.
        tpu: address of the TPU, or None.
        virtual_devices: split the CPU into this many devices, to try "mirrored" on a machine without GPUs.
    """
    if name == "auto":
        name = _choose(virtual_devices)
    if virtual_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * virtual_devices)
    if name == "tpu":
        return _connect_to_tpu(tpu or TpuAddress())
    if name == "multi_worker":
        _check_cluster()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "mirrored":
        return _mirrored(virtual_devices)
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    return tf.distribute.OneDeviceStrategy(device)


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.TPUStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files: always, but for all workers after the first."""
    resolver = strategy.cluster_resolver
    if resolver is None or is_tpu(strategy) or not resolver.task_type:
        return True
    first = "chief" if "chief" in resolver.cluster_spec().as_dict() else "worker"
    return (resolver.task_type, resolver.task_id) == (first, 0)


def _choose(virtual_devices: int) -> str:
    if len(_workers()) > 1:
        return "multi_worker"
    return "mirrored" if max(len(tf.config.list_physical_devices("GPU")), virtual_devices) > 1 else "one_device"


def _mirrored(virtual_devices: int) -> tf.distribute.Strategy:
    gpus = tf.config.list_logical_devices("GPU")
    if virtual_devices <= 1 and not gpus:
        raise ValueError(
            "--distribution_strategy=mirrored needs GPUs, and TensorFlow sees none here. Use "
            "--distribution_strategy=one_device, or try it out on the CPU with --virtual_devices=2."
        )
    devices = [f"CPU:{i}" for i in range(virtual_devices)] if virtual_devices > 1 else [d.name for d in gpus]
    return tf.distribute.MirroredStrategy(devices)


def _workers() -> list[str]:
    """The addresses in TF_CONFIG of all that train, the chief included."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return [*cluster.get("chief", []), *cluster.get("worker", [])]
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"TF_CONFIG in the environment cannot be read ({error}): {os.environ['TF_CONFIG']}") from error


def _check_cluster() -> None:
    if not _workers():
        raise ValueError(
            "--distribution_strategy=multi_worker needs the environment variable TF_CONFIG in every worker, with "
            'the addresses of all and the number of this one: TF_CONFIG=\'{"cluster": {"worker": ["host1:2222", '
            '"host2:2222"]}, "task": {"type": "worker", "index": 0}}\'.'
        )


def _connect_to_tpu(address: TpuAddress) -> tf.distribute.Strategy:
    where = address.name or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=where, zone=address.zone, project=address.project
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # many kinds, from a missing library to a wrong address; all mean the same
        raise ValueError(
            f"The TPU --tpu_name={where} cannot be reached ({type(error).__name__}: {str(error).strip()[:200]}). On a "
            "TPU VM, install tensorflow-tpu and use --tpu_name=local; docs/tpu.md tells the rest."
        ) from error
    if strategy.num_replicas_in_sync != address.num_cores:
        logging.getLogger(__name__).warning(
            "The TPU has %d cores, and --num_tpu_cores is %d: all %d are used.",
            strategy.num_replicas_in_sync,
            address.num_cores,
            strategy.num_replicas_in_sync,
        )
    return strategy


def is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether a CPU computes all of it, as one device: what lies between the products is compiled for it, see
    training/step.py."""
    return strategy.num_replicas_in_sync == 1 and not any(map(tf.config.list_logical_devices, ("GPU", "TPU")))
