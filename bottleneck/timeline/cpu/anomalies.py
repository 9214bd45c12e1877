"""What anomaly detection adds to a step (CPU runs).

In: the trace, its segments, the cost of one operator without it, timed on the spot. Out: milliseconds.

The forward formats a Python stack for every operator that the backward will visit, which takes as long
as the program calls deep: so it is read off the trace, from the shortest of those operators. The backward
looks for NaN in what every node returns, which the trace shows as operators of its own.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..trace.dialect import Kind
from ..trace.table import Trace
from .division import PROFILED_FACTOR
from .segments import Segments

__all__ = ["anomaly_ms"]

_NODE = re.compile(r"^autograd::engine::evaluate_function(?!.*torch::autograd::AccumulateGrad)")
"""Those that accumulate gradients are made once per parameter, not once per step."""
_CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::any", "aten::is_nonzero", "aten::item")
"""The check for NaN, whose names differ between versions of torch."""
_SHORTEST = 10
"""Percentile of the operators' durations that stands for one that does next to no work."""


def anomaly_ms(trace: Trace, segments: Segments, *, plain_ns: float) -> float:
    """Return what anomaly detection takes, profiled, in ms per step.

    Args:
        trace: the columns.
        segments: the training thread's steps.
        plain_ns: what a small operator takes without anomaly detection, unprofiled.
    """
    if not len(segments.row):
        return 0.0
    mine = segments.holds(trace)
    ops = trace.rows(Kind.OP, among=mine)

    def inside(label: str) -> NDArray[np.bool_]:
        return trace.inside(ops, trace.rows(Kind.ANNOTATION, named=label, among=mine))

    nodes = trace.named(_NODE, ops)
    noted = trace.dur_ns[ops[(trace.sequence[ops] >= 0) & inside("forward")]]
    each_ns = 0.0
    if len(noted):
        each_ns = max(0.0, float(np.percentile(noted, _SHORTEST)) - PROFILED_FACTOR * plain_ns)
    checks = ops[inside("backward") & trace.named(_CHECKS, ops)]
    checked_ns = float(trace.dur_ns[trace.outermost(checks)].sum())
    return (int(nodes.sum()) * each_ns + checked_ns) / max(1, segments.steps) / 1e6
