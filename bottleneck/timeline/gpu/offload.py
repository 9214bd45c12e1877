"""Activations that the forward moves to the host and the backward brings back.

In: a trace and its program. Out: which device activities do that, the edit that leaves them out.

Hooks of saved tensors run inside the operator that saves a tensor, and inside the node of the backward that
uses it; autograd gives both the same number. So what such an operator copies to the host and its node copies
back, as many bytes, was offloaded: by `save_on_cpu`, or by hooks of a library.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ..lanes.program import PARTS, Program
from ..lanes.recompute import recorders
from ..lanes.replay import Edit
from ..trace.dialect import TO_DEVICE, TO_HOST, Kind
from ..trace.table import Trace
from .edits import without

_NODE = re.compile(r"^autograd::engine::evaluate_function: (?!ToCopyBackward)\w+Backward\d+$")
"""Of torch's own, which copy nothing themselves. A Function of the user's may compute on the host, and the
backward of `Tensor.cpu()` copies its gradient."""
_COPY = re.compile(r"^aten::(to|_to_copy|copy_)$")


def offloaded(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Return which activities copy what backward needs to the host or back, shape (m,)."""
    out = np.zeros(len(program.event), dtype=bool)
    copies = np.flatnonzero(program.part == PARTS.index(Part.COPIES))
    nodes = trace.rows(Kind.OP, named=_NODE)
    if not len(copies) or not len(nodes):
        return out
    rows, launched = program.activity_row[copies], program.row[program.event[copies]]

    def saved(operators: NDArray[np.intp], direction: re.Pattern[str]) -> list[tuple[int, int] | None]:
        """Return by copy the number of the operator around it, and the bytes; None for what is not meant."""
        around = trace.ranges(operators).innermost(trace.ts_ns[launched], trace.tid[launched])
        number = np.where(around >= 0, trace.sequence[operators[around]], -1) if len(operators) else around
        meant = (number >= 0) & trace.named(direction, rows)
        keys = zip(number.tolist(), trace.bytes[rows].tolist(), strict=True)
        return [key if is_meant else None for key, is_meant in zip(keys, meant.tolist(), strict=True)]

    back = saved(nodes, TO_DEVICE)
    if not any(back):
        return out
    made = np.sort(np.asarray(list(recorders(trace).values()), dtype=np.intp))
    there = saved(made, TO_HOST)
    both = (set(there) & set(back)) - {None}
    out[copies] = [one in both or other in both for one, other in zip(there, back, strict=True)]
    return out


def moving(trace: Trace, program: Program, moved: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the rows of the calls that copy these."""
    calls = trace.outermost(trace.rows(Kind.OP, named=_COPY))
    launched = program.row[program.event[moved]]
    around = np.unique(trace.ranges(calls).around(trace.ts_ns[launched], trace.tid[launched]))
    return calls[around[around >= 0]]


def kept_on_device(trace: Trace, program: Program, moved: NDArray[np.bool_]) -> Edit:
    """Take away the calls that copy these, with all that they launch and wait for."""
    calls = moving(trace, program, moved)
    return without(trace, program, trace.ts_ns[calls], trace.end_of(calls), of=program.row >= 0)
