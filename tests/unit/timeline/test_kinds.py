"""Steps of two kinds, and what traced ones take without a profiler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_bottleneck.timeline.steps.kinds import as_timed, as_traced_ms, two_kinds

USUAL, LONG = [20.0, 20.4, 19.8, 20.2, 20.1, 19.9], [180.0, 215.0, 150.0]
TIMED = (USUAL * 2 + LONG) * 3


def test_collections_in_a_fifth_of_the_steps_make_two_kinds() -> None:
    kinds = two_kinds(TIMED)
    assert kinds is not None
    assert kinds.share == pytest.approx(0.2)
    assert kinds.usual_ms == pytest.approx(np.mean(USUAL))
    assert kinds.long_ms == pytest.approx(np.mean(LONG))


@pytest.mark.parametrize(
    "ms",
    [
        USUAL,
        [20.0] * 9,
        [20.0] * 9 + [200.0],
        [20.0] * 9 + [30.0] * 3,
        np.random.default_rng(1).lognormal(3.0, 0.5, 500),
        [],
    ],
    ids=["alike", "equal", "one outlier", "half as long again", "wide", "none"],
)
def test_one_kind(ms: list[float]) -> None:
    assert two_kinds(ms) is None


@pytest.mark.parametrize("long", [0, 1, 3, 6, 7])
def test_traced_steps_take_what_timed_ones_of_their_kind_take(long: int) -> None:
    traced = np.array([150.0] * long + [23.0] * (7 - long))
    expected = (long * np.mean(LONG) + (7 - long) * np.mean(USUAL)) / 7
    assert as_traced_ms(traced, TIMED) == pytest.approx(expected)
    assert as_traced_ms(traced, USUAL) is None


@given(
    st.lists(st.floats(20, 24), min_size=2, max_size=9),
    st.lists(st.floats(140, 160), min_size=1, max_size=9),
    st.floats(0, 1),
)
def test_the_mean_is_the_timed_one_and_parts_stay_in_order(
    usual: list[float], long: list[float], part: float
) -> None:
    traced = np.array([*usual, *long])
    timed = as_timed(traced, TIMED)
    assert timed is not None
    whole, begin, nothing = timed.mean_ms(np.stack([traced, traced * part, traced * 0.0])).tolist()
    assert whole == pytest.approx(np.mean(TIMED))
    assert -1e-9 <= nothing <= begin <= whole + 1e-9


def test_without_what_makes_them_long_steps_are_ordinary() -> None:
    """Beside a profiler both kinds are slower, and not by the same: an ordinary step is left all the same."""
    traced = np.array([23.0, 150.0, 23.0, 23.0])
    timed = as_timed(traced, TIMED)
    assert timed is not None
    assert timed.mean_ms(np.minimum(traced, 23.0)) == pytest.approx(np.mean(USUAL))
