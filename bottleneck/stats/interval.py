"""Confidence intervals for a median, a mean and a ratio of two sets of step times.

In: sequences of times. Out: (low, high), or None where the sample cannot carry an interval.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .spread import as_times

__all__ = ["mean_interval", "median_interval", "ratio_interval"]

_RESAMPLES = 2000
_SEED = 20261120  # the same run must give the same report


def _binomial_cdf(n: int) -> NDArray[np.float64]:
    # log-gamma keeps the coefficients finite for windows of thousands of steps
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)]
    terms: NDArray[np.float64] = np.exp(np.asarray(logs) - n * math.log(2))
    return np.cumsum(terms)


def median_interval(values: ArrayLike, *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Distribution-free interval of the median from order statistics.

    The number of values below the median is Binomial(n, 1/2), so the interval between two order
    statistics covers the median with a probability that needs no model of the noise (Conover,
    "Practical Nonparametric Statistics", section 3.2).

    Returns:
        (low, high), or None when even (min, max) does not reach the confidence (n < 6 at 95 %).
    """
    x = np.sort(as_times(values))
    n = len(x)
    if n < 2:
        return None
    cdf = _binomial_cdf(n)
    tail = (1.0 - confidence) / 2.0
    below = int(np.searchsorted(cdf, tail, side="right"))  # largest k with P(B < k) <= tail
    if below == 0:
        return None
    return float(x[below - 1]), float(x[n - below])


def _block_resamples(x: NDArray[np.float64], rng: np.random.Generator, resamples: int) -> NDArray[np.float64]:
    # Neighbouring steps share a queue, a clock rate and a noisy neighbour, so whole blocks are
    # drawn (circular block bootstrap, length about n^(1/3): Politis & Romano, 1992).
    n = len(x)
    length = max(1, round(n ** (1.0 / 3.0)))
    blocks = -(-n // length)
    starts = rng.integers(0, n, size=(resamples, blocks))
    index = (starts[:, :, None] + np.arange(length)[None, None, :]) % n
    means: NDArray[np.float64] = x[index.reshape(resamples, -1)[:, :n]].mean(axis=1)
    return means


def mean_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = _RESAMPLES
) -> tuple[float, float] | None:
    """Interval of the mean by circular block bootstrap; None with fewer than four values."""
    x = as_times(values)
    if len(x) < 4:
        return None
    means = _block_resamples(x, np.random.default_rng(_SEED), resamples)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def ratio_interval(
    before: ArrayLike, after: ArrayLike, *, confidence: float = 0.95, resamples: int = _RESAMPLES
) -> tuple[float, float, float] | None:
    """Ratio mean(before) / mean(after) with its bootstrap interval: above 1, `after` is faster.

    Returns:
        (ratio, low, high), or None when either side has fewer than four values or is not positive.
    """
    a, b = as_times(before), as_times(after)
    if len(a) < 4 or len(b) < 4 or a.mean() <= 0 or b.mean() <= 0:
        return None
    rng = np.random.default_rng(_SEED)
    ratios = _block_resamples(a, rng, resamples) / _block_resamples(b, rng, resamples)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return float(a.mean() / b.mean()), float(low), float(high)
