"""Names, counts and places for the numbers of a CPU reading.

In: segments, division, the budget. Out: operator rows and context keys for reports.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.diagnosis import KernelRow
from ...model.run import JsonValue
from ..lanes.labels import PART_OF_WORK, Work
from ..lanes.program import Program
from ..lanes.reader import Priced
from ..trace.operators import OpClass, base_name
from ..trace.table import NONE, Trace
from .division import TENSOR_WORK, Division
from .segments import Segments

_MOST_ROWS = 30
_MATH_ATTENTION = re.compile("_scaled_dot_product_attention_math")
_ATTENTION = ("_softmax", "_softmax_backward_data", "bmm", "baddbmm", "masked_fill", "masked_fill_")
_NORMS = (
    "native_layer_norm",
    "native_batch_norm",
    "native_group_norm",
    "_log_softmax",
    "rms_norm",
    "nll_loss",
)


def _work_by_name(
    trace: Trace, segments: Segments, division: Division
) -> list[tuple[str, Work, float, float]]:
    """Rows (name, category, count per step, work ms per step)."""
    if division.work is None or division.work_ns is None:
        return []
    steps = max(1, segments.steps)
    chosen = np.isin(division.work, TENSOR_WORK) & (segments.row != NONE)
    if not chosen.any():
        return []
    names = trace.name[segments.row[chosen]].astype(np.int64)
    key = names * len(Work) + division.work[chosen]
    unique, inverse = np.unique(key, return_inverse=True)
    work = np.bincount(inverse, weights=division.work_ns[chosen]) / steps / 1e6
    count = np.bincount(inverse, weights=segments.first_of_row[chosen]) / steps
    return [
        (
            trace.names[int(k) // len(Work)],
            Work(int(k) % len(Work)),
            float(count[i]),
            float(work[i]),
        )
        for i, k in enumerate(unique.tolist())
    ]


def describe_kernels(
    trace: Trace | None, segments: Segments | None, division: Division, *, true_ms: float
) -> tuple[KernelRow, ...]:
    """Operators by the work in them (fixed cost excluded), largest first."""
    if trace is None or segments is None:
        return ()
    rows = [
        KernelRow(
            name=name,
            part=PART_OF_WORK[category],
            count=count,
            ms=ms,
            share=ms / true_ms if true_ms > 0 else 0.0,
        )
        for name, category, count, ms in _work_by_name(trace, segments, division)
        if ms > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.ms)[:_MOST_ROWS])


def describe_context(
    trace: Trace | None,
    segments: Segments | None,
    division: Division,
    priced: Priced,
    program: Program,
    *,
    true_ms: float,
) -> dict[str, JsonValue]:
    """Keys of model/context.py that only the timeline can fill; absent when not measured."""
    if true_ms <= 0:
        return {}
    out: dict[str, JsonValue] = {
        "input.wait_share": priced.parts[Part.INPUT] / true_ms,
        "host.named_share": priced.parts[Part.HOST] / true_ms,
    }
    if trace is None or segments is None or division.work is None:
        return out
    steps = max(1, segments.steps)
    code = {name: i for i, name in enumerate(segments.phases)}
    operators = segments.first_of_row & np.isin(
        segments.op_class, (OpClass.MATH, OpClass.MEMORY, OpClass.GRAPH)
    )
    in_input = division.work == Work.INPUT
    in_optimizer = segments.phase == code["optimizer"]
    reading = (segments.op_class == OpClass.SYNC) & ~in_optimizer
    reads = segments.first_of_row & reading
    rows = _work_by_name(trace, segments, division)

    in_zero_grad = np.asarray([phase == "zero_grad" for phase in program.phases])
    zero_grad_ms = float(program.work[in_zero_grad].sum()) / 1e6 * priced.scale

    def share(*names: str) -> float:
        return sum(ms for name, _, _, ms in rows if base_name(name) in names) / true_ms

    conv = sum(ms for name, _, _, ms in rows if "conv" in name) / true_ms
    norm = sum(ms for name, _, _, ms in rows if base_name(name).startswith(_NORMS)) / true_ms
    fused = any("scaled_dot_product" in n and "math" not in n for n, *_ in rows)
    in_optimizer_ms = float(priced.by_work[Work.OPTIMIZER])
    out |= {
        "launches.per_step": float((operators & ~in_input).sum()) / steps,
        "optimizer.launches": float((operators & in_optimizer).sum()) / steps,
        "dispatch.in_optimizer": float(priced.by_work[Work.OPTIMIZER])
        / max(priced.parts[Part.DISPATCH], 1e-9),
        "optimizer.share": (priced.parts[Part.OPTIMIZER] + in_optimizer_ms) / true_ms,
        "sync.per_step": float(reads.sum()) / steps,
        "sync.item_per_step": float(reads.sum()) / steps,
        "sync.reads_ms": float(segments.dur_ns[reading].sum()) / steps / 1e6 * priced.scale,
        "kernels.memory_bound_share": priced.parts[Part.MEMORY_BOUND] / true_ms,
        "kernels.conv_share": conv,
        "kernels.norm_share": norm,
        "kernels.zero_grad_share": zero_grad_ms / true_ms,
        "kernels.attention_unfused_share": (
            share(*_ATTENTION) if share("_softmax") > 0 and share("bmm", "baddbmm") > 0 and not fused else 0.0
        ),
        "attention.backend": "math" if trace.knows(_MATH_ATTENTION) else "flash" if fused else "none",
        "work.static_shapes": _same_work(segments, operators),
    }
    return out


def _same_work(segments: Segments, operators: NDArray[np.bool_]) -> bool:
    counts = np.bincount(segments.step[operators], minlength=max(1, segments.steps))
    return bool(len(counts) > 0 and counts.min() == counts.max())
