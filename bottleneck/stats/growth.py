"""Steps that grow: a trend over the steps of one job, and how sure it is.

In: times of neighbouring steps, averaged over stretches of equal length. Out: a slope with an interval, or
the step from which on all are slower; None for a job that is stationary.

The slope is Theil and Sen's, which no outlier moves. Its noise is that of the residuals, widened by what
neighbours have in common (an autoregression of the first order, which is what drift of the machine looks like
over stretches). Levels that change are no trend: where a few of them come closer to the times than a line
does, the slope is that within the levels, one for all of them.
By simulation (reports/growth.md) a stationary job is accused less than once in 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .spread import mad_spread

_ERRORS_NEEDED = 2.6
"""Standard errors that a growth must exceed; at most one stationary job of 100 does. A growth of 1 % per
1,000 steps comes as far within 2,000 steps that scatter by 10 %, for the best test there is."""
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
_CHANGES = 3
"""With more of them levels come close to any trend."""
_PRICE = 12.0
"""Of each of them, in squares of the spread: so much closer than a line they must come."""


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

    `times_ms` are means over stretches of `steps_per_point` steps, oldest first, at most some hundred.
    """
    y = np.asarray(times_ms, dtype=np.float64)
    n = len(y)
    if n < _LEAST_POINTS:
        return None
    levels = _levels(y)
    slope = _theil_sen(levels)
    # Where a slope changes, each part has its own.
    error = _error_of_slope(
        [
            _beside_line(level) if _LEAST_POINTS <= len(level) < n else level - slope * np.arange(len(level))
            for level in levels
        ]
    )
    if slope <= _ERRORS_NEEDED * error or slope * n < _LEAST_GROWTH * float(np.median(y)):
        return None
    half = 1.96 * error
    return Slope(
        per_step=slope / steps_per_point,
        low=(slope - half) / steps_per_point,
        high=(slope + half) / steps_per_point,
    )


def _levels(y: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Divide times where their level changes, as long as that comes closer to them than a line does."""
    n = len(y)
    if n < _LEAST_POINTS:
        return [y]
    levels, chosen = [y], [y]
    best = _squares(_beside_line(y))
    for _ in range(_CHANGES):
        splits = [_best_split(level) for level in levels]
        gained = [_squares(level) - rest for level, (_, rest) in zip(levels, splits, strict=True)]
        i = int(np.argmax(gained))
        if gained[i] <= 0:
            break
        levels[i : i + 1] = np.split(levels[i], [splits[i][0]])
        residuals = np.concatenate([level - level.mean() for level in levels])
        price = _PRICE * (len(levels) - 1) * _widened(residuals) ** 2
        squares = _squares(residuals) * (1 + price / n)
        if squares < best:
            best, chosen = squares, list(levels)
    # A trend may have another slope, or none, up to some point.
    rest = _squares_beside_line(y)[:-1] + _squares_beside_line(y[::-1])[-2::-1]
    at = _EDGE + int(np.argmin(rest[_EDGE - 1 : n - _EDGE]))
    parts = np.split(y, [at])
    squares = sum(_squares(_beside_line(part)) for part in parts)
    if squares * (1 + 2 * _PRICE * _widened(_beside_line(y)) ** 2 / n) < best:
        chosen = parts
    return [y] if len(chosen) == 1 else [part for level in chosen for part in _levels(level)]


def find_change(times_ms: Sequence[float]) -> Step | None:
    """Return the point from which on the level is another one; None where there is none, or a trend.

    `times_ms` are means over stretches, oldest first.
    """
    y = np.asarray(times_ms, dtype=np.float64)
    n = len(y)
    if n < _LEAST_POINTS:
        return None
    at, _ = _best_split(y)
    ratio = float(np.median(y[at:]) / np.median(y[:at]))
    if max(ratio, 1 / ratio) < _LEAST_CHANGE:
        return None
    # Of a trend each part has its share; the parts of a change have none.
    parts = _levels(y)
    parts = parts if len(parts) > 1 else [y[:at], y[at:]]
    times = [np.arange(len(part)) - (len(part) - 1) / 2 for part in parts]
    slope = float(sum(x @ part for x, part in zip(times, parts, strict=True)))
    slope /= float(sum(x @ x for x in times))
    difference = float(y[at:].mean() - y[:at].mean())
    if slope * n / 2 > _TREND * difference > 0 or slope * n / 2 < _TREND * difference < 0:
        return None
    return Step(point=at, ratio=ratio)


def _best_split(y: NDArray[np.float64]) -> tuple[int, float]:
    """Return where two levels come closest to times, and the squares that are left; of few, no place."""
    n = len(y)
    k = np.arange(_EDGE, n - _EDGE + 1)
    if not len(k):
        return 0, _squares(y)
    y = y - y.mean()
    sums = np.cumsum(y)
    left, right = sums[k - 1], sums[-1] - sums[k - 1]
    rest = float(y @ y) - left * left / k - right * right / (n - k)
    best = int(np.argmin(rest))
    return int(k[best]), float(rest[best])


def _beside_line(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what is left of times beside the line that comes closest to them."""
    x = np.arange(len(y)) - (len(y) - 1) / 2
    beside: NDArray[np.float64] = y - y.mean() - x * (float(x @ y) / float(x @ x))
    return beside


def _squares_beside_line(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squares left beside such a line, for the first one, two, three and more of the times."""
    k, y = np.arange(1.0, len(y) + 1), y - y.mean()
    sums, squares = np.cumsum(y), np.cumsum(y * y)
    # Around the middle of the first k, which is (k - 1) / 2.
    along = np.cumsum((k - 1) * y) - sums * (k - 1) / 2
    rest: NDArray[np.float64] = squares - sums * sums / k
    rest -= along * along / np.maximum(k * (k * k - 1) / 12, 0.5)
    return rest


def _squares(y: NDArray[np.float64]) -> float:
    return float(((y - y.mean()) ** 2).sum())


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
    spread = mad_spread(residuals) or 0.0
    plain = float(residuals.std(ddof=2))
    # Where a few points are far off, the robust slope does not feel them, and so its error must not.
    spread = min(plain, max(spread, 0.8 * plain)) if spread > 0 else plain
    widened = _widened(np.clip(residuals, -3 * spread, 3 * spread))
    # 1.05: what Theil and Sen's slope loses against that of least squares under normal noise.
    return 1.05 * spread * widened * math.sqrt(12.0 / sum(len(y) * (len(y) ** 2 - 1.0) for y in beside))


def _widened(residuals: NDArray[np.float64]) -> float:
    """Return by what an error is larger, as neighbours have something in common."""
    energy = float(residuals @ residuals)
    alike = float(residuals[1:] @ residuals[:-1]) / energy if energy > 0 else 0.0
    # Of a series around its own line the sample's correlation is too small by (1 + 4 r) / n or so.
    alike += (1 + 4 * max(alike, 0.0)) / len(residuals)
    alike = min(max(alike, 0.0), 0.97)
    return math.sqrt((1 + alike) / (1 - alike))
