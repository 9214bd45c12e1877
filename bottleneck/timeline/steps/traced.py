"""Where the steps of a trace are, by whatever tells them best.

In: a `Trace`. Out: `Steps`, intervals of host time on the launching thread.

In order of trust: the profiler's own `ProfilerStep#k` ranges; the ends of `Optimizer.step` ranges;
a repeating sequence of launched kernels (or operators, without a device); else the whole window as
one step, which `how` says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...model.trace import NONE
from ..trace.dialect import DEVICE_KINDS, HOST_CALL_KINDS, Kind, kinds
from .periods import find_period, identity_period

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.trace import Trace

__all__ = ["Steps", "find_steps"]

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.+")
_BACKWARD = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps as host intervals, int64 ns of the trace's clock, in order, not overlapping.

    `numbers` are the profiler's step numbers, or counted from 0.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    numbers: NDArray[np.int64]
    how: Literal["ProfilerStep", "optimizer", "repeats", "window"]
    thread: tuple[int, int]
    """(pid, tid) codes of the thread that the steps are cut on: the training thread."""
    threads: tuple[tuple[int, int], ...] = ()
    """(pid, tid) codes of every thread that launches device work (or runs operators, without a
    device), busiest first; `thread` is among them if it launches at all."""
    note: str = ""
    """What is doubtful about them, for the report; empty when nothing is."""

    def __len__(self) -> int:
        return len(self.start_ns)


def find_steps(trace: Trace, kind: NDArray[np.int8] | None = None) -> Steps:
    """Find the steps of a trace.

    Args:
        trace: columns, sorted by time.
        kind: `dialect.kinds(trace)`, if the caller has it already.

    Returns:
        At least one step, unless the trace has no rows on the host at all.
    """
    kind = kinds(trace) if kind is None else kind
    threads = _launching_threads(trace, kind)
    for find in (_from_profiler, _from_optimizer, _from_repeats):
        found = find(trace, kind, threads)
        if found is not None:
            return found
    return _whole_window(trace, kind, threads)


def _thread_key(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    return trace.pid[rows].astype(np.int64) << 32 | trace.tid[rows].astype(np.int64)


def _split_key(key: int) -> tuple[int, int]:
    return int(key >> 32), int(key & 0xFFFFFFFF)


def _busiest(keys: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    values, counts = np.unique(keys, return_counts=True)
    return tuple(_split_key(values[i]) for i in np.argsort(-counts, kind="stable"))


def launches(trace: Trace, kind: NDArray[np.int8]) -> NDArray[np.intp]:
    """Return the rows of host calls that device work was recorded for, in time order."""
    device = np.unique(trace.correlation[np.isin(kind, DEVICE_KINDS)])
    device = device[device > 0]
    calls = np.flatnonzero(np.isin(kind, HOST_CALL_KINDS) & (trace.correlation > 0))
    return calls[np.isin(trace.correlation[calls], device)]


def _launching_threads(trace: Trace, kind: NDArray[np.int8]) -> tuple[tuple[int, int], ...]:
    rows = launches(trace, kind)
    if not len(rows):
        rows = np.flatnonzero(kind == Kind.OP)
    return _busiest(_thread_key(trace, rows))


def _outermost(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows that lie inside no earlier one; rows are sorted by (start, -duration)."""
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(trace.end_ns[rows])
    keep = np.ones(len(rows), dtype=bool)
    keep[1:] = trace.ts_ns[rows[1:]] >= reach[:-1]
    return rows[keep]


def _matching(
    trace: Trace, kind: NDArray[np.int8], pattern: re.Pattern[str]
) -> tuple[NDArray[np.intp], tuple[int, int]]:
    """Return the rows of host ranges with such a name, on the one thread that has most of them.

    Before torch 1.13 annotations were written as operators.
    """
    codes = np.asarray([i for i, n in enumerate(trace.names) if pattern.fullmatch(n)], np.int32)
    named = np.isin(trace.name, codes)
    for wanted in (Kind.ANNOTATION, Kind.OP):
        rows = np.flatnonzero(named & (kind == wanted))
        if len(rows):
            keys = _thread_key(trace, rows)
            thread = _busiest(keys)[0]
            return rows[keys == (thread[0] << 32 | thread[1])], thread
    return np.zeros(0, dtype=np.intp), (NONE, NONE)


def _from_profiler(
    trace: Trace, kind: NDArray[np.int8], threads: tuple[tuple[int, int], ...]
) -> Steps | None:
    rows, thread = _matching(trace, kind, _PROFILER_STEP)
    rows = _outermost(trace, rows)
    rows = rows[_with_work(trace, kind, trace.ts_ns[rows], trace.end_ns[rows])]
    if not len(rows):
        return None
    numbers = [int(trace.names[i].partition("#")[2]) for i in trace.name[rows]]
    return Steps(
        start_ns=trace.ts_ns[rows],
        end_ns=trace.end_ns[rows],
        numbers=np.asarray(numbers, dtype=np.int64),
        how="ProfilerStep",
        thread=thread,
        threads=threads,
    )


def _with_work(
    trace: Trace, kind: NDArray[np.int8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which intervals hold any operator or device call; loops often leave an empty last."""
    work = trace.ts_ns[np.isin(kind, (Kind.OP, *HOST_CALL_KINDS))]
    return np.searchsorted(work, end) > np.searchsorted(work, start)


def _from_optimizer(
    trace: Trace, kind: NDArray[np.int8], threads: tuple[tuple[int, int], ...]
) -> Steps | None:
    rows, thread = _matching(trace, kind, _OPTIMIZER_STEP)
    rows = _updates(trace, _outermost(trace, rows))
    if len(rows) < 2:
        return None
    period = identity_period(trace.name[rows])
    if period is None:
        rows = _rarest(trace, rows)
        note = "Steps end at the rarest optimizer; the order of the optimizers does not repeat."
    else:
        rows = rows[::-1][::period][::-1]
        note = "" if period == 1 else f"A step holds {period} optimizer updates, which alternate."
    if len(rows) < 2:
        return None
    return _between(trace.end_ns[rows], how="optimizer", thread=thread, threads=threads, note=note)


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
    codes = [i for i, name in enumerate(trace.names) if name.startswith(_BACKWARD)]
    backward = trace.ts_ns[np.isin(trace.name, np.asarray(codes, dtype=np.int32))]
    if not len(backward) or len(rows) < 2:
        return rows
    seen = np.searchsorted(backward, trace.end_ns[rows])
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = seen[1:] > seen[:-1]
    return rows[last]


def _between(
    cuts: NDArray[np.int64],
    *,
    how: Literal["optimizer", "repeats"],
    thread: tuple[int, int],
    threads: tuple[tuple[int, int], ...],
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


def _from_repeats(trace: Trace, kind: NDArray[np.int8], threads: tuple[tuple[int, int], ...]) -> Steps | None:
    if not threads:
        return None
    rows, names = _work_sequence(trace, kind, threads)
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
        thread=_split_key(int(_thread_key(trace, rows[phase : phase + 1])[0])),
        threads=threads,
        note="Steps were told from the work that repeats; where each begins is a guess.",
    )


def _work_sequence(
    trace: Trace, kind: NDArray[np.int8], threads: tuple[tuple[int, int], ...]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return host rows that start work, in time order, and a code for what each of them starts."""
    rows = launches(trace, kind)
    if len(rows):
        device = np.flatnonzero(np.isin(kind, DEVICE_KINDS) & (trace.correlation > 0))
        device = device[np.argsort(trace.correlation[device], kind="stable")]
        first = np.searchsorted(trace.correlation[device], trace.correlation[rows])
        return rows, trace.name[device[first]].astype(np.int64)
    keys = _thread_key(trace, np.flatnonzero(kind == Kind.OP))
    rows = np.flatnonzero(kind == Kind.OP)
    rows = _outermost(trace, rows[keys == (threads[0][0] << 32 | threads[0][1])])
    return rows, trace.name[rows].astype(np.int64)


def _widest_gap(gaps: NDArray[np.int64], period: int) -> int:
    """Return the phase before which the host pauses longest: between steps it fetches, logs."""
    whole = len(gaps) // period * period
    typical = np.median(gaps[:whole].reshape(-1, period), axis=0)
    return int(np.argmax(typical))


def _whole_window(trace: Trace, kind: NDArray[np.int8], threads: tuple[tuple[int, int], ...]) -> Steps:
    host = np.isin(kind, (Kind.OP, Kind.ANNOTATION, *HOST_CALL_KINDS))
    rows = np.flatnonzero(host)
    if not len(rows):
        rows = np.flatnonzero(np.isin(kind, DEVICE_KINDS))
    bounds = (int(trace.ts_ns[rows[0]]), int(trace.end_ns[rows].max())) if len(rows) else (0, 0)
    count = 1 if len(rows) else 0
    return Steps(
        start_ns=np.full(count, bounds[0], dtype=np.int64),
        end_ns=np.full(count, bounds[1], dtype=np.int64),
        numbers=np.zeros(count, dtype=np.int64),
        how="window",
        thread=threads[0] if threads else (NONE, NONE),
        threads=threads,
        note="No steps could be told apart: the whole window counts as one step.",
    )
