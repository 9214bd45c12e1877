"""Steps that grow are found, those that do not are left alone, and one change is no growth."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.stats.growth import find_change, find_slope

RNG = np.random.default_rng(7)


def points(growth: float = 0.0, *, noise: float = 0.1, steps: int = 4000, per_point: int = 8) -> list[float]:
    """Mean step times of 100 ms that grow by a share per 1,000 steps."""
    x = 100 * (1 + growth * np.arange(steps) / 1000 + RNG.normal(0, noise, steps))
    return list(x.reshape(-1, per_point).mean(axis=1))


def test_one_percent_in_a_thousand_steps_is_found() -> None:
    found = [find_slope(points(0.01), steps_per_point=8) for _ in range(20)]
    slopes = [slope.per_step for slope in found if slope is not None]
    assert len(slopes) >= 19
    assert np.median(slopes) * 1000 == pytest.approx(1.0, rel=0.2)
    covered = sum(slope is not None and slope.low <= 0.001 <= slope.high for slope in found)
    assert covered >= 16


def test_a_stationary_job_is_not_accused() -> None:
    assert sum(find_slope(points(), steps_per_point=8) is not None for _ in range(200)) <= 4


def test_noise_that_drifts_is_no_growth() -> None:
    accused = 0
    for _ in range(100):
        drift, level = np.empty(500), 0.0
        for i in range(500):
            level = 0.9 * level + RNG.normal(0, 1)
            drift[i] = level
        accused += find_slope(list(100 + drift), steps_per_point=8) is not None
    assert accused <= 4


def test_a_few_far_points_move_nothing() -> None:
    times = points(noise=0.02)
    for i in (430, 450, 480, 495):
        times[i] *= 10
    assert find_slope(times, steps_per_point=8) is None


@pytest.mark.parametrize("ratio", [1.3, 2.0, 0.7])
def test_one_change_is_told_as_a_change(ratio: float) -> None:
    times = [*points(steps=1600), *(ratio * time for time in points(steps=2400))]
    change = find_change(times)
    assert change is not None
    assert change.point == pytest.approx(200, abs=5)
    assert change.ratio == pytest.approx(ratio, rel=0.03)
    assert find_slope(times, steps_per_point=8) is None


def test_growth_after_a_change_is_found() -> None:
    grows = np.asarray(points(noise=0.05)) * (1 + np.arange(500) / 2000)
    times = [*points(steps=1600), *(7 * grows)]
    assert find_change(times) is not None
    slope = find_slope(times, steps_per_point=8)
    assert slope is not None
    assert slope.per_step == pytest.approx(700 / 16_000, rel=0.1)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_a_steep_growth_is_no_change(power: float) -> None:
    times = list(np.asarray(points(noise=0.05)) * (0.2 + 10 * (np.arange(500) / 500) ** power))
    assert find_change(times) is None
    slope = find_slope(times, steps_per_point=8)
    assert slope is not None and slope.low > 0


def test_little_data_says_nothing() -> None:
    assert find_slope([100.0, 200.0] * 5, steps_per_point=8) is None
    assert find_change([100.0, 200.0] * 5) is None


def test_a_growth_too_small_to_matter_is_not_told() -> None:
    assert find_slope(points(0.001, noise=0.0001), steps_per_point=8) is None


@pytest.mark.parametrize(
    "levels",
    [
        [(3.4, 225), (3.8, 225)],
        [(3.4, 225), (5.0, 113), (7.0, 112)],
        [(3.4, 225), (3.75, 75), (4.1, 75), (4.5, 75)],
        [(3.4, 100), (3.8, 40), (4.6, 60), (5.0, 250)],
    ],
    ids=["one, too small to be told", "two", "three", "three and then none"],
)
def test_levels_like_stairs_are_no_growth(levels: list[tuple[float, int]]) -> None:
    """Others begin to work beside the job one after the other, and share what its cores share."""
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(20):
        times = np.concatenate([np.full(points, level) for level, points in levels])
        times *= 1 + 0.02 * np.convolve(rng.normal(size=452), np.ones(3), "valid")
        found += any(find_slope(times[:seen].tolist(), steps_per_point=8) for seen in (125, 250, 353, 450))
    assert found <= 3


@pytest.mark.parametrize("grows", [True, False])
def test_levels_that_come_and_go_hide_no_growth_and_are_none(*, grows: bool) -> None:
    """Another program beside the job, now and then, on a core that is half of another."""
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(40):
        level = np.where(np.cumsum(rng.random(250) < 1 / 40) % 2, 1.8, 1.0)
        times = level * rng.normal(1.0, 0.05, 250) * (1 + 2 * grows * np.arange(250) / 250)
        found += find_slope(times.tolist(), steps_per_point=8) is not None
    assert found >= 32 if grows else found <= 1
