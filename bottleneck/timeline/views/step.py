"""The timeline of one traced step, as recorded: what the device or, without one, the training thread did.

In: a `Trace`, its steps, a `Program`. Out: `StepTimeline`.

With a device the step shown runs from the end of the step before to its own end, host and device both done:
what a host that runs ahead dispatches in it may belong to the next step. Without one, the training thread's
time is drawn with nothing left out, coloured by budget line.
"""

from __future__ import annotations

import numpy as np

from ...model.codes import BUDGET_PARTS, Part
from ...model.view import NO_PART, StepTimeline
from ..lanes.host_work import HostWork
from ..lanes.labels import PART_OF_WORK, WORK_OF_WAIT, Work
from ..lanes.program import Program, first_counted
from ..steps.traced import Steps
from ..trace import intervals
from ..trace.dialect import HOST_CALL_KINDS, PROFILER_STEP, Kind
from ..trace.kernels import classify
from ..trace.table import Trace
from .idle import idle_pieces, observed_step_ends
from .thinned import PARTS, LaneEvents, Sketch, choose_step, part_codes, thread_name

_OTHER_THREADS = 4


def step_view(trace: Trace, steps: Steps, program: Program) -> StepTimeline:
    """Draw the median step."""
    main_tid = steps.thread[1]
    begin, end, skip = steps.start_ns, steps.end_ns, 0
    if program.lanes:
        ends = observed_step_ends(program)
        begin, end, skip = ends[:-1], ends[1:], first_counted(program.steps)
    chosen = skip + choose_step((end - begin)[skip:].astype(np.float64))
    sketch = Sketch(trace=trace, low_ns=int(begin[chosen]), high_ns=int(end[chosen]))
    notes = trace.rows(Kind.ANNOTATION, named=lambda name: not PROFILER_STEP.match(name), tid=main_tid)
    sketch.add_rows("phases", "phases of the training thread", sketch.inside(notes), deepest=1)
    if program.lanes:
        _add_idle(sketch, program)
        _add_streams(sketch, program)
        _add_threads(sketch, program, main_tid)
    else:
        _add_work(sketch, program.host_work, main_tid)
        _add_operators(sketch, main_tid)
    count = len(begin) - skip
    return sketch.timeline(
        step=int(steps.numbers[chosen]) if chosen < len(steps.numbers) else chosen,
        of_steps=len(begin),
        chosen="the only traced step" if count == 1 else f"the median of {count} traced steps",
    )


def _add_idle(sketch: Sketch, program: Program) -> None:
    pieces = idle_pieces(sketch.trace, program)
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


def _add_work(sketch: Sketch, host: HostWork, main_tid: int) -> None:
    trace = sketch.trace
    start = host.edges[intervals.within(host.edges, sketch.low_ns, sketch.high_ns)]
    end = np.append(start[1:], sketch.high_ns)
    part = np.asarray([PARTS.index(PART_OF_WORK[w]) for w in Work], dtype=np.int64)[host.at(start)]
    rows = trace.rows(Kind.OP, Kind.ANNOTATION, tid=main_tid)
    rows = rows[intervals.within(trace.ts_ns[rows], sketch.low_ns, sketch.high_ns)]
    at = trace.ranges(rows).innermost(start, np.full(len(start), main_tid))
    label = np.full(len(start), sketch.code("Python between operators"))
    label[at >= 0] = trace.name[rows[at[at >= 0]]]
    # Fetching a batch is one piece of work, however many operators it takes.
    fetching = part == PARTS.index(Part.INPUT)
    label[fetching] = sketch.code("fetching or making the batch")
    first = np.ones(len(start), dtype=bool)
    first[1:] = ~(fetching[1:] & fetching[:-1])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    sketch.add(
        LaneEvents(
            kind="work",
            name="training thread, by budget line",
            start=start[first],
            end=end[last],
            label=label[first].astype(np.int64),
            part=part[first],
            depth=np.zeros(int(first.sum()), dtype=np.int64),
        )
    )


def _add_operators(sketch: Sketch, main_tid: int) -> None:
    trace = sketch.trace
    ops = sketch.inside(trace.rows(Kind.OP))
    on_main = trace.tid[ops] == main_tid
    sketch.add_rows("operators", "training thread: operators", ops[on_main])
    rows = ops[~on_main]
    threads, inverse = np.unique(trace.tid[rows], return_inverse=True)
    busy = np.bincount(inverse, weights=trace.dur_ns[rows], minlength=len(threads))
    for k in np.argsort(-busy, kind="stable")[:_OTHER_THREADS].tolist():
        mine = rows[trace.tid[rows] == threads[k]]
        sketch.add_rows("operators", f"{thread_name(trace, int(threads[k]))}: operators", mine, deepest=1)


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
