"""From a run folder or bare traces to a diagnosis: the only place that composes all the parts.

In: paths. Out: `Diagnosis`, fully resolved. A missing piece lowers the quality and is reported as a
problem. Only a path with nothing readable is an error.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from .. import __version__
from ..analyzers import Facts, find_all
from ..analyzers.capture import judge
from ..analyzers.sections.acceleration import acceleration_rows
from ..analyzers.sections.compile_facts import compile_summary
from ..analyzers.sections.compute_facts import compute_facts
from ..analyzers.sections.context import build_context
from ..analyzers.sections.job_parts import job_parts
from ..analyzers.sections.view_rows import loader_rows
from ..analyzers.verdict import decide, order_causes
from ..catalog.match import applicable, match
from ..fleet.buckets import best_cap_mb, bucket_answer, of_one_rank
from ..fleet.compare import Skew, compare_ranks
from ..ingest import bundle as ingest
from ..model.codes import QuestionKey, WhatIf
from ..model.diagnosis import BucketSizes, Diagnosis, Fleet, WhatIfResult
from ..model.run import HostFacts, JsonValue
from ..model.view import StepTimeline
from ..timeline.result import Timeline
from ..timeline.steps.workload import read_workload
from .all_ranks import Preview, Progress, read_job
from .capture import capture_of, notes_of, outcome_of
from .choice import best_pair, known_savings, measured_savings, verdicts_own_first
from .counted import counters_of
from .ranks import critical, other_versions, summary_of
from .reading import Reading
from .trials import by_measurement, with_measured_pair


def diagnose_paths(
    paths: Sequence[str | os.PathLike[str]],
    *,
    true_step_ms: float | None = None,
    jobs: int = 1,
    scheduler: str = "",
    progress: Progress | None = None,
    preview: Preview | None = None,
) -> Diagnosis:
    """Diagnose what lies on disk.

    Run folders, traces, folders of traces, or addresses of such; several are ranks of one run. `true_step_ms`
    was measured without a profiler, for traces that do not hold it. `preview` is told early what the first
    ranks say together.

    Raises:
        InputError: a path holds nothing that can be read.
    """
    gathered = ingest.load(*paths)
    job = read_job(
        gathered.ranks,
        true_step_ms=true_step_ms,
        jobs=jobs,
        scheduler=scheduler,
        progress=progress,
        preview=preview,
    )
    together = compare_ranks(job.summaries, (*gathered.unread, *job.unread))
    skew = together.skew
    reading = job.reading(critical(job.summaries, skew) if job.summaries else 0)
    if job.summaries:
        reading = _of_a_job(reading, together.fleet)
    lowest = job.reading(next((i for i, each in enumerate(job.summaries) if each.traced), 0))
    run, timeline, step = reading.basis.run, reading.timeline, reading.basis.summary
    buckets = together.buckets
    if not job.summaries and timeline.alone is not None:  # it communicates
        buckets = of_one_rank(summary_of(reading))
    other_buckets = _bucket_answer(buckets, together.fleet if job.summaries else None, step.true_ms)
    facts = _facts(reading, skew, best_cap_mb(buckets, other_buckets))
    findings = find_all(facts)
    problems = [
        *gathered.problems,
        *job.problems,
        *other_versions(job.summaries),
        *reading.problems,
        *(run.warnings if run is not None else ()),
    ]
    what_ifs = dict(timeline.what_ifs) if timeline.usable_what_ifs else {}
    if other_buckets is not None and timeline.usable_what_ifs:
        what_ifs[WhatIf.BUCKET_SIZE] = other_buckets
    compiled, compute = compile_summary(facts), compute_facts(facts)
    settings = dict(run.settings) if run is not None else {}
    matched = match(
        findings,
        facts.context,
        what_ifs,
        step.true_ms,
        breaks=compiled.breaks if compiled is not None else (),
    )
    others = applicable(matched, facts.context, what_ifs)
    rare = reading.basis.rare
    evaluation_ms = rare.ms if rare is not None and rare.ungraded else 0.0
    tried = by_measurement(
        matched, reading.rank.tried, run, step.true_ms, others=others, evaluation_ms=evaluation_ms
    )
    measured = measured_savings(tried, step.true_ms)
    verdict = decide(facts, findings, judge(facts), fixes=known_savings(matched), measured=measured)
    codes = {finding.code for finding in findings if not finding.note}
    suggestions = verdicts_own_first(tried, verdict, codes, step.true_ms)
    suggested = {s.fix for s in suggestions}
    return Diagnosis(
        tool_version=__version__,
        created=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        title=reading.rank.title,
        command=tuple(run.command) if run is not None else (),
        verdict=verdict,
        step=step,
        budget=timeline.budget,
        causes=order_causes(facts, findings, verdict, measured=measured),
        findings=findings,
        suggestions=suggestions,
        applicable=tuple(s for s in others if s.fix not in suggested),
        combination=with_measured_pair(
            best_pair([s for s in suggestions if s.helps is not False], timeline, step.true_ms),
            reading.rank.tried,
            run,
            step.true_ms,
            evaluation_ms=evaluation_ms,
        ),
        what_ifs=tuple(sorted(what_ifs.values(), key=lambda answer: -answer.saves_ms)),
        kernels=timeline.kernels,
        memory=reading.memory,
        phases_ms=reading.phases_ms,
        settings=settings,
        acceleration=acceleration_rows(facts.context, settings, compute=compute, compiled=compiled),
        compile=compiled,
        compute=compute,
        device=run.devices[0] if run is not None and run.devices else None,
        host=run.host if run is not None else HostFacts(),
        rank=reading.rank.rank,
        ranks=tuple(
            msgspec.structs.replace(row, source=rank.source)
            for row, rank in zip(together.rows, job.ranks, strict=True)
        )
        if len(job.summaries) > 1
        else (),
        buckets=buckets,
        fleet=together.fleet if len(job.ranks) > 1 or together.fleet.unread else None,
        counters=counters_of(lowest),
        workload=read_workload(lowest.basis.run, lowest.rank.loaders, lowest.basis.kept),
        capture=capture_of(reading, facts, problems),
        outcome=outcome_of(run),
        notes=notes_of(
            reading,
            len(job.ranks),
            timed=sum(not s.traced and s.has_step for s in job.summaries),
            told={site for finding in findings for site in finding.sites},
        ),
        windows=reading.windows,
        timeline=_of_rank(timeline, reading.rank.rank),
        loaders=loader_rows(reading.rank.loaders or ()),
        job=job_parts(reading.rank.run, reading.rank.loaders or (), step.true_ms),
        device_lines=timeline.device_lines,
        device_calls=timeline.device_calls,
        tree=timeline.tree,
    )


def _of_a_job(reading: Reading, fleet: Fleet) -> Reading:
    """Return the reading of a rank with what only all ranks together tell of its step."""
    told: dict[QuestionKey, WhatIfResult] = {
        each.question: each for each in fleet.what_ifs if each.question is WhatIf.WORK_DEALT
    }
    what_ifs = {**reading.timeline.what_ifs, **told}
    return replace(reading, timeline=replace(reading.timeline, what_ifs=what_ifs))


def _bucket_answer(
    found: BucketSizes | None, fleet: Fleet | None, true_ms: float | None
) -> WhatIfResult | None:
    """Return the step with gradient buckets of the best size: of all ranks together, or of the only one."""
    if fleet is not None:
        return next((each for each in fleet.what_ifs if each.question is WhatIf.BUCKET_SIZE), None)
    return bucket_answer(found, step_ms=true_ms, basis="replay of this rank") if true_ms is not None else None


def _facts(reading: Reading, skew: Skew | None, bucket_cap_mb: int | None) -> Facts:
    """Collect the facts by which the analyzers judge the deciding rank."""
    rank, run, timeline, step = reading.rank, reading.basis.run, reading.timeline, reading.basis.summary
    context = build_context(
        timeline=timeline,
        step=step,
        run=run,
        loaders=reading.basis.loaders if rank.loaders is not None else None,
        compile_facts=rank.compile,
        memory=reading.memory,
        extra=_of_several(skew, bucket_cap_mb, bare=run is None),
    )
    return Facts(
        timeline=timeline,
        step=step,
        run=run,
        loaders=reading.basis.loaders,
        compile=rank.compile,
        flops=reading.flops,
        memory=reading.memory,
        context=context,
        phases_ms=reading.phases_ms,
        rank=rank.rank,
    )


def _of_several(skew: Skew | None, bucket_cap_mb: int | None, *, bare: bool) -> dict[str, JsonValue]:
    """Return the facts about several ranks; for bare traces, that there were at least as many."""
    known: dict[str, JsonValue] = {"distributed.bucket_cap_mb": bucket_cap_mb}
    if skew is not None:
        known["comm.rank_skew_ms"] = skew.exposed_ms
        if bare:
            known["distributed.world_size"] = len(skew.waits_ms)
    return known


def _of_rank(timeline: Timeline, rank: int) -> StepTimeline | None:
    view = timeline.view
    return None if view is None else msgspec.structs.replace(view, rank=rank)
