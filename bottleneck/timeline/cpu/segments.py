"""One thread's rows flattened: which row was innermost at every moment of every step.

In: a trace, the step boundaries, the training thread. Out: `Segments`, gap-free per step, so that
the durations of a step's segments add up to the step. Everything later is arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..lanes.labels import PHASES, phase_of
from ..trace.dialect import Kind
from ..trace.intervals import within
from ..trace.operators import OpClass, classify, fills_bucket, is_region, updates_in_place
from ..trace.table import NONE, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Stretches of the training thread's time, in order; columns of equal length m.

    Row-indexed helpers refer to rows of the trace; NONE means that no row covers the stretch.
    """

    step: NDArray[np.int32]
    """Position of the step among the whole steps, 0..steps-1."""
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    row: NDArray[np.int64]
    """Innermost row, or NONE."""
    op_class: NDArray[np.int8]
    phase: NDArray[np.int16]
    """Code into `phases`; 0 is "outside every phase"."""
    region: NDArray[np.int16]
    """How many compiled regions are open around it."""
    phases: tuple[str, ...]
    steps: int
    step_ns: NDArray[np.int64]
    """Length of each step."""
    tid: int
    """Code of the thread in the trace."""
    first_of_row: NDArray[np.bool_]
    """True where a row's first own stretch begins: its fixed cost is charged there, once."""
    in_place: NDArray[np.bool_]
    """In-place arithmetic."""
    regions_per_step: float = 0.0

    @property
    def bounds_ns(self) -> tuple[int, int]:
        """Begin of the first stretch and end of the last; there must be one."""
        return int(self.start_ns[0]), int(self.start_ns[-1] + self.dur_ns[-1])

    def holds(self, trace: Trace) -> NDArray[np.bool_]:
        """Return which rows of the trace begin in these steps on the training thread, bool[n]."""
        first, last = self.bounds_ns
        return np.asarray((trace.tid == self.tid) & (trace.ts_ns >= first) & (trace.ts_ns < last))


class _Sweep:
    """The stack of open rows while time passes, and the stretches that it leaves behind."""

    def __init__(self, trace: Trace, phase_of_name: dict[int, int]) -> None:
        self.phase_of_name = phase_of_name
        self.region_names = set(trace.codes(is_region).tolist())
        self.start: list[int] = []
        self.end: list[int] = []
        self.row: list[int] = []
        self.phase: list[int] = []
        self.region: list[int] = []
        self.whole: list[int] = []
        self.regions = 0

    def run(  # noqa: PLR0917  (columns of one table)
        self,
        rows: list[int],
        starts: list[int],
        ends: list[int],
        names: list[int],
        classes: dict[int, OpClass],
        begin: int,
        finish: int,
    ) -> None:
        """Flatten one step; `rows` must be sorted by (start, -duration)."""
        # (end, row, phase, open regions, class of all inside)
        stack: list[tuple[int, int, int, int, int]] = [(finish, NONE, 0, 0, 0)]
        now = begin
        for row, start, stop, name in zip(rows, starts, ends, names, strict=True):
            while len(stack) > 1 and stack[-1][0] <= start:
                now = self._close(stack, now)
            if start > now:
                self._emit(stack[-1], now, start)
                now = start
            top = stack[-1]
            end = min(stop, top[0])  # rounding to the clock's tick lets a child outlive its parent
            if end <= now:
                continue
            phase = self.phase_of_name.get(name, top[2])
            region = top[3]
            if name in self.region_names:
                self.regions += 1
                region += 1
            stack.append((end, row, phase, region, top[4] or classes.get(name, 0)))
        while len(stack) > 1:
            now = self._close(stack, now)
        if finish > now:
            self._emit(stack[0], now, finish)

    def _close(self, stack: list[tuple[int, int, int, int, int]], now: int) -> int:
        top = stack.pop()
        if top[0] > now:
            self._emit(top, now, top[0])
            return top[0]
        return now

    def _emit(self, top: tuple[int, int, int, int, int], start: int, end: int) -> None:
        self.start.append(start)
        self.end.append(end)
        self.row.append(top[1])
        self.phase.append(top[2])
        self.region.append(top[3])
        self.whole.append(top[4])


def _compiles(name: str) -> bool:
    return classify(name) is OpClass.COMPILING


def read_segments(
    trace: Trace,
    *,
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    thread: tuple[int, int],
    labels: Sequence[str] = PHASES,
) -> Segments:
    """Flatten the rows of one thread within the given steps.

    Begins and ends of the whole steps are int64[s]; `thread` is (pid code, tid code) of the training thread;
    `labels` name annotations that are phases.
    """
    rows = trace.on(trace.rows(Kind.OP, Kind.ANNOTATION), thread)
    phases = ("", *dict.fromkeys(labels))
    code = {name: i for i, name in enumerate(phases)}
    annotated = np.unique(trace.name[rows[trace.kind[rows] == Kind.ANNOTATION]]).tolist()
    phase_of_name = {
        i: code[phase]
        for i in annotated
        if (phase := phase_of(trace.names[i], labels=phases[1:])) is not None
    }
    # What runs inside of these is theirs, whatever it is called.
    classes = {
        code: each
        for each, named in ((OpClass.COMPILING, _compiles), (OpClass.COMMUNICATION, fills_bucket))
        for code in trace.codes(named).tolist()
    }
    row_start, row_end = trace.ts_ns[rows], trace.end_of(rows)

    sweep = _Sweep(trace, phase_of_name)
    step_of: list[NDArray[np.int32]] = []
    for k, (begin, finish) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        # Rows that began before the step and reach into it are labels around the loop, not work.
        inside = within(row_start, begin, finish)
        part = rows[inside]
        before = len(sweep.start)
        sweep.run(
            part.tolist(),
            row_start[inside].tolist(),
            row_end[inside].tolist(),
            trace.name[part].tolist(),
            classes,
            begin,
            finish,
        )
        step_of.append(np.full(len(sweep.start) - before, k, dtype=np.int32))

    row = np.asarray(sweep.row, dtype=np.int64)
    op_class = np.zeros(len(row), dtype=np.int8)
    covered = row != NONE
    ops = covered.copy()
    ops[covered] = trace.kind[row[covered]] == Kind.OP
    op_class[ops] = trace.by_name(row[ops], classify, np.int8)
    whole = np.asarray(sweep.whole, dtype=np.int8)
    op_class[whole > 0] = whole[whole > 0]
    in_place = np.zeros(len(row), dtype=np.bool_)
    in_place[ops] = trace.named(updates_in_place, row[ops])
    first = np.zeros(len(row), dtype=np.bool_)
    first[np.unique(row, return_index=True)[1]] = True
    start = np.asarray(sweep.start, dtype=np.int64)
    steps = max(1, len(start_ns))
    return Segments(
        step=np.concatenate(step_of) if step_of else np.zeros(0, dtype=np.int32),
        start_ns=start,
        dur_ns=np.asarray(sweep.end, dtype=np.int64) - start,
        row=row,
        op_class=op_class,
        phase=np.asarray(sweep.phase, dtype=np.int16),
        region=np.asarray(sweep.region, dtype=np.int16),
        phases=phases,
        steps=len(start_ns),
        step_ns=np.asarray(end_ns - start_ns, dtype=np.int64),
        tid=thread[1],
        first_of_row=first & covered,
        in_place=in_place,
        regions_per_step=sweep.regions / steps,
    )
