"""The step budget: every moment of the step belongs to exactly one line.

In: a `Program` and the `Schedule` of its calibrated replay. Out: nanoseconds per step by part, and
the exposed share of each host event. The lines add up to the schedule's step by construction: busy
time is split by precedence, idle time gap by gap (gaps.py), and what remains is "unexplained".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.diagnosis import BudgetLine
from ..trace import intervals
from .gaps import DISPATCH_WORK, divide_gaps
from .labels import PART_OF_WORK, WORK_OF_WAIT, Work
from .program import PARTS, Program
from .replay import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Per step, ns."""

    parts: dict[Part, float]
    step_ns: float
    busy_ns: float
    exposed_by_event: NDArray[np.float64]
    """Idle time that each event's own work or wait explains, ns over the window (n,)."""
    by_work: NDArray[np.float64]
    """What of `parts` the host explains, by category, (len(Work),)."""


def _host_curves(
    program: Program, schedule: Schedule, factors: NDArray[np.float64]
) -> Iterator[tuple[Work, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield per category that took time: moments (k,) and the host time spent in it up to each, (k,)."""
    n = len(program.kind)
    times = np.empty(2 * n + 1)
    times[0] = 0.0
    times[1::2] = schedule.issued
    times[2::2] = schedule.host
    tail = schedule.host - schedule.issued
    # Blocked time and the return from it belong to the wait.
    category = np.full(n, int(Work.SYNC))
    for kind, work in WORK_OF_WAIT.items():
        category[program.kind == kind] = work
    # Waiting for room in the queue shows as time beyond the event's own work: the device is busy then.
    for each in Work:
        spent = np.zeros(2 * n + 1)
        spent[1::2] = program.work[:, each] * factors[each]
        spent[2::2] = np.where(category == each, tail, 0.0)
        if spent.any():
            yield each, times, np.cumsum(spent, out=spent)


def step_budget(program: Program, schedule: Schedule, factors: NDArray[np.float64]) -> Budget:
    """Split the step time of a schedule.

    `factors` (len(Work),) on host work are those under which it ran. The `parts` sum to `step_ns`.
    """
    low, high, steps = schedule.whole
    parts: dict[Part, float] = dict.fromkeys(Part, 0.0)
    covered_start = np.empty(0)
    covered_end = np.empty(0)
    covered = 0.0
    for index, part in enumerate(PARTS):
        mine = program.part == index
        start, end = intervals.clip(schedule.start[mine], schedule.end[mine], low, high)
        covered_start, covered_end = intervals.union(
            np.concatenate([covered_start, start]), np.concatenate([covered_end, end])
        )
        total = float((covered_end - covered_start).sum())
        parts[part] += total - covered
        covered = total

    gap_start, gap_end = intervals.gaps(covered_start, covered_end, low, high)
    exposed = np.zeros(len(program.kind))
    by_work = np.zeros(len(Work))
    if len(gap_start):
        by_work = _split_gaps(program, schedule, factors, (gap_start, gap_end), parts=parts, exposed=exposed)
    total = high - low
    parts[Part.UNEXPLAINED] += total - sum(parts.values())
    return Budget(
        parts={p: v / steps for p, v in parts.items()},
        step_ns=total / steps,
        busy_ns=covered / steps,
        exposed_by_event=exposed,
        by_work=by_work / steps,
    )


def _split_gaps(
    program: Program,
    schedule: Schedule,
    factors: NDArray[np.float64],
    gaps: tuple[NDArray[np.float64], NDArray[np.float64]],
    *,
    parts: dict[Part, float],
    exposed: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Attribute each gap; returns what the host explains by category, (len(Work),)."""
    found = divide_gaps(program, *gaps, began=schedule.start, issued=schedule.issued, host=schedule.host)
    parts[Part.DEVICE] += float((found.end - found.start - found.caused).sum())
    late = found.caused > 0
    if not late.any():
        return np.zeros(len(Work))
    event, until = found.event[late], found.until[late]
    start = until - found.caused[late]

    amounts = np.zeros((len(start), len(Work)))
    for work, times, curve in _host_curves(program, schedule, factors):
        amounts[:, work] = np.interp(until, times, curve) - np.interp(start, times, curve)
    for work in WORK_OF_WAIT.values():
        rows = np.flatnonzero(found.counts_for[late] == work)
        for dispatch in DISPATCH_WORK:
            if dispatch is not work:
                amounts[rows, work] += amounts[rows, dispatch]
                amounts[rows, dispatch] = 0.0
        np.add.at(exposed, event[rows], amounts[rows, work])
    by_work: NDArray[np.float64] = amounts.sum(axis=0)
    for work in Work:
        parts[PART_OF_WORK[work]] += float(by_work[work])
    # Per device call: the part of its own stretch of host time that lies in a host-caused gap.
    length = until - start
    total = np.concatenate([[0.0], np.cumsum(length)])

    def covered_until(moment: NDArray[np.float64]) -> NDArray[np.float64]:
        k = intervals.latest(start, moment)
        first = np.maximum(k, 0)
        inside = np.clip(moment - start[first], 0, length[first])
        return np.where(k >= 0, total[first] + inside, 0.0)

    stretch = covered_until(schedule.host) - covered_until(schedule.before)
    special = np.isin(program.kind, list(WORK_OF_WAIT))
    exposed[special] += np.where(exposed[special] > 0, 0.0, stretch[special])
    return by_work


def budget_lines(
    parts: Mapping[Part, float], *, true_ms: float, details: Mapping[Part, str] | None = None
) -> tuple[BudgetLine, ...]:
    """Return the lines in ms, largest first; parts of nothing are left out, unexplained never is."""
    return tuple(
        BudgetLine(
            part=part,
            ms=ms,
            share=ms / true_ms if true_ms > 0 else 0.0,
            detail=(details or {}).get(part, ""),
        )
        for part, ms in sorted(parts.items(), key=lambda item: -item[1])
        if ms > 0 or part is Part.UNEXPLAINED
    )
