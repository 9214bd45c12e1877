"""Decisions about repeated runs: rarely wrong on pure noise, and honest about what they cannot tell."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.false_alarms import KINDS, drift_rate, rates

from torch_bottleneck.stats.gate import FEWEST_RUNS, decide_times, repeats_needed
from torch_bottleneck.stats.trend import find_trend

REPORT = Path(__file__).resolve().parents[3] / "reports" / "false-alarms.md"
TRIALS = 250
MOST = 0.05 + 1.65 * math.sqrt(0.05 * 0.95 / TRIALS)
"""What a rate of 5 % exceeds in one simulation of twenty; the published table has the rates themselves."""


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("noise", [0.05, 0.15, 0.30])
def test_pure_noise_rarely_alarms(kind, noise):
    for repeats in (3, 5):
        assert rates(kind, noise=noise, repeats=repeats, trials=TRIALS).get("slower", 0.0) < MOST


def test_sides_that_were_not_paired_alarm_as_rarely():
    found = rates("normal", noise=0.15, repeats=5, paired=False, trials=TRIALS)
    assert found.get("slower", 0.0) < MOST


def test_a_clear_slow_down_is_found_and_a_small_one_is_left_undecided_not_passed():
    clear = rates("normal", noise=0.05, repeats=5, effect=0.2, trials=200)
    assert clear["slower"] > 0.9
    small = rates("normal", noise=0.15, repeats=5, effect=0.10, trials=200)
    assert small["undecided"] > 0.5
    assert small.get("no change", 0.0) < 0.1


def test_a_detection_needs_as_many_repeats_as_promised():
    from scipy import stats  # a second to import, in each worker if it stood above

    needed = repeats_needed(0.05, 0.10)
    assert needed is not None
    rng = np.random.default_rng(7)
    significant = 0
    for _ in range(400):
        difference = rng.normal(0, 0.05, needed) - rng.normal(0, 0.05, needed) + math.log(1.1)
        significant += stats.ttest_1samp(difference, 0.0).pvalue < 0.05
    assert 0.74 < significant / 400 < 0.93


def test_more_noise_needs_more_repeats_and_too_much_needs_too_many():
    needed = [repeats_needed(noise, 0.05) for noise in (0.0, 0.01, 0.05, 0.15)]
    assert needed == sorted(needed)
    assert needed[0] == FEWEST_RUNS
    assert repeats_needed(0.5, 0.02) is None


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_runs_decide_nothing(n):
    found = decide_times([1.0] * n, [2.0] * n, tolerance=0.05, paired=True)
    assert found.decision == "undecided"
    assert found.interval is None


def test_identical_runs_have_no_noise_and_are_decided():
    assert decide_times([2.0] * 3, [2.0] * 3, tolerance=0.05, paired=True).decision == "no change"
    assert decide_times([2.0] * 3, [3.0] * 3, tolerance=0.05, paired=False).decision == "slower"


def test_pairs_take_out_what_both_runs_shared():
    machine = np.asarray([1.0, 1.4, 0.8, 1.2, 0.9])
    base, head = 10 * machine, 11 * machine
    assert decide_times(base, head, tolerance=0.05, paired=True).decision == "slower"
    assert decide_times(base, head, tolerance=0.05, paired=False).decision == "undecided"


def test_the_interval_is_the_t_interval_of_scipy():
    from scipy import stats  # a second to import, in each worker if it stood above

    base, head = [10.0, 11.0, 10.5, 9.8], [11.2, 11.9, 11.4, 11.0]
    found = decide_times(base, head, tolerance=0.05, paired=True)
    expected = stats.ttest_rel(np.log(head), np.log(base)).confidence_interval()
    assert found.interval == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


def test_times_that_are_no_times_are_our_callers_mistake():
    with pytest.raises(ValueError, match="positive"):
        decide_times([0.0], [1.0], tolerance=0.05, paired=False)
    with pytest.raises(ValueError, match="paired"):
        decide_times([1.0], [1.0, 2.0], tolerance=0.05, paired=True)


def test_a_history_of_noise_rarely_shows_a_trend_and_a_steady_rise_does():
    for noise in (0.05, 0.15, 0.30):
        assert drift_rate(noise, per_run=0.0, trials=TRIALS) < 0.03
    assert drift_rate(0.05, per_run=0.01, trials=100) > 0.9


def test_one_outlier_makes_no_trend():
    values = [10.0 + 0.01 * (-1) ** i for i in range(12)]
    values[-1] = 30.0
    trend = find_trend(values, tolerance=0.05)
    assert trend is not None and not trend.rising


def test_constant_and_short_series_have_no_trend():
    constant = find_trend([5.0] * 10, tolerance=0.05)
    assert constant is not None and not constant.rising
    assert find_trend([1.0] * 5, tolerance=0.05) is None
    assert find_trend([1.0] * 9 + [0.0], tolerance=0.05) is None


def test_the_published_table_keeps_every_cell_below_five_percent():
    text = REPORT.read_text()
    section = text.split("## False alarms", 1)[1].split("## Detections", 1)[0]
    cells = [float(cell) for row in section.splitlines() if row.startswith(tuple(f"| {k} " for k in KINDS))
             for cell in re.findall(r"([0-9.]+) %", row)]  # fmt: skip
    assert len(cells) == len(KINDS) * 4 * 3
    assert max(cells) < 5.0
    drift = text.split("## Slow drift", 1)[1]
    alarms = next(row for row in drift.splitlines() if "false alarms" in row)
    assert max(float(cell) for cell in re.findall(r"([0-9.]+) %", alarms)) < 5.0
