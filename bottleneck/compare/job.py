"""Compares watched jobs: the whole, its parts, and how the steps grow.

In: the accounts of the jobs of either side. Out: `PartChange` rows and a `GrowthChange`. Of the times only
the whole job counts for the outcome; its parts say where the difference lies. A growth was found significant
in a job of its own, so that one job a side is enough to compare it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..model.baseline import Baseline, GrowthKey, JobTimes, RunTime
from ..model.compare import GrowthChange, PartChange
from ..model.gate import GateSettings
from ..model.watch import PARTS, Watch
from ..stats.interval import mean_interval, relative_error
from .comparable import same_machine
from .times import compare_runs

WHOLE = "whole job"
_LEAST = 0.005
"""Of the job: parts that are smaller on both sides are left out."""


def time_of_job(watch: Watch, *, root: Path) -> RunTime | None:
    """Return what a comparison needs of one job; None where no usual step was seen."""
    steps = next((line for line in watch.account if line.part == "training steps"), None)
    if steps is None or steps.ms_each is None or steps.ms_each <= 0:
        return None
    # The interval knows how the steps vary over the job; of stretches as good as of steps.
    interval = mean_interval(watch.step_times.ms)
    mean_ms = statistics.fmean(watch.step_times.ms) if watch.step_times.ms else 0.0
    error = relative_error(interval, mean=mean_ms)
    return RunTime(
        step_ms=float(f"{steps.ms_each:.6g}"), count=steps.count, error=error, job=_job_of(watch, root=root)
    )


def _job_of(watch: Watch, *, root: Path) -> JobTimes:
    first = watch.growth[0] if watch.growth else None
    growth = None
    if first is not None:
        named = first.objects_per_step is not None
        growth = GrowthKey(
            ms_per_1000_steps=first.ms_per_1000_steps,
            low=first.low,
            high=first.high,
            what=first.what if named else "",
            site=first.site.told_from(root) if first.site is not None else None,
        )
    return JobTimes(
        wall_s=watch.wall_s,
        steps=watch.steps,
        seconds={line.part: line.s for line in watch.account},
        counts={line.part: line.count for line in watch.account if line.ms_each is not None},
        growth=growth,
    )


def compare_jobs(
    base: Baseline, head: Baseline, *, settings: GateSettings, interleaved: bool
) -> tuple[PartChange, ...]:
    """Return the whole job, then its parts, the largest change first; none where a side was not watched."""
    if not base.jobs or not head.jobs:
        return ()

    def change(part: str, **which: bool) -> PartChange:
        one, other = _times(part, base.jobs), _times(part, head.jobs)
        if one.number is None or other.number is None:
            one, other = _whole_of(one), _whole_of(other)
        time = compare_runs(
            one.ms,
            other.ms,
            settings=settings,
            interleaved=interleaved,
            same_machine=same_machine(base, head),
        )
        return PartChange(
            part=part,
            base_s=one.s,
            head_s=other.s,
            base_count=one.number,
            head_count=other.number,
            time=msgspec.structs.replace(time, **which),
        )

    least = _LEAST * min(job.wall_s for job in (*base.jobs, *head.jobs))
    # The parts explain the whole, as the lines of the budget explain the step.
    parts = [change(part, gated=False) for part in PARTS]
    shown = [row for row in parts if max(row.base_s, row.head_s) >= least]
    return (change(WHOLE), *sorted(shown, key=lambda row: -abs(row.head_s - row.base_s)))


class _Times(NamedTuple):
    """One part on one side."""

    s: float
    """The median over the jobs."""
    number: int | None
    ms: list[float]
    """Per job that had it: of one occurrence, if it comes one by one; else of all of it."""
    whole_ms: list[float]


def _times(part: str, jobs: Sequence[JobTimes]) -> _Times:
    pairs = [
        (job.wall_s if part == WHOLE else job.seconds.get(part, 0.0), job.counts.get(part)) for job in jobs
    ]
    counts = [count for _, count in pairs if count is not None and count > 0]
    whole_ms = [1e3 * s for s, _ in pairs if s > 0]
    return _Times(
        s=statistics.median(s for s, _ in pairs),
        number=statistics.median_low(counts) if counts else None,
        ms=[1e3 * s / count for s, count in pairs if count is not None and count > 0 and s > 0]
        if counts
        else whole_ms,
        whole_ms=whole_ms,
    )


def _whole_of(times: _Times) -> _Times:
    return times._replace(number=None, ms=times.whole_ms)


def compare_growth(base: Baseline, head: Baseline) -> GrowthChange | None:
    """Compare how the steps grow, in the middle run of either side; None where a side was not watched."""
    if not base.jobs or not head.jobs:
        return None
    one, other = _middle(base.jobs), _middle(head.jobs)
    status: str = "same"
    if other is not None and other.low > (one.high if one is not None else 0.0):
        status = "worse"
    elif one is not None and (other is None or other.high < one.low):
        status = "better"
    return GrowthChange(
        status=status,  # type: ignore[arg-type]
        base=one.ms_per_1000_steps if one is not None else 0.0,
        base_interval=(one.low, one.high) if one is not None else None,
        head=other.ms_per_1000_steps if other is not None else 0.0,
        head_interval=(other.low, other.high) if other is not None else None,
        what=other.what if other is not None else "",
        site=other.site if other is not None else None,
    )


def _middle(jobs: Sequence[JobTimes]) -> GrowthKey | None:
    ordered = sorted(
        (job.growth for job in jobs), key=lambda growth: 0.0 if growth is None else growth.ms_per_1000_steps
    )
    return ordered[(len(ordered) - 1) // 2]
