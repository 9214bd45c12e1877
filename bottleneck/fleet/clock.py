"""One clock for all ranks: a collective ends on all of them at the same moment.

In: matched collectives. Out: `Clock`, what to add to the moments of each rank, and the error that remains.

The clocks of hosts differ by up to milliseconds, and by parts per million in speed. A rank's offset is the
median difference of its ends to those of ranks that are aligned already; which ranks these are follows from
the groups, beginning with the first rank. A slope is taken off where it shows above the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..stats.spread import MAD_TO_SIGMA
from .match import Lane, Matched

__all__ = ["Clock", "align"]

_ENOUGH_FOR_A_SLOPE = 16
_SLOPE_SHOWS = 4.0
"""Change of the difference between the halves of the window, in standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Per lane, arrays of shape (n,)."""

    offset_ns: NDArray[np.float64]
    """To add to a moment of the lane; NaN where no collective joins it to the first rank."""
    drift: NDArray[np.float64]
    """To add per ns since `zero_ns`."""
    zero_ns: NDArray[np.float64]
    error_ns: NDArray[np.float64]
    """Robust spread of what remains; NaN where there is nothing to compare."""

    def common(self, lane: int, moment_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return moments of a lane on the clock of the first rank."""
        since = moment_ns - self.zero_ns[lane]
        return np.asarray(moment_ns + self.offset_ns[lane] + self.drift[lane] * since)


def align(lanes: Sequence[Lane], matched: Matched) -> Clock:
    """Align the clocks of several ranks by the ends of their collectives."""
    n = len(lanes)
    clock = Clock(
        offset_ns=np.full(n, np.nan),
        drift=np.zeros(n),
        zero_ns=np.zeros(n),
        error_ns=np.full(n, np.nan),
    )
    # Large groups first: the fewer links lie between two ranks, the smaller the error.
    waiting = sorted(matched.groups, key=lambda group: (-len(group.members), -len(group.rows)))
    if not waiting:
        return clock
    first = int(min(group.members.min() for group in waiting))
    clock.offset_ns[first] = clock.error_ns[first] = 0.0
    while waiting:
        ready = [g for g in waiting if np.isfinite(clock.offset_ns[g.members]).any()]
        if not ready:
            break
        group = ready[0]
        waiting.remove(group)
        ends = np.stack(
            [lanes[lane].collectives.end[group.rows[:, k]] for k, lane in enumerate(group.members.tolist())]
        )
        known = np.isfinite(clock.offset_ns[group.members])
        common = np.median(
            np.stack([clock.common(int(group.members[k]), ends[k]) for k in np.flatnonzero(known)]), axis=0
        )
        if not known.all():
            _join(clock, group.members[~known], ends[~known], common)
    return clock


def _join(
    clock: Clock, lanes: NDArray[np.int64], ends: NDArray[np.int64], common: NDArray[np.float64]
) -> None:
    """Note the offsets of lanes by the ends of their collectives, (k, c), on both clocks."""
    zero = ends[:, :1]
    since = (ends - zero).astype(np.float64)
    # Moments are large: differences of the small parts only.
    difference = (common - zero) - since
    slope = _slope(since, difference)
    rest = difference - slope[:, None] * since
    offset = np.median(rest, axis=1)
    clock.zero_ns[lanes], clock.drift[lanes], clock.offset_ns[lanes] = zero[:, 0], slope, offset
    clock.error_ns[lanes] = _spread(rest)


def _slope(since: NDArray[np.float64], difference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the drifts, by the medians of both halves; 0 where it does not show above the noise."""
    half = since.shape[1] // 2
    if half * 2 < _ENOUGH_FOR_A_SLOPE:
        return np.zeros(len(since))
    early, late = slice(0, half), slice(half, None)

    def change(of: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.median(of[:, late], axis=1) - np.median(of[:, early], axis=1))

    # A median is less certain than a mean, by a quarter.
    error = 1.25 * np.hypot(_spread(difference[:, early]), _spread(difference[:, late])) / np.sqrt(half)
    apart, moved = change(since), change(difference)
    shows = (np.abs(moved) > _SLOPE_SHOWS * error) & (apart > 0)
    return np.divide(moved, apart, out=np.zeros(len(since)), where=shows)


def _spread(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the robust spread of each row."""
    middle = np.median(values, axis=1, keepdims=True)
    return np.asarray(MAD_TO_SIGMA * np.median(np.abs(values - middle), axis=1))
