"""The CPU reading: one lane, true phase times from the baseline, the trace dividing them.

In: a trace with its steps (or none), the run's facts. Out: `Timeline`, the same result type as the
GPU reading, so that analyzers serve both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.doubt import Doubt, DoubtCode
from ...model.run import CompileFacts, JsonValue, LoaderFacts, LoopTime, Run
from ...model.view import StepTimeline
from ...model.work import ComputeFacts
from ..lanes.recompute import recomputed_ms
from ..lanes.seams import Seam, find_seams
from ..result import CompiledWork, SeamPrice, Timeline
from ..steps.baseline import Baseline, read_baseline
from ..steps.loop_lines import after_share
from ..steps.loop_price import HostTimes, dearest_loop
from ..steps.supply import InputSupply, input_supply
from ..steps.traced import Steps
from ..trace.operators import OpClass
from ..trace.table import NONE, Trace
from ..views.cpu import cpu_view
from .anomalies import anomaly_ms, without_anomalies
from .budget import CpuBudget, compose, count_seams
from .describe import describe_context, describe_kernels, describe_spans
from .pools import WORK, Pool, Pools, calibrate, split, undivided
from .segments import PHASES, Segments, operator_ms, read_segments
from .steady import steady_ns
from .what_ifs import answer, remove_both, table_share

__all__ = ["read_cpu", "waiting_threads"]

_WAIT_FOR_EACH_OTHER = 4.0
"""Times that sharing out an operator of 20 us takes longer than not doing so: dividing it costs 5 to 20 us
between threads that are all scheduled."""
_HAD_LITTLE = 0.7
"""Processor time over the working part of the step below which others must have had the rest."""
_LOST_SLICES = 2.5
"""Standard errors that time outside the phases must exceed on a busy machine to be host work: a few
lost time slices in a short window are no checkpoint."""
_MISFIT = 0.25
"""Stretch of the trace, as a share of the step, from which its division is doubted."""


def _profile(
    trace: Trace | None, steps: Steps | None, run: Run | None, baseline: Baseline | None
) -> tuple[Segments, Pools] | None:
    if trace is None or steps is None or len(steps) == 0:
        return None
    labels = dict.fromkeys((*PHASES, *(baseline.phases_ms if baseline is not None else ())))
    segments = read_segments(
        trace,
        start_ns=steps.start_ns,
        end_ns=steps.end_ns,
        thread=steps.thread,
        labels=tuple(labels),
    )
    if len(segments.row) == 0:
        return None
    pools = split(
        segments,
        dispatch_ns=run.dispatch_ns if run is not None else None,
        steady=steady_ns(trace, segments),
        after_share=after_share(run.sites) if run is not None else None,
        evaluates=baseline is not None and baseline.evaluates,
    )
    return segments, pools


def _as_measured(pools: Pools, *, true_ms: float) -> Pools:
    """Calibrate without a baseline: the profiled phases stand in, shrunk to the true step if given."""
    profiled = pools.ms.sum(axis=1)
    total = float(profiled.sum())
    inflated = pools.pool_ms(Pool.OPS, Pool.PYTHON, Pool.SEAM)
    spare = max(0.0, min(total - true_ms, inflated))
    targets = profiled.copy()
    if inflated > 0:
        host = pools.ms[:, [Pool.OPS, Pool.PYTHON, Pool.SEAM]].sum(axis=1)
        targets -= spare * host / inflated
    targets *= true_ms / max(float(targets.sum()), 1e-12)
    phases = {name: float(targets[i]) for i, name in enumerate(pools.phases) if i and targets[i] > 0}
    return calibrate(pools, phases_ms=phases, outside_ms=float(targets[0]), compiling_ms=0.0)


def _divide(profile: tuple[Segments, Pools] | None, baseline: Baseline | None, true_ms: float) -> Pools:
    if profile is None:
        if baseline is None:
            ms = np.zeros((1, len(Pool)))
            ms[0, Pool.UNKNOWN] = true_ms
            return Pools(phases=("",), ms=ms)
        return undivided(
            phases_ms=baseline.phases_ms,
            outside_ms=baseline.outside_ms,
            compiling_ms=baseline.compiling_ms,
        )
    if baseline is None:
        return _as_measured(profile[1], true_ms=true_ms)
    had = baseline.processor_share
    busy = had is not None and had < _HAD_LITTLE
    return calibrate(
        profile[1],
        phases_ms=baseline.phases_ms,
        outside_ms=baseline.outside_ms,
        compiling_ms=baseline.compiling_ms,
        noise_ms=_LOST_SLICES * baseline.outside_error_ms if busy else 0.0,
    )


def _settle(budget: CpuBudget, true_ms: float) -> CpuBudget:
    """Make the parts add up to the true step to rounding: phases may overlap it by a hair."""
    total = sum(budget.parts.values())
    if total > 0:
        factor = true_ms / total
        for part in budget.parts:
            budget.parts[part] *= factor
    return budget


def _processor_share(budget: CpuBudget, baseline: Baseline | None) -> float | None:
    """Processor time over the part of the step that is neither input nor host work, 1 at most."""
    if baseline is None or baseline.user_ms is None or baseline.system_ms is None:
        return None
    working = baseline.step_ms - budget.parts[Part.INPUT] - budget.parts[Part.HOST]
    if working < 0.2 * baseline.step_ms:
        return None
    return min(1.0, (baseline.user_ms + baseline.system_ms) / working)


def waiting_threads(run: Run | None) -> tuple[float, float] | None:
    """Return what an operator took on all threads and on one, us, where threads wait for one another."""
    if run is None or run.parallel_us is None:
        return None
    together, alone = run.parallel_us
    return run.parallel_us if together > _WAIT_FOR_EACH_OTHER * alone else None


def _doubts(
    pools: Pools, *, budget: CpuBudget, divided: bool, baseline: Baseline | None, steps: int, run: Run | None
) -> tuple[Doubt, ...]:
    out: list[Doubt] = []
    waiting = waiting_threads(run)
    if waiting is not None:
        out.append(
            Doubt(
                code=DoubtCode.THREADS_WAIT,
                text=f"Threads wait for one another: an operator that {_threads(run)} threads share took"
                f" {waiting[0]:.0f} us, and {waiting[1]:.0f} us on one",
                remedy="With torch.set_num_threads(1), or once nothing else runs on this machine, operators "
                "may take a fraction of their time.",
            )
        )
    if not divided:
        out.append(
            Doubt(
                code=DoubtCode.NOT_TRACED,
                text="No trace: only the phases of the baseline window are known, so computing and dispatch "
                "cannot be told apart",
                remedy="Run again and let the trace window finish.",
            )
        )
    elif steps < 2:
        out.append(
            Doubt(
                code=DoubtCode.ONE_TRACED_STEP,
                text="One traced step only: how it divides may not be typical",
                remedy="Use --steps 3 or more.",
            )
        )
    if baseline is None and divided:
        out.append(
            Doubt(
                code=DoubtCode.NO_BASELINE,
                text="No unprofiled window: the profiled step stands in, and dispatch looks larger than it "
                "is",
                remedy="Capture with `bottleneck diagnose`, or give --true-step-ms.",
            )
        )
    had = _processor_share(budget, baseline)
    if had is not None and had < _HAD_LITTLE:
        out.append(
            Doubt(
                code=DoubtCode.MACHINE_BUSY,
                text=f"The machine was busy: the process had a processor for {100 * had:.0f} % of its "
                "working time",
                remedy="Times are long, shares hold approximately. Run again on a quiet machine.",
            )
        )
    if pools.misfit > _MISFIT:
        out.append(
            Doubt(
                code=DoubtCode.STEPS_DIFFER,
                text=f"The traced steps differ from the timed ones: {100 * pools.misfit:.0f} % of it is in "
                "other phases",
                remedy="Steps vary, or the machine was busy. Use more --steps on a quiet machine.",
            )
        )
    return tuple(out)


def read_cpu(
    trace: Trace | None,
    steps: Steps | None,
    *,
    true_ms: float,
    run: Run | None = None,
    kept: NDArray[np.bool_] | None = None,
    loaders: Sequence[LoaderFacts] = (),
    compile_facts: CompileFacts | None = None,
) -> Timeline:
    """Read one rank of a run without a GPU.

    Args:
        trace: columns, or None when no trace was captured.
        steps: whole steps of that trace.
        true_ms: the step time that the budget must add up to.
        run: run.json, or None for a bare trace.
        kept: which steps of the baseline window stand behind `true_ms`.
        loaders: loader.json.
        compile_facts: compile.json.
    """
    baseline = None
    if run is not None and kept is not None:
        baseline = read_baseline(run, kept=kept, true_ms=true_ms)
    profile = _profile(trace, steps, run, baseline)
    pools = _divide(profile, baseline, true_ms)
    segments = profile[0] if profile is not None else None
    threads = _threads(run)
    seams = _seams(trace, segments, compile_facts)
    budget = _settle(
        compose(
            pools,
            baseline=baseline,
            seams=count_seams(segments, compile_facts, seams),
            regions=segments.regions_per_step if segments is not None else 0.0,
            threads=threads,
        ),
        true_ms,
    )
    wait_ms = baseline.phases_ms.get("data", 0.0) if baseline is not None else 0.0
    supply = input_supply(
        loaders, wait_ms=wait_ms, true_ms=true_ms, cores=run.host.cores if run is not None else None
    )
    what_ifs = answer(
        budget,
        true_ms=true_ms,
        baseline=baseline,
        supply=supply,
        optimizers=run.optimizers if run is not None else (),
        # What dynamo gave up at its limit runs eagerly, as if it had never been compiled.
        compiled=bool(compile_facts and compile_facts.used and not compile_facts.limit_hit)
        or bool(segments is not None and segments.regions_per_step > 0),
        cores=run.host.cores if run is not None else None,
        table_share=table_share(run),
        recomputed_ms=recomputed_ms(trace, segments) * min(1.0, pools.scale or 1.0),
        table_ms=operator_ms(trace, segments, "aten::embedding_dense_backward"),
    )
    if trace is not None and segments is not None and run is not None and run.plain_dispatch_ns:
        saves = anomaly_ms(trace, segments, pools, plain_ns=run.plain_dispatch_ns)
        what_ifs |= without_anomalies(what_ifs, min(saves, true_ms), true_ms=true_ms)
    loop = _loop(run, pools, true_ms=true_ms) if segments is not None else None
    if loop is not None:
        what_ifs[WhatIf.LOOP_GONE] = loop[1]
    profiled_ms = float(segments.step_ns.mean()) / 1e6 if segments is not None else None
    traced = segments.steps if segments is not None else 0
    return Timeline(
        kind="cpu",
        true_ms=true_ms,
        profiled_ms=profiled_ms,
        steps=traced,
        budget=budget.lines(true_ms),
        what_ifs=what_ifs,
        kernels=describe_kernels(trace, segments, pools, true_ms=true_ms),
        spans=describe_spans(trace, segments, pools, budget, baseline=baseline, run=run),
        dispatch_scale=pools.scale,
        doubts=_doubts(
            pools, budget=budget, divided=profile is not None, baseline=baseline, steps=traced, run=run
        ),
        context=_context(
            trace=trace,
            segments=segments,
            pools=pools,
            budget=budget,
            baseline=baseline,
            supply=supply,
            true_ms=true_ms,
        ),
        launches=None,
        after=remove_both(what_ifs, true_ms=true_ms),
        loop=loop[0] if loop is not None else None,
        view=_view(trace, steps, profile),
        seams=_seam_prices(seams, budget, traced),
        compiled=_compiled(segments),
        compute=_compute(trace, budget, true_ms) if traced else None,
    )


def _loop(run: Run | None, pools: Pools, *, true_ms: float) -> tuple[LoopTime, WhatIfResult] | None:
    """Return the dearest Python loop, with its price."""
    if run is None or not run.loops:
        return None

    def times(*kinds_of_time: Pool) -> HostTimes:
        return HostTimes(
            forward=pools.pool_ms(*kinds_of_time, phases=("forward",)),
            outside=pools.pool_ms(*kinds_of_time, phases=("",)),
            backward=pools.pool_ms(*kinds_of_time, phases=("backward",)),
        )

    dispatch = (Pool.OPS, Pool.PYTHON, Pool.HOST)  # Python may be long enough to count as work of its own
    return dearest_loop(run.loops, whole=times(*dispatch, *WORK), dispatch=times(*dispatch), true_ms=true_ms)


def _view(
    trace: Trace | None, steps: Steps | None, profile: tuple[Segments, Pools] | None
) -> StepTimeline | None:
    pool = profile[1].segment_pool if profile is not None else None
    if trace is None or steps is None or profile is None or pool is None:
        return None
    return cpu_view(trace, profile[0], pool, numbers=steps.numbers)


def _seams(trace: Trace | None, segments: Segments | None, compile_facts: CompileFacts | None) -> list[Seam]:
    if trace is None or segments is None or not len(segments.row):
        return []
    return find_seams(trace, segments.holds(trace), compile_facts)


def _seam_prices(seams: list[Seam], budget: CpuBudget, steps: int) -> tuple[SeamPrice, ...]:
    """Share the seams' line of the budget out by the time that each break's seams take in the trace."""
    spent: dict[tuple[int, ...], int] = {}
    count: dict[tuple[int, ...], int] = {}
    for seam in seams:
        spent[seam.owners] = spent.get(seam.owners, 0) + sum(end - start for start, end in seam.stretches)
        count[seam.owners] = count.get(seam.owners, 0) + 1
    total = sum(spent.values())
    if total <= 0:
        return ()
    return tuple(
        SeamPrice(
            owners=owners,
            per_step=count[owners] / max(1, steps),
            host_ms=budget.seams_ms * ns / total,
            cost_ms=budget.seams_ms * ns / total,
        )
        for owners, ns in spent.items()
    )


def _compute(trace: Trace | None, budget: CpuBudget, true_ms: float) -> ComputeFacts:
    """Shares of the step; the type of the math is not in the names of operators."""
    fused = trace is not None and trace.knows(re.compile("_scaled_dot_product_flash_attention_for_cpu"))
    by_hand = trace is not None and trace.knows(re.compile("_scaled_dot_product_attention_math"))
    parts = budget.parts
    return ComputeFacts(
        math_share=parts[Part.OTHER_MATH] / true_ms,
        memory_bound_share=parts[Part.MEMORY_BOUND] / true_ms,
        optimizer_share=parts[Part.OPTIMIZER] / true_ms,
        attention="both" if fused and by_hand else "fused" if fused else "unknown",
        attention_backends=("flash",) if fused else (),
    )


def _compiled(segments: Segments | None) -> CompiledWork | None:
    """How much of the model's operator work lies inside compiled regions."""
    if segments is None or segments.regions_per_step <= 0:
        return None
    classes = (OpClass.MATH, OpClass.MEMORY, OpClass.GRAPH)
    work = np.isin(segments.op_class, classes) & (segments.row != NONE)
    optimizer = [i for i, name in enumerate(segments.phases) if name in ("optimizer", "zero_grad", "data")]
    work &= ~np.isin(segments.phase, optimizer)
    inside = work & ((segments.region > 0) | (segments.op_class == OpClass.GRAPH))
    spent = float(segments.dur_ns[work].sum())
    first = segments.first_of_row
    return CompiledWork(
        kernel_share=float((inside & first).sum()) / max(1, int((work & first).sum())),
        time_share=float(segments.dur_ns[inside].sum()) / spent if spent else 0.0,
        regions=segments.regions_per_step,
    )


def _threads(run: Run | None) -> int:
    value = run.settings.get("threads.intra_op") if run is not None else None
    return value if isinstance(value, int) and value > 0 else 1


def _context(
    *,
    trace: Trace | None,
    segments: Segments | None,
    pools: Pools,
    budget: CpuBudget,
    baseline: Baseline | None,
    supply: InputSupply | None,
    true_ms: float,
) -> dict[str, JsonValue]:
    out = describe_context(trace, segments, pools, budget, true_ms=true_ms)
    if supply is not None:
        out["loader.production_ms"] = supply.production_ms / max(supply.batches_per_step, 1e-9)
        if supply.needed_workers is not None:
            out["loader.needed_workers"] = supply.needed_workers
    if baseline is not None:
        if baseline.faults is not None:
            out["memory.faults_per_step"] = baseline.faults
        if baseline.system_ms is not None and true_ms > 0:
            out["memory.system_share"] = baseline.system_ms / true_ms
        if baseline.gc_ms is not None:
            out["gc.ms_per_step"] = baseline.gc_ms
        out["step.micro_steps"] = baseline.micro_steps
        if segments is not None and (segments.op_class == OpClass.COMMUNICATION).any():
            sent = int((segments.first_of_row & (segments.op_class == OpClass.COMMUNICATION)).sum())
            per_step = sent / max(1, segments.steps)
            out["comm.collectives_per_micro_step"] = per_step / max(1.0, baseline.micro_steps)
    return out
