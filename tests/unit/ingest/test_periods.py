"""The period of a step is found under layers that repeat within it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_bottleneck.timeline.steps.periods import find_period, identity_period


def model(layers: int) -> list[int]:
    """One step: layers forward, a loss, layers backward, an update per layer."""
    return [1, 2, 3, 2] * layers + [9, 8] + [4, 5, 4, 6, 7] * layers + [10] * layers


@pytest.mark.parametrize("layers", [1, 2, 12, 48])
@pytest.mark.parametrize("steps", [2, 3, 8])
def test_a_step_is_found_not_a_layer(layers: int, steps: int) -> None:
    step = model(layers)
    assert find_period(np.asarray(step * steps)) == len(step)


def test_a_window_that_begins_and_ends_within_a_step() -> None:
    step = model(12)
    assert find_period(np.asarray((step * 5)[17:-31])) == len(step)


def test_a_few_odd_launches_do_not_matter() -> None:
    step = model(12)
    codes = np.asarray(step * 6)
    codes[len(codes) // 2] = 77
    assert find_period(codes) == len(step)


def test_two_launches_per_step_as_with_a_captured_graph() -> None:
    assert find_period(np.asarray([1, 2] * 10)) == 2


@pytest.mark.parametrize("codes", [[], [1], [1, 2, 3], list(range(50))])
def test_what_does_not_repeat_has_no_period(codes: list[int]) -> None:
    assert find_period(np.asarray(codes, dtype=np.int64)) is None


def test_random_work_has_no_period() -> None:
    codes = np.random.default_rng(0).integers(0, 30, 5000)
    assert find_period(codes) is None


@settings(max_examples=60, deadline=None)
@given(step=st.lists(st.integers(0, 5), min_size=2, max_size=40), count=st.integers(2, 6))
def test_the_sequence_does_agree_with_itself_at_the_period(step: list[int], count: int) -> None:
    codes = np.asarray(step * count)
    period = find_period(codes)
    if period is not None:
        assert (codes[period:] == codes[:-period]).mean() >= 0.97
        assert 2 <= period <= len(codes) // 2


@pytest.mark.parametrize(
    ("codes", "period"),
    [([1, 1, 1], 1), ([1, 2, 1, 2], 2), ([1, 1, 2, 1, 1, 2, 1], 3), ([1, 2], None), ([1, 1, 2], None)],
)
def test_the_period_of_optimizers(codes: list[int], period: int | None) -> None:
    assert identity_period(np.asarray(codes, dtype=np.int32)) == period
