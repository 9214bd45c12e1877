"""Pairs of processes, not steps, say whether something is faster."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_bottleneck.stats.ratio_paired import (
    TURNS,
    decide_ratio,
    may_decide,
    neighbour_freedom,
    neighbour_noise,
    paired_ratio,
    ratio_in_turns,
)


def decide(before: list[float], after: list[float], floor: float = 0.0) -> str:
    return decide_ratio(paired_ratio(before, after, floor=floor), least_pairs=3, threshold=0.02)


def test_the_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    found = paired_ratio([10.0, 20.0], [5.0, 5.0])
    assert found is not None
    assert found.ratio == pytest.approx(math.sqrt(2 * 4))
    assert found.low is not None
    assert found.low < found.ratio


def test_one_pair_has_no_interval_and_decides_nothing() -> None:
    found = paired_ratio([10.0], [5.0])
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert decide([10.0], [1.0]) == "undecided"


def test_pairs_that_agree_by_chance_are_held_to_the_noise_known_from_elsewhere() -> None:
    before, after = [10.0, 10.0, 10.0], [9.6, 9.6, 9.6]
    assert decide(before, after) == "faster"
    assert decide(before, after, floor=0.05) == "undecided"


@pytest.mark.parametrize(
    ("after", "decision"),
    [
        ([8.0, 8.1, 7.9], "faster"),
        ([12.0, 12.1, 12.2], "slower"),
        ([10.0, 10.02, 9.98], "no gain"),
        ([9.95, 9.93, 9.94], "no gain"),
        ([8.0, 12.0, 10.0], "undecided"),
        ([9.7, 9.9, 9.8], "undecided"),
    ],
)
def test_the_order_of_the_decision(after: list[float], decision: str) -> None:
    assert decide([10.0, 10.0, 10.0], after) == decision


def test_drift_that_both_sides_share_does_not_count() -> None:
    drift = [10.0, 14.0, 20.0, 30.0]
    assert decide(drift, [time / 1.3 for time in drift]) == "faster"


def test_lists_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="do not pair up"):
        paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([1.0, 0.0], [1.0, 2.0])
    assert paired_ratio([], []) is None


def test_noise_is_that_of_neighbours_within_a_session() -> None:
    assert neighbour_noise([[10.0], [20.0]]) is None
    found = neighbour_noise([[10.0, 11.0], [20.0, 20.0]])
    assert found is not None
    share, worst = found
    assert worst == pytest.approx(0.1)
    assert share == pytest.approx(math.log(1.1) / math.sqrt(2))


@settings(deadline=None)
@given(
    times=st.lists(st.floats(0.1, 1e4), min_size=3, max_size=8),
    factor=st.floats(0.2, 5.0),
    unit=st.floats(0.1, 10),
)
def test_neither_unit_nor_direction_matters(times: list[float], factor: float, unit: float) -> None:
    after = [time / factor for time in times]
    one = paired_ratio(times, after, floor=0.01)
    scaled = paired_ratio([t * unit for t in times], [t * unit for t in after], floor=0.01)
    back = paired_ratio(after, times, floor=0.01)
    assert one is not None
    assert scaled is not None
    assert back is not None
    assert scaled.ratio == pytest.approx(one.ratio)
    assert back.ratio == pytest.approx(1 / one.ratio)
    assert one.ratio == pytest.approx(factor)


def test_false_alarms_stay_near_five_per_cent() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(600):
        times = np.exp(rng.normal(0, 0.05, size=(2, 4)))
        alarms += decide(list(times[0]), list(times[1])) in ("faster", "slower")
    assert alarms <= 600 * 0.075


@pytest.mark.parametrize(("pairs", "scatter"), [(2, 1.0), (2, 2.0), (3, 1.0), (3, 2.0)])
def test_the_interval_covers_where_the_noise_comes_from_the_runs_without_the_change(
    pairs: int, scatter: float
) -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(2000):
        alone = np.exp(rng.normal(0, 0.01, size=pairs + 1))
        changed = np.exp(rng.normal(0, 0.01 * scatter, size=pairs))
        noise = neighbour_noise([list(alone)])
        assert noise is not None
        found = paired_ratio(
            list(np.sqrt(alone[:-1] * alone[1:])),
            list(changed),
            floor=math.sqrt(0.75) * noise[0],
            floor_freedom=neighbour_freedom([len(alone)]),
        )
        assert found is not None
        assert found.low is not None and found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert covered >= 2000 * (0.945 if scatter == 1.0 else 0.93)


def test_what_is_known_of_the_noise_narrows_an_interval_only_where_the_pairs_agree() -> None:
    def width(after: list[float], freedom: float) -> float:
        found = paired_ratio([10.0, 10.0], after, floor=0.01, floor_freedom=freedom)
        assert found is not None
        assert found.low is not None and found.high is not None
        return found.high - found.low

    assert width([5.0, 5.0], 2.0) < width([5.0, 5.0], 0.0) / 2
    assert width([5.0, 5.5], 2.0) == width([5.0, 5.5], 0.0)


def test_freedom_counts_differences_that_share_runs_for_less() -> None:
    assert neighbour_freedom([1]) == 0.0
    assert neighbour_freedom([2]) == 1.0
    assert 1.5 < neighbour_freedom([3]) < 2.0
    assert neighbour_freedom([2, 2]) == 2.0


def looked_at_after_each_pair(effect: float, scatter: float, *, tries: int = 300) -> tuple[float, float]:
    """Return how often trials in turns call a fix faster, and how many pairs they take."""
    rng = np.random.default_rng(5)
    called, made = 0, 0
    least, most = TURNS
    for _ in range(tries):
        before = np.exp(rng.normal(0.0, scatter, most)).tolist()
        after = np.exp(rng.normal(-effect, scatter, most)).tolist()
        for pairs in range(least, most + 1):
            found = ratio_in_turns(before[:pairs], after[:pairs], [before[:pairs]])
            decision = decide_ratio(found, least_pairs=least, threshold=0.02)
            if decision != "undecided" or pairs == most or not may_decide(found, threshold=0.02):
                called += decision == "faster"
                made += pairs
                break
    return called / tries, made / tries


def test_looking_after_each_pair_calls_no_more_than_one_in_forty_faster() -> None:
    called, pairs = looked_at_after_each_pair(0.0, 0.07)
    assert called <= 0.025
    assert pairs < 7.0, "what will hardly decide is given up"


def test_what_helps_is_found_nevertheless() -> None:
    called, pairs = looked_at_after_each_pair(0.3, 0.14)
    assert called >= 0.93
    assert pairs < 8.0


def test_more_looks_for_a_gain_ask_for_more() -> None:
    times = [10.0, 10.3, 9.8, 10.1], [9.0, 9.1, 9.2, 8.9]
    once, often = paired_ratio(*times), paired_ratio(*times, looks=10)
    assert once is not None and once.low is not None and once.high is not None
    assert often is not None and often.low is not None and often.high is not None
    assert often.low < once.low < once.ratio
    assert (often.ratio, often.high) == (once.ratio, once.high)


def test_pairs_that_scatter_too_much_may_not_decide_any_more() -> None:
    def may(*after: float) -> bool:
        return may_decide(paired_ratio([10.0] * len(after), after, looks=10), threshold=0.02)

    assert may(9.0, 8.0, 8.5)
    assert not may(9.0, 11.0, 10.0, 10.1, 9.5, 10.4)
    assert may(9.99, 10.0, 10.01, 10.0), "that there is no gain is a decision as well"
    assert may_decide(None, threshold=0.02)
