"""The timeline of one traced step of a GPU run, as recorded, and the device's idle time by cause.

In: a `Trace`, a `Program`. Out: `StepTimeline`; and `idle_pieces` over the whole window, for
whoever draws more than one step.

The step shown runs from the end of the step before to its own end, host and device both done: what a
host that runs ahead dispatches in it may belong to the next step. Idle time is divided by the budget's
rule (gaps.py) at the recorded times, so that dispatch shows as long as it was under the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...model.codes import BUDGET_PARTS, Part
from ...model.view import NO_PART
from ..lanes.gaps import DISPATCH_WORK, divide_gaps
from ..lanes.labels import PART_OF_WORK, WORK_OF_WAIT, Work
from ..lanes.program import NO_WAIT, EventKind
from ..lanes.replay import step_ends
from ..trace import intervals
from ..trace.dialect import HOST_CALL_KINDS, PROFILER_STEP, Kind
from ..trace.kernels import classify
from .thinned import PARTS, LaneEvents, Sketch, choose_step, part_codes, thread_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.view import StepTimeline
    from ..lanes.program import Program
    from ..trace.table import Trace

__all__ = ["IdlePieces", "gpu_view", "idle_pieces", "observed_step_ends"]


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
    """Divide the device's idle time of the traced window by what the host did meanwhile.

    Args:
        trace: the trace.
        program: the program of its steps.
    """
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


def gpu_view(
    trace: Trace,
    program: Program,
    *,
    main_tid: int,
    numbers: NDArray[np.int64] | None = None,
) -> StepTimeline:
    """Draw the median step.

    Args:
        trace: the trace.
        program: the program of its whole steps, at least one.
        main_tid: thread code of the training thread.
        numbers: the profiler's numbers of the steps.
    """
    ends = observed_step_ends(program)
    # The first boundary is a host time that no device work agrees with.
    skip = 1 if program.steps > 1 else 0
    chosen = skip + choose_step(np.diff(ends[skip:]).astype(np.float64))
    sketch = Sketch(trace=trace, low_ns=int(ends[chosen]), high_ns=int(ends[chosen + 1]))

    notes = sketch.inside(
        trace.rows(Kind.ANNOTATION, named=lambda name: not PROFILER_STEP.match(name), tid=main_tid)
    )
    sketch.add_rows("phases", "phases of the training thread", notes, deepest=1)
    pieces = idle_pieces(trace, program)
    code = np.asarray(
        [sketch.code(BUDGET_PARTS[part].meanwhile or part.value) for part in PARTS], dtype=np.int64
    )
    sketch.add(
        LaneEvents(
            kind="idle",
            name="GPU idle, by cause",
            start=pieces.start,
            end=pieces.end,
            label=code[pieces.part],
            part=pieces.part,
            depth=np.zeros(len(pieces.start), dtype=np.int64),
        )
    )
    _add_streams(sketch, program)
    _add_threads(sketch, program, main_tid)
    count = program.steps - skip
    return sketch.timeline(
        step=int(numbers[chosen]) if numbers is not None and chosen < len(numbers) else chosen,
        of_steps=program.steps,
        chosen="the only traced step" if count == 1 else f"the median of {count} traced steps",
    )


def _add_streams(sketch: Sketch, program: Program) -> None:
    trace = sketch.trace
    rows = sketch.inside(trace.activities)
    part = trace.by_name(rows, lambda name: PARTS.index(classify(name).part), np.int64)
    _, shown, drawn = np.intersect1d(rows, program.activity_row, assume_unique=True, return_indices=True)
    part[shown] = part_codes(list(program.parts))[program.part[drawn]]
    # Copies of some dialects name no stream or device.
    device, stream = np.maximum(trace.device[rows], 0).astype(np.int64), trace.stream[rows]
    several = len(np.unique(device)) > 1
    for which, on in sorted({*zip(device.tolist(), stream.tolist(), strict=True)}):
        on_stream = (device == which) & (stream == on)
        name = "no stream named" if on < 0 else f"stream {on}"
        name = f"GPU {which}, {name}" if several else name
        sketch.add_rows("stream", name, rows[on_stream], part=part[on_stream], deepest=0)


def _add_threads(sketch: Sketch, program: Program, main_tid: int) -> None:
    trace = sketch.trace
    of_call = np.full(len(trace), NO_PART, dtype=np.int8)
    for kind, work in WORK_OF_WAIT.items():
        of_call[program.row[program.kind == kind]] = PARTS.index(PART_OF_WORK[work])
    others = [int(t) for t in np.unique(trace.tid[program.row[program.row >= 0]]) if t != main_tid]
    for tid in (main_tid, *others):
        name = "training thread" if tid == main_tid else thread_name(trace, tid)
        rows = sketch.inside(trace.rows(*HOST_CALL_KINDS, tid=tid))
        part = of_call[rows].astype(np.int64)
        sketch.add_rows("calls", f"{name}: device calls", rows, part=part, deepest=0)
        rows = sketch.inside(trace.rows(Kind.OP, tid=tid))
        sketch.add_rows("operators", f"{name}: operators", rows)
