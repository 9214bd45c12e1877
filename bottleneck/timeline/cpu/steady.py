"""What each stretch of a step takes when nobody else has the processor (CPU runs).

In: segments of several steps. Out: their durations, each replaced by the median over the steps of
the stretch at the same place. On a machine that others use, an operator of 2 us now and then takes
a time slice of milliseconds; summed over a step of thousands of operators, such moments would pass
for work, and in Python between operators for host work.

The same place means: an operator's k-th call of the step within its phase; a stretch of Python
between the same two neighbours, for the k-th time. Steps of different length therefore still match,
and Python that really takes long at one place of every step stays as long as it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..trace.dialect import PROFILER_STEP
from ..trace.operators import OpClass
from ..trace.table import NONE, Trace
from .segments import Segments

_FEWEST = 3
"""Steps that must have a place before its median means anything."""


def _unit_of_segment(segments: Segments) -> NDArray[np.int64]:
    """A number for what is timed as one: an operator with all its own stretches, or one stretch."""
    python = segments.op_class == OpClass.PYTHON
    beyond = int(segments.row.max(initial=0)) + 1
    unit = np.where(python, beyond + np.arange(len(segments.row)), segments.row)
    return np.unique(unit, return_inverse=True)[1].astype(np.int64)


def _places(trace: Trace, segments: Segments) -> NDArray[np.int64]:
    """A number for the kind of place that each segment stands at."""
    # The profiler numbers its own ranges: they are one place all the same.
    code = np.arange(1, len(trace.names) + 1)
    code[trace.codes(PROFILER_STEP)] = 0
    name = np.where(segments.row == NONE, 0, code[trace.name[np.maximum(segments.row, 0)]]).astype(np.int64)
    width = len(trace.names) + 1
    python = segments.op_class == OpClass.PYTHON
    edge = np.ones(len(name), dtype=np.bool_)
    edge[1:] = segments.step[1:] != segments.step[:-1]
    before = np.zeros_like(name)
    before[1:] = np.where(edge[1:], 0, name[:-1])
    after = np.zeros_like(name)
    after[:-1] = np.where(edge[1:], 0, name[1:])
    place = name * len(segments.phases) + segments.phase
    place = place * width + np.where(python, before, 0)
    place = place * width + np.where(python, after, 0)
    return np.asarray(place * 2 + python, dtype=np.int64)


def _rank_within(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, 2... for the members of each group, in their given order."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    start = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(start, np.arange(len(group)), 0))
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - first
    return rank


def _medians(group: NDArray[np.int64], value: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return (median, count) per group 0..g-1."""
    order = np.lexsort((value, group))
    ordered = value[order]
    count = np.bincount(group)
    first = np.r_[0, np.cumsum(count)[:-1]]
    middle = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return middle, count.astype(np.float64)


def steady_ns(trace: Trace, segments: Segments) -> NDArray[np.float64]:
    """Return the duration of every segment without what single steps add to it, float64[m]."""
    dur = segments.dur_ns.astype(np.float64)
    if segments.steps < _FEWEST or len(dur) == 0:
        return dur
    unit = _unit_of_segment(segments)
    first = np.unique(unit, return_index=True)[1]
    own = np.bincount(unit, weights=dur).astype(np.float64)
    place = np.unique(_places(trace, segments)[first], return_inverse=True)[1].astype(np.int64)
    # Units are numbered by row, so by start: the k-th of its kind within its step.
    by_time = np.argsort(segments.start_ns[first], kind="stable")
    step = segments.step[first].astype(np.int64)
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_time] = _rank_within((place * segments.steps + step)[by_time])
    spot = place * (int(rank.max()) + 1) + rank
    group = np.unique(spot, return_inverse=True)[1].astype(np.int64)
    median, count = _medians(group, own)
    usual = np.where(count[group] >= _FEWEST, median[group], own)
    return dur * (usual / np.maximum(own, 1.0))[unit]
