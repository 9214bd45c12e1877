"""One side of a comparison from the diagnoses of its runs.

In: diagnoses of runs of the same thing, and the folder that its source paths are told from. Out: a
`Baseline`. Counters are joined by their lower median, with the range where runs disagree; the
budget is the mean over the runs; findings are those of the run in the middle.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import TypeVar

import msgspec

from .. import __version__
from ..model.baseline import Baseline, FindingKey, Machine, RunTime, StateRow
from ..model.codes import Part
from ..model.counters import BreakSite, Counter, StepCounters, SyncSite
from ..model.diagnosis import BudgetLine, Diagnosis
from ..model.run import JsonValue
from ..model.work import LoaderArguments, OptimizerArguments, Workload
from ..stats.interval import relative_error
from .ranks import times_of_ranks

_UNSTABLE_SETTINGS = frozenset(
    ("gc.frozen", "switch_interval_s", "environment.TORCHINDUCTOR_CACHE_DIR", "environment.PYTHONHASHSEED")
)
"""They depend on when and where they are read, not on the step."""
_MOST_FINDINGS = 40
_Moved = TypeVar("_Moved", SyncSite, BreakSite, LoaderArguments, OptimizerArguments)


def join_runs(
    diagnoses: Sequence[Diagnosis], *, root: Path | None = None, watched: Sequence[RunTime | None] = ()
) -> Baseline:
    """Join the runs of one side.

    `watched` gives for each of them the times of the whole job, where it was watched.
    """
    assert diagnoses, "a side has at least one run"
    root = Path.cwd() if root is None else root.absolute()
    first = diagnoses[0]
    middle = _middle(diagnoses)
    counters, unstable = _counters([d.counters for d in diagnoses if d.counters is not None], root)
    measured = [d.step.true_ms for d in diagnoses if d.step.true_ms is not None]
    return Baseline(
        tool_version=__version__,
        title=first.title,
        command=first.command,
        machine=_machine(first),
        workload=_workload(first.workload, root),
        counters=counters,
        unstable=unstable,
        runs=tuple(
            time
            for d, job in zip(diagnoses, watched or repeat(None), strict=False)
            if (time := job or _time(d)) is not None
        ),
        verdict=middle.verdict.bottleneck_class,
        step_ms=_rounded(statistics.fmean(measured)) if measured else None,
        budget=_budget(diagnoses),
        findings=tuple(
            FindingKey(
                code=finding.code,
                title=finding.title,
                bottleneck_class=finding.bottleneck_class,
                cost_ms=_rounded(finding.cost_ms),
                sites=tuple(site.told_from(root) for site in finding.sites[:5]),
            )
            for finding in middle.findings[:_MOST_FINDINGS]
        ),
        settings=_settings(first.settings),
        acceleration=tuple(
            StateRow(name=row.name, state=row.state, value=_steady(row.value)) for row in first.acceleration
        ),
    )


def counters_only(baseline: Baseline) -> Baseline:
    """Leave out everything that was timed: the rest is the same on any machine, byte for byte."""
    return msgspec.structs.replace(baseline, runs=(), step_ms=None, budget=(), findings=(), verdict=None)


def _rounded(value: float | None) -> float | None:
    """Six significant digits: further digits change with every run and mean nothing."""
    return None if value is None else float(f"{value:.6g}")


def _middle(diagnoses: Sequence[Diagnosis]) -> Diagnosis:
    ordered = sorted(diagnoses, key=lambda d: d.step.true_ms if d.step.true_ms is not None else math.inf)
    return ordered[(len(ordered) - 1) // 2]


def _machine(diagnosis: Diagnosis) -> Machine:
    device, host = diagnosis.device, diagnosis.host
    return Machine(
        device_kind=device.kind if device is not None else "",
        device_name=device.name if device is not None else "",
        cpu=host.cpu,
        cores=host.cores,
        python=host.python,
        torch=host.torch,
        cuda=host.cuda,
    )


def _workload(workload: Workload | None, root: Path) -> Workload | None:
    if workload is None:
        return None
    return msgspec.structs.replace(
        workload,
        step_ms=(),
        loaders=tuple(_moved(item, root) for item in workload.loaders),
        optimizers=tuple(_moved(item, root) for item in workload.optimizers),
    )


def _time(diagnosis: Diagnosis) -> RunTime | None:
    """The run's unprofiled step: the mean that `diagnose` reports, with half its 95 % interval over 1.96."""
    step = diagnosis.step
    if step.true_ms is None or step.true_ms <= 0 or step.true_is == "profiled":
        return None
    error = relative_error(step.true_ci_ms, mean=step.true_ms)
    ranks = times_of_ranks(diagnosis)
    of_job = diagnosis.fleet.step_ms if ranks is not None and diagnosis.fleet is not None else None
    step_ms = step.true_ms if of_job is None else of_job
    return RunTime(step_ms=float(f"{step_ms:.6g}"), count=step.count, error=error, ranks=ranks)


def _budget(diagnoses: Sequence[Diagnosis]) -> tuple[BudgetLine, ...]:
    with_budget = [d for d in diagnoses if d.budget]
    if not with_budget:
        return ()
    ms = dict.fromkeys(Part, 0.0)
    for diagnosis in with_budget:
        for line in diagnosis.budget:
            ms[line.part] += line.ms / len(with_budget)
    total = sum(ms.values())
    details = {line.part: line.detail for line in with_budget[0].budget}
    return tuple(
        BudgetLine(
            part=part,
            ms=round(value, 4),
            share=round(value / total, 4) if total else 0.0,
            detail=details.get(part, ""),
        )
        for part, value in ms.items()
        if value > 0
    )


def _counters(
    runs: Sequence[StepCounters], root: Path
) -> tuple[StepCounters | None, dict[str, tuple[float, float]]]:
    if not runs:
        return None, {}
    values: dict[str, Counter] = {}
    absent = dict(runs[0].absent)
    unstable: dict[str, tuple[float, float]] = {}
    for name in runs[0].values:
        found = [run.values[name] for run in runs if name in run.values]
        if len(found) < len(runs):
            absent[name] = next(
                run.absent.get(name, "not measured") for run in runs if name not in run.values
            )
            continue
        ordered = sorted(counter.value for counter in found)
        if ordered[0] != ordered[-1]:
            unstable[name] = (ordered[0], ordered[-1])
        low = min(c.value if c.low is None else c.low for c in found)
        high = max(c.value if c.high is None else c.high for c in found)
        value = ordered[(len(ordered) - 1) // 2]
        values[name] = Counter(value=value) if low == high else Counter(value=value, low=low, high=high)
    # Sites of the run that has most of them: lines may have been recorded in one run only.
    told = max(runs, key=lambda run: sum(site.site is not None for site in run.syncs))
    limits = [run.run_steps for run in runs if run.run_steps is not None]
    return (
        msgspec.structs.replace(
            runs[0],
            values=values,
            absent=absent,
            run_steps=min(limits) if len(limits) == len(runs) else None,
            syncs=tuple(_moved(item, root) for item in told.syncs),
            breaks=tuple(_moved(item, root) for item in runs[0].breaks),
            recompiles=tuple(_moved(item, root) for item in runs[0].recompiles),
            first_step=runs[0].first_step if len({run.first_step for run in runs}) == 1 else None,
            flops_step=runs[0].flops_step if len({run.flops_step for run in runs}) == 1 else None,
            flops_steps=runs[0].flops_steps,
        ),
        unstable,
    )


def _moved(item: _Moved, root: Path) -> _Moved:
    """Return the item's path from the root."""
    return item if item.site is None else msgspec.structs.replace(item, site=item.site.told_from(root))


def _settings(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    flat: dict[str, JsonValue] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return {name: value for name, value in sorted(flat.items()) if name not in _UNSTABLE_SETTINGS}


def _steady(value: str) -> str:
    """Leave measured shares out of a switch's value: "bfloat16, 43% of the step in such kernels"."""
    return ", ".join(part for part in value.split(", ") if "%" not in part)
