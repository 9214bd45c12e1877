"""How much a set of times scatters, told robustly.

In: a sequence of times, any unit. Out: a spread or a mean in the same unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MAD_TO_SIGMA", "as_times", "mad_spread", "quantile_spread", "trimmed_mean"]

MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation an estimate of sigma for a normal distribution
(1 / Phi^-1(3/4)): Rousseeuw & Croux, "Alternatives to the Median Absolute Deviation", 1993."""


def as_times(values: ArrayLike | Sequence[float]) -> NDArray[np.float64]:
    """Return the finite values as a float array; what was not measured does not count."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def mad_spread(values: ArrayLike) -> float | None:
    """Median absolute deviation times 1.4826, in the unit of the values.

    Returns:
        The spread, or None with fewer than two values.
    """
    x = as_times(values)
    if len(x) < 2:
        return None
    return float(MAD_TO_SIGMA * np.median(np.abs(x - np.median(x))))


def quantile_spread(values: ArrayLike, *, low: float = 0.05, high: float = 0.95) -> float | None:
    """Distance between two quantiles (default 5 % and 95 %), in the unit of the values."""
    x = as_times(values)
    if len(x) < 2:
        return None
    bottom, top = np.quantile(x, [low, high])
    return float(top - bottom)


def trimmed_mean(values: ArrayLike, *, cut: float = 0.1) -> float | None:
    """Mean without the lowest and highest `cut` share of the values (rounded down).

    Raises:
        ValueError: `cut` is not within [0, 0.5).
    """
    if not 0.0 <= cut < 0.5:
        raise ValueError(f"cut must be in [0, 0.5), not {cut}")
    x = np.sort(as_times(values))
    if len(x) == 0:
        return None
    drop = int(len(x) * cut)
    return float(np.mean(x[drop : len(x) - drop]))
