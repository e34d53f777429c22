"""Checkpoints of TensorFlow, read as it reads them. tests/faults/test_fuzz_checkpoints.py has those that lie."""

import numpy as np
import pytest
import tensorflow as tf

from modeling.errors import CheckpointError
from modeling.tensor_bundle import TensorBundle

_NUMBERS = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool, tf.int8, tf.uint16, tf.int32, tf.int64, tf.uint64]


def save(prefix, tensors, slices=None):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=sorted(tensors),
        shape_and_slices=slices or [""] * len(tensors),
        tensors=[tensors[name] for name in sorted(tensors)],
    )


def assert_read_alike(prefix):
    bundle, reader = TensorBundle(str(prefix)), tf.train.load_checkpoint(str(prefix))
    assert bundle.names == sorted(reader.get_variable_to_shape_map())
    for name in bundle.names:
        value, wanted = bundle.read(name), reader.get_tensor(name)
        assert value.dtype == wanted.dtype and value.shape == wanted.shape
        assert value.tobytes() == np.asarray(wanted).tobytes()
        assert value.flags.writeable
    return bundle


def test_what_the_original_wrote(golden):
    assert len(assert_read_alike(golden / "model" / "bert_model.ckpt").names) > 30


def test_every_kind_of_number_and_every_shape(tmp_path):
    rng = np.random.default_rng(1)
    shapes = [[], [1], [7], [3, 5], [2, 3, 4], [0], [4, 0]]
    tensors = {
        f"{kind.name}/{shape}": tf.cast(rng.integers(0, 2, shape), kind) for kind in _NUMBERS for shape in shapes
    }
    save(tmp_path / "a.ckpt", tensors)
    assert len(assert_read_alike(tmp_path / "a.ckpt").names) == len(_NUMBERS) * len(shapes)


def test_an_index_of_many_blocks_and_data_in_several_files(tmp_path):
    for part in range(3):
        names = [f"bert/encoder/layer_{part}/a_variable_with_a_long_name_{number}/kernel" for number in range(1_500)]
        save(tmp_path / f"part-{part}", {name: tf.constant(float(number)) for number, name in enumerate(names)})
    parts = [str(tmp_path / f"part-{part}") for part in range(3)]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "a.ckpt"))
    assert (tmp_path / "a.ckpt.data-00002-of-00003").is_file()
    assert (tmp_path / "a.ckpt.index").stat().st_size > 100_000
    bundle = assert_read_alike(tmp_path / "a.ckpt")
    (tmp_path / "a.ckpt.data-00001-of-00003").unlink()
    with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be read.*a\.ckpt\.data-00001-of-00003"):
        TensorBundle(str(tmp_path / "a.ckpt"))
    with pytest.raises(CheckpointError, match=r"layer_1/.* in .*a\.ckpt cannot be read"):
        bundle.read("bert/encoder/layer_1/a_variable_with_a_long_name_7/kernel")


def test_slices_are_refused_by_name(tmp_path):
    save(tmp_path / "a.ckpt", {"whole": tf.ones([4]), "sliced": tf.zeros([4])}, ["8 0,4", ""])
    bundle = TensorBundle(str(tmp_path / "a.ckpt"))
    assert bundle.names == ["sliced", "whole"]
    assert bundle.read("whole").tolist() == [1, 1, 1, 1]
    with pytest.raises(CheckpointError, match=r"sliced in .*a\.ckpt cannot be read: it was saved in slices"):
        bundle.read("sliced")
