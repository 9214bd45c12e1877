"""Where the collectives of a rank stand in its own work, if it waited for nobody.

In: a `Program`, its `Schedule` without communication. Out: `Alone`: places of collectives and of step ends.

From these a rank can be replayed beside others without its program: the host goes its own pace until it waits
for its device; the device has so much to do up to each collective, and up to where it needs the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...model.codes import Part
from ..trace import intervals
from .program import NO_WAIT, PARTS, WAIT_ALL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .program import Program
    from .replay import Schedule

PLACES = 5
_QUEUED_NS = 5_000.0
"""Pauses of the device below this lie between pieces of work that are queued: nothing is made up in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Times in ns from the begin of the window, in the schedule without communication; work of the device."""

    rows: NDArray[np.int64]
    """(c,): trace rows of the collectives."""
    places: NDArray[np.float64]
    """(c, PLACES): when it is launched; the device's work up to there, and up to where its result is needed;
    when the host last waited for its device before, and the device's work that it waited for then."""
    edges: NDArray[np.float64]
    """(steps + 1, 2): when each step ends, the window's begin first, and the device's work up to there."""


def alone_places(program: Program, schedule: Schedule) -> Alone:
    """Return the places of all collectives."""
    p = program
    collective = p.part == PARTS.index(Part.COMMUNICATION)
    own = np.flatnonzero(~collective)
    at = np.flatnonzero(collective)
    begin, end = schedule.start[own], schedule.end[own] + _QUEUED_NS

    def done(when: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(intervals.covered(begin, end, when), dtype=np.float64)

    launch = schedule.start[at]
    # Where nothing shows it, by the end of the step.
    last = schedule.step_end[np.clip(p.step[at] + 1, 0, len(schedule.step_end) - 1)]
    needed = np.clip(_needed(program, schedule, collective)[at], launch, np.maximum(last, launch))
    waits = np.flatnonzero(p.wait != NO_WAIT)
    until = schedule.host[waits] - p.after[waits]
    before = intervals.before(waits, p.event[at]) - 1
    has = before >= 0
    synced = np.where(has, until[before], 0.0) if len(waits) else np.zeros(len(at))
    return Alone(
        rows=p.activity_row[at],
        places=np.stack(
            [launch, done(launch), done(needed), synced, np.where(has, done(synced), 0.0)], axis=1
        ),
        edges=np.stack([schedule.step_end, done(schedule.step_end)], axis=1),
    )


def _needed(program: Program, schedule: Schedule, collective: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return when the result of each piece of device work is first needed; inf where nothing shows it."""
    p, m = program, len(program.event)
    first = np.full(m, np.inf)
    waiting = np.flatnonzero((p.depends >= 0) & ~collective)
    np.minimum.at(first, p.depends[waiting], schedule.start[waiting])
    for event in np.flatnonzero(p.wait != NO_WAIT).tolist():
        of = int(p.wait[event])
        moment = schedule.issued[event]
        if of != WAIT_ALL:
            first[of] = min(first[of], moment)
            continue
        launched = int(p.first_activity[event])
        for lane in range(len(p.lanes)):
            on = np.flatnonzero(p.lane[:launched] == lane)
            if len(on):
                first[on[-1]] = min(first[on[-1]], moment)
    for lane in np.unique(p.lane[collective]):
        on = np.flatnonzero(p.lane == lane)
        # On its own lane the next work that is no collective.
        work = np.where(collective[on], np.inf, schedule.start[on])
        following = np.minimum(first[on], np.append(work[1:], np.inf))
        first[on] = np.minimum.accumulate(following[::-1])[::-1]
    return first
