"""What anomaly detection adds to a step (CPU runs).

In: the trace, its segments, the cost of one operator without it, timed on the spot. Out: milliseconds.

The forward formats a Python stack for every operator that the backward will visit, which takes as long
as the program calls deep: so it is read off the trace, from those of these operators that compute nothing
(views), or else the shortest. The backward looks for NaN in what every node returns, which the trace shows
as operators of its own.
"""

from __future__ import annotations

import numpy as np

from ..lanes.recompute import recorders
from ..trace.dialect import Kind
from ..trace.operators import OpClass, classify
from ..trace.table import Trace
from .division import PROFILED_FACTOR
from .segments import Segments

_CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::any", "aten::is_nonzero", "aten::item")
"""The check for NaN, whose names differ between versions of torch."""
_SHORTEST = 10
"""Percentile of the operators' durations that stands for one that does next to no work."""


def anomaly_ms(trace: Trace, segments: Segments, *, plain_ns: float) -> float:
    """Return what anomaly detection takes, profiled, in ms per step.

    `plain_ns` is what a small operator takes without anomaly detection, unprofiled.
    """
    if not len(segments.row):
        return 0.0
    mine = segments.holds(trace)
    ops = trace.rows(Kind.OP, among=mine)
    noted = np.asarray(list(recorders(trace).values()), dtype=np.intp)
    noted = noted[mine[noted]]
    noted_ns = trace.dur_ns[noted]
    views = noted_ns[trace.by_name(noted, classify, np.int8) == OpClass.BOOKKEEPING]
    each_ns = 0.0
    if len(noted):
        usual_ns = float(views.mean()) if len(views) else float(np.percentile(noted_ns, _SHORTEST))
        each_ns = max(0.0, usual_ns - PROFILED_FACTOR * plain_ns)
    checks = ops[trace.named(_CHECKS, ops)]
    checks = checks[trace.inside(checks, trace.rows(Kind.ANNOTATION, named="backward", among=mine))]
    checked_ns = float(trace.dur_ns[trace.outermost(checks)].sum())
    return (len(noted) * each_ns + checked_ns) / max(1, segments.steps) / 1e6
