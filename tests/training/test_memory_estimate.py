import dataclasses

import pytest

from modeling.config import BertConfig
from modeling.models import PretrainingModel
from training.memory_estimate import estimate, num_parameters

BASE = BertConfig.preset("base")


def test_parameters_are_those_of_the_encoder():
    config = BertConfig.preset("tiny")
    assert num_parameters(config) == PretrainingModel(config).encoder.count_params()
    assert num_parameters(BASE) == 109_482_240


# What `python -m benchmarks.memory` measured on a CPU, in MB (docs/memory.md).
@pytest.mark.parametrize(
    ("measured", "preset", "batch_size", "seq_length", "changes"),
    [
        (2_907, "base", 8, 128, {}),
        (5_267, "base", 32, 128, {}),
        (8_454, "base", 64, 128, {}),
        (5_116, "base", 8, 384, {}),
        (6_579, "base", 8, 512, {}),
        (2_878, "base", 32, 128, {"recompute": True}),
        (2_715, "base", 8, 384, {"recompute": True}),
        (3_049, "base", 8, 512, {"recompute": True}),
        (3_938, "base", 32, 128, {"dtype": "mixed_bfloat16"}),
        (3_835, "base", 32, 128, {"parts": 4}),
        (6_539, "large", 4, 128, {}),
        (8_059, "large", 10, 128, {}),
    ],
)
def test_it_is_what_was_measured(measured, preset, batch_size, seq_length, changes):
    taken = estimate(
        BertConfig.preset(preset), batch_size, seq_length, seq_length * 20 // 128, on_one_cpu=True, **changes
    )
    assert taken.total / 1e6 == pytest.approx(measured, rel=0.05)


def test_what_needs_less():
    plain = estimate(BASE, 32, 128, 20)
    assert estimate(BASE, 32, 128, 20, recompute=True).activations < 0.3 * plain.activations
    assert estimate(BASE, 32, 128, 20, dtype="mixed_bfloat16").activations < 0.6 * plain.activations
    assert estimate(BASE, 32, 128, 20, parts=4).activations == pytest.approx(plain.activations / 4)
    assert estimate(BASE, 64, 128, 20).activations == pytest.approx(2 * plain.activations)
    longer = dataclasses.replace(BASE, max_position_embeddings=1024)
    assert estimate(longer, 8, 1024).activations > 2 * estimate(BASE, 8, 512).activations
