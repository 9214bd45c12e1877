"""Intervals cover what they say, decisions may stay open, and the typical step keeps what recurs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_bottleneck.stats import (
    mad_spread,
    mean_interval,
    typical_step,
    weigh_effect,
    worth,
)


def independent(rng, n):
    return 10 + rng.normal(size=n)


def skewed(rng, n):
    return 10 + rng.exponential(size=n) - 1


def correlated(rng, n, *, phi=0.5):
    """AR(1): a neighbour on the machine comes and goes."""
    noise = rng.normal(size=n + 100)
    x = np.zeros(n + 100)
    for i in range(1, n + 100):
        x[i] = phi * x[i - 1] + noise[i]
    return 10 + x[100:]


def in_bursts(rng, n):
    """Eight workers: a wait of its own length each time, then seven steps without."""
    phase = rng.integers(8)
    waits = np.where(np.arange(n + 8) % 8 == 0, rng.gamma(9.0, 40 / 9, size=n + 8), 0.0)
    return (10 - 40 / 8 + waits + rng.normal(size=n + 8))[phase : phase + n]


def of_two_sizes(rng, n):
    return 10 + np.where((np.arange(n) + rng.integers(2)) % 2, 4.0, -4.0) + rng.normal(size=n)


@pytest.mark.parametrize("n", [40, 75, 200])
@pytest.mark.parametrize("kind", [independent, skewed, correlated, in_bursts, of_two_sizes])
def test_the_mean_interval_covers_the_mean_of_steps_that_depend_on_each_other(kind, n):
    rng = np.random.default_rng([7, n])
    found = [mean_interval(kind(rng, n)) for _ in range(1000)]
    share = sum(low <= 10.0 <= high for low, high in found) / len(found)
    # Of few steps the cut of a rhythm's last round is the larger part of what there is to be uncertain of.
    assert 0.92 <= share <= (0.98 if n == 200 else 1.0)


@pytest.mark.parametrize("n", [300, 2000])
def test_the_mean_interval_covers_the_mean_of_steps_on_a_machine_that_wanders(n):
    rng = np.random.default_rng([10, n])
    found = [mean_interval(independent(rng, n) + correlated(rng, n, phi=1 - 20 / n) - 10) for _ in range(500)]
    assert sum(low <= 10.0 <= high for low, high in found) / len(found) >= 0.9


@pytest.mark.parametrize("before", [0.5, 0.6])
def test_the_mean_interval_of_two_stretches_on_two_levels_holds_both(before):
    rng = np.random.default_rng(11)
    first = round(before * 400)
    low, high = mean_interval(0.2 * independent(rng, 400) + np.where(np.arange(400) < first, 8.0, 10.0))
    assert low <= 10.0 <= 12.0 <= high


def test_the_mean_interval_of_bursts_is_narrower_than_that_of_independent_steps():
    rng = np.random.default_rng(8)
    times = of_two_sizes(rng, 200)
    low, high = mean_interval(times)
    assert high - low < 0.5 * 2 * 1.96 * times.std() / np.sqrt(200)


def test_a_step_time_that_drifts_is_known_less_well():
    rng = np.random.default_rng(9)
    times = independent(rng, 200)
    low, high = mean_interval(times)
    drifting = mean_interval(times + np.linspace(-2, 2, 200))
    assert drifting[1] - drifting[0] > 2 * (high - low)


def test_too_few_values_carry_no_interval():
    assert mean_interval([1.0, 2.0, 3.0]) is None
    assert mad_spread([1.0]) is None


def test_spreads_ignore_an_outlier():
    times = [10.0, 10.1, 9.9, 10.2, 9.8, 500.0]
    assert mad_spread(times) < 0.5


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=40))
def test_the_typical_step_lies_within_the_steps(times):
    typical = typical_step(times)
    assert min(times) * (1 - 1e-9) <= typical.mean_ms <= max(times) * (1 + 1e-9)
    assert typical.count >= 1


def test_the_longest_step_is_a_straggler_unless_another_is_of_its_kind() -> None:
    ordinary = [10.0, 10.1, 9.9] * 20
    alone = typical_step([*ordinary, 6000.0, 40.0, 35.0])
    assert alone is not None and alone.stragglers == (6000.0,)
    assert alone.mean_ms == pytest.approx((600.0 + 75.0) / 62)
    for others in ([4000.0, 35.0], [2000.0, 1200.0]):
        several = typical_step([*ordinary, 6000.0, *others])
        assert several is not None and several.stragglers == ()


def test_a_pause_of_the_garbage_collector_is_explained_and_belongs_to_the_step() -> None:
    times = [10.0, 10.1, 9.9] * 20 + [70.0]
    collected = typical_step(times, collecting_ms=[0.0] * 60 + [58.0])
    assert collected is not None and collected.stragglers == ()
    assert collected.mean_ms == pytest.approx(670.0 / 61)
    unexplained = typical_step(times, collecting_ms=[0.0] * 60 + [5.0])
    assert unexplained is not None and unexplained.stragglers == (70.0,)


def test_waits_that_recur_belong_to_the_step_and_a_lone_straggler_does_not():
    bursts = [10.0, 10.0, 10.0, 50.0] * 10
    assert typical_step(bursts).mean_ms == pytest.approx(20.0)
    lone = [10.0] * 39 + [400.0]
    typical = typical_step(lone)
    assert typical.mean_ms == pytest.approx(10.0)
    assert typical.stragglers == (400.0,)


def test_evaluations_and_a_late_first_compilation_are_other_kinds_of_step():
    times = [10.0] * 8 + [300.0, 90.0]
    flags = [False] * 8
    typical = typical_step(times, validation=[*flags, False, True], compiled=[*flags, True, False])
    assert typical.mean_ms == pytest.approx(10.0)
    assert (typical.validation, typical.one_off_compiles) == (1, 1)
    recompiling = typical_step([*times[:8], 300.0, 300.0], compiled=[*flags, True, True])
    assert recompiling.mean_ms == pytest.approx(68.0)


def test_steps_that_could_not_be_timed_do_not_count():
    assert typical_step([None, 10.0, None]).mean_ms == 10.0
    assert typical_step([None]) is None
    assert typical_step([]) is None
    assert typical_step([10.0, 11.0], validation=[True, True]).count == 2


@pytest.mark.parametrize(
    ("effect", "interval", "decision"),
    [
        (5.0, (9.9, 10.1), "real"),
        (0.1, (9.9, 10.1), "negligible"),
        (0.5, (8.0, 12.0), "undecided"),
        (5.0, None, "undecided"),
    ],
)
def test_an_effect_is_real_only_above_its_noise(effect, interval, decision):
    assert weigh_effect(effect, step_ms=10.0, interval_ms=interval).decision == decision


def test_the_error_of_a_prediction_is_noise_too():
    effect = weigh_effect(0.5, step_ms=10.0, interval_ms=(10.0, 10.0), relative_error=0.1)
    assert effect.decision == "undecided"


def test_a_bound_counts_for_less_than_an_estimate_of_the_same_size() -> None:
    assert worth(10.0, bound=False) == 10.0
    assert worth(10.0, bound=True) == pytest.approx(7.0)
    assert worth(10.0, bound=True, weight=0.8) == pytest.approx(8.0), "where more is known of this bound"
    assert worth(10.0, bound=False, weight=0.8) == 10.0


def test_the_interval_of_few_times_that_differ_much_does_not_reach_below_zero():
    found = mean_interval([0.5, 0.6, 9.0, 0.4, 0.5])
    assert found is not None
    assert found[0] == 0.0 < 2.2 < found[1]
