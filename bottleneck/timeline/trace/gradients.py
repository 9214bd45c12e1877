"""What DistributedDataParallel does in the backward: gradients come, and buckets of them are sent.

In: a trace. Out: when each gradient is accumulated, and behind which forward something is sent by that.

DDP fills buckets with gradients in the order in which they come. The hook of the last one of a bucket sends
it, inside the operator that accumulates that gradient.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import intervals
from .dialect import Kind
from .table import NONE, Trace

__all__ = ["accumulated", "backward_of", "bucket_call_ms", "send_calls"]

_FORWARD = "DistributedDataParallel.forward"
_ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_SENDS = "c10d::allreduce_"


def accumulated(trace: Trace) -> NDArray[np.int64]:
    """Return when gradients are accumulated, begins and ends, (g, 2) in ns in order of their begins.

    Empty where no module is in DistributedDataParallel.
    """
    if not len(trace.rows(Kind.ANNOTATION, named=_FORWARD)):
        return np.zeros((0, 2), dtype=np.int64)
    rows = trace.rows(Kind.OP, named=_ACCUMULATES)
    return np.stack([trace.ts_ns[rows].astype(np.int64), trace.end_of(rows).astype(np.int64)], axis=1)


def backward_of(trace: Trace, sent_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by which backward pass something is sent, counted by the forwards before it, (c,).

    NONE for what no gradient sends.
    """
    gradients = accumulated(trace)
    if not len(gradients):
        return np.full(len(sent_ns), NONE, dtype=np.int64)
    forwards = trace.ts_ns[trace.rows(Kind.ANNOTATION, named=_FORWARD)].astype(np.int64)
    by_gradient = intervals.which(gradients[:, 0], gradients[:, 1], sent_ns) >= 0
    return np.where(by_gradient, intervals.before(np.sort(forwards), sent_ns), NONE).astype(np.int64)


def bucket_call_ms(trace: Trace) -> float:
    """Return how long the host takes to send a bucket of gradients, as traced (median); 0 without any."""
    calls = send_calls(trace)
    ns = trace.dur_ns[calls[backward_of(trace, trace.ts_ns[calls].astype(np.int64)) != NONE]]
    return float(np.median(ns)) / 1e6 if len(ns) else 0.0


def send_calls(trace: Trace) -> NDArray[np.intp]:
    """Return the rows of the calls on the host that send something to be summed, in order of time."""
    return trace.rows(Kind.OP, named=_SENDS)
