import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.batch_plans import FILLER, BatchSize, TrainingPlan, evaluation_plan, padded_length

LENGTHS = np.random.default_rng(0).integers(4, 129, size=1000).astype(np.int32)


@pytest.mark.parametrize("by_length", [False, True])
def test_every_record_once_an_epoch(by_length):
    plan = TrainingPlan(LENGTHS, BatchSize(10), num_steps=300, seed=1, by_length=by_length)
    assert len(plan) == 300
    batches = [plan[step] for step in range(len(plan))]
    assert all(len(batch) == 10 for batch in batches)
    assert np.bincount(np.concatenate(batches)).tolist() == [3] * 1000
    if not by_length:
        assert sorted(np.concatenate(batches[:100])) == list(range(1000))


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 64, 65, 343])
def test_as_many_steps_as_wanted(num_steps, by_length):
    plan = TrainingPlan(np.full(30, 9), BatchSize(32), num_steps, seed=0, by_length=by_length)
    assert len(plan) == num_steps
    assert all(len(plan[step]) == 32 for step in range(num_steps))


@pytest.mark.parametrize("count", [200, 635, 2490])
def test_no_record_is_twice_in_a_batch(count):
    """But where one epoch ends and the next begins."""
    plan = TrainingPlan(LENGTHS[np.arange(count) % 1000], BatchSize(32), int(count / 32 * 3), seed=1, by_length=True)
    repeats = [len(batch) - len(set(batch.tolist())) for batch in (plan[step] for step in range(len(plan)))]
    assert sum(number > 0 for number in repeats) <= 2


def test_batches_by_length_need_little_padding():
    def padding(by_length):
        plan = TrainingPlan(LENGTHS, BatchSize(8), 125, seed=1, by_length=by_length)
        return sum(LENGTHS[plan[step]].max() * 8 for step in range(len(plan))) / LENGTHS.sum()

    assert padding(True) < 1.1 < 1.5 < padding(False)


def test_any_step_can_be_asked_for_and_seeds_differ():
    whole = TrainingPlan(LENGTHS, BatchSize(4), 500, seed=5, by_length=True)
    in_order = [whole[step] for step in range(len(whole))]
    fresh = TrainingPlan(LENGTHS, BatchSize(4), 500, seed=5, by_length=True)
    for step in (499, 0, 256, 255, 130):
        np.testing.assert_array_equal(fresh[step], in_order[step])
    other = TrainingPlan(LENGTHS, BatchSize(4), 500, seed=6, by_length=True)
    assert any((other[step] != in_order[step]).any() for step in range(10))
    with pytest.raises(IndexError):
        whole[len(whole)]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 128), min_size=1, max_size=300),
    st.integers(64, 2000),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 3),
)
def test_batches_of_tokens(lengths, tokens, multiple, seed):
    lengths = np.array(lengths, np.int32)
    size = BatchSize(4, tokens, multiple)
    num_steps = int(len(lengths) / 4 * 2)
    plan = TrainingPlan(lengths, size, num_steps, seed=seed, by_length=True)
    batches = [plan[step] for step in range(len(plan))]
    seen = np.concatenate(batches) if batches else np.array([], int)
    assert np.bincount(seen[seen != FILLER], minlength=len(lengths)).max(initial=0) <= 2
    assert (seen != FILLER).sum() == num_steps * 4
    for batch in batches:
        longest = padded_length(int(lengths[batch[batch != FILLER]].max()), 8)
        assert len(batch) % multiple == 0
        assert len(batch) * longest <= max(tokens, longest * multiple)


@pytest.mark.parametrize("by_length", [False, True])
def test_evaluation_goes_through_all_and_fills_the_last(by_length):
    batches = evaluation_plan(LENGTHS, BatchSize(32), by_length)
    assert {len(batch) for batch in batches} == {32} and len(batches) == 32
    seen = np.concatenate(batches)
    assert sorted(seen[seen != FILLER]) == list(range(1000)) and (seen == FILLER).sum() == 24
    assert (seen[:1000] == np.arange(1000)).all() == (not by_length)


def test_tokens_need_lengths():
    with pytest.raises(ValueError, match="put together by length"):
        TrainingPlan(LENGTHS, BatchSize(8, tokens=100), 1, 0, by_length=False)
