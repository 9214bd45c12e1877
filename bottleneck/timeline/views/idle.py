"""The device's idle time by cause, at the recorded times.

In: a `Trace`, a `Program`. Out: `IdlePieces` over the whole window. Idle time is divided by the budget's
rule (gaps.py), so that dispatch shows as long as it was under the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ..lanes.gaps import DISPATCH_WORK, divide_gaps
from ..lanes.labels import PART_OF_WORK, WORK_OF_WAIT, Work
from ..lanes.program import NO_WAIT, EventKind, Program
from ..lanes.replay import step_ends
from ..trace import intervals
from ..trace.table import Trace
from .thinned import PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePieces:
    """Device idle time as disjoint pieces in time order; int64 ns of the trace's clock."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    part: NDArray[np.int64]
    """Index into `view.PARTS`."""


def observed_step_ends(program: Program) -> NDArray[np.int64]:
    """Return when each traced step ended, host and device both done, ns of the trace's clock.

    The first entry is the begin of the window, see `Schedule.step_end`.
    """
    host = np.zeros(len(program.kind))
    host[program.marks] = program.mark_ns - program.origin_ns
    ends = step_ends(program, host, program.observed_end - program.origin_ns)
    return np.asarray(ends + program.origin_ns, dtype=np.int64)


def _calls(trace: Trace, program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return start, end and event of the calls that wait, copy or allocate."""
    event = np.flatnonzero(np.isin(program.kind, list(WORK_OF_WAIT)))
    rows = program.row[event]
    return trace.ts_ns[rows], trace.end_of(rows), event


def _host_curve(trace: Trace, program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return edges and category of the host at each moment, device calls laid over the labels."""
    start, end, event = _calls(trace, program)
    base = program.host_work
    edges = np.unique(np.concatenate([base.edges, start, end]))
    work = base.at(edges).astype(np.int64)
    columns = (intervals.before(edges, start), intervals.before(edges, end), program.kind[event])
    for a, b, kind in zip(*(column.tolist() for column in columns), strict=True):
        work[a:b] = WORK_OF_WAIT[EventKind(kind)]
    return edges, work


def _recorded_times(trace: Trace, program: Program) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when each event was issued, or its wait began, and when the host was done with it."""
    issued, host = np.empty(len(program.kind)), np.empty(len(program.kind))
    issued[program.marks] = host[program.marks] = program.mark_ns
    calls = np.flatnonzero(program.row >= 0)
    rows = program.row[calls]
    host[calls] = trace.end_of(rows)
    issued[calls] = np.where(program.wait[calls] != NO_WAIT, trace.ts_ns[rows], trace.end_of(rows))
    return issued, host


def idle_pieces(trace: Trace, program: Program) -> IdlePieces:
    """Divide the device's idle time of the traced window by what the host did meanwhile."""
    low, high = int(program.mark_ns[0]), int(max(observed_step_ends(program)))
    device = trace.activities
    gap_start, gap_end = intervals.gaps(trace.ts_ns[device], trace.end_of(device), low, high)
    if not len(gap_start):
        none = np.zeros(0, dtype=np.int64)
        return IdlePieces(start=none, end=none, part=none)

    issued, host = _recorded_times(trace, program)
    found = divide_gaps(program, gap_start, gap_end, began=program.observed_start, issued=issued, host=host)
    length = gap_end - gap_start
    caused, until = found.caused.astype(np.int64), found.until.astype(np.int64)

    edges, work = _host_curve(trace, program)
    begin = until - caused
    late = np.flatnonzero(caused > 0)
    earliest = int(begin[late].min()) if len(late) else 0
    if len(late) and (not len(edges) or earliest < edges[0]):
        # Before the first label and the first call the host can only have been dispatching.
        edges, work = np.append(earliest, edges), np.append(int(Work.DISPATCH), work)
    first = np.clip(intervals.latest(edges, begin[late]), 0, len(edges) - 1)
    last = np.maximum(intervals.before(edges, until[late]), first + 1)
    pieces = last - first
    gap = np.repeat(late, pieces)
    cell = np.repeat(first, pieces) + np.arange(len(gap)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    after = np.concatenate([edges[1:], [np.iinfo(np.int64).max]])[cell]
    shift = gap_start[gap] - begin[gap]
    start = np.maximum(edges[cell], begin[gap]) + shift
    end = np.minimum(after, until[gap]) + shift
    category = work[cell]

    dispatches = np.isin(category, [int(w) for w in DISPATCH_WORK]) & (found.counts_for[gap] >= 0)
    category = np.where(dispatches, found.counts_for[gap], category)

    part_of_work = np.asarray([PARTS.index(PART_OF_WORK[w]) for w in Work], dtype=np.int64)
    tail = np.flatnonzero(caused < length)
    all_start = np.concatenate([start, gap_start[tail] + caused[tail]])
    all_end = np.concatenate([end, gap_end[tail]])
    part = np.concatenate([part_of_work[category], np.full(len(tail), PARTS.index(Part.DEVICE))])
    kept = all_end > all_start
    order = np.argsort(all_start[kept], kind="stable")
    all_start, all_end, part = all_start[kept][order], all_end[kept][order], part[kept][order]
    # Labels nested in one another cut time that belongs to the same line: one piece of it.
    first = np.ones(len(part), dtype=bool)
    first[1:] = (part[1:] != part[:-1]) | (all_start[1:] > all_end[:-1])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(part) - 1) if len(part) else np.zeros(0, np.int64)
    return IdlePieces(
        start=all_start[first].astype(np.int64), end=all_end[last].astype(np.int64), part=part[first]
    )
