"""What the device's math ran as, and how much of the program ran compiled.

In: a trace, its program, masks over the activities. Out: `ComputeFacts` as far as a trace tells them
(FLOPs and peaks come on top elsewhere), `CompiledWork`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.work import ComputeFacts, MathRow
from ..lanes.labels import Work
from ..lanes.program import PARTS, Program
from ..result import CompiledWork
from ..trace.dialect import GRAPH_LAUNCH, Kind
from ..trace.intervals import within
from ..trace.kernels import classify
from ..trace.operators import is_region
from ..trace.table import Trace
from .device_masks import DeviceWork
from .device_work import launched_inside

_COMPILED = re.compile(r"^## Call CompiledFxGraph|^Torch-Compiled Region|^CompiledFunctionBackward$")
_MATH = ("matmul", "conv", "attention")

_BACKENDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("flash", re.compile(r"_flash_attention|flash_(fwd|bwd|fprop|bprop)")),
    ("cudnn", re.compile(r"_cudnn_attention|cudnn\w*(sdpa|flash|fmha)|fort_native_sdpa")),
    ("efficient", re.compile(r"_efficient_attention|fmha_cutlass|PyTorchMemEffAttention")),
    ("math", re.compile(r"_scaled_dot_product_attention_math")),
    ("flex", re.compile(r"flex_attention")),
)
"""By the operators of scaled_dot_product_attention, or by kernels where a graph launches them."""


def attention_backends(trace: Trace) -> tuple[str, ...]:
    """Return the back ends of scaled_dot_product_attention whose operators or kernels are in the trace."""
    return tuple(name for name, pattern in _BACKENDS if trace.knows(pattern))


def slowest_backend(trace: Trace) -> str | None:
    """Return the slowest back end of attention that ran; None where none did."""
    ran = attention_backends(trace)
    return next((name for name in ("math", "flex", "efficient", "cudnn", "flash") if name in ran), None)


def _attention(
    backends: tuple[str, ...], unfused: bool
) -> Literal["fused", "scores in memory", "both", "none seen"]:
    fused = any(name != "math" for name in backends)
    if fused and unfused:
        return "both"
    if unfused or "math" in backends:
        return "scores in memory"
    return "fused" if fused else "none seen"


def trace_compute(
    trace: Trace,
    program: Program,
    work: DeviceWork,
    *,
    memory_bound_ms: float,
    true_ms: float,
    device_scale: float,
    counted: Collection[str] = (),
) -> ComputeFacts:
    """Sum the device's math by arithmetic type.

    `memory_bound_ms` is that line of the budget; FLOPs were counted for the operators `counted`.
    """
    steps = max(1, program.steps)
    dtype = trace.by_name(program.activity_row, lambda name: classify(name).dtype or "unknown", np.str_)
    math = trace.named(lambda name: classify(name).family in _MATH, program.activity_row)

    def ms(mask: NDArray[np.bool_]) -> float:
        return float(program.duration[mask].sum()) / steps / 1e6 * device_scale

    total = ms(math)
    on_cores = program.part == PARTS.index(Part.TENSOR_CORE)
    rows = []
    for kind in np.unique(dtype[math]).tolist():
        for cores in (True, False):
            mine = math & (dtype == kind) & (on_cores == cores)
            if mine.any():
                rows.append(
                    MathRow(
                        dtype=kind, tensor_cores=cores, ms=ms(mine), share=ms(mine) / total if total else 0.0
                    )
                )
    cover = None
    if counted and total:
        names = re.compile("^(" + "|".join(re.escape(n) for n in sorted(counted)) + ")$")
        cover = ms(math & launched_inside(trace, program, names)) / total
    backends = attention_backends(trace)
    optimizer = work.optimizer
    return ComputeFacts(
        math=tuple(sorted(rows, key=lambda row: -row.ms)),
        tensor_core_share=ms(math & on_cores) / total if total else None,
        math_share=total / true_ms if true_ms else None,
        memory_bound_share=memory_bound_ms / true_ms if true_ms else None,
        fusable_ms=ms(work.chains == 0.0),
        flops_cover=cover,
        attention=_attention(backends, bool(work.scores.any())),
        attention_backends=backends,
        optimizer_kernels=float(optimizer.sum()) / steps,
        optimizer_launches=len(np.unique(program.event[optimizer])) / steps,
        optimizer_share=ms(optimizer) / true_ms if true_ms else None,
    )


def compiled_work(trace: Trace, program: Program) -> CompiledWork | None:
    """Return how much of forward and backward compiled code launched; None when there was none."""
    if not trace.knows(_COMPILED):
        return None
    inside = launched_inside(trace, program, _COMPILED)
    in_seam = program.launch_work == Work.SEAM
    model = np.isin(program.launch_work, (Work.DISPATCH, Work.SEAM))
    model &= program.part < PARTS.index(Part.COMMUNICATION)
    compiled = inside & model & ~in_seam
    steps = max(1, program.steps)
    weight = float(program.duration[model].sum())
    graphs = float(trace.named(GRAPH_LAUNCH, program.row[program.row >= 0]).sum()) / steps
    return CompiledWork(
        kernel_share=None if graphs else float(compiled.sum()) / max(1, int(model.sum())),
        time_share=float(program.duration[compiled].sum()) / weight if weight else 0.0,
        eager_in_seams=float((model & in_seam).sum()) / steps,
        graph_launches=graphs,
        regions=_regions(trace, program) / steps,
    )


def _regions(trace: Trace, program: Program) -> int:
    """Count the entries of compiled code within the window."""
    begins = trace.ts_ns[trace.rows(Kind.OP, Kind.ANNOTATION, named=is_region)]
    return len(begins[within(begins, program.mark_ns[0], program.mark_ns[-1])])
