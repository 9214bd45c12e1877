"""What ranks without a GPU send each other, and when the training thread stands waiting for it.

In: a trace, the training thread's stretches and what they are spent on. Out: `Alone`, as for a rank with a
device, and the own work of each step.

gloo writes each collective on a thread of its own, from the arrival of the rank to the end, which all ranks
share. Own time is the training thread's without its waiting. A step runs here from the end of the last
collective of the step before to the end of its own last one, so that it is the same on all ranks: between
the script's marks, what one rank does behind its update keeps the others waiting in their next step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...model.codes import BUDGET_PARTS, LateCause
from ..lanes.alone import Alone
from ..lanes.labels import PART_OF_WORK, Work
from ..trace import intervals
from ..trace.dialect import Kind
from ..trace.gradients import accumulated
from ..trace.kernels import is_message
from ..trace.table import NONE, Trace
from .division import Division
from .segments import Segments


def waits_of(trace: Trace, segments: Segments, division: Division) -> NDArray[np.int64]:
    """Return when the training thread stands waiting for other ranks, (w, 2) in ns of the trace."""
    rows = trace.rows(Kind.ANNOTATION, named=_is_exchange)
    if not len(rows) or division.work is None:
        return np.zeros((0, 2), dtype=np.int64)
    standing = division.work == Work.COMMUNICATION
    low, high = segments.start_ns[standing], (segments.start_ns + segments.dur_ns)[standing]
    # An operator that only begins to send is own work.
    both = _both(low, high, trace.ts_ns[rows].astype(np.int64), trace.end_of(rows).astype(np.int64))
    return np.stack(both, axis=1)


def exchanges(trace: Trace, segments: Segments, division: Division, waits: NDArray[np.int64]) -> Alone | None:
    """Return where the collectives stand in own work, ns of the trace; `waits` is from `waits_of`.

    Returns:
        None without collectives, and with a step that has none.
    """
    rows = trace.rows(Kind.ANNOTATION, named=_is_collective)
    if not len(rows) or division.work is None:
        return None
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    start, end = trace.ts_ns[rows].astype(np.int64), trace.end_of(rows).astype(np.int64)
    edges_ns = _edges(segments)
    step = intervals.latest(edges_ns, start)
    inside = (step >= 0) & (step < segments.steps)
    last = np.full(segments.steps, NONE, dtype=np.int64)
    np.maximum.at(last, step[inside], end[inside])
    if segments.steps < 2 or (last == NONE).any() or (np.diff(last) <= 0).any():
        return None

    def own(when: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(
            when - last[0] - intervals.covered(waits[:, 0], waits[:, 1], when), dtype=np.float64
        )

    arrival, needed = own(start), own(_first_waited(end, waits, last[np.clip(step, 0, segments.steps - 1)]))
    edges = own(last)
    begins = accumulated(trace)[:, 0]
    there = own(begins[(begins > last[-2]) & (begins <= last[-1])]) - edges[0]
    return Alone(
        rows=rows,
        # The host itself waits: what it has done is the device's work.
        places=np.stack([arrival, arrival, needed, arrival, arrival], axis=1) - edges[0],
        edges=np.stack([edges, edges], axis=1) - edges[0],
        gradients=np.stack([there, there], axis=1),
        moments=last,
    )


def _first_waited(
    end: NDArray[np.int64], waits: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return when the thread first needs what ended then: where it waits, at the latest at the step's end.

    What ends while it computes is needed where it next stands waiting: DistributedDataParallel waits for all
    buckets at the end of the backward.
    """
    if not len(waits):
        return end
    following = np.minimum(intervals.before(waits[:, 1], end), len(waits) - 1)
    begin = waits[following, 0]
    # Inside a wait no own work is done, so that all of it is one place.
    return np.where(
        waits[following, 1] >= end, np.maximum(end, np.minimum(begin, np.maximum(last, end))), end
    )


def _edges(segments: Segments) -> NDArray[np.int64]:
    """Return where the steps begin, and where the last one ends."""
    return np.append(
        segments.start_ns[np.flatnonzero(np.diff(segments.step, prepend=-1))], segments.bounds_ns[1]
    )


def _is_exchange(name: str) -> bool:
    return name.startswith(("gloo:", "mpi:"))


def _is_collective(name: str) -> bool:
    return _is_exchange(name) and not is_message(name)


def _both(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    other_start: NDArray[np.int64],
    other_end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the moments that lie in both sets of intervals."""
    edges = np.unique(np.concatenate([start, end, other_start, other_end]))
    inside = np.ones(max(0, len(edges) - 1), dtype=bool)
    for low, high in ((start, end), (other_start, other_end)):
        inside &= np.diff(intervals.covered(low, high, edges)) > 0
    return edges[:-1][inside], edges[1:][inside]


def own_work_of_steps(
    segments: Segments, division: Division, moments: NDArray[np.int64], collected_ms: Sequence[float]
) -> dict[LateCause, NDArray[np.float64]]:
    """Return the work in each step between the moments, ms as traced, by what a rank is late for.

    Args:
        segments: the training thread.
        division: what its stretches are spent on.
        moments: from `exchanges`.
        collected_ms: of Python's collector in each traced step, by the script's marks; empty if unknown.
    """
    out: dict[LateCause, NDArray[np.float64]] = {}
    if division.work is None or division.work_ns is None:
        return out
    steps = len(moments) - 1
    # The share of each stretch that lies before each moment: a thread goes on a little before all have left.
    before = np.clip((moments[:, None] - segments.start_ns) / np.maximum(segments.dur_ns, 1), 0.0, 1.0)
    computes = division.work_ns > 0
    # Of an operator that computes, what is left is its fixed cost; a preempted one is left more than that.
    fixed = np.where(computes, segments.dur_ns - division.work_ns, 0.0)
    if computes.any():
        fixed = np.clip(fixed, 0.0, np.median(fixed[computes]))
    amount = segments.dur_ns - fixed
    causes: list[LateCause] = [BUDGET_PARTS[PART_OF_WORK[work]].late_for for work in Work]
    for cause in dict.fromkeys([*causes, "launch"]):
        mine = np.isin(division.work, [work for work in Work if causes[work] == cause])
        ns = amount * mine + (fixed if cause == "launch" else 0.0)
        found = np.diff(before @ ns) / 1e6
        if cause and found.any():
            out[cause] = found
    if len(collected_ms) == segments.steps and any(collected_ms):
        collected = np.asarray(collected_ms)
        # Behind the last collective of a step, where it is the next step's, unless it has more room before
        # it. A thread of gloo on the same core notes the end of a collective a few ms late.
        edges = _edges(segments)
        before_ms, behind_ms = (moments - edges[:-1]) / 1e6, (edges[1:] - moments) / 1e6
        behind = np.minimum(behind_ms, collected) >= np.minimum(before_ms, collected)
        found = np.where(behind, collected, 0.0)[:-1] + np.where(behind, 0.0, collected)[1:]
        out["garbage collection"] = found
        out["host"] = np.maximum(out.get("host", np.zeros(steps)) - found, 0.0)
    return out
