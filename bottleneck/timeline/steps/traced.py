"""Where the steps of a trace are, by the best marks available.

In: a `Trace`. Out: `Steps`, intervals of host time on the launching thread.

In order of trust: the profiler's own `ProfilerStep#k` ranges; the ends of `Optimizer.step` ranges;
a repeating sequence of launched kernels (or operators, without a device); else the whole window as
one step, which `how` says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..trace import intervals
from ..trace.dialect import HOST_CALL_KINDS, OPTIMIZER_STEP, PROFILER_STEP, Kind
from ..trace.operators import NODE
from ..trace.table import NONE, Thread, Trace
from .periods import find_period, identity_period


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps as host intervals, int64 ns of the trace's clock, in order, not overlapping.

    `numbers` are the profiler's step numbers, or counted from 0.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    numbers: NDArray[np.int64]
    how: Literal["ProfilerStep", "optimizer", "repeats", "window"]
    thread: Thread
    """(pid, tid) codes of the thread that the steps are cut on: the training thread."""
    threads: tuple[Thread, ...] = ()
    """(pid, tid) codes of every thread that launches device work (or runs operators, without a
    device), busiest first; `thread` is among them if it launches at all."""
    note: str = ""
    """What is doubtful about them, for the report; empty when nothing is."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def edges_ns(self) -> NDArray[np.int64]:
        """Boundaries of consecutive steps: each begin, and the end of the last."""
        return np.concatenate([self.start_ns, self.end_ns[-1:]]).astype(np.int64)

    def which(self, when_ns: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the position of the step that each moment lies in; NONE outside all of them."""
        return intervals.which(self.start_ns, self.end_ns, when_ns)


def find_steps(trace: Trace) -> Steps:
    """Find the steps of a trace: at least one, unless the trace has no rows on the host at all."""
    busy = trace.launches if len(trace.launches) else trace.rows(Kind.OP)
    threads = tuple(thread for thread, _ in trace.busiest_threads(busy))
    for find in (_from_profiler, _from_optimizer, _from_repeats):
        found = find(trace, threads)
        if found is not None:
            return found
    return _whole_window(trace, threads)


def _matching(trace: Trace, pattern: re.Pattern[str]) -> tuple[NDArray[np.intp], Thread]:
    """Return the rows of host ranges with such a name, on the one thread that has most of them.

    Before torch 1.13 annotations were written as operators.
    """
    for wanted in (Kind.ANNOTATION, Kind.OP):
        rows = trace.rows(wanted, named=pattern)
        if len(rows):
            thread = trace.busiest_threads(rows)[0][0]
            return trace.on(rows, thread), thread
    return np.zeros(0, dtype=np.intp), (NONE, NONE)


def _from_profiler(trace: Trace, threads: tuple[Thread, ...]) -> Steps | None:
    rows, thread = _matching(trace, PROFILER_STEP)
    rows = trace.outermost(rows)
    rows = rows[_with_work(trace, trace.ts_ns[rows], trace.end_of(rows))]
    if not len(rows):
        return None
    numbers = [int(trace.name_of(row).partition("#")[2]) for row in rows.tolist()]
    return Steps(
        start_ns=trace.ts_ns[rows],
        end_ns=trace.end_of(rows),
        numbers=np.asarray(numbers, dtype=np.int64),
        how="ProfilerStep",
        thread=thread,
        threads=threads,
    )


def _with_work(trace: Trace, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which intervals hold any operator or device call; loops often leave an empty last."""
    work = trace.ts_ns[trace.rows(Kind.OP, *HOST_CALL_KINDS)]
    return intervals.before(work, end) > intervals.before(work, start)


def _from_optimizer(trace: Trace, threads: tuple[Thread, ...]) -> Steps | None:
    rows, thread = _matching(trace, OPTIMIZER_STEP)
    rows = _updates(trace, trace.outermost(rows))
    if len(rows) < 2:
        return None
    period = identity_period(trace.name[rows])
    if period is None:
        rows = _rarest(trace, rows)
        note = "Steps end at the rarest optimizer; the order of the optimizers does not repeat."
    else:
        rows = rows[::-1][::period][::-1]
        note = "" if period == 1 else f"Each step has {period} optimizer updates, which alternate."
    if len(rows) < 2:
        return None
    return _between(trace.end_of(rows), how="optimizer", thread=thread, threads=threads, note=note)


def _rarest(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of the name that occurs least often, but more than once."""
    values, counts = np.unique(trace.name[rows], return_counts=True)
    repeated = counts > 1
    if not repeated.any():
        return rows[:0]
    rarest = int(values[repeated][np.argmin(counts[repeated])])
    same: NDArray[np.bool_] = trace.name[rows] == rarest
    return rows[same]


def _updates(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the last of each run of optimizer steps with no backward pass between them.

    Several optimizers stepped one after the other (Muon and AdamW, say) make one update.
    """
    backward = trace.ts_ns[trace.rows(named=NODE)]
    if not len(backward) or len(rows) < 2:
        return rows
    seen = intervals.before(backward, trace.end_of(rows))
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = seen[1:] > seen[:-1]
    return rows[last]


def _between(
    cuts: NDArray[np.int64],
    *,
    how: Literal["optimizer", "repeats"],
    thread: Thread,
    threads: tuple[Thread, ...],
    note: str = "",
) -> Steps:
    return Steps(
        start_ns=cuts[:-1],
        end_ns=cuts[1:],
        numbers=np.arange(len(cuts) - 1, dtype=np.int64),
        how=how,
        thread=thread,
        threads=threads,
        note=note,
    )


def _from_repeats(trace: Trace, threads: tuple[Thread, ...]) -> Steps | None:
    if not threads:
        return None
    rows, names = _work_sequence(trace, threads)
    found = find_period(names)
    if found is None:
        return None
    starts = trace.ts_ns[rows]
    gaps = np.diff(starts, prepend=starts[:1])
    phase = _widest_gap(gaps, found)
    cuts = starts[phase::found]
    if len(cuts) < 2:
        return None
    return _between(
        cuts,
        how="repeats",
        thread=(int(trace.pid[rows[phase]]), int(trace.tid[rows[phase]])),
        threads=threads,
        note="Steps were found from repeating work; where each step begins is a guess.",
    )


def _work_sequence(trace: Trace, threads: tuple[Thread, ...]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return host rows that start work, in time order, and a code for what each of them starts."""
    if len(trace.launches):
        launched = trace.launched_by != NONE
        rows, first = np.unique(trace.launched_by[launched], return_index=True)
        return rows, trace.name[trace.activities[launched][first]].astype(np.int64)
    rows = trace.outermost(trace.on(trace.rows(Kind.OP), threads[0]))
    return rows, trace.name[rows].astype(np.int64)


def _widest_gap(gaps: NDArray[np.int64], period: int) -> int:
    """Return the phase before which the host pauses longest: between steps it fetches, logs."""
    whole = len(gaps) // period * period
    typical = np.median(gaps[:whole].reshape(-1, period), axis=0)
    return int(np.argmax(typical))


def _whole_window(trace: Trace, threads: tuple[Thread, ...]) -> Steps:
    rows = trace.rows(Kind.OP, Kind.ANNOTATION, *HOST_CALL_KINDS)
    if not len(rows):
        rows = trace.activities
    bounds = (int(trace.ts_ns[rows[0]]), int(trace.end_of(rows).max())) if len(rows) else (0, 0)
    count = 1 if len(rows) else 0
    return Steps(
        start_ns=np.full(count, bounds[0], dtype=np.int64),
        end_ns=np.full(count, bounds[1], dtype=np.int64),
        numbers=np.zeros(count, dtype=np.int64),
        how="window",
        thread=threads[0] if threads else (NONE, NONE),
        threads=threads,
        note="No steps could be found: the whole window counts as one step.",
    )
