"""Steps that grow: a trend over the steps of one job, and how sure it is.

In: times of neighbouring steps, averaged over stretches of equal length. Out: a slope with an interval, or
the step from which on all are slower; None for a job that is stationary.

The slope is Theil and Sen's, which no outlier moves. Its noise is that of the residuals, widened by what
neighbours have in common (an autoregression of the first order, which is what drift of the machine looks like
over stretches). A level that changes is no trend, and is told apart by the slopes on either side of it: the
slope is then that within the levels, one for all of them.
By simulation (reports/growth.md) a stationary job is accused less than once in 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .spread import mad_spread

_ERRORS_NEEDED = {500: 3.5, 1000: 3.3, 2000: 2.6}
"""Steps at which a growth is looked for, with the standard errors that it must exceed. One false alarm in 100
jobs is spent on the look at 2,000, where a growth of 1 % per 1,000 steps first shows under noise of 10 %;
from there on at each doubling `_LATER` is asked for, which such a growth exceeds by far."""
_LATER = 3.3
_LEAST_GROWTH = 0.01
"""From the first to the last step: less is not worth a word, however sure."""
_LEAST_CHANGE = 1.15
"""Ratio of two levels below which they are not told apart from a slope."""
_LEAST_POINTS = 24
_TREND = 0.4
"""Share of the difference between two levels that their own slopes make up: of a trend all of it, of a change
nothing. In between lies what is taken for a trend."""
_EDGE = 6
"""Points at least on either side of a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A trend that is significant, in the unit of the times per step."""

    per_step: float
    low: float
    """95 % interval."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A level that changes once."""

    point: int
    """The first point of the new level."""
    ratio: float


def find_slope(times_ms: Sequence[float], *, steps_per_point: int) -> Slope | None:
    """Return how the steps of a job grow; None if they do not, or if it cannot be told.

    `times_ms` are means over stretches of `steps_per_point` steps, oldest first, at most some hundred;
    `_ERRORS_NEEDED` says for how many steps how sure a growth must be.
    """
    y = np.asarray(times_ms, dtype=np.float64)
    n = len(y)
    if n < _LEAST_POINTS:
        return None
    levels = _levels(y)
    slope = _theil_sen(levels)
    error = _error_of_slope([level - slope * np.arange(len(level)) for level in levels])
    steps = n * steps_per_point
    needed = next((sure for most, sure in _ERRORS_NEEDED.items() if steps <= most * 1.2), _LATER)
    if slope <= needed * error or slope * n < _LEAST_GROWTH * float(np.median(y)):
        return None
    half = 1.96 * error
    return Slope(
        per_step=slope / steps_per_point,
        low=(slope - half) / steps_per_point,
        high=(slope + half) / steps_per_point,
    )


def _levels(y: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Divide times at each change of level."""
    change = find_change(y.tolist())
    return [y] if change is None else [*_levels(y[: change.point]), *_levels(y[change.point :])]


def find_change(times_ms: Sequence[float]) -> Step | None:
    """Return the point from which on the level is another one; None where there is none, or a trend.

    `times_ms` are means over stretches, oldest first.
    """
    y = np.asarray(times_ms, dtype=np.float64)
    n = len(y)
    if n < _LEAST_POINTS:
        return None
    sums, squares = np.cumsum(y), np.cumsum(y * y)
    k = np.arange(_EDGE, n - _EDGE + 1)
    left, right = sums[k - 1], sums[-1] - sums[k - 1]
    rest = squares[-1] - left * left / k - right * right / (n - k)
    best = int(np.argmin(rest))
    at = int(k[best])
    ratio = float(np.median(y[at:]) / np.median(y[:at]))
    if max(ratio, 1 / ratio) < _LEAST_CHANGE:
        return None
    # Of a trend each part has its share; the parts of one change have none.
    times = [np.arange(len(part)) - (len(part) - 1) / 2 for part in (y[:at], y[at:])]
    slope = float(times[0] @ y[:at] + times[1] @ y[at:]) / float(sum(x @ x for x in times))
    difference = float(y[at:].mean() - y[:at].mean())
    if slope * n / 2 > _TREND * difference > 0 or slope * n / 2 < _TREND * difference < 0:
        return None
    return Step(point=at, ratio=ratio)


def _theil_sen(levels: Sequence[NDArray[np.float64]]) -> float:
    """Return the median slope of all pairs within a level that lie at least a third of it apart.

    Near pairs say little of a slope and much of the noise: without them it is more certain, not less.
    """
    slopes = []
    for y in levels:
        i, j = np.triu_indices(len(y), k=max(1, len(y) // 3))
        slopes.append((y[j] - y[i]) / (j - i))
    return float(np.median(np.concatenate(slopes)))


def _error_of_slope(beside: Sequence[NDArray[np.float64]]) -> float:
    """Return the standard error of a slope through levels of which this is left beside it."""
    residuals = np.concatenate([rest - float(np.median(rest)) for rest in beside])
    n = len(residuals)
    spread = mad_spread(residuals) or 0.0
    plain = float(residuals.std(ddof=2))
    # Where a few points are far off, the robust slope does not feel them, and so its error must not.
    spread = min(plain, max(spread, 0.8 * plain)) if spread > 0 else plain
    clipped = np.clip(residuals, -3 * spread, 3 * spread)
    energy = float(clipped @ clipped)
    alike = float(clipped[1:] @ clipped[:-1]) / energy if energy > 0 else 0.0
    # Of a series around its own line the sample's correlation is too small by (1 + 4 r) / n or so.
    alike += (1 + 4 * max(alike, 0.0)) / n
    alike = min(max(alike, 0.0), 0.97)
    widened = math.sqrt((1 + alike) / (1 - alike))
    # 1.05: what Theil and Sen's slope loses against that of least squares under normal noise.
    return 1.05 * spread * widened * math.sqrt(12.0 / sum(len(y) * (len(y) ** 2 - 1.0) for y in beside))
