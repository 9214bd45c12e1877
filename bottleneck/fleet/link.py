"""How long a collective takes by its size, as the collectives of a run show.

In: bytes and times. Out: `SizeFit`: time = latency + bytes / bandwidth, with the error of what it says.

    Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994): t = t0 + n / r
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..stats.spread import MAD_TO_SIGMA

__all__ = ["SURE", "SizeFit", "fit_sizes"]

SURE = 2.0
"""Standard errors by which a fit may be wrong, and what is said must still hold."""
_EXACT = 1e-6
"""Of a time: no clock tells more."""
_OF_A_MEDIAN = 1.25
"""Its standard error over that of a mean."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFit:
    """Time of a collective by its bytes."""

    latency_ms: float
    ms_per_byte: float
    covariance: Floats
    """(2, 2) of both."""

    @property
    def gbytes_per_s(self) -> float:
        """Bandwidth without the latency, 1e9 bytes per second."""
        return 1e-6 / self.ms_per_byte

    @property
    def shown_latency_ms(self) -> float | None:
        """The latency, where it is more than the fit may be wrong by; sizes that are alike show none."""
        error = self.error_ms(0.0)
        return self.latency_ms if self.latency_ms > SURE * error else None

    def ms(self, size: float) -> float:
        """Return the time of so many bytes."""
        return self.latency_ms + self.ms_per_byte * size

    def error_ms(self, size: float) -> float:
        """Return the standard error of that time."""
        at = np.asarray([1.0, size])
        return float(np.sqrt(max(at @ self.covariance @ at, 0.0)))

    def steeper(self, errors: float) -> SizeFit:
        """Return the fit whose time grows faster with the size, by so many standard errors; below 0: slower.

        What is most probable for the latency then goes with it.
        """
        variance = float(self.covariance[1, 1])
        more = max(errors * float(np.sqrt(variance)), -self.ms_per_byte)
        latency = self.latency_ms + (more * float(self.covariance[0, 1]) / variance if variance > 0 else 0.0)
        return replace(self, latency_ms=max(0.0, latency), ms_per_byte=self.ms_per_byte + more)


def fit_sizes(size: Floats, ms: Floats) -> SizeFit | None:
    """Fit times to bytes, (c,) each.

    Least squares through the median of each size, weighted by how far such medians are from right. None with
    less than two sizes, and where larger ones do not take longer.
    """
    sizes, which = np.unique(size, return_inverse=True)
    if len(sizes) < 2:
        return None
    count = np.bincount(which)
    middle = np.asarray([np.median(ms[which == i]) for i in range(len(sizes))])
    if not (middle > 0).all():
        return None
    # How far single ones scatter is one share for all sizes: of some there may be one or two.
    spread = MAD_TO_SIGMA * float(np.median(np.abs(ms / middle[which] - 1.0)))
    error = middle * np.maximum(_OF_A_MEDIAN * spread / np.sqrt(count), _EXACT)
    # In units of the largest: a latency and bytes differ by many orders.
    unit = float(sizes[-1])
    found = _solved(np.stack([np.ones(len(sizes)), sizes / unit], axis=1), middle, error)
    if found[0][0] < 0:
        # What the latency may be after all is as uncertain as without that limit.
        found = np.asarray([0.0, *_solved(sizes[:, None] / unit, middle, error)[0]]), found[1]
    (latency, slope_ms), covariance = found
    if slope_ms <= 0:
        return None
    scale = np.asarray([1.0, 1.0 / unit])
    return SizeFit(
        latency_ms=float(latency),
        ms_per_byte=float(slope_ms) / unit,
        covariance=covariance * np.outer(scale, scale),
    )


def _solved(terms: Floats, ms: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Return the weighted least squares, and its covariance: larger where the points do not lie on a line."""
    weighted = terms / error[:, None]
    inverse = np.linalg.inv(weighted.T @ weighted)
    found = inverse @ weighted.T @ (ms / error)
    freedom = len(ms) - terms.shape[1]
    misfit = float((((ms - terms @ found) / error) ** 2).sum()) / freedom if freedom else 1.0
    return found, inverse * max(1.0, misfit)
