"""How each phase of a step divides, from the profiled trace to the true step (CPU runs).

In: segments, the measured cost of one operator, the baseline's phase times. Out: `Pools`, a matrix
of milliseconds per step, phase by pool, that adds up to the true step.

The profiler adds its cost per operator, so that operators' fixed cost and the Python around them
are inflated while the work inside long operators is not. Within each phase the inflated pools are
therefore scaled until the phase takes the time that it took unprofiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..lanes.labels import PYTHON_GAP_NS
from ..trace.operators import OpClass
from ..trace.table import NONE
from .gaps import aside, preparation
from .segments import Segments

__all__ = ["INFLATED", "PROFILED_FACTOR", "WORK", "Pool", "Pools", "calibrate", "split", "undivided"]


class Pool(IntEnum):
    """What a stretch of the training thread is spent on."""

    INPUT = 0
    MATH = 1
    MEMORY = 2
    GRAPH = 3
    """Generated kernels of compiled graphs."""
    OPS = 4
    """Fixed cost of operators and of the autograd engine."""
    PYTHON = 5
    """Python between operators, in stretches too short to be work of its own."""
    SEAM = 6
    HOST = 7
    """Python without operators for so long that it is work of its own, and what is no training of a batch."""
    COMPILING = 8
    UNKNOWN = 9
    """Baseline time that no trace divides."""
    COMMUNICATION = 10


WORK = (Pool.MATH, Pool.MEMORY, Pool.GRAPH)
INFLATED = (Pool.OPS, Pool.PYTHON, Pool.SEAM)
"""Pools that carry the profiler's own cost."""

_DEFAULT_DISPATCH_NS = 2_000.0
"""Fixed cost per operator where the run did not measure it (bare traces)."""
PROFILED_FACTOR = 2.0
"""An operator's fixed cost while profiled over the same unprofiled: a step of 13 k operators that was
measured both ways (11.5 ms without) took 1.5 to 1.7 times as long, of which the Python around the
operators, which is less inflated, is about half."""
_LEAST_SCALE = 0.3
"""The profiler was never seen to multiply host work by more than three; beyond, the trace differs
from the baseline for another reason, and everything in the phase shrinks alike."""

_A_TICK_MS = 1e-6
"""The clock's resolution, 1 ns: what is shorter was not measured."""
_FAR_LONGER = 2.0
"""Baseline over trace beyond which time outside the phases holds something that the trace lacks."""

_POOL_OF_CLASS = {
    OpClass.PYTHON: Pool.PYTHON,
    OpClass.BOOKKEEPING: Pool.OPS,
    OpClass.MATH: Pool.MATH,
    OpClass.MEMORY: Pool.MEMORY,
    OpClass.GRAPH: Pool.GRAPH,
    OpClass.SEAM: Pool.SEAM,
    OpClass.AUTOGRAD: Pool.OPS,
    OpClass.COMPILING: Pool.COMPILING,
    OpClass.SYNC: Pool.OPS,
    OpClass.PY_BACKWARD: Pool.PYTHON,
    OpClass.CREATION: Pool.OPS,
    OpClass.COMMUNICATION: Pool.COMMUNICATION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """ms[phase, pool] per step; `phases[0]` is "outside every phase"."""

    phases: tuple[str, ...]
    ms: NDArray[np.float64]
    segment_pool: NDArray[np.int8] | None = None
    """Pool of every segment, for naming what is in a pool; None without a trace."""
    segment_work_ns: NDArray[np.float64] | None = None
    """The part of each segment that is not fixed cost."""
    scale: float | None = None
    """Mean factor on the inflated pools that brings them to the true step."""
    lacked_ms: float = 0.0
    """Host work outside the phases that the timed steps have and the traced ones lack."""
    misfit: float = 0.0
    """Share of the step that the trace puts into other phases than the baseline does."""

    def pool_ms(self, *pools: Pool, phases: tuple[str, ...] | None = None) -> float:
        """Sum of some pools, over all phases or over the ones named."""
        rows = [i for i, name in enumerate(self.phases) if phases is None or name in phases]
        return float(self.ms[np.ix_(rows, [int(p) for p in pools])].sum())


def split(
    segments: Segments,
    *,
    dispatch_ns: float | None,
    steady: NDArray[np.float64] | None = None,
    after_share: float | None = None,
    evaluates: bool = False,
) -> Pools:
    """Divide the profiled steps into pools, ms of the median step.

    Args:
        segments: flattened steps.
        dispatch_ns: measured cost of one operator, None where it was not measured.
        steady: durations to use instead of the recorded ones, from `cpu_steady.steady_ns`.
        after_share: how much of the time between update and forward belongs to the last step, from
            `loop_lines.after_share`.
        evaluates: every step runs a model without gradients: that is work of the step as any other.
    """
    fixed_ns = PROFILED_FACTOR * (dispatch_ns or _DEFAULT_DISPATCH_NS)
    table = np.zeros(max(OpClass) + 1, dtype=np.int8)
    for op_class, default in _POOL_OF_CLASS.items():
        table[op_class] = default
    pool: NDArray[np.int8] = table[segments.op_class]
    dur = segments.dur_ns.astype(np.float64) if steady is None else steady

    # One fixed cost per operator, spread over the stretches in which it is innermost.
    work = dur.copy()
    covered = segments.row != NONE
    if covered.any():
        rows, inverse = np.unique(segments.row[covered], return_inverse=True)
        own = np.bincount(inverse, weights=dur[covered], minlength=len(rows))
        share = np.clip(1.0 - fixed_ns / np.maximum(own, 1.0), 0.0, 1.0)
        work[covered] *= share[inverse]
    is_work = np.isin(pool, WORK)
    work[~is_work] = 0.0

    long = dur > PYTHON_GAP_NS
    code = {name: i for i, name in enumerate(segments.phases)}
    # An optimizer collects its parameters in Python before the first operator: that is its own.
    own_python = np.isin(segments.phase, [code[name] for name in ("optimizer", "zero_grad") if name in code])
    pool[long & (pool == Pool.PYTHON) & ~own_python] = Pool.HOST
    if (segments.op_class == OpClass.COMMUNICATION).any() and "backward" in code:
        # DDP ends the backward by waiting for its last buckets, in no operator.
        pool[(pool == Pool.HOST) & (segments.phase == code["backward"])] = Pool.COMMUNICATION
        pool[(pool == Pool.HOST) & _after_communication(segments)] = Pool.COMMUNICATION
    # The engine itself never takes that long: it is freeing saved tensors, which is memory work.
    freeing = long & (segments.op_class == OpClass.AUTOGRAD)
    pool[freeing] = Pool.MEMORY
    work[freeing] = dur[freeing]
    pool[aside(segments, evaluates=evaluates) & (pool != Pool.COMPILING)] = Pool.HOST
    if not evaluates:
        pool[segments.phase == code.get("evaluation", NONE)] = Pool.HOST
    prepared = preparation(segments, after_share=after_share, evaluates=evaluates)
    pool[prepared | (segments.phase == code.get("data", NONE))] = Pool.INPUT
    is_work = np.isin(pool, WORK)

    steps, width, size = max(1, segments.steps), len(Pool), len(segments.phases) * len(Pool)
    cell = segments.step.astype(np.int64) * size + segments.phase.astype(np.int64) * width
    amount = np.where(is_work, work, dur)
    flat = np.bincount(cell + pool, weights=amount, minlength=steps * size)
    flat += np.bincount(cell + Pool.OPS, weights=dur - amount, minlength=steps * size)
    # The median step of each cell: what the program does every few steps only, the baseline knows.
    typical = np.median(flat.reshape(steps, size), axis=0)
    return Pools(
        phases=segments.phases,
        ms=typical.reshape(len(segments.phases), width) / 1e6,
        segment_pool=pool,
        segment_work_ns=work,
    )


def _after_communication(segments: Segments) -> NDArray[np.bool_]:
    """Return the mask of segments whose last operator before them is a collective, a send or a receive.

    Their `wait()` is no operator: a long stretch right behind one is the wait for it (gloo).
    """
    is_op = segments.op_class != OpClass.PYTHON
    last = np.maximum.accumulate(np.where(is_op, np.arange(len(is_op)), -1))
    return np.asarray((last >= 0) & ~is_op & (segments.op_class[last] == OpClass.COMMUNICATION))


def _fit(row: NDArray[np.float64], target_ms: float) -> tuple[NDArray[np.float64], float, float]:
    """Scale one phase to its true time; returns (row, scale of the inflated pools, stretch)."""
    inflated = [int(p) for p in INFLATED]
    host = float(row[inflated].sum())
    rest = float(row.sum()) - host
    scale = 1.0
    if host > 0:
        scale = float(np.clip((target_ms - rest) / host, _LEAST_SCALE, 1.0))
    fitted = row.copy()
    fitted[inflated] *= scale
    total = float(fitted.sum())
    stretch = target_ms / total if total > 0 else 1.0
    return fitted * stretch, scale, stretch


def _misfit(fits: list[tuple[float, float]]) -> float:
    """How much the phases' proportions differ, as a share; a slower machine alone changes none."""
    true, traced = sum(t for t, _ in fits), sum(f for _, f in fits)
    if true <= 0 or traced <= 0:
        return 0.0
    return sum(abs(t - f * true / traced) for t, f in fits) / 2 / true


def calibrate(
    profiled: Pools,
    *,
    phases_ms: Mapping[str, float],
    outside_ms: float,
    compiling_ms: float,
    noise_ms: float = 0.0,
) -> Pools:
    """Bring the profiled division to the baseline's phase times.

    Args:
        profiled: result of `split`.
        phases_ms: true exclusive time of each phase.
        outside_ms: true time outside every phase.
        compiling_ms: true time spent compiling in the baseline window; stands beside the phases.
        noise_ms: excess of the time outside the phases, over what the trace has there, that proves
            nothing; it is left to all parts alike.
    """
    ms = np.zeros_like(profiled.ms)
    scales: list[tuple[float, float]] = []
    lacked = 0.0
    fits: list[tuple[float, float]] = []
    for i, name in enumerate(profiled.phases):
        target = outside_ms if i == 0 else phases_ms.get(name, 0.0)
        row = profiled.ms[i]
        if target < _A_TICK_MS:
            continue
        if row.sum() < _A_TICK_MS:
            # In the baseline but not in the traced steps, as work done every so many steps is.
            pool = {"data": Pool.INPUT, "": Pool.HOST, "evaluation": Pool.HOST}.get(name)
            ms[i, pool if pool is not None else Pool.UNKNOWN] += target
            lacked += target if i == 0 else 0.0
            continue
        fitted, scale, stretch = _fit(row, target)
        surplus = target - target / stretch if stretch > _FAR_LONGER else 0.0
        if i == 0 and surplus > 0:
            # More time outside the phases than the trace has there: work of the loop itself that
            # the traced steps happened to lack (a checkpoint every N steps), not slower operators.
            fitted *= 1.0 / stretch
            if surplus > noise_ms:
                fitted[Pool.HOST] += surplus
                lacked = surplus
        else:
            fits.append((target, target / stretch))
        ms[i] = fitted
        scales.append((scale * stretch, float(row[[int(p) for p in INFLATED]].sum())))
    missing = set(phases_ms) - set(profiled.phases)
    ms[0, Pool.UNKNOWN] += sum(phases_ms[name] for name in missing)
    ms[0, Pool.COMPILING] += compiling_ms
    weight = sum(w for _, w in scales)
    return Pools(
        phases=profiled.phases,
        ms=ms,
        segment_pool=profiled.segment_pool,
        segment_work_ns=profiled.segment_work_ns,
        scale=sum(s * w for s, w in scales) / weight if weight > 0 else None,
        lacked_ms=lacked,
        misfit=_misfit(fits),
    )


def undivided(*, phases_ms: Mapping[str, float], outside_ms: float, compiling_ms: float) -> Pools:
    """What the baseline alone can tell, when there is no trace: input and evaluation.

    Outside the phases lie the loss and whatever else the loop computes, beside its logging and saving.
    """
    phases = ("", *phases_ms)
    ms = np.zeros((len(phases), len(Pool)))
    for i, name in enumerate(phases):
        pool = {"data": Pool.INPUT, "evaluation": Pool.HOST}.get(name, Pool.UNKNOWN)
        ms[i, pool] = outside_ms if name == "" else phases_ms[name]
    ms[0, Pool.COMPILING] += compiling_ms
    return Pools(phases=phases, ms=ms)
