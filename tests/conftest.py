"""Where test data lies. Golden files were made by running the original release on text written for this project."""

import gc
import random
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# A slow machine is no mistake.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

GOLDEN = Path(__file__).parent / "testdata" / "golden"
SHARED = Path(__file__).parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: run side by side, the longest would else be the last, and alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What is imported stays. Looking through it for garbage, while graphs are made, takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def same_every_time() -> None:
    """Keras draws seeds that nobody gave from here: weights of a model without one are then the same in every run."""
    random.seed(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def shared() -> Path:
    """Larger data that is not part of the project; tests that want it are skipped where it is missing."""
    if not SHARED.is_dir():
        pytest.skip("needs the shared data beside the project")
    return SHARED


@pytest.fixture(scope="session")
def golden_batch(golden) -> dict[str, np.ndarray]:
    """The batch behind forward.npz and training.npz."""
    arrays = np.load(golden / "model" / "forward.npz")
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    return {name: arrays[name] for name in (*names, "next_sentence_labels")}
