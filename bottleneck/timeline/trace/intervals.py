"""Interval algebra on int64 / float64 times: unions, measures, gaps.

In: arrays of starts and ends, any order, overlapping or not. Out: disjoint, sorted intervals.
All intervals are half-open [start, end); empty ones are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["clip", "gaps", "measure", "union"]

Times = NDArray[Any]


def union(start: Times, end: Times) -> tuple[Times, Times]:
    """Merge intervals.

    Args:
        start: starts, shape (n,).
        end: ends, shape (n,), same unit.

    Returns:
        Starts and ends of the disjoint union, sorted.
    """
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) == 0:
        return start, end
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
    return start[keep], end[keep]


def measure(start: Times, end: Times) -> float:
    """Return the length of the union of the intervals, in their unit."""
    merged_start, merged_end = union(start, end)
    return float((merged_end - merged_start).sum())


def gaps(start: Times, end: Times, low: float, high: float) -> tuple[Times, Times]:
    """Return what [low, high) holds outside the union of the intervals, sorted."""
    start, end = union(*clip(start, end, low, high))
    gap_start = np.concatenate([np.asarray([low], dtype=start.dtype), end])
    gap_end = np.concatenate([start, np.asarray([high], dtype=end.dtype)])
    keep = gap_end > gap_start
    return gap_start[keep], gap_end[keep]
