"""How much a set of times scatters, told robustly.

In: a sequence of times, any unit. Out: their spread in the same unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation an estimate of sigma for a normal distribution
(1 / Phi^-1(3/4)): Rousseeuw & Croux, "Alternatives to the Median Absolute Deviation", 1993."""


def as_times(values: ArrayLike | Sequence[float]) -> NDArray[np.float64]:
    """Return the finite values as a float array; what was not measured does not count."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def mad_spread(values: ArrayLike) -> float | None:
    """Median absolute deviation times 1.4826, in the unit of the values; None with fewer than two."""
    x = as_times(values)
    if len(x) < 2:
        return None
    return float(MAD_TO_SIGMA * np.median(np.abs(x - np.median(x))))


def median_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row of (n, k) the median of all other rows; of a single row, itself."""
    n = len(values)
    if n < 2:
        return values
    order = np.argsort(values, axis=0, kind="stable")
    place = np.argsort(order, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    # Without one row, those above it move down by one place.
    pair = [np.take_along_axis(ordered, k + (place <= k), axis=0) for k in ((n - 2) // 2, (n - 1) // 2)]
    return np.asarray((pair[0] + pair[1]) / 2.0)
