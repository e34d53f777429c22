import subprocess
import sys
import types

import pytest
import tensorflow as tf

from training.strategy import is_chief, make_strategy


def test_one_device_where_there_is_one():
    strategy = make_strategy()
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert is_chief(strategy)


def test_mirrored_without_gpus_says_how_to_try_it():
    with pytest.raises(ValueError, match="--virtual_devices=2"):
        make_strategy("mirrored")


def test_several_workers_need_their_addresses(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match="needs the environment variable TF_CONFIG"):
        make_strategy("multi_worker")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": ')
    with pytest.raises(ValueError, match="TF_CONFIG in the environment cannot be read"):
        make_strategy("multi_worker")


def test_a_tpu_that_is_not_there_is_said_to_be_not_there():
    """Up to the connection, everything runs as it would with one. In a process of its own: a failure leaves traces."""
    script = """
from training.strategy import TpuAddress, make_strategy
try:
    make_strategy("tpu", TpuAddress("local"))
except ValueError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "The TPU --tpu_name=local cannot be reached (NotFoundError: TPUs not found in the cluster" in said.stdout
    assert "docs/tpu.md" in said.stdout


def test_one_worker_is_the_first(monkeypatch):
    def chief_of(cluster, kind, index):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type=kind, task_id=index
        )
        return is_chief(types.SimpleNamespace(cluster_resolver=resolver))

    two = {"worker": ["a:1", "b:1"]}
    assert [chief_of(two, "worker", index) for index in range(2)] == [True, False]
    with_chief = {"chief": ["c:1"], "worker": ["a:1"]}
    assert [chief_of(with_chief, *who) for who in (("chief", 0), ("worker", 0))] == [True, False]
