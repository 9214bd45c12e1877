"""One rank, read as far as it goes: its trace, steps, step time, budget and memory.

In: what ingest found of a rank. Out: `Reading`; a missing piece is reported as a problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..analyzers.sections.view_rows import window_steps
from ..ingest import bundle as ingest
from ..ingest import flops_from_shapes
from ..ingest.memory import read_memory
from ..model.codes import Part
from ..model.diagnosis import BudgetLine
from ..model.finding import Doubt, DoubtCode
from ..model.memory import MemorySummary
from ..model.run import FlopCount
from ..model.view import CodeNode, WindowSteps
from ..timeline.lanes.by_code import rare_nodes
from ..timeline.lanes.program import first_counted
from ..timeline.reading import read_timeline
from ..timeline.result import Timeline
from ..timeline.steps.baseline import read_baseline
from ..timeline.steps.basis import StepBasis, find_basis
from ..timeline.steps.facts import Facts, on_gpu
from ..timeline.steps.kinds import as_traced_ms
from ..timeline.steps.rare import as_often_as_traced_ms, ordinary_steps, with_rare
from ..timeline.steps.recorded import recorded_ms
from ..timeline.steps.starts import with_starts
from ..timeline.steps.traced import Steps, find_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One rank, read as far as it goes."""

    rank: ingest.Rank
    basis: StepBasis
    timeline: Timeline
    steps: Steps | None = None
    flops: FlopCount | None = None
    problems: tuple[str, ...] = ()
    phases_ms: dict[str, float] = field(default_factory=dict)
    windows: tuple[WindowSteps, ...] = ()
    memory: tuple[MemorySummary, ...] = ()


def read_rank(rank: ingest.Rank, true_step_ms: float | None) -> Reading:
    """Read one rank; `true_step_ms` is its step time where the user gave it."""
    trace = rank.trace
    steps = find_steps(trace) if trace is not None and len(trace) else None
    recorded = recorded_ms(trace, steps) if trace is not None and steps is not None else None
    basis = find_basis(
        rank.run, steps, given_ms=true_step_ms, recorded_ms=recorded, loaders=rank.loaders or ()
    )
    flops = _read_flops(rank, steps)
    rare = basis.rare
    readable = steps if steps is None or rare is None else ordinary_steps(steps, rare)
    timeline = _read_timeline(rank, readable, basis, flops, true_ms=basis.ordinary_ms)
    window_ms = _window_ms(basis, steps, recorded) if timeline.alone_ms else None
    if window_ms is not None:
        # Rare on one rank, it is waiting on the others: ranks are compared by all steps.
        whole = _read_timeline(rank, steps, basis, flops, true_ms=window_ms)
        names = ("alone", "alone_ms", "alone_host_ms", "alone_without", "own_work_ms")
        timeline = replace(timeline, window_ms=window_ms, **{name: getattr(whole, name) for name in names})
    if basis.starts is not None:
        timeline = with_starts(timeline, basis.starts)
    if rare is not None:
        nodes: tuple[CodeNode, ...] = ()
        if rank.stacks is not None:
            rare, nodes = rare_nodes(rank.stacks, rare, ordinary_ms=timeline.true_ms)
            basis = replace(basis, rare=rare)
        timeline = with_rare(timeline, rare, nodes=nodes)
    timeline = replace(timeline, doubts=(*timeline.doubts, *basis.doubts))
    memory, memory_problems = read_memory(rank)
    doubts = [doubt.sentences for doubt in timeline.doubts]
    problems = [*rank.problems, *basis.problems, *doubts, *memory_problems]
    if rank.trace_problem:
        problems.append(rank.trace_problem)
    if trace is not None:
        problems += trace.meta.warnings
    if steps is not None and steps.note:
        problems.append(steps.note)
    phases: dict[str, float] = {}
    if basis.run is not None and basis.kept is not None:
        baseline = read_baseline(basis.run, kept=basis.kept)
        if baseline is not None:
            phases = dict(baseline.phases_ms)
            outside = baseline.outside_ms + (rare.ms if rare is not None else 0.0)
            if outside > 0:
                phases["outside"] = outside
    return Reading(
        rank=rank,
        basis=basis,
        timeline=timeline,
        flops=flops,
        steps=steps,
        problems=tuple(dict.fromkeys(problems)),
        phases_ms=phases,
        windows=window_steps(basis.run, steps, kept=basis.kept),
        memory=memory,
    )


def _window_ms(basis: StepBasis, steps: Steps | None, recorded: NDArray[np.float64] | None) -> float | None:
    """Return what the traced steps that count take without a profiler, if they are not like all steps."""
    if steps is None or recorded is None or basis.ordinary_ms is None:
        return None
    first = first_counted(len(steps))
    if basis.rare is not None:
        return basis.ordinary_ms + as_often_as_traced_ms(steps, basis.rare, first=first)
    return as_traced_ms(recorded[max(0, first + len(recorded) - len(steps)) :], basis.timed_ms)


def _read_timeline(
    rank: ingest.Rank,
    steps: Steps | None,
    basis: StepBasis,
    flops: FlopCount | None,
    *,
    true_ms: float | None,
) -> Timeline:
    if true_ms is None:
        # Of a snapshot alone no step is looked for, and those of its own history are told with the memory;
        # of a run the verdict says which steps were seen.
        looked = rank.run is None and rank.trace_path is not None
        doubt = Doubt(code=DoubtCode.NO_STEP_FOUND, text="No training step was found")
        return _nothing_known("gpu" if on_gpu(basis.run) else "cpu", None, doubt if looked else None)
    facts = Facts(
        true_ms=true_ms,
        run=basis.run,
        kept=basis.kept,
        rare=basis.rare,
        loaders=basis.loaders,
        compile_facts=rank.compile,
        true_is_profiled=basis.summary.true_is == "profiled",
        counted=flops.operators if flops is not None else (),
        stacks=rank.stacks,
    )
    found = read_timeline(rank.trace, steps, facts)
    if found is not None:
        return found
    if rank.trace is None:
        return _nothing_known("gpu", true_ms)  # why there is none stands among the rank's problems
    if rank.trace.lacks_launches:
        text = "the trace has kernels, but none of the calls that launched them"
        remedy = "Record the activity types cuda_runtime and cuda_driver, too."
    else:
        text = "a GPU run without device activity in its trace cannot be divided"
        remedy = "Check that CUPTI works (no other profiler attached, enough permissions), and run again."
    return _nothing_known("gpu", true_ms, Doubt(code=DoubtCode.NO_DEVICE_ACTIVITY, text=text, remedy=remedy))


def _nothing_known(kind: str, true_ms: float | None, doubt: Doubt | None = None) -> Timeline:
    line = BudgetLine(part=Part.UNEXPLAINED, ms=true_ms or 0.0, share=1.0 if true_ms else 0.0)
    return Timeline(
        kind="gpu" if kind == "gpu" else "cpu",
        true_ms=true_ms or 0.0,
        profiled_ms=None,
        steps=0,
        budget=(line,) if true_ms else (),
        what_ifs={},
        usable_what_ifs=False,
        doubts=(doubt,) if doubt is not None else (),
    )


def _read_flops(rank: ingest.Rank, steps: Steps | None) -> FlopCount | None:
    """The FLOP count of the run's extra step; for a bare trace, of the shapes in it."""
    if rank.run is not None:
        return rank.run.flops
    trace = rank.trace
    if trace is None or steps is None or not len(steps) or not trace.meta.has_shapes:
        return None
    return flops_from_shapes(
        trace.meta.path,
        low_ns=int(steps.start_ns[0]),
        high_ns=int(steps.end_ns[-1]),
        steps=len(steps),
    )
