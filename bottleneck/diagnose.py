"""From a run folder or bare traces to a diagnosis: the only place that composes all the parts.

In: paths. Out: `Diagnosis`, fully resolved. A missing piece lowers the quality and is told as a
problem; only a path that holds nothing readable is an error.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np

from . import __version__
from .analyzers import Facts, find_all
from .analyzers.acceleration import acceleration_rows
from .analyzers.capture import judge
from .analyzers.compile_facts import compile_summary
from .analyzers.compute_facts import compute_facts
from .analyzers.context import build_context
from .analyzers.step_summary import StepBasis, find_basis
from .analyzers.verdict import decide, order_causes
from .analyzers.view_rows import loader_rows, window_steps
from .catalog.match import applicable, match
from .catalog.registry import by_id
from .ingest import bundle as ingest
from .ingest import flops_from_shapes
from .ingest.memory import read_memory
from .ingest.source_text import line_text
from .model.codes import FINDING_CODES, Part
from .model.counters import BreakSite, StepCounters, SyncSite
from .model.diagnosis import BudgetLine, Capture, Combination, Diagnosis, RankRow, Verdict
from .model.fix import Suggestion
from .model.memory import MemorySummary
from .model.run import FlopCount, HostFacts, Run
from .model.view import StepTimeline, WindowSteps
from .timeline.collectives import Skew, collective_ns, rank_skew
from .timeline.counters import count_steps
from .timeline.cpu import read_cpu
from .timeline.cpu_baseline import read_baseline
from .timeline.dialect import DEVICE_KINDS, kinds
from .timeline.gpu import read_gpu
from .timeline.recorded import recorded_ms
from .timeline.result import Timeline
from .timeline.steps import Steps, find_steps
from .timeline.workload import read_workload

__all__ = ["diagnose_paths"]


_Placed = TypeVar("_Placed", SyncSite, BreakSite)
_EQUAL = 1.01
_WORTH_COMBINING = 0.03
"""Share of the step that a second fix must add to the first to be named with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankReading:
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


def _nothing_known(kind: str, true_ms: float | None, problem: str) -> Timeline:
    line = BudgetLine(part=Part.UNEXPLAINED, ms=true_ms or 0.0, share=1.0 if true_ms else 0.0)
    return Timeline(
        kind="gpu" if kind == "gpu" else "cpu",
        true_ms=true_ms or 0.0,
        profiled_ms=None,
        steps=0,
        budget=(line,) if true_ms else (),
        what_ifs={},
        usable_what_ifs=False,
        problems=(problem,) if problem else (),
    )


def _on_gpu(run: Run | None) -> bool:
    return run is not None and any(device.kind in ("cuda", "rocm") for device in run.devices)


def _read_timeline(
    rank: ingest.Rank, steps: Steps | None, basis: StepBasis, flops: FlopCount | None
) -> Timeline:
    true_ms = basis.summary.true_ms
    gpu = _on_gpu(basis.run)
    if true_ms is None:
        return _nothing_known("gpu" if gpu else "cpu", None, "No training step was found.")
    trace = rank.trace
    has_device = trace is not None and bool(np.isin(kinds(trace), DEVICE_KINDS).any())
    if trace is not None and steps is not None and has_device:
        found = read_gpu(
            trace,
            steps,
            true_ms=true_ms,
            run=basis.run,
            kept=basis.kept,
            loaders=rank.loaders or (),
            compile_facts=rank.compile,
            true_is_profiled=basis.summary.true_is == "profiled",
            counted=flops.operators if flops is not None else (),
        )
        if found is not None:
            return found
    if gpu:
        return _nothing_known(
            "gpu",
            true_ms,
            "A GPU run without device activity in its trace cannot be divided: check that CUPTI works "
            "(no other profiler attached, enough permissions), and run again.",
        )
    return read_cpu(
        trace,
        steps,
        true_ms=true_ms,
        run=basis.run,
        kept=basis.kept,
        loaders=rank.loaders or (),
        compile_facts=rank.compile,
    )


def _read_flops(rank: ingest.Rank, steps: Steps | None) -> FlopCount | None:
    """The count of the run's own step; for a bare trace what its shapes tell."""
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


def _read_rank(rank: ingest.Rank, true_step_ms: float | None) -> _RankReading:
    trace = rank.trace
    steps = find_steps(trace) if trace is not None and len(trace) else None
    recorded = recorded_ms(trace, steps) if trace is not None and steps is not None else None
    basis = find_basis(rank.run, steps, given_ms=true_step_ms, recorded_ms=recorded)
    flops = _read_flops(rank, steps)
    timeline = _read_timeline(rank, steps, basis, flops)
    memory, memory_problems = read_memory(rank)
    problems = [*rank.problems, *basis.problems, *timeline.problems, *memory_problems]
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
            if baseline.outside_ms > 0:
                phases["outside"] = baseline.outside_ms
    return _RankReading(
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


def _skew(readings: Sequence[_RankReading]) -> Skew | None:
    if len(readings) < 2:
        return None
    traces = [reading.rank.trace for reading in readings]
    durations = [collective_ns(trace, kinds(trace)) for trace in traces if trace is not None]
    if len(durations) < len(readings):
        return None
    return rank_skew(durations, min(reading.timeline.steps for reading in readings))


def _critical(readings: Sequence[_RankReading], skew: Skew | None) -> _RankReading:
    """The rank that the others wait for in their collectives; without any, the slowest one."""
    # Of snapshots without a step time, the fullest.
    slowest = max(
        readings,
        key=lambda r: (r.timeline.true_ms, max((m.peak_bytes for m in r.memory), default=0)),
    )
    if skew is None or skew.skew_ms < 0.02 * slowest.timeline.true_ms:
        return slowest
    return readings[skew.critical]


def _rank_rows(readings: Sequence[_RankReading], skew: Skew | None) -> tuple[RankRow, ...]:
    if len(readings) < 2:
        return ()
    rows = []
    for i, reading in enumerate(readings):
        idle = reading.timeline.context.get("step.idle_share")
        rows.append(
            RankRow(
                rank=reading.rank.rank,
                step_ms=reading.basis.summary.true_ms,
                busy_share=1.0 - float(idle) if isinstance(idle, (int, float)) else None,
                waits_for_others_ms=float(skew.waits_ms[i]) if skew is not None else None,
                path=_name(reading.rank),
            )
        )
    return tuple(rows)


def _name(rank: ingest.Rank) -> str:
    path = rank.folder or rank.trace_path or rank.snapshot_path
    return path.name if path is not None else ""


def _capture(reading: _RankReading, facts: Facts, problems: Sequence[str]) -> Capture:
    quality = judge(facts)
    run, timeline, step = reading.basis.run, reading.timeline, reading.basis.summary
    overhead: dict[str, float] = {}
    artefacts: dict[str, str] = {}
    if run is not None:
        measured = msgspec.to_builtins(run.overhead)
        overhead = {k: float(v) for k, v in measured.items() if isinstance(v, (int, float))}
        artefacts = {
            name: item.status if item.status == "ok" else f"{item.status}: {item.reason or 'no reason'}"
            for name, item in run.artefacts.items()
        }
    inflation = None
    if step.profiled_ms and step.true_ms and step.true_is != "profiled":
        inflation = step.profiled_ms / step.true_ms
    return Capture(
        quality=quality.grade,
        problems=tuple(dict.fromkeys([*quality.reasons, *problems])),
        replay_error=timeline.replay_error,
        dispatch_scale=timeline.dispatch_scale,
        inflation=inflation,
        launches=timeline.launches,
        kernels=timeline.device_activities,
        missing_kernels=timeline.missing_activities,
        overhead=overhead,
        artefacts=artefacts,
    )


def _counters(reading: _RankReading) -> StepCounters:
    rank, timeline = reading.rank, reading.timeline
    counters = count_steps(
        rank.trace,
        reading.steps,
        run=rank.run,
        compile_facts=rank.compile,
        missing=timeline.missing_activities or 0,
    )
    return counters if rank.run is None else _quoted(counters, rank.run)


def _quoted(counters: StepCounters, run: Run) -> StepCounters:
    """Quote the lines: by its text a line is found again after it has moved."""

    def quote(item: _Placed) -> _Placed:
        if item.site is None:
            return item
        return msgspec.structs.replace(item, code=line_text(item.site, run))

    return msgspec.structs.replace(
        counters,
        syncs=tuple(map(quote, counters.syncs)),
        breaks=tuple(map(quote, counters.breaks)),
        recompiles=tuple(map(quote, counters.recompiles)),
    )


def _made_for(suggestion: Suggestion, codes: set[str]) -> str:
    """The finding that a fix names first, if it was found at all."""
    first = next(iter(by_id(suggestion.fix).addresses), "")
    return first if first in codes else ""


def _answers_first(
    suggestions: Sequence[Suggestion], verdict: Verdict, codes: set[str]
) -> tuple[Suggestion, ...]:
    """Put the best fix of the verdict's own class first: it is what the headline speaks of.

    A fix of another class may promise more and yet presuppose this one: a CUDA graph cannot be
    captured over a synchronisation.
    """
    able = [
        s
        for s in suggestions
        if s.predicted_ms is not None
        and FINDING_CODES[s.finding].bottleneck_class is verdict.bottleneck_class
    ]
    if not able:
        return tuple(suggestions)
    best = min(s.predicted_ms for s in able if s.predicted_ms is not None)
    # Of equals the one made for the most specific finding: a family of codes begins with the general.
    equals = [s for s in able if s.predicted_ms is not None and s.predicted_ms <= _EQUAL * best]
    if able[0] in equals:
        able[0] = max(equals, key=lambda s: _made_for(s, codes))
    return (able[0], *(s for s in suggestions if s is not able[0]))


def _of_rank(timeline: Timeline, rank: int) -> StepTimeline | None:
    view = timeline.view
    return None if view is None else msgspec.structs.replace(view, rank=rank)


def _combination(
    suggestions: Sequence[Suggestion], timeline: Timeline, true_ms: float | None
) -> Combination | None:
    """The first suggestion with the one that adds most to it."""
    if not suggestions or true_ms is None or not timeline.usable_what_ifs:
        return None
    first, *others = suggestions
    question = by_id(first.fix).what_if
    best: Combination | None = None
    for other in others:
        its = by_id(other.fix).what_if
        if question is None or its is None or (question, its) not in timeline.after:
            continue
        both = timeline.after[question, its]
        alone = min(s.predicted_ms for s in (first, other) if s.predicted_ms is not None)
        if both < alone - _WORTH_COMBINING * true_ms and (best is None or both < best.predicted_ms):
            best = Combination(
                fixes=(first.fix, other.fix), predicted_ms=both, bound=first.bound or other.bound
            )
    return best


def _outcome(run: Run | None) -> str:
    if run is None:
        return ""
    ended = run.outcome
    texts = {
        "raised": f"The script raised {ended.exception or 'an exception'}.",
        "exited": f"The script ended with exit code {ended.exit_code}.",
        "interrupted": "The script was interrupted.",
        "killed": "The script was killed before the capture was complete.",
    }
    text = texts.get(ended.how, "")
    if ended.out_of_memory:
        text = f"The script ran out of memory. {text}".strip()
    return text


def _notes(reading: _RankReading, several: int) -> tuple[str, ...]:
    notes = list(reading.basis.notes)
    if several > 1:
        notes.append(
            f"{several} ranks; figures are those of rank {reading.rank.rank}, which decides the step."
        )
    run = reading.basis.run
    if run is not None:
        notes += run.outcome.notes
        if run.outcome.diverted_saves:
            notes.append(
                f"{len(run.outcome.diverted_saves)} save(s) after the stop went into the run folder instead."
            )
    return tuple(dict.fromkeys(notes))


def diagnose_paths(
    paths: Sequence[str | os.PathLike[str]], *, true_step_ms: float | None = None
) -> Diagnosis:
    """Diagnose what lies on disk.

    Args:
        paths: run folders, traces or folders of traces; several are ranks of one run.
        true_step_ms: step time measured without a profiler, for traces that do not hold it.

    Raises:
        InputError: a path holds nothing that can be read.
    """
    gathered = ingest.load(*paths)
    readings = [_read_rank(rank, true_step_ms) for rank in gathered.ranks]
    skew = _skew(readings)
    reading = _critical(readings, skew)
    run, timeline, step = reading.basis.run, reading.timeline, reading.basis.summary
    context = build_context(
        timeline=timeline,
        step=step,
        run=run,
        loaders=reading.rank.loaders,
        compile_facts=reading.rank.compile,
        memory=reading.memory,
        extra={"comm.rank_skew_ms": skew.skew_ms} if skew is not None else {},
    )
    facts = Facts(
        timeline=timeline,
        step=step,
        run=run,
        loaders=reading.rank.loaders or (),
        compile=reading.rank.compile,
        flops=reading.flops,
        memory=reading.memory,
        context=context,
        phases_ms=reading.phases_ms,
        rank=reading.rank.rank,
    )
    findings = find_all(facts)
    quality = judge(facts)
    verdict = decide(facts, findings, quality)
    problems = [*gathered.problems, *reading.problems, *(run.warnings if run is not None else ())]
    what_ifs = timeline.what_ifs if timeline.usable_what_ifs else {}
    compiled, compute = compile_summary(facts), compute_facts(facts)
    settings = dict(run.settings) if run is not None else {}
    suggestions = _answers_first(
        match(
            findings,
            context,
            what_ifs,
            step.true_ms,
            breaks=compiled.breaks if compiled is not None else (),
        ),
        verdict,
        {f.code for f in findings if not f.note},
    )
    return Diagnosis(
        tool_version=__version__,
        created=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        title=gathered.title,
        command=tuple(run.command) if run is not None else (),
        verdict=verdict,
        step=step,
        budget=timeline.budget,
        causes=order_causes(facts, findings, verdict),
        findings=findings,
        suggestions=suggestions,
        applicable=applicable(suggestions, context, what_ifs),
        combination=_combination(suggestions, timeline, step.true_ms),
        what_ifs=tuple(sorted(what_ifs.values(), key=lambda answer: -answer.saves_ms)),
        kernels=timeline.kernels,
        memory=reading.memory,
        phases_ms=reading.phases_ms,
        settings=settings,
        acceleration=acceleration_rows(context, settings, compute=compute, compiled=compiled),
        compile=compiled,
        compute=compute,
        device=run.devices[0] if run is not None and run.devices else None,
        host=run.host if run is not None else HostFacts(),
        ranks=_rank_rows(readings, skew),
        counters=_counters(readings[0]),
        workload=read_workload(readings[0].basis.run, readings[0].rank.loaders, readings[0].basis.kept),
        capture=_capture(reading, facts, problems),
        outcome=_outcome(run),
        notes=_notes(reading, len(readings)),
        windows=reading.windows,
        timeline=_of_rank(timeline, reading.rank.rank),
        loaders=loader_rows(reading.rank.loaders or ()),
    )
