"""The context keys that only a GPU trace can fill (model/context.py).

In: a `Trace`, its `Program`, masks over the activities. Out: a flat mapping; what the trace does not
show is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...model.codes import IDLE_PARTS, Part
from ..lanes.labels import Work
from ..lanes.program import EventKind
from ..trace.dialect import Kind
from ..trace.kernels import classify

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.run import JsonValue
    from ...model.trace import Trace
    from ..lanes.program import Program
    from .device_masks import DeviceWork

__all__ = ["gpu_context"]


def _per_step(count: int, program: Program) -> float:
    return count / max(1, program.steps)


def _calls(trace: Trace, kinds: NDArray[np.int8], name: str, kind: Kind = Kind.OP) -> int:
    codes = [i for i, n in enumerate(trace.names) if n == name]
    return int(((kinds == kind) & np.isin(trace.name, codes)).sum()) if codes else 0


def _static_shapes(program: Program, name: NDArray[np.int32]) -> bool:
    """Every whole step launches the same kernels in the same order."""
    step = np.searchsorted(program.marks, program.event, side="right") - 1
    pieces = [name[step == k] for k in range(program.steps)]
    return all(np.array_equal(pieces[0], other) for other in pieces[1:])


def gpu_context(
    trace: Trace,
    kinds: NDArray[np.int8],
    program: Program,
    work: DeviceWork,
    *,
    parts: dict[Part, float],
    true_ms: float,
    varying: bool,
    device_scale: float,
    flavour: str,
) -> dict[str, JsonValue]:
    """Fill what the trace shows.

    Args:
        trace: the trace.
        kinds: `dialect.kinds(trace)`.
        program: the program of its steps.
        work: masks over the activities.
        parts: the budget, ms per step.
        true_ms: the true step time.
        varying: steps differ in device work.
        device_scale: factor from traced to true device time.
        flavour: what the optimizer ran, see `optimizer_seen`.
    """
    name = trace.name[program.activity_row]
    kind_of = [classify(n) for n in trace.names]
    family = np.asarray([k.family for k in kind_of])[name]
    dtype = np.asarray([k.dtype for k in kind_of])[name]
    steps = max(1, program.steps)

    def share(mask: NDArray[np.bool_]) -> float:
        return float(program.duration[mask].sum()) / steps / 1e6 * device_scale / true_ms if true_ms else 0.0

    math = np.isin(family, ("matmul", "conv", "attention"))
    copies = np.char.find(np.asarray(trace.names, dtype=np.str_)[np.unique(name)], "HtoD") >= 0
    to_device = np.isin(name, np.unique(name)[copies])
    of_kind = {k: int((program.kind == k).sum()) for k in EventKind}
    call_names = [trace.names[c] for c in trace.name[program.row[program.row >= 0]]]
    allocations = sum("Malloc" in n or "MemCreate" in n or "MemMap" in n for n in call_names)
    frees = sum(n.startswith(("cudaFree", "hipFree")) or "MemUnmap" in n for n in call_names)
    context: dict[str, JsonValue] = {
        # A bare trace has no run.json to say it.
        "device.kind": "rocm" if any(n.startswith("hip") for n in set(call_names)) else "cuda",
        "step.idle_share": sum(parts[p] for p in IDLE_PARTS) / true_ms if true_ms else 0.0,
        "input.wait_share": parts[Part.INPUT] / true_ms if true_ms else 0.0,
        "copies.pageable_blocking": of_kind[EventKind.COPY] > 0,
        "copies.h2d_ms": share(to_device) * true_ms,
        "sync.per_step": _per_step(of_kind[EventKind.SYNC], program),
        "sync.item_per_step": _per_step(int(work.items.sum()), program),
        "kernels.matmul_fp32_share": share(work.fp32_math),
        "kernels.conv_share": share(family == "conv"),
        "kernels.bf16_share": share(math & np.isin(dtype, ("bf16", "fp16", "half"))),
        "kernels.attention_unfused_share": share(work.scores),
        "kernels.attention_share": share(family == "attention"),
        "kernels.norm_share": share(np.isin(family, ("norm", "loss", "softmax"))),
        "kernels.memory_bound_share": parts[Part.MEMORY_BOUND] / true_ms if true_ms else 0.0,
        "kernels.layout_share": share(work.layout),
        "kernels.zero_grad_share": share(work.zero_grad),
        "kernels.custom_share": share(family == "other"),
        "optimizer.share": share(work.optimizer),
        "optimizer.launches": _per_step(int(work.optimizer.sum()), program),
        "launches.per_step": _per_step(program.launch_calls, program),
        "work.static_shapes": _static_shapes(program, name),
        "allocator.device_allocs_per_step": _per_step(allocations, program),
        "allocator.device_frees_per_step": _per_step(frees, program),
        "comm.exposed_share": parts[Part.COMMUNICATION] / true_ms if true_ms else 0.0,
    }
    context["allocator.empty_cache_per_step"] = _per_step(_emptied_cache(trace, kinds, program), program)
    if varying:
        context["step.varying_shapes"] = True
    if flavour != "unknown":
        context["optimizer.flavour"] = flavour
    micro = _micro_steps(trace, kinds, program)
    collectives = int((family == "communication").sum())
    if collectives and micro:
        context["comm.collectives_per_micro_step"] = collectives / steps / micro
    if program.work[:, Work.COMPILE].any():
        context["compile.used"] = True
    return context


def _emptied_cache(trace: Trace, kinds: NDArray[np.int8], program: Program) -> int:
    """Count the calls of empty_cache(): runs of frees outside any operator.

    A retry of the allocator frees inside the operator that asks for memory; only a call from
    Python frees outside one.
    """
    frees = np.fromiter(
        (n.startswith(("cudaFree", "hipFree")) or "MemUnmap" in n for n in trace.names),
        bool,
        len(trace.names),
    )
    rows = program.row[program.kind == EventKind.ALLOCATOR]
    rows = rows[frees[trace.name[rows]]]
    count, last = 0, -1
    for tid in np.unique(trace.tid[rows]):
        mine = rows[trace.tid[rows] == tid]
        ops = np.flatnonzero((kinds == Kind.OP) & (trace.tid == tid))
        start, reach = trace.ts_ns[ops], np.maximum.accumulate(trace.end_ns[ops])
        at = np.searchsorted(start, trace.ts_ns[mine], side="right") - 1
        outside = (at < 0) | (reach[np.maximum(at, 0)] <= trace.ts_ns[mine])
        # Frees that follow the same operator belong to one call.
        for after in at[outside].tolist():
            count += after != last
            last = after
    return count


def _micro_steps(trace: Trace, kinds: NDArray[np.int8], program: Program) -> float:
    backward = _calls(trace, kinds, "backward", Kind.ANNOTATION)
    return backward / max(1, program.steps)
