"""From pools to budget lines (CPU runs): the page faults, the collector and the seams taken out.

In: calibrated pools, the baseline, what was compiled. Out: `CpuBudget`, whose parts add up to the
true step, and the amounts that the what-ifs ask about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.diagnosis import BudgetLine
from ...model.run import CompileFacts
from ...model.words import milliseconds
from ..lanes.seams import Seam
from ..steps.baseline import Baseline
from .pools import WORK, Pool, Pools
from .segments import Segments

__all__ = ["CpuBudget", "compose", "count_seams", "fault_ms"]

_FEWEST_FAULTS = 32.0
"""Faults per step below which system time is not about memory."""
_DEAREST_FAULT_MS = 0.005
"""A 4 KiB minor fault with zeroing costs 0.1 to 0.25 us of kernel entry plus the zeroing, and
measured 1.9 to 2.3 us in a virtual machine; 5 us is beyond any of them, so the rest of the system
time is something else."""
_MOST_WAITED = 4.0
"""Beyond this the machine is too busy for its shares to mean anything."""
_HUGE_PAGE_FAULT_MS = 0.05
"""Where a fault costs more than this it zeroes a huge page (512 times the bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBudget:
    """Milliseconds of the true step by budget part, and what they consist of."""

    parts: dict[Part, float]
    faults_ms: float = 0.0
    collector_ms: float = 0.0
    seams_ms: float = 0.0
    seams_per_step: float = 0.0
    optimizer_dispatch_ms: float = 0.0
    training_dispatch_ms: float = 0.0
    """Dispatch in forward and backward; where no forward was labelled, all outside the optimizer."""
    zero_grad_ms: float = 0.0
    details: dict[Part, str] = field(default_factory=dict)

    def lines(self, true_ms: float) -> tuple[BudgetLine, ...]:
        """Budget lines, largest first; parts of nothing are left out, unexplained never is."""
        shown = sorted(self.parts.items(), key=lambda item: -item[1])
        return tuple(
            BudgetLine(
                part=part,
                ms=ms,
                share=ms / true_ms if true_ms > 0 else 0.0,
                detail=self.details.get(part, ""),
            )
            for part, ms in shown
            if ms > 0 or part is Part.UNEXPLAINED
        )


def fault_ms(baseline: Baseline, *, input_ms: float, host_ms: float, threads: int) -> float:
    """System time per step that page faults of the training itself explain, ms.

    A page that the allocator gave back to the kernel is faulted in and zeroed anew at its next use.
    Measured against the same program under a malloc that keeps its pages, system time is a lower
    bound of what goes away (saved over system time: 1.1 to 1.4; the caches stay warm as well).
    Processor time that must have been spent producing input is taken off in proportion. Where the
    process had less processor time than its working part of the step is long, others had the rest,
    and the faults' share of the step is their share of the processor time.

    System time is that of all threads. Where several fault at once the step is at most so much
    longer that the user time, spread over all threads, is still left; and at least by the share
    that system time has in the processor time.
    """
    if baseline.system_ms is None or baseline.faults is None or baseline.faults < _FEWEST_FAULTS:
        return 0.0
    per_fault = baseline.system_ms / baseline.faults
    system = baseline.system_ms
    if per_fault < _HUGE_PAGE_FAULT_MS:
        system = min(system, baseline.faults * _DEAREST_FAULT_MS)
    cpu = baseline.system_ms + (baseline.user_ms or 0.0)
    outside = max(0.0, baseline.step_ms - input_ms) * max(1, threads)
    producing = min(max(0.0, cpu - outside), input_ms)
    share = 1.0 - producing / cpu if cpu > 0 else 1.0
    working = max(0.0, baseline.step_ms - input_ms - host_ms)
    had = cpu - producing
    if had <= 0:
        return system * share
    serial = system * share * min(max(working / had, 1.0), _MOST_WAITED)
    if threads <= 1 or had <= working:
        return serial
    user = max(0.0, had - baseline.system_ms * share)
    return min(serial, max(working - user / threads, system * share * working / had))


def _take(
    ms: NDArray[np.float64], amount: float, weight: NDArray[np.float64], *, at_most: float = 0.95
) -> float:
    """Take `amount` from the cells in proportion to ms * weight, in place; returns what was got."""
    got = 0.0
    for _ in range(4):  # cells that run dry pass their share on to the others
        room = ms * weight
        total = float(room.sum())
        need = amount - got
        if min(total, need) < 1e-9:
            break
        taken = np.minimum(room * (need / total), ms * at_most)
        ms -= taken
        got += float(taken.sum())
    return got


def count_seams(
    segments: Segments | None, compile_facts: CompileFacts | None, found: Sequence[Seam] = ()
) -> float:
    """Seams of graph breaks per step, in forward: regions beyond the one that each call needs.

    Args:
        segments: the training thread.
        compile_facts: compile.json.
        found: seams of the traced steps, where compile.json tells whose they are.
    """
    if segments is None or segments.regions_per_step <= 0:
        return 0.0
    if found and compile_facts is not None:
        return sum(not seam.backward for seam in found) / max(1, segments.steps)
    if compile_facts is not None and not compile_facts.breaks:
        return 0.0  # compiled block by block, without a break in any of them
    if segments.nested_regions_per_step > 0:
        return segments.nested_regions_per_step
    if compile_facts is None:
        return 0.0  # many regions side by side are as likely blocks compiled one by one
    return max(0.0, segments.regions_per_step - max(1.0, segments.region_phases_per_step))


def compose(
    pools: Pools,
    *,
    baseline: Baseline | None,
    seams: float,
    regions: float,
    threads: int,
) -> CpuBudget:
    """Make exclusive budget parts from calibrated pools.

    Args:
        pools: calibrated pools; not modified.
        baseline: unprofiled means; None for a bare trace, which tells no system time.
        seams: seams per step, from `count_seams`.
        regions: compiled regions entered per step.
        threads: intra-op threads.
    """
    ms = pools.ms.copy()
    code = {name: i for i, name in enumerate(pools.phases)}
    data = [code[name] for name in ("data",) if name in code]
    working = np.ones(ms.shape[0], dtype=np.float64)
    working[data] = 0.0

    collector = 0.0
    if baseline is not None and baseline.gc_ms:
        weight = np.zeros_like(ms)
        weight[:, [Pool.HOST, Pool.PYTHON, Pool.OPS]] = working[:, None]
        collector = _take(ms, baseline.gc_ms, weight)

    faults = 0.0
    if baseline is not None:
        weight = np.zeros_like(ms)
        # Fresh pages are touched first where results are written: all of an element-wise
        # operator is that, a small part of a matrix product; freeing happens from Python.
        weight[:, [Pool.MEMORY, Pool.GRAPH]] = working[:, None]
        weight[:, [Pool.PYTHON, Pool.OPS]] = 0.5 * working[:, None]
        weight[:, [Pool.MATH, Pool.HOST]] = 0.25 * working[:, None]
        input_ms = float(ms[:, Pool.INPUT].sum())
        host_ms = float(ms[:, Pool.HOST].sum())
        found = fault_ms(baseline, input_ms=input_ms, host_ms=host_ms, threads=threads)
        faults = _take(ms, found, weight)

    seam_share = min(1.0, seams / regions) if regions > 0 else 0.0
    seams_ms = float(ms[:, Pool.SEAM].sum()) * seam_share
    ms[:, Pool.SEAM] *= 1.0 - seam_share

    optimizer = [code[name] for name in ("optimizer",) if name in code]
    others = [i for i in range(ms.shape[0]) if i not in optimizer]
    dispatching = [Pool.OPS, Pool.PYTHON, Pool.SEAM]
    optimizer_dispatch = float(ms[np.ix_(optimizer, dispatching)].sum())
    other_dispatch = float(ms[np.ix_(others, dispatching)].sum())
    passes = [code[name] for name in ("forward", "backward") if name in code and ms[code[name]].sum() > 0]
    training_dispatch = other_dispatch
    if "forward" in code and code["forward"] in passes:
        training_dispatch = float(ms[np.ix_(passes, dispatching)].sum())
    zero_grad = [code[name] for name in ("zero_grad",) if name in code]
    host = float(ms[:, Pool.HOST].sum())
    parts = {
        Part.OTHER_MATH: float(ms[others, Pool.MATH].sum()),
        Part.MEMORY_BOUND: float(ms[np.ix_(others, [Pool.MEMORY, Pool.GRAPH])].sum()),
        Part.OPTIMIZER: float(ms[np.ix_(optimizer, list(WORK))].sum()),
        Part.COMMUNICATION: float(ms[:, Pool.COMMUNICATION].sum()),
        Part.INPUT: float(ms[:, Pool.INPUT].sum()),
        Part.ALLOCATOR: faults,
        Part.COMPILE: float(ms[:, Pool.COMPILING].sum()),
        Part.GRAPH_BREAK: seams_ms,
        Part.DISPATCH: optimizer_dispatch + other_dispatch,
        Part.HOST: host + collector,
        Part.UNEXPLAINED: float(ms[:, Pool.UNKNOWN].sum()),
    }
    details = {
        Part.DISPATCH: f"{milliseconds(optimizer_dispatch)} ms of it in the optimizer",
        Part.ALLOCATOR: "page faults: system time per step",
        Part.HOST: f"{milliseconds(collector)} ms of it garbage collection" if collector > 0 else "",
    }
    return CpuBudget(
        parts=parts,
        faults_ms=faults,
        collector_ms=collector,
        seams_ms=seams_ms,
        seams_per_step=seams,
        optimizer_dispatch_ms=optimizer_dispatch,
        training_dispatch_ms=training_dispatch,
        zero_grad_ms=float(ms[zero_grad].sum()),
        details={part: text for part, text in details.items() if text},
    )
