"""Where in a training step the host launches something: before a backward pass, inside one, or behind it.

In: a trace, moments of the host. Out: a phase per moment.

The nodes of the graph that a backward goes through tell where it is. What lies outside of all nodes is
forward if the next thing is a node, and behind the backward if it is the update.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..timeline.trace import intervals
from ..timeline.trace.dialect import Kind
from ..timeline.trace.operators import NODE
from ..timeline.trace.table import NONE, Trace
from .columns import Ints

__all__ = ["BACKWARD", "BEHIND", "FORWARD", "phases"]

FORWARD, BACKWARD, BEHIND = 0, 1, 2
_UPDATE = re.compile(r"^Optimizer\.step#")


def phases(trace: Trace, moments: Ints, *, launched: NDArray[np.bool_] | bool = True) -> Ints:
    """Return the phase of each moment, (c,); NONE where the trace does not tell.

    Args:
        trace: nodes and updates of the host.
        moments: (c,) ns of the trace's clock.
        launched: (c,) which of the moments are known to be the host's.
    """
    out = np.full(len(moments), NONE, dtype=np.int64)
    nodes = trace.rows(Kind.OP, named=NODE)
    if not len(nodes) or not len(moments):
        return out
    start, end = trace.ts_ns[nodes].astype(np.int64), trace.end_of(nodes).astype(np.int64)
    updates = trace.rows(Kind.ANNOTATION, named=_UPDATE)
    if len(updates):
        node, update = _next(start, moments), _next(np.sort(trace.end_of(updates)), moments)
        out[node < update] = FORWARD
        out[update < node] = BEHIND
    out[intervals.which(start, end, moments) >= 0] = BACKWARD
    return np.where(launched, out, NONE)


def _next(times: Ints, moments: Ints) -> Ints:
    """Return the first of the times, in order, that lies behind each moment; the largest integer for none."""
    padded = np.append(times, np.iinfo(np.int64).max)
    return np.asarray(padded[np.searchsorted(times, moments, side="right")], dtype=np.int64)
