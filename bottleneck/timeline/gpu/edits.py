"""Changes to a program that take more than one factor to say: seams gone, few launches for many.

In: a `Program` and masks over its activities. Out: `Edit`s and factors on durations.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..lanes.calibrate import Calibration
from ..lanes.labels import Work
from ..lanes.program import Program
from ..lanes.replay import Edit
from ..lanes.waits import EventKind
from ..trace import intervals
from ..trace.dialect import HOST_CALL_KINDS, Kind, is_launch
from ..trace.table import Trace
from .compiler_reach import host_left_ns
from .device_masks import DeviceWork

_PHASES = re.compile(r"^(forward|backward|optimizer)$")
_CONVOLUTION = re.compile(r"^aten::(cudnn|miopen)_convolution\w*$|^aten::convolution_backward$")
_ATTENTION = re.compile(r"^aten::_cudnn_attention_(forward|backward)$")
_PLANS = re.compile(r"^cudaRuntimeGetVersion$")
"""What cuDNN asks for when it plans, and with a plan that it has made before does not (cuDNN 9)."""
TENSORS_PER_LAUNCH = 30
"""Tensors that one launch of a fused optimizer takes (`depth_to_max_tensors` of ATen's
MultiTensorApply.cuh, for the five lists of Adam)."""


def few_launches(
    program: Program, mask: NDArray[np.bool_], launches: int, traffic: float
) -> NDArray[np.float64]:
    """Factor on durations when the masked kernels of each step become `launches` of them.

    A kernel's time is traffic and what the shortest kernel of the trace takes: the latter is paid
    per launch, however small the tensor.
    """
    factor = np.ones(len(program.event))
    if not mask.any():
        return factor
    factor[mask] = 0.0
    floor = float(np.percentile(program.duration[mask], 1))
    for mine in np.split(marked := np.flatnonzero(mask), np.flatnonzero(np.diff(program.step[marked])) + 1):
        kept = mine[:launches]
        left = traffic * float((program.duration[mine] - floor).clip(0).sum()) + floor * len(kept)
        factor[kept] = left / len(kept) / np.maximum(program.duration[kept], 1.0)
    return factor


def gradients_untouched(trace: Trace, program: Program, *, thread: int) -> Edit:
    """Take away what the training thread does between a backward and the update, with all that it launches.

    No part of training has its place there: gradients are clipped, looked at, or sent by hand.
    """
    rows = trace.rows(Kind.ANNOTATION, named=_PHASES, tid=thread)
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    rows = trace.outermost(rows)
    ends = trace.named("backward", rows[:-1]) & trace.named("optimizer", rows[1:])
    begin, end = trace.end_of(rows[:-1][ends]), trace.ts_ns[rows[1:][ends]]
    return without(trace, program, begin, end, of=trace.tid[program.row] == thread)


def searches_gone(trace: Trace, program: Program) -> Edit | None:
    """Take away that convolutions time their algorithms; None where none does.

    A convolution waits for the device only while it does that (at::native, `findAlgorithm`), so all up to its
    last wait goes. Afterwards it empties the allocator's cache: what is then allocated anew goes, too.
    """
    convolutions = trace.outermost(trace.rows(Kind.OP, named=_CONVOLUTION))
    begin, end = trace.ts_ns[convolutions], trace.end_of(convolutions)
    waits = np.sort(trace.end_of(program.row[program.kind == EventKind.SYNC]))
    last = intervals.latest(waits, end)
    tried = np.flatnonzero((last >= 0) & (waits[last] > begin)) if len(waits) else last[:0]
    if not len(tried):
        return None
    edit = without(trace, program, begin[tried], waits[last[tried]], of=program.row >= 0)
    return edit.and_also(Edit(work={Work.ALLOCATOR: 0.0}, drop_waits=frozenset([EventKind.ALLOCATOR])))


def plans_gone(trace: Trace, program: Program) -> Edit | None:
    """Take away that cuDNN's attention makes plans; None where it makes none.

    It plans for each new size, and compiles kernels for the plan. All between where it begins to and the last
    launch goes, but not what is launched.
    """
    attention = trace.outermost(trace.rows(Kind.OP, named=_ATTENTION))
    asked = np.sort(trace.ts_ns[trace.rows(Kind.RUNTIME, named=_PLANS)])
    launched = np.sort(trace.ts_ns[trace.rows(*HOST_CALL_KINDS, named=is_launch)])
    if not len(attention) or not len(asked) or not len(launched):
        return None
    begin, end = trace.ts_ns[attention], trace.end_of(attention)
    first, last = intervals.before(asked, begin), intervals.latest(launched, end)
    begun = asked[np.minimum(first, len(asked) - 1)]
    plans = (begun >= begin) & (begun < end) & (last >= 0)
    if not plans.any():
        return None
    nothing = np.zeros(len(program.row), dtype=bool)
    return without(trace, program, begun[plans], launched[last[plans]], of=nothing)


def without(
    trace: Trace, program: Program, begin: NDArray[np.int64], end: NDArray[np.int64], *, of: NDArray[np.bool_]
) -> Edit:
    """Take away what the host does in some stretches of time, with all that these events launch."""
    calls = program.row >= 0
    at = trace.ts_ns[program.row]
    launched = of & calls & (intervals.covered(begin, end, at + 1) > intervals.covered(begin, end, at))
    return Edit(
        gone=program.work * share_within(trace, program, begin, end)[:, None],
        duration=np.where(launched[program.event], 0.0, 1.0),
        drop_at=launched,
    )


def share_within(
    trace: Trace, program: Program, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how much of the host work of each event is done within some stretches of time, (n,).

    An event's work is all since the one before: the stretches have what they cover of that time.
    """
    until = np.where(program.row >= 0, trace.end_of(program.row), 0)
    until[program.marks] = program.mark_ns
    until = np.maximum.accumulate(until)
    since = np.concatenate([[program.origin_ns], until[:-1]])
    within = intervals.covered(begin, end, until) - intervals.covered(begin, end, since)
    return np.asarray(within / np.maximum(until - since, 1))


def seams_gone(
    program: Program, work: DeviceWork, group: int | None = None, *, calibration: Calibration | None = None
) -> Edit:
    """Take away all seams, or those of one group: their host work, and the launches they keep apart.

    Args:
        program: the program.
        work: masks over its activities.
        group: position in `program.host_work.seam_owners`; None for all.
        calibration: with all seams gone, what stays in the pieces of the graph is held to what one
            graph of as many kernels costs: each piece checks its inputs and makes its buffers anew.
    """
    goes = work.merged if group is None else work.merged & (work.merged_by == group)
    gone = np.zeros_like(program.work)
    gone[:, Work.SEAM] = program.work[:, Work.SEAM] if group is None else program.seam_work[:, group]
    # A launch goes where all that it starts goes.
    stays = np.ones(len(program.kind), dtype=bool)
    stays[program.event[goes]] = False
    stays[program.event[~goes]] = True
    gone[~stays, Work.DISPATCH] = program.work[~stays, Work.DISPATCH]
    if group is None and calibration is not None:
        pieces = stays & (work.reach.compiled | (program.work[:, Work.SEAM] > 0))
        left = _one_graph(program, work, pieces, goes, calibration)
        gone[pieces, Work.DISPATCH] = (1.0 - left) * program.work[pieces, Work.DISPATCH]
    return Edit(gone=gone, duration=np.where(goes, 0.0, 1.0))


def _one_graph(
    program: Program,
    work: DeviceWork,
    pieces: NDArray[np.bool_],
    goes: NDArray[np.bool_],
    calibration: Calibration,
) -> float:
    """Return the share of the pieces' own host work that is left where they are one graph."""
    steps = max(1, program.steps)
    factor = calibration.base.factors()[Work.DISPATCH]
    now = float(program.work[pieces, Work.DISPATCH].sum()) * factor / steps
    kernels = float(work.relaunched[pieces[program.event] & ~goes].sum()) / steps
    return min(1.0, host_left_ns(work.reach, kernels, graphs=False) / now) if now > 0 else 1.0
