"""Where the collectives of a rank stand in its own work, if it waited for nobody.

In: a `Program`, its `Schedule` without communication. Out: `Alone`: places of collectives and of step ends.

From these a rank can be replayed beside others without its program: the host goes its own pace until it waits
for its device; the device has so much to do up to each collective, and up to where it needs the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ..trace import intervals
from ..trace.dialect import Kind
from ..trace.gradients import accumulated
from ..trace.kernels import is_collective
from ..trace.table import Trace
from .program import NO_WAIT, PARTS, WAIT_ALL, Program
from .replay import Schedule

PLACES = 5
_ENOUGH, _AGREE = 4, 0.05
"""Kernels of one name that tell how long it takes: so many, and half of them this close to the median."""
_TURN, _SPREAD = 2.0, 0.25
"""Times its usual length, from which a kernel has waited for another process's turn; and how far half of
its name may be from that length, or they are of many sizes."""
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
    gradients: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    """(g, 2): of each gradient of the last step that DistributedDataParallel sends, when it is there, and the
    device's work up to there."""
    moments: NDArray[np.int64] | None = None
    """(steps + 1,): the same on the trace's clock where there is no device: see `cpu.exchanges`."""


def undisturbed(trace: Trace) -> NDArray[np.float64]:
    """Return by which factor each kernel is shorter without a collective beside it, (n,) of the trace's rows.

    A collective holds multiprocessors while it runs, also while it waits for a late rank: a product that just
    fills the device takes up to twice as long, be it beside one for a part of its time only. The norm are
    kernels of the same name without one, where they agree.
    """
    kernels = _beside_collectives(trace)
    out = np.ones(len(trace))
    out[kernels.rows] = kernels.usual / kernels.length
    return out


def slowed_by_collectives(trace: Trace) -> float:
    """Return what the device's own kernels take longer per time that a collective runs beside them."""
    kernels = _beside_collectives(trace)
    return float((kernels.length - kernels.usual).sum()) / max(float(kernels.beside.sum()), 1.0)


class _BesideCollectives(NamedTuple):
    """The kernels that are no collectives, (k,) each; times in ns."""

    rows: NDArray[np.intp]
    length: NDArray[np.int64]
    beside: NDArray[np.int64]
    """How long a collective runs beside it."""
    usual: NDArray[np.float64]
    """Its length without one; where that is not known, or longer, its own."""


def _beside_collectives(trace: Trace) -> _BesideCollectives:
    rows = trace.rows(Kind.KERNEL)
    collective = trace.named(is_collective, rows)
    others, rows = rows[collective], rows[~collective]
    start, end = trace.ts_ns[others].astype(np.int64), trace.end_of(others)
    own = np.stack([trace.ts_ns[rows].astype(np.int64), trace.end_of(rows)], axis=1)
    beside = np.diff(intervals.covered(start, end, own), axis=1)[:, 0]
    length = np.maximum(own[:, 1] - own[:, 0], 1)
    usual = length.astype(np.float64)
    for name in np.unique(trace.name[rows[beside > 0]]).tolist():
        mine = trace.name[rows] == name
        free, held = length[mine & (beside == 0)], mine & (beside > 0)
        median = float(np.median(free)) if len(free) >= _ENOUGH else 0.0
        if median and float(np.median(np.abs(free - median))) < _AGREE * median:
            usual[held] = np.minimum(usual[held], median)
    return _BesideCollectives(rows, length, beside, usual)


def interrupted(trace: Trace) -> dict[str, float]:
    """Return what share of its time the kernels of a name take because another process has the device.

    It takes turns with them: most are as long as ever, and some longer by the other one's turn.
    """
    rows = trace.rows(Kind.KERNEL)
    rows = rows[~trace.named(is_collective, rows)]
    length = trace.end_of(rows).astype(np.float64) - trace.ts_ns[rows]
    out: dict[str, float] = {}
    for name in np.unique(trace.name[rows]).tolist():
        each = length[trace.name[rows] == name]
        usual = float(np.median(each))
        more = np.where(each > _TURN * usual, each - usual, 0.0).sum()
        if more > 0 and len(each) >= _ENOUGH and float(np.median(np.abs(each - usual))) < _SPREAD * usual:
            out[trace.names[name]] = float(more / each.sum())
    return out


def alone_places(program: Program, schedule: Schedule, trace: Trace | None = None) -> Alone:
    """Return the places of all collectives; with the program's trace also those of gradients."""
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
    there = _gradients(program, schedule, own, trace) if trace is not None else np.zeros(0)
    synced = np.where(has, until[before], 0.0) if len(waits) else np.zeros(len(at))
    return Alone(
        rows=p.activity_row[at],
        places=np.stack(
            [launch, done(launch), done(needed), synced, np.where(has, done(synced), 0.0)], axis=1
        ),
        edges=np.stack([schedule.step_end, done(schedule.step_end)], axis=1),
        gradients=np.stack([there, done(there)], axis=1),
    )


def _gradients(
    program: Program, schedule: Schedule, own: NDArray[np.intp], trace: Trace
) -> NDArray[np.float64]:
    """Return when the gradients of the last step are there: the device has done what was launched before."""
    ends = accumulated(trace)[:, 1]
    calls = program.row[program.event[own]]
    launched = trace.end_of(calls).astype(np.int64)
    last = intervals.latest(launched, ends[(ends >= program.mark_ns[-2]) & (ends < program.mark_ns[-1])])
    return np.asarray(schedule.end[own[last[last >= 0]]])


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
