"""The confidence interval of a mean step time.

In: times. Out: (low, high), or None where the sample cannot carry an interval.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .spread import as_times
from .student import student_tail

_COSINES = 4
"""So few that of two stretches on two levels the interval holds about both. On shared machines the slowest
waves are the largest: with twenty, as the source advises, it held the mean of 20 s of the same run in 81 of
100 cases, now in 93 (reports/true-step.md). A rhythm of eight steps (a loader's workers) is faster."""


def mean_interval(values: ArrayLike) -> tuple[float, float] | None:
    """95 % interval of the mean of values in the order of time; None with fewer than four of them.

    Neighbouring steps share a queue, a clock rate and a noisy neighbour, so that their mean is less certain
    than that of independent steps; and where a slow step follows each seventh fast one, more certain. What
    the mean is uncertain by is the slow part of the variation: the first cosines over the series, each an
    independent estimate of it, which gives Student's t as many degrees of freedom (Lazarus, Lewis, Stock and
    Watson, "HAR Inference: Recommendations for Practice", 2018). Drift is slow, and so is what differs
    between stretches: both widen the interval. What differs between two processes is not in it. It does not
    reach below zero, as no time does.
    """
    x = as_times(values)
    n = len(x)
    if n < 4:
        return None
    cosines = max(2, min(n // 4, _COSINES))
    mean = float(x.mean())
    # All cosines at once: a discrete cosine transform, by Makhoul's order of the values in an FFT.
    slow = np.fft.rfft(np.concatenate([x[::2], x[1::2][::-1]]) - mean)[1 : cosines + 1]
    weights = (slow * np.exp(-0.5j * np.pi * np.arange(1, len(slow) + 1) / n)).real
    # A cosine has half the energy of a constant.
    variance = float((weights**2).mean()) * 2 / n
    half = student_tail(0.025, cosines) * math.sqrt(variance / n)
    return max(0.0, mean - half), mean + half


def relative_error(interval: tuple[float, float] | None, *, mean: float) -> float | None:
    """Return the standard error that makes a 95 % interval, as a share of the mean; None without either."""
    if interval is None or mean <= 0:
        return None
    low, high = interval
    return float(f"{(high - low) / 2 / 1.96 / mean:.6g}")
