"""Slow drift: a trend over many runs, none of which differs from the one before.

In: one value per run, oldest first. Out: `Trend`.

Kendall's rank correlation with time says whether there is a trend (Mann, 1945: no model of the
noise, no outlier moves it), Theil and Sen's slope how steep it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_POINTS = 8
"""Below this many runs even a perfectly monotone series is no more than a suspicion."""
_LEVEL = 0.01
"""Asked at every run, so stricter than a test that is asked once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A series of runs."""

    rising: bool
    """Significant, and by more than the tolerance over the series."""
    growth: float
    """Relative growth from the first to the last run, by the slope."""
    p_value: float
    points: int


def find_trend(values: Sequence[float], *, tolerance: float) -> Trend | None:
    """Look for a rise over a series.

    Values are positive, oldest first, evenly spaced as far as that matters; None with fewer than eight.
    `tolerance` is the relative growth over the whole series that matters.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) < FEWEST_POINTS or not bool((x > 0).all()):
        return None
    from scipy import stats

    logs = np.log(x)
    when = np.arange(len(x), dtype=np.float64)
    if float(np.ptp(logs)) < 1e-12:
        return Trend(rising=False, growth=0.0, p_value=1.0, points=len(x))
    slope = float(stats.theilslopes(logs, when).slope)
    p_value = float(stats.kendalltau(when, logs, alternative="greater").pvalue)
    growth = float(np.expm1(slope * (len(x) - 1)))
    return Trend(
        rising=p_value < _LEVEL and growth > tolerance, growth=growth, p_value=p_value, points=len(x)
    )
