"""What the device worked on: attention scores, fusable runs, full-precision math, layout changes.

In: a `Trace`, a `Program`. Out: masks over the program's activities, and rows per kernel.

Patterns are found from the operators that launched the work, not from shapes, which most traces do
not have: a softmax between two batched matmuls is attention that writes its scores to memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.diagnosis import KernelRow
from ..lanes.labels import Work
from ..lanes.program import PARTS, Program
from ..lanes.recompute import nodes_of, recomputed
from ..trace.dialect import PROFILER_STEP, Kind
from ..trace.intervals import before
from ..trace.kernels import KernelKind, classify
from ..trace.operators import FILL, NEW_MEMORY
from ..trace.table import FULL, NONE, Trace
from .compiler_reach import read_reach
from .device_masks import ALIGNED_NUMBERS, DeviceWork
from .fusion import fuse
from .offload import offloaded

_BMM = re.compile(r"^aten::(bmm|baddbmm)(_out)?$")
_SOFTMAX = re.compile(r"^aten::(_softmax|softmax_backward|_softmax_backward_data|_masked_softmax)$")
_ITEM = re.compile(r"^aten::_local_scalar_dense$")
_FLAVOURS = (
    ("fused", re.compile(r"^aten::_fused_(adam|adamw|sgd|adagrad)_?$")),
    ("foreach", re.compile(r"^aten::_foreach_add")),
    ("for-loop", re.compile(r"^optimizer$|^Optimizer\.step#")),
)
_FOLLOWS_PRODUCTS = re.compile(
    r"^aten::(gelu|relu|clamp_min|threshold|leaky_relu|elu|silu|mish|hardtanh|hardswish|sigmoid|tanh"
    r"|native_dropout|dropout|glu|mul|sum|clone|contiguous|copy)_?(_backward)?$"
)
"""Element-wise operators that compute in the type they are given: under autocast, 16 bits where it came
from a product. (Norms, softmax and losses are lifted to fp32; a sum with a tensor in fp32 is in fp32.)"""
_SCORE_SPAN = 24
"""Device activities that may lie between the matmuls of one attention."""
_MOST_ROWS = 40
_ALIGNED_TO = re.compile(r"_align(\d+)")
"""Of CUTLASS, which cuBLAS runs where its own kernels cannot: numbers that rows begin at a multiple of."""
_FILL = re.compile(f"^{FILL}$")
_CONVOLUTIONS = re.compile(r"^aten::convolution(_backward)?$")
_SOLVES = re.compile(r"^aten::_?(linalg_|cholesky|triangular_solve|lu_|geqrf|ormqr)")
_PRODUCTS = re.compile(r"^aten::(mm|addmm|bmm|baddbmm)$")
_SOLVED_BACKWARD = re.compile(r"^(Linalg|Cholesky|TriangularSolve)\w*Backward")
_INDEX_SUMS = re.compile(r"indexing_backward_kernel")
_PICKS = re.compile(r"^aten::(index|index_put_|masked_select)$")
_WHERE = re.compile(r"^aten::nonzero$")
_REDUCES = re.compile(r"^triton_(red|per)_")
_PLANAR_NORM = re.compile(r"^aten::(instance_norm|native_group_norm)$")
"""ATen's `instance_norm` and CUDA's `native_group_norm` call `contiguous()` on their input."""
_CONVOLUTION = re.compile(r"^aten::convolution$")
_NORM_IN_NCHW = re.compile(
    r"cudnn::bn_(fw|bw)(?!.*nhwc)|native::batch_norm_(?!\w*channels_last)\w*kernel", re.IGNORECASE
)
"""Batch norms for NCHW, of cuDNN and ATen: a block per channel, which leaves most of the device idle where
channels are few. Those for NHWC move their bytes at the speed of memory."""


def launched_inside(trace: Trace, program: Program, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return which activities were launched inside an operator of that name."""
    return trace.inside(program.row[program.event], trace.rows(Kind.OP, named=pattern))


def _launched_by(trace: Trace, program: Program, calls: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which activities these calls launch, and their backward."""
    launches = program.row[program.event]
    return trace.inside(launches, calls) | trace.inside(launches, nodes_of(trace, calls))


def _picked(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Return which activities picking by masks launches, which asks where they hold, and its backward."""
    picks, asked = trace.rows(Kind.OP, named=_PICKS), trace.rows(Kind.OP, named=_WHERE)
    around = trace.ranges(picks).around(trace.ts_ns[asked], trace.tid[asked])
    picks = picks[np.unique(around[around >= 0])]
    return _launched_by(trace, program, picks) if len(picks) else np.zeros(len(program.event), dtype=bool)


def _in_nhwc(
    trace: Trace, program: Program, *, layout: NDArray[np.bool_], held: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the factors on durations with channels last, (m,).

    `layout` marks conversions, which go; `held` are the factors under which kernels move their bytes at the
    speed of memory, as batch norms then do. Norms that work on NCHW only do not, and a convolution is still
    converted for each of them.
    """
    if not layout.any():
        return np.ones(len(layout))
    norms, stays = trace.named(_NORM_IN_NCHW, program.activity_row), 0.0
    planar = trace.rows(Kind.OP, named=_PLANAR_NORM)
    if len(planar):
        norms &= ~_launched_by(trace, program, planar)
        stays = min(1.0, len(planar) / max(len(trace.rows(Kind.OP, named=_CONVOLUTION)), 1))
    return np.where(layout, stays, np.where(norms, held, 1.0))


def _scores(trace: Trace, program: Program) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark what lies between the two matmuls of unfused attention, and those matmuls."""
    matmul = launched_inside(trace, program, _BMM)
    softmax = np.flatnonzero(launched_inside(trace, program, _SOFTMAX))
    where = np.flatnonzero(matmul)
    between = np.zeros(len(program.event), dtype=bool)
    beside = np.zeros(len(program.event), dtype=bool)
    for k in softmax.tolist():
        after = int(before(where, k))
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
    trace: Trace, program: Program, math: NDArray[np.bool_], plain: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark element-wise kernels between a product and the next kernel that autocast lifts to fp32.

    By the order of launches, since traces hold no data flow: `plain` kernels right behind a product (or
    behind one another behind a product), of operators that leave the type as it is.
    """
    follows = plain & launched_inside(trace, program, _FOLLOWS_PRODUCTS)
    low = False
    out = np.zeros(len(program.event), dtype=bool)
    for i in range(len(out)):
        if math[i]:
            low = True
        else:
            low = low and bool(follows[i])
            out[i] = low
    return out


def _is_unaligned(name: str, *, dtype: str) -> bool:
    """Whether a kernel is a product of that type, for rows that begin at fewer than 16 bytes."""
    found, kind = _ALIGNED_TO.search(name), classify(name)
    of_type = kind.family == "matmul" and kind.dtype == dtype
    return of_type and found is not None and int(found[1]) < ALIGNED_NUMBERS[dtype]


def read_device_work(trace: Trace, program: Program) -> DeviceWork:
    """Mark what each activity is, as far as a what-if asks for it."""
    rows = program.activity_row

    def of_kind(test: Callable[[KernelKind], bool]) -> NDArray[np.bool_]:
        return trace.named(lambda name: test(classify(name)), rows)

    optimizer = program.launch_work == Work.OPTIMIZER
    zero_grad = program.launch_work == Work.ZERO_GRAD
    math = of_kind(lambda k: k.family in ("matmul", "conv"))
    attention = of_kind(lambda k: k.family == "attention") & ~optimizer
    fp32_attention = attention & of_kind(lambda k: k.dtype == "fp32")
    solves = launched_inside(trace, program, _SOLVES) & ~launched_inside(trace, program, _PRODUCTS)
    fp32 = math & of_kind(lambda k: k.dtype == "fp32") & ~optimizer & ~solves
    tf32 = math & of_kind(lambda k: k.dtype == "tf32") & ~optimizer
    fusable = (
        of_kind(lambda k: k.part is Part.MEMORY_BOUND and k.family not in ("layout", "fused"))
        & ~optimizer
        & ~zero_grad
        & np.isin(program.launch_work, (Work.DISPATCH, Work.SEAM))
    )
    compiled = of_kind(lambda k: k.family == "fused")
    reduces = trace.named(_REDUCES, rows) | of_kind(
        lambda k: k.family in ("reduction", "norm", "softmax", "loss")
    )
    merged, merged_by = _merged(program, fusable | compiled, ~reduces)
    scores, score_products = _scores(trace, program)
    reach = read_reach(trace, program)
    fused = fuse(
        trace,
        program,
        fusable=fusable & reach.activities,
        backward=reach.backward[program.event],
    )
    layout = of_kind(lambda k: k.family == "layout")
    picked = _picked(trace, program)
    return DeviceWork(
        fp32_math=fp32,
        convolutions=launched_inside(trace, program, _CONVOLUTIONS),
        convolution_calls=len(trace.rows(Kind.OP, named=_CONVOLUTIONS)),
        autocast=~launched_inside(trace, program, _SOLVED_BACKWARD),
        attention=attention,
        fp32_attention=fp32_attention,
        tf32_math=tf32,
        low_traffic=_follow_products(trace, program, fp32 | tf32 | fp32_attention, fusable),
        scores=scores,
        score_products=score_products,
        reach=reach,
        filled=filled_share(trace, program),
        alike=_alike(trace, program),
        chains=fused.factor,
        relaunched=fused.launches,
        merged=merged,
        merged_by=merged_by,
        index_sums=trace.named(_INDEX_SUMS, rows) & ~picked,
        picked=picked,
        unaligned={
            dtype: trace.named(partial(_is_unaligned, dtype=dtype), rows) for dtype in ALIGNED_NUMBERS
        },
        fills=launched_inside(trace, program, _FILL) & launched_inside(trace, program, NEW_MEMORY),
        layout=layout,
        nhwc=_in_nhwc(trace, program, layout=layout, held=fused.held),
        zero_grad=zero_grad,
        optimizer=optimizer,
        items=launched_inside(trace, program, _ITEM),
        recomputed=recomputed(trace, program),
        offloaded=offloaded(trace, program),
    )


def filled_share(trace: Trace, program: Program) -> NDArray[np.float64]:
    """Return the share of the warp schedulers that each activity has a warp for, (m,).

    A kernel with a warp for each counts as full: more of them hide waits, which no trace shows.
    """
    filled = trace.filled[program.activity_row]
    return np.where(filled == NONE, 1.0, np.clip(filled, 1, FULL) / FULL)


def _alike(trace: Trace, program: Program) -> NDArray[np.float64]:
    """Return how many activities of a step have the name of each, (m,)."""
    names = trace.name[program.activity_row]
    return np.maximum(1.0, np.bincount(names)[names] / max(1, program.steps))


def optimizer_seen(trace: Trace) -> tuple[str, int]:
    """Return what the optimizer really ran ("fused", "foreach", "for-loop", "unknown") and its tensors.

    The number of parameter tensors is the number of gradients accumulated per backward.
    """
    flavour = "unknown"
    for told, pattern in _FLAVOURS:
        if trace.knows(pattern):
            flavour = told
            break
    gradients = trace.rows(
        Kind.OP, named="autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    )
    return flavour, round(len(gradients) / max(1, len(trace.codes(PROFILER_STEP))))


def kernel_rows(trace: Trace, program: Program, *, true_ms: float, scale: float) -> tuple[KernelRow, ...]:
    """Sum device time by kernel name, per step, largest first.

    `scale`: from traced to true device time.
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
