"""The context keys that only a GPU trace can fill (model/context.py).

In: a `Trace`, its `Program`, masks over the activities. Out: a flat mapping; what the trace does not
show is absent.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ...model.codes import IDLE_PARTS, Part
from ...model.run import JsonValue
from ..lanes.labels import Work
from ..lanes.program import EventKind, Program
from ..trace.dialect import DEVICE_WAIT, FREE_CALL, MALLOC_CALL, TO_DEVICE, Kind
from ..trace.intervals import latest, within
from ..trace.kernels import are_messages, classify
from ..trace.table import Trace
from .device_masks import DeviceWork
from .offload import moving

_HIP = re.compile(r"^hip")
_COPIES = re.compile(r"^aten::(copy_|_to_copy)$")
_SIZED_BY_DATA = re.compile(
    r"^aten::(nonzero\w*|masked_select|_?unique\w*|repeat_interleave|bincount|argwhere)$"
)
_MOST = 0.5


def _per_step(count: int, program: Program) -> float:
    return count / max(1, program.steps)


def _static_shapes(program: Program, name: NDArray[np.int32]) -> bool:
    """Every whole step launches the same kernels in the same order."""
    step = program.step
    pieces = [name[within(step, k, k + 1)] for k in range(program.steps)]
    return all(np.array_equal(pieces[0], other) for other in pieces[1:])


def gpu_context(
    trace: Trace,
    program: Program,
    work: DeviceWork,
    *,
    parts: dict[Part, float],
    true_ms: float,
    varying: bool,
    device_scale: float,
    flavour: str,
) -> dict[str, JsonValue]:
    """Fill what the trace shows."""
    activities = program.activity_row
    family = trace.by_name(activities, lambda name: classify(name).family, np.str_)
    dtype = trace.by_name(activities, lambda name: classify(name).dtype, np.str_)
    steps = max(1, program.steps)

    def share(mask: NDArray[np.bool_]) -> float:
        return float(program.duration[mask].sum()) / steps / 1e6 * device_scale / true_ms if true_ms else 0.0

    math = np.isin(family, ("matmul", "conv", "attention"))
    of_kind = {k: int((program.kind == k).sum()) for k in EventKind}
    calls = program.row[program.row >= 0]

    def called(names: re.Pattern[str]) -> int:
        return int(trace.named(names, calls).sum())

    context: dict[str, JsonValue] = {
        # A bare trace has no run.json to say it.
        "device.kind": "rocm" if called(_HIP) else "cuda",
        "step.idle_share": sum(parts[p] for p in IDLE_PARTS) / true_ms if true_ms else 0.0,
        "input.wait_share": parts[Part.INPUT] / true_ms if true_ms else 0.0,
        "copies.pageable_blocking": of_kind[EventKind.COPY] > 0,
        "copies.h2d_ms": share(trace.named(TO_DEVICE, activities)) * true_ms,
        "sync.per_step": _per_step(of_kind[EventKind.SYNC], program),
        "sync.item_per_step": _per_step(int(work.items.sum()), program),
        "sync.waits_for": waits_for(trace, program, work.offloaded),
        "kernels.matmul_fp32_share": share(work.fp32_math),
        "kernels.conv_share": share(family == "conv"),
        "kernels.bf16_share": share(math & np.isin(dtype, ("bf16", "fp16", "half"))),
        "kernels.attention_unfused_share": share(work.scores),
        "kernels.index_sums_share": share(work.index_sums),
        "kernels.attention_share": share(family == "attention"),
        "kernels.norm_share": share(np.isin(family, ("norm", "loss", "softmax"))),
        "kernels.memory_bound_share": parts[Part.MEMORY_BOUND] / true_ms if true_ms else 0.0,
        "kernels.layout_share": share(work.layout),
        "kernels.zero_grad_share": share(work.zero_grad),
        "kernels.custom_share": share(family == "other"),
        "optimizer.share": share(work.optimizer),
        "optimizer.launches": _per_step(int(work.optimizer.sum()), program),
        "launches.per_step": _per_step(program.launch_calls, program),
        "work.static_shapes": _static_shapes(program, trace.name[activities]),
        "allocator.device_allocs_per_step": _per_step(called(MALLOC_CALL), program),
        "allocator.device_frees_per_step": _per_step(called(FREE_CALL), program),
        "comm.exposed_share": parts[Part.COMMUNICATION] / true_ms if true_ms else 0.0,
    }
    context["allocator.empty_cache_per_step"] = _per_step(_emptied_cache(trace, program), program)
    if work.offloaded.any():
        # Each is copied twice.
        moved = int(trace.bytes[activities[work.offloaded]].sum())
        context["copies.offloaded_bytes"] = _per_step(moved // 2, program)
    if varying:
        context["step.varying_shapes"] = True
    if flavour != "unknown":
        context["optimizer.flavour"] = flavour
    micro = _micro_steps(trace, program)
    sent = activities[family == "communication"]
    collectives = int((~are_messages(trace, sent)).sum())
    if collectives and micro:
        context["comm.collectives_per_micro_step"] = collectives / steps / micro
    if program.work[:, Work.COMPILE].any():
        context["compile.used"] = True
    return context


def _emptied_cache(trace: Trace, program: Program) -> int:
    """Count the calls of empty_cache(): runs of frees outside any operator.

    A retry of the allocator frees inside the operator that asks for memory; only a call from
    Python frees outside one.
    """
    rows = program.row[program.kind == EventKind.ALLOCATOR]
    rows = rows[trace.named(FREE_CALL, rows)]
    count = 0
    for tid in np.unique(trace.tid[rows]).tolist():
        mine, ops = rows[trace.tid[rows] == tid], trace.rows(Kind.OP, tid=tid)
        mine = mine[~trace.inside(mine, ops)]
        # Frees that follow the same operator belong to one call.
        count += len(np.unique(latest(trace.ts_ns[ops], trace.ts_ns[mine])))
    return count


def _micro_steps(trace: Trace, program: Program) -> float:
    return len(trace.rows(Kind.ANNOTATION, named="backward")) / max(1, program.steps)


def asked_waits(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Return which events wait for all of the device because the script asks for it, (n,): in no operator."""
    out = np.zeros(len(program.kind), dtype=bool)
    waits = np.flatnonzero(program.kind == EventKind.SYNC)
    waits = waits[trace.named(DEVICE_WAIT, program.row[waits])]
    if len(waits):
        out[waits] = ~trace.inside(program.row[waits], trace.rows(Kind.OP))
    return out


def waits_for(trace: Trace, program: Program, offloaded: NDArray[np.bool_]) -> str:
    """Return what most waits are for.

    `offloaded`: see `offload.offloaded`.

    Returns:
        "activations": that are moved to the host and back.
        "device": it is asked for, by torch.cuda.synchronize().
        "sizes": of results, which depend on the data. "copies": to the device, of what the host just made.
        "values": of tensors; also where no kind is most.
    """
    waits = np.flatnonzero(program.kind == EventKind.SYNC)
    if not len(waits):
        return "values"
    rows = program.row[waits]
    if offloaded.any() and trace.inside(rows, moving(trace, program, offloaded)).mean() > _MOST:
        return "activations"
    if asked_waits(trace, program)[waits].mean() > _MOST:
        return "device"
    if trace.inside(rows, trace.rows(Kind.OP, named=_SIZED_BY_DATA)).mean() > _MOST:
        return "sizes"
    sent = np.zeros(len(program.kind), dtype=bool)
    sent[program.event[trace.named(TO_DEVICE, program.activity_row)]] = True
    after_copy = sent[np.maximum(waits - 1, 0)] & trace.inside(rows, trace.rows(Kind.OP, named=_COPIES))
    return "copies" if after_copy.mean() > _MOST else "values"
