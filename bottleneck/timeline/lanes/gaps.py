"""Who caused the device's idle time: the rule that divides a gap, at recorded and at replayed times alike.

In: the gaps, when each piece of device work began, when each event was issued and done. Out: `Gaps`.

A gap of the device is its own when the kernel that ends it had been launched before the gap began
(stream order, launch latency, spacing between queued kernels). Otherwise the host was late, and the
gap is split over what the host did in it; work that dispatches counts for the wait before it when
the host was still blocked as the device ran dry: without that wait it would have run ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trace import intervals
from .labels import WORK_OF_WAIT, Work
from .program import NO_WAIT, Program

DISPATCH_WORK = (Work.DISPATCH, Work.OPTIMIZER, Work.ZERO_GRAD, Work.SEAM, Work.SYNC, Work.ASIDE)
"""Host work that consists of recorded operators and calls, hence carries the profiler's cost."""
_BLOCKED_NS = 1_000
"""A wait that began this shortly before the device ran dry is not why it did."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle stretches of the device in order of time, (g,) each; ns of the clock that they were given in."""

    start: NDArray[Any]
    end: NDArray[Any]
    caused: NDArray[np.float64]
    """How much of it the host caused, ns; it lies at the gap's beginning."""
    until: NDArray[np.float64]
    """When the host had issued what ended the gap: what it did meanwhile ends here."""
    event: NDArray[np.intp]
    """Event that the host was in as the device ran dry."""
    counts_for: NDArray[np.int8]
    """Category that dispatching in the gap counts for, since the host was blocked in it; -1: none."""


def divide_gaps(
    program: Program,
    start: NDArray[Any],
    end: NDArray[Any],
    *,
    began: NDArray[np.float64],
    issued: NDArray[np.float64],
    host: NDArray[np.float64],
) -> Gaps:
    """Tell what the host caused of each gap.

    `began` (m,): of each activity; `issued` (n,): of each event, or of its wait; `host` (n,): when the host
    was done with each event, in order of time.
    """
    length = (end - start).astype(np.float64)
    caused, until = length, end.astype(np.float64)
    if len(began):
        order = np.argsort(began, kind="stable")
        at = intervals.before(began[order], end - 0.5)
        ended = at < len(order)
        launch = issued[program.event[order[np.minimum(at, len(order) - 1)]]]
        # The host caused as much of the gap as the launch came too late for a start right behind the
        # work before; what it did meanwhile lies before the launch, not before the start.
        own = np.minimum(program.spacing, length)
        caused = np.where(ended, np.clip(launch + program.latency - start - own, 0.0, length - own), length)
        until = np.where(ended, launch, until)
    event = np.minimum(intervals.before(host, start), len(host) - 1)
    blocked = (program.wait[event] != NO_WAIT) & (issued[event] < start - _BLOCKED_NS)
    counts_for = np.full(len(start), -1, dtype=np.int8)
    for kind, work in WORK_OF_WAIT.items():
        counts_for[blocked & (program.kind[event] == kind)] = work
    return Gaps(start, end, caused, until, event, counts_for)
