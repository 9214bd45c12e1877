"""What the device worked on: attention scores, fusable runs, full-precision math, layout changes.

In: a `Trace`, its kinds, a `Program`. Out: masks over the program's activities, and rows per kernel.

Patterns are found from the operators that launched the work, not from shapes, which most traces do
not have: a softmax between two batched matmuls is attention that writes its scores to memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ...model.codes import Part
from ...model.diagnosis import KernelRow
from ..lanes.labels import Work
from ..lanes.program import PARTS
from ..lanes.recompute import recomputed
from ..trace.dialect import Kind
from ..trace.kernels import classify
from .compiler_reach import read_reach
from .device_masks import DeviceWork
from .fusion import fuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.trace import Trace
    from ..lanes.program import Program

__all__ = ["kernel_rows", "launched_inside", "optimizer_seen", "read_device_work"]

_BMM = re.compile(r"^aten::(bmm|baddbmm)(_out)?$")
_SOFTMAX = re.compile(r"^aten::(_softmax|softmax_backward|_softmax_backward_data|_masked_softmax)$")
_ITEM = re.compile(r"^aten::_local_scalar_dense$")
_FUSED_OPTIMIZER = re.compile(r"^aten::_fused_(adam|adamw|sgd|adagrad)_?$")
_FOLLOWS_PRODUCTS = re.compile(
    r"^aten::(gelu|relu|clamp_min|threshold|leaky_relu|elu|silu|mish|hardtanh|hardswish|sigmoid|tanh"
    r"|native_dropout|dropout|glu|mul|sum|clone|contiguous|copy)_?(_backward)?$"
)
"""Element-wise operators that compute in the type they are given: under autocast, 16 bits where it came
from a product. (Norms, softmax and losses are lifted to fp32; a sum with a tensor in fp32 is in fp32.)"""
_SCORE_SPAN = 24
"""Device activities that may lie between the matmuls of one attention."""
_MOST_ROWS = 40
_REDUCES = re.compile(r"^triton_(red|per)_")
_NORM_IN_NCHW = re.compile(r"cudnn::bn_(fw|bw)(?!.*nhwc)", re.IGNORECASE)
"""Batch norms of cuDNN for NCHW: a block per channel, which leaves most of the device idle where channels are
few. Those for NHWC, of cuDNN and ATen, move their bytes at the speed of memory."""


def _launch_ts(trace: Trace, program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = program.row[program.event]
    return trace.ts_ns[rows], trace.tid[rows].astype(np.int64)


def launched_inside(
    trace: Trace, kinds: NDArray[np.int8], program: Program, pattern: re.Pattern[str]
) -> NDArray[np.bool_]:
    """Return which activities were launched inside an operator of that name."""
    code = np.fromiter((bool(pattern.search(n)) for n in trace.names), bool, len(trace.names))
    ops = np.flatnonzero((kinds == Kind.OP) & code[trace.name])
    out = np.zeros(len(program.event), dtype=bool)
    when, thread = _launch_ts(trace, program)
    for tid in np.unique(trace.tid[ops]):
        mine = ops[trace.tid[ops] == tid]
        start, end = trace.ts_ns[mine], np.maximum.accumulate(trace.end_ns[mine])
        on = np.flatnonzero(thread == tid)
        at = np.searchsorted(start, when[on], side="right") - 1
        out[on] |= (at >= 0) & (when[on] < end[np.maximum(at, 0)])
    return out


def _scores(
    trace: Trace, kinds: NDArray[np.int8], program: Program
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark what lies between the two matmuls of unfused attention, and those matmuls."""
    matmul = launched_inside(trace, kinds, program, _BMM)
    softmax = np.flatnonzero(launched_inside(trace, kinds, program, _SOFTMAX))
    where = np.flatnonzero(matmul)
    between = np.zeros(len(program.event), dtype=bool)
    beside = np.zeros(len(program.event), dtype=bool)
    for k in softmax.tolist():
        after = int(np.searchsorted(where, k))
        if after in (0, len(where)):
            continue
        low, high = int(where[after - 1]), int(where[after])
        if high - low <= _SCORE_SPAN:
            between[low + 1 : high] = True
            # Backward has two on either side: of the scores' gradient, and of the operands'.
            beside[where[max(0, after - 2) : after + 2]] = True
    return between & ~matmul, beside


def _merged(
    program: Program, joins: NDArray[np.bool_], pointwise: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.int16]]:
    """Mark the kernels that are launched apart only because a seam lies between them and a neighbour.

    A graph that goes on past the seam computes them in one kernel with the neighbour, of which the
    longer is left. Two reductions are not joined: they rarely run over the same axis.

    Returns:
        (activities that go, the group of the seam in front of them or behind), (m,) each.
    """
    goes = np.zeros(len(program.event), dtype=bool)
    group = np.full(len(program.event), -1, dtype=np.int16)
    if not program.seam_work.size:
        return goes, group
    behind = program.seam_work.sum(axis=1) > 0
    owner = program.seam_work.argmax(axis=1)
    kept = -1
    for i in np.flatnonzero(joins).tolist():
        event = program.event[i]
        joined = (
            i > 0
            and joins[i - 1]
            and program.lane[i] == program.lane[i - 1]
            and behind[event]
            and (pointwise[i] or pointwise[i - 1])
        )
        if not joined:
            kept = i
            continue
        shorter, kept = (kept, i) if program.duration[i] >= program.duration[kept] else (i, kept)
        goes[shorter] = True
        group[shorter] = owner[event]
    return goes, group


def _follow_products(
    trace: Trace, kinds: NDArray[np.int8], program: Program, math: NDArray[np.bool_], plain: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark element-wise kernels between a product and the next kernel that autocast lifts to fp32.

    By the order of launches, since traces hold no data flow: `plain` kernels right behind a product (or
    behind one another behind a product), of operators that leave the type as it is.
    """
    follows = plain & launched_inside(trace, kinds, program, _FOLLOWS_PRODUCTS)
    low = False
    out = np.zeros(len(program.event), dtype=bool)
    for i in range(len(out)):
        if math[i]:
            low = True
        else:
            low = low and bool(follows[i])
            out[i] = low
    return out


def read_device_work(trace: Trace, kinds: NDArray[np.int8], program: Program) -> DeviceWork:
    """Mark what each activity is, as far as a what-if asks for it."""
    kind_of_name = [classify(n) for n in trace.names]
    name = trace.name[program.activity_row]

    def by_name(test: list[bool]) -> NDArray[np.bool_]:
        return np.asarray(test, dtype=bool)[name]

    optimizer = program.launch_work == Work.OPTIMIZER
    zero_grad = program.launch_work == Work.ZERO_GRAD
    math = by_name([k.family in ("matmul", "conv") for k in kind_of_name])
    attention = by_name([k.family == "attention" and k.dtype == "fp32" for k in kind_of_name])
    fp32 = math & by_name([k.dtype == "fp32" for k in kind_of_name]) & ~optimizer
    tf32 = math & by_name([k.dtype == "tf32" for k in kind_of_name]) & ~optimizer
    fusable = (
        by_name([k.part is Part.MEMORY_BOUND and k.family not in ("layout", "fused") for k in kind_of_name])
        & ~optimizer
        & ~zero_grad
        & np.isin(program.launch_work, (Work.DISPATCH, Work.SEAM))
    )
    compiled = by_name([k.family == "fused" for k in kind_of_name])
    reduces = by_name(
        [bool(_REDUCES.match(n)) or k.family in ("reduction", "norm", "softmax", "loss")
         for n, k in zip(trace.names, kind_of_name, strict=True)]
    )  # fmt: skip
    merged, merged_by = _merged(program, fusable | compiled, ~reduces)
    scores, score_products = _scores(trace, kinds, program)
    reach = read_reach(trace, kinds, program)
    fused = fuse(
        program,
        name,
        trace.names,
        np.asarray([k.family for k in kind_of_name])[name],
        fusable=fusable & reach.activities,
        backward=reach.backward[program.event],
    )
    layout = by_name([k.family == "layout" for k in kind_of_name])
    norms = by_name([bool(_NORM_IN_NCHW.search(n)) for n in trace.names])
    return DeviceWork(
        fp32_math=fp32,
        fp32_attention=attention & ~optimizer,
        tf32_math=tf32,
        low_traffic=_follow_products(trace, kinds, program, fp32 | tf32 | (attention & ~optimizer), fusable),
        scores=scores,
        score_products=score_products,
        reach=reach,
        chains=fused.factor,
        relaunched=fused.launches,
        merged=merged,
        merged_by=merged_by,
        layout=layout,
        nhwc=np.where(layout, 0.0, np.where(norms, fused.held, 1.0)),
        zero_grad=zero_grad,
        optimizer=optimizer,
        items=launched_inside(trace, kinds, program, _ITEM),
        recomputed=recomputed(trace, kinds, program),
    )


def optimizer_seen(trace: Trace, kinds: NDArray[np.int8]) -> tuple[str, int]:
    """Return what the optimizer really ran ("fused", "foreach", "for-loop", "unknown") and its tensors.

    The number of parameter tensors is the number of gradients accumulated per backward.
    """
    codes = {name: i for i, name in enumerate(trace.names)}
    flavour = "unknown"
    if any(_FUSED_OPTIMIZER.search(n) for n in codes):
        flavour = "fused"
    elif any(n.startswith("aten::_foreach_add") for n in codes):
        flavour = "foreach"
    elif "optimizer" in codes or any(n.startswith("Optimizer.step#") for n in codes):
        flavour = "for-loop"
    accumulate = codes.get("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
    if accumulate is None:
        return flavour, 0
    rows = int(((kinds == Kind.OP) & (trace.name == accumulate)).sum())
    steps = sum(n.startswith("ProfilerStep#") for n in codes)
    return flavour, round(rows / max(1, steps))


def kernel_rows(trace: Trace, program: Program, *, true_ms: float, scale: float) -> tuple[KernelRow, ...]:
    """Sum device time by kernel name, per step, largest first.

    Args:
        trace: the trace.
        program: the program.
        true_ms: the true step time, for shares.
        scale: factor from traced device time to true device time.
    """
    steps = max(1, program.steps)
    key = trace.name[program.activity_row].astype(np.int64) * len(PARTS) + program.part
    unique, inverse = np.unique(key, return_inverse=True)
    total = np.bincount(inverse, weights=program.duration)
    count = np.bincount(inverse)
    rows = [
        KernelRow(
            name=trace.names[int(k) // len(PARTS)],
            part=PARTS[int(k) % len(PARTS)],
            count=float(count[i]) / steps,
            ms=float(total[i]) / steps / 1e6 * scale,
            share=float(total[i]) / steps / 1e6 * scale / true_ms if true_ms else 0.0,
        )
        for i, k in enumerate(unique.tolist())
    ]
    return tuple(sorted(rows, key=lambda r: -r.ms)[:_MOST_ROWS])
