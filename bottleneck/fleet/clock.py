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

from ..stats import mad_spread
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
        ends = [
            lanes[lane].collectives.end[group.rows[:, k]] for k, lane in enumerate(group.members.tolist())
        ]
        known = [k for k, lane in enumerate(group.members.tolist()) if np.isfinite(clock.offset_ns[lane])]
        common = np.median(np.stack([clock.common(int(group.members[k]), ends[k]) for k in known]), axis=0)
        for k, lane in enumerate(group.members.tolist()):
            if k not in known:
                _join(clock, lane, ends[k], common)
    return clock


def _join(clock: Clock, lane: int, ends: NDArray[np.int64], common: NDArray[np.float64]) -> None:
    """Note the offset of a lane by the ends of its collectives on its own and on the common clock."""
    zero = float(ends[0])
    since = (ends - zero).astype(np.float64)
    # Moments are large: differences of the small parts only.
    difference = (common - zero) - since
    slope = _slope(since, difference)
    offset = float(np.median(difference - slope * since))
    clock.zero_ns[lane], clock.drift[lane], clock.offset_ns[lane] = zero, slope, offset
    clock.error_ns[lane] = mad_spread(difference - slope * since - offset) or 0.0


def _slope(since: NDArray[np.float64], difference: NDArray[np.float64]) -> float:
    """Return the drift, by the medians of both halves; 0 where it does not show above the noise."""
    half = len(since) // 2
    if half * 2 < _ENOUGH_FOR_A_SLOPE:
        return 0.0
    parts = [slice(0, half), slice(half, None)]
    change = float(np.median(difference[parts[1]]) - np.median(difference[parts[0]]))
    apart = float(np.median(since[parts[1]]) - np.median(since[parts[0]]))
    noise = [(mad_spread(difference[part]) or 0.0) ** 2 / half for part in parts]
    # A median is less certain than a mean, by a quarter.
    error = 1.25 * float(np.sqrt(sum(noise)))
    return change / apart if apart > 0 and abs(change) > _SLOPE_SHOWS * error else 0.0
