"""How each phase of a step divides, from the profiled trace to the true step (CPU runs).

In: segments, the measured cost of one operator, the baseline's phase times. Out: `Division`, a matrix of
milliseconds per step, phase by category of host work, that adds up to the true step.

The profiler adds its cost per operator, so that operators' fixed cost and the Python around them
are inflated while the work inside long operators is not. Within each phase the inflated categories are
therefore scaled until the phase takes the time that it took unprofiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..lanes.gaps import DISPATCH_WORK
from ..lanes.labels import PYTHON_GAP_NS, Work, label_of
from ..lanes.seams import Seam
from ..steps.baseline import Baseline
from ..trace.intervals import which
from ..trace.operators import OpClass
from ..trace.table import NONE, Trace
from .segments import Segments
from .unlabelled import aside, preparation

TENSOR_WORK = (Work.MATH, Work.MEMORY, Work.UPDATE)
"""What operators compute, without their fixed cost."""

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

_WORK_OF_CLASS = {
    OpClass.MATH: Work.MATH,
    OpClass.MEMORY: Work.MEMORY,
    OpClass.GRAPH: Work.MEMORY,
    OpClass.COMPILING: Work.COMPILE,
    OpClass.COMMUNICATION: Work.COMMUNICATION,
}
"""Everything else is dispatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """ms[phase, category] per step; `phases[0]` is "outside every phase"."""

    phases: tuple[str, ...]
    ms: NDArray[np.float64]
    work: NDArray[np.int8] | None = None
    """Category of every segment; None without a trace."""
    work_ns: NDArray[np.float64] | None = None
    """The part of each segment that is not fixed cost."""
    dur_ns: NDArray[np.float64] | None = None
    """What each segment takes, fixed cost and all, on a machine of its own."""
    scale: float | None = None
    """Mean factor on the inflated categories that brings them to the true step."""
    factors: NDArray[np.float64] | None = None
    """What each cell of `ms` was multiplied by for that, same shape; None where nothing was."""
    lacked_ms: float = 0.0
    """Host work outside the phases that the timed steps have and the traced ones lack."""
    misfit: float = 0.0
    """Share of the step that the trace puts into other phases than the baseline does."""

    def sum_ms(self, *works: Work, phase: str | None = None) -> float:
        """Return the time in some categories, over all phases or in one."""
        rows = [i for i, name in enumerate(self.phases) if phase is None or name == phase]
        return float(self.ms[np.ix_(rows, [int(work) for work in works])].sum())


def dispatch_of(phase: str) -> Work:
    """Return the category that dispatching in a phase belongs to."""
    work = label_of(phase)
    return work if work in (Work.OPTIMIZER, Work.ZERO_GRAD) else Work.DISPATCH


def _work_of_segments(
    segments: Segments,
    dur_ns: NDArray[np.float64],
    seam: NDArray[np.bool_],
    *,
    after_share: float | None,
    evaluates: bool,
) -> NDArray[np.int8]:
    """Return what each stretch is spent on, by its innermost row, its phase and its place in the step."""
    table = np.full(max(OpClass) + 1, Work.DISPATCH, dtype=np.int8)
    table[list(_WORK_OF_CLASS)] = list(_WORK_OF_CLASS.values())
    work: NDArray[np.int8] = table[segments.op_class]
    labels = [label_of(name, evaluates=evaluates) for name in segments.phases]
    label = np.asarray([Work.DISPATCH if each is None else each for each in labels])[segments.phase]
    own_dispatch = np.asarray([dispatch_of(name) for name in segments.phases])[segments.phase]

    work[seam & (work == Work.DISPATCH)] = Work.SEAM
    long = dur_ns > PYTHON_GAP_NS
    python = np.isin(segments.op_class, (OpClass.PYTHON, OpClass.PY_BACKWARD))
    # An optimizer collects its parameters in Python before the first operator: that is its own.
    work[long & python & (own_dispatch == Work.DISPATCH) & (work != Work.SEAM)] = Work.HOST
    if (segments.op_class == OpClass.COMMUNICATION).any():
        # DDP ends the backward by waiting for its last buckets, in no operator.
        waits = (segments.phase == segments.phases.index("backward")) | _after_communication(segments)
        work[(work == Work.HOST) & waits] = Work.COMMUNICATION
    # The engine itself never takes that long: it is freeing saved tensors, which is memory work.
    work[long & (segments.op_class == OpClass.AUTOGRAD)] = Work.MEMORY
    of_its_own = np.isin(work, (Work.COMPILE, Work.COMMUNICATION))
    work[aside(segments, evaluates=evaluates) & ~of_its_own] = Work.HOST
    work[label == Work.HOST] = Work.HOST
    prepared = preparation(segments, after_share=after_share, evaluates=evaluates)
    # What a stage of a pipeline waits for before its forward comes from another rank.
    prepared &= work != Work.COMMUNICATION
    work[prepared | (label == Work.INPUT)] = Work.INPUT
    # Products and decompositions of an optimizer are work that no fused one spares.
    work[(label == Work.OPTIMIZER) & (work == Work.MEMORY)] = Work.UPDATE
    return np.where(work == Work.DISPATCH, own_dispatch, work).astype(np.int8)


def _beyond_fixed_cost(
    segments: Segments, dur_ns: NDArray[np.float64], dispatch_ns: float | None
) -> NDArray[np.float64]:
    """Return what is left of each segment: one fixed cost per operator, spread over its stretches."""
    fixed_ns = PROFILED_FACTOR * (dispatch_ns or _DEFAULT_DISPATCH_NS)
    left: NDArray[np.float64] = dur_ns.copy()
    covered = segments.row != NONE
    if covered.any():
        rows, inverse = np.unique(segments.row[covered], return_inverse=True)
        own = np.bincount(inverse, weights=dur_ns[covered], minlength=len(rows))
        share = np.clip(1.0 - fixed_ns / np.maximum(own, 1.0), 0.0, 1.0)
        left[covered] *= share[inverse]
    left[segments.op_class == OpClass.AUTOGRAD] = dur_ns[segments.op_class == OpClass.AUTOGRAD]
    return left


def split(
    segments: Segments,
    *,
    dispatch_ns: float | None,
    steady: NDArray[np.float64] | None = None,
    seams: Sequence[Seam] = (),
    after_share: float | None = None,
    evaluates: bool = False,
) -> Division:
    """Divide the profiled steps into categories, ms of the median step.

    `dispatch_ns` is the measured cost of one operator; `steady` durations take the place of the recorded
    ones; `after_share` of the time between update and forward belongs to the last step. With `evaluates`
    every step runs a model without gradients: that is work of the step as any other. In a seam all
    that is no work of operators is the seam's.
    """
    dur = segments.dur_ns.astype(np.float64) if steady is None else steady
    stretches = sorted(pair for seam in seams for pair in seam.stretches)
    begin, end = np.asarray(stretches, dtype=np.int64).reshape(-1, 2).T
    seam = which(begin, end, segments.start_ns) >= 0
    work = _work_of_segments(segments, dur, seam, after_share=after_share, evaluates=evaluates)
    computes = np.isin(work, TENSOR_WORK)
    work_ns = np.where(computes, _beyond_fixed_cost(segments, dur, dispatch_ns), 0.0)
    amount = np.where(computes, work_ns, dur)
    dispatch = np.asarray([dispatch_of(name) for name in segments.phases])[segments.phase]
    dispatch = np.where(seam & (dispatch == Work.DISPATCH), Work.SEAM, dispatch)

    steps, width, size = max(1, segments.steps), len(Work), len(segments.phases) * len(Work)
    cell = segments.step.astype(np.int64) * size + segments.phase.astype(np.int64) * width
    flat = np.bincount(cell + work, weights=amount, minlength=steps * size)
    flat += np.bincount(cell + dispatch, weights=dur - amount, minlength=steps * size)
    # The median step of each cell: what the program does every few steps only, the baseline knows.
    typical = np.median(flat.reshape(steps, size), axis=0)
    return Division(
        phases=segments.phases,
        ms=typical.reshape(len(segments.phases), width) / 1e6,
        work=work,
        work_ns=work_ns,
        dur_ns=dur,
    )


def unprofiled_ms(trace: Trace, segments: Segments, division: Division, rows: NDArray[np.intp]) -> float:
    """Return what these rows and all that they call take in the median step, without the profiler, ms."""
    if division.work is None or division.work_ns is None or division.dur_ns is None:
        return 0.0
    factors = division.factors if division.factors is not None else np.ones_like(division.ms)
    covered = np.flatnonzero(segments.row != NONE)
    mine = covered[trace.inside(segments.row[covered], rows)]
    phase, work, dur = segments.phase[mine], division.work[mine], division.dur_ns[mine]
    amount = np.where(np.isin(work, TENSOR_WORK), division.work_ns[mine], dur)
    dispatch = np.asarray([dispatch_of(name) for name in segments.phases])[phase]
    scaled = amount * factors[phase, work] + np.maximum(dur - amount, 0.0) * factors[phase, dispatch]
    by_step = np.bincount(segments.step[mine], weights=scaled, minlength=max(1, segments.steps))
    return float(np.median(by_step)) / 1e6


def _after_communication(segments: Segments) -> NDArray[np.bool_]:
    """Return the mask of segments whose last operator before them is a collective, a send or a receive.

    Their `wait()` is no operator: a long stretch right behind one is the wait for it (gloo).
    """
    is_op = segments.op_class != OpClass.PYTHON
    last = np.maximum.accumulate(np.where(is_op, np.arange(len(is_op)), -1))
    return np.asarray((last >= 0) & ~is_op & (segments.op_class[last] == OpClass.COMMUNICATION))


def _fit(row: NDArray[np.float64], target_ms: float) -> tuple[NDArray[np.float64], float, float]:
    """Scale one phase to its true time; returns (row, scale of the inflated categories, stretch)."""
    inflated = list(DISPATCH_WORK)
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


def calibrate(profiled: Division, baseline: Baseline, *, noise_ms: float = 0.0, had: float = 1.0) -> Division:
    """Bring the profiled division to the baseline's phase times.

    An excess of `noise_ms` outside the phases over what the trace has there proves nothing: it is left to all
    categories alike. Nor does one that is explained by the share of the time for which the process `had` a
    processor: the profiled division holds what each stretch takes when nobody else has it.
    """
    ms, factors = np.zeros_like(profiled.ms), np.ones_like(profiled.ms)
    scales: list[tuple[float, float]] = []
    lacked = 0.0
    fits: list[tuple[float, float]] = []
    for i, name in enumerate(profiled.phases):
        target = baseline.phases_ms.get(name, 0.0) if i else baseline.outside_ms
        row = profiled.ms[i]
        if target < _A_TICK_MS:
            continue
        if row.sum() < _A_TICK_MS:
            # In the baseline but not in the traced steps, as work done every so many steps is.
            ms[i, _untraced(name) if i else Work.HOST] += target
            lacked += target if i == 0 else 0.0
            continue
        fitted, scale, stretch = _fit(row, target)
        factors[i] = np.divide(fitted, row, out=factors[i], where=row > 0)
        surplus = target - target / stretch if stretch > _FAR_LONGER else 0.0
        if i == 0 and surplus > 0:
            # More time outside the phases than the trace has there: work of the loop itself that
            # the traced steps happened to lack (a checkpoint every N steps), not slower operators.
            fitted *= 1.0 / stretch
            if surplus > noise_ms and stretch * had > _FAR_LONGER:
                fitted[Work.HOST] += surplus
                lacked = surplus
        else:
            fits.append((target, target / stretch))
        ms[i] = fitted
        scales.append((scale * stretch, float(row[list(DISPATCH_WORK)].sum())))
    ms[0, Work.UNKNOWN] += sum(t for name, t in baseline.phases_ms.items() if name not in profiled.phases)
    ms[0, Work.COMPILE] += baseline.compiling_ms
    weight = sum(w for _, w in scales)
    return replace(
        profiled,
        ms=ms,
        factors=factors,
        scale=sum(s * w for s, w in scales) / weight if weight > 0 else None,
        lacked_ms=lacked,
        misfit=_misfit(fits),
    )


def as_measured(profiled: Division, *, true_ms: float) -> Division:
    """Calibrate without a baseline: the profiled phases stand in, shrunk to the true step if given."""
    total = float(profiled.ms.sum())
    host = profiled.ms[:, DISPATCH_WORK].sum(axis=1)
    spare = max(0.0, min(total - true_ms, float(host.sum())))
    targets = profiled.ms.sum(axis=1)
    if host.any():
        targets -= spare * host / host.sum()
    targets *= true_ms / max(float(targets.sum()), 1e-12)
    phases = {name: float(targets[i]) for i, name in enumerate(profiled.phases) if i and targets[i] > 0}
    return calibrate(profiled, Baseline(step_ms=float(targets.sum()), phases_ms=phases))


def undivided(baseline: Baseline | None, *, true_ms: float) -> Division:
    """What the baseline shows without a trace: input and evaluation.

    Outside the phases lie the loss and whatever else the loop computes, beside its logging and saving.
    """
    if baseline is None:
        baseline = Baseline(step_ms=true_ms, phases_ms={})
    phases = ("", *baseline.phases_ms)
    ms = np.zeros((len(phases), len(Work)))
    ms[0, Work.UNKNOWN] = baseline.outside_ms
    for i, name in enumerate(phases[1:], 1):
        ms[i, _untraced(name)] = baseline.phases_ms[name]
    ms[0, Work.COMPILE] += baseline.compiling_ms
    return Division(phases=phases, ms=ms)


def _untraced(phase: str) -> Work:
    """Return what a phase is spent on if no trace divides it."""
    work = label_of(phase)
    return work if work in (Work.INPUT, Work.HOST) else Work.UNKNOWN
