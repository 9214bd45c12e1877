"""Interval algebra on int64 / float64 times: unions, measures, gaps, and what lies where.

In: arrays of starts and ends, any order, overlapping or not. Out: disjoint, sorted intervals; positions of
moments among intervals in order of time. All intervals are half-open [start, end); empty ones are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[Any]


def union(start: Times, end: Times) -> tuple[Times, Times]:
    """Merge intervals, two arrays of shape (n,), into their disjoint union, sorted."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if len(start) == 0:
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), dtype=bool)
    first[0] = True
    first[1:] = start[1:] > reach[:-1]
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], len(start)) - 1
    return start[heads], reach[tails]


def clip(start: Times, end: Times, low: float, high: float) -> tuple[Times, Times]:
    """Cut intervals to [low, high); what lies outside becomes empty and is dropped."""
    start, end = np.maximum(start, low), np.minimum(end, high)
    keep = end > start
    return (start, end) if keep.all() else (start[keep], end[keep])


def measure(start: Times, end: Times) -> float:
    """Return the length of the union of the intervals, in their unit."""
    merged_start, merged_end = union(start, end)
    return float((merged_end - merged_start).sum())


def covered(start: Times, end: Times, when: Times) -> Times:
    """Return how much of the union of the intervals lies before each moment."""
    start, end = union(start, end)
    if not len(start):
        return np.zeros_like(when)
    total = np.concatenate([np.zeros(1, dtype=end.dtype), np.cumsum(end - start)])
    at = latest(start, when)
    first = np.maximum(at, 0)
    inside = np.clip(when - start[first], 0, end[first] - start[first])
    return np.asarray(np.where(at >= 0, total[first] + inside, 0))


def gaps(start: Times, end: Times, low: float, high: float) -> tuple[Times, Times]:
    """Return what [low, high) holds outside the union of the intervals, sorted."""
    start, end = union(*clip(start, end, low, high))
    gap_start = np.concatenate([np.asarray([low], dtype=start.dtype), end])
    gap_end = np.concatenate([start, np.asarray([high], dtype=end.dtype)])
    keep = gap_end > gap_start
    return gap_start[keep], gap_end[keep]


def before(moments: Times, when: Any) -> NDArray[np.intp]:
    """Return how many of the moments, in order of time, lie before each `when`: the first that does not."""
    return np.asarray(np.searchsorted(moments, when))


def latest(moments: Times, when: Any) -> NDArray[np.intp]:
    """Return the position of the last moment, in order of time, at or before each `when`; -1 before all."""
    return np.asarray(np.searchsorted(moments, when, side="right") - 1)


def behind_share(spent: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Return which of consecutive stretches have their middle behind that share of the time of them all."""
    return np.asarray(np.cumsum(spent) - spent / 2 >= share * spent.sum())


def within(moments: Times, low: float, high: float) -> slice:
    """Return where the moments, in order of time, lie in [low, high)."""
    first, last = np.searchsorted(moments, [low, high]).tolist()
    return slice(first, last)


def which(start: Times, end: Times, when: Times) -> NDArray[np.intp]:
    """Return the position of the interval that began last before each `when`; -1 where none runs by then.

    Intervals in order of their starts. Where they nest, an inner one that has ended counts as long as one
    around it runs.
    """
    if not len(start):
        return np.full(len(when), -1, dtype=np.intp)
    at = latest(start, when)
    reach = np.maximum.accumulate(end)
    return np.where((at >= 0) & (when < reach[np.maximum(at, 0)]), at, -1)


def innermost(start: Times, end: Times, when: Times) -> NDArray[np.intp]:
    """Return the position of the interval that began last of those that run at each `when`; -1 for none.

    Intervals in order of their starts.
    """
    around: list[int] = []
    ends = end.tolist()
    for begin in start.tolist():
        last = len(around) - 1
        while last >= 0 and ends[last] <= begin:
            last = around[last]
        around.append(last)
    outer = np.asarray(around, dtype=np.intp)
    at = latest(start, when)
    inside = np.flatnonzero(at >= 0)
    while len(inside := inside[(at[inside] >= 0) & (end[at[inside]] <= when[inside])]):
        at[inside] = outer[at[inside]]
    return at


def outermost(start: Times, end: Times) -> NDArray[np.bool_]:
    """Return which of the intervals, in order of (start, longest first), lie inside no earlier one."""
    keep = np.ones(len(start), dtype=bool)
    keep[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    return keep
