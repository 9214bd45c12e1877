"""Kernels that keep little of the device at work, for long.

In: a trace that tells how many warps a kernel has for each multiprocessor, and its program. Out: the operator
whose kernels would gain most if all of the device shared their work, and what would be left of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import WORK_PARTS
from ..lanes.program import PARTS, Program
from ..result import NarrowCall
from ..trace.dialect import Kind
from ..trace.operators import NODE
from ..trace.table import NONE, Trace
from .by_line import Asked

_OF_WORK = [PARTS.index(part) for part in WORK_PARTS]


@dataclass(frozen=True, slots=True)
class Narrow:
    """The kernels of one operator."""

    call: NarrowCall
    left: NDArray[np.float64]
    """Factor on the duration of each activity with the work on all of the device, (m,)."""


def narrow_kernels(
    trace: Trace, program: Program, share: NDArray[np.float64], asked: Asked | None
) -> Narrow | None:
    """Return the kernels of the operator that would gain most from more warps; None where none would.

    `share`: of the device that each activity fills. A kernel whose work, shared by all of it, would take no
    longer than a launch is small, not narrow.
    """
    duration = program.duration
    narrow = (share < 1.0) & np.isin(program.part, _OF_WORK) & (share * duration > program.latency)
    if not narrow.any():
        return None
    ops = trace.rows(Kind.OP)
    ops = ops[~trace.named(NODE, ops)]
    if not len(ops):
        return None
    launched = program.row[program.event[narrow]]
    around = trace.ranges(ops).innermost(trace.ts_ns[launched], trace.tid[launched])
    name = np.where(around >= 0, trace.name[ops[around]], NONE)
    gains = ((1.0 - share) * duration)[narrow]
    known = name != NONE
    if not known.any():
        return None
    names, which = np.unique(name[known], return_inverse=True)
    most = names[int(np.bincount(which, weights=gains[known]).argmax())]
    mask = np.zeros(len(duration), dtype=bool)
    mask[np.flatnonzero(narrow)[name == most]] = True
    time = duration[mask].sum()
    return Narrow(
        call=NarrowCall(
            callee=trace.names[most].removeprefix("aten::"),
            count=float(mask.sum()) / program.steps,
            share=float((share * duration)[mask].sum() / time),
            ms=float(time) / program.steps / 1e6,
            site=asked.main_line(mask, duration) if asked is not None else None,
        ),
        left=np.where(mask, share, 1.0),
    )
