"""The rest of the job: what a captured run has seen that comes once, beside the steps that it is about.

In: run.json, loader.json and the true step. Out: `JobPart` rows, in the order in which they happen. They
cover the time from the script's first line to the end of the first steps; what came later was not watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ...model.run import LoaderFacts, Run, StepTable
from ...model.view import JobPart
from ...model.watch import FIRST_STEPS
from ...timeline.steps.supply import training_loader

_LEAST_S = 0.05
"""Less is not worth a line, in whatever job."""


def job_parts(run: Run | None, loaders: Sequence[LoaderFacts], true_ms: float | None) -> tuple[JobPart, ...]:
    """Return what comes once; nothing for bare traces and where no first step was seen."""
    warm_up = run.window("warm-up") if run is not None else None
    if run is None or warm_up is None or not warm_up.steps.index or warm_up.steps.index[0] != 0:
        return ()
    # Earlier versions did not write down when a step began.
    parts = [part for first_ns in warm_up.steps.start_ns[:1] for part in _before(run, first_ns)]
    if true_ms is not None:
        parts += _beyond_usual(run, warm_up.steps, loaders, true_ms)
    return tuple(part for part in parts if part.s >= _LEAST_S)


def _before(run: Run, first_step_ns: int) -> Iterator[JobPart]:
    """Yield what lies before the first step."""
    if run.began_ns is None:
        return
    torch_s = (run.torch_import_ms or 0.0) / 1e3
    if torch_s:
        yield JobPart(part="import of torch", s=round(torch_s, 3))
    rest_s = (first_step_ns - run.began_ns) / 1e9 - torch_s - run.install_ms / 1e3
    yield JobPart(
        part="set-up", s=round(max(0.0, rest_s), 3), what="other imports, data, model, up to the first step"
    )


def _beyond_usual(
    run: Run, table: StepTable, loaders: Sequence[LoaderFacts], true_ms: float
) -> Iterator[JobPart]:
    """Yield what the first steps took beyond usual ones: the first batch, compilations, the rest."""
    baseline = run.window("baseline")
    usual = baseline.steps.phases_ms.get("data", []) if baseline is not None else []
    # Of the mean, steps that start workers anew may be the most.
    usual_ms = median(usual) if usual else 0.0
    batch_ms = max(0.0, table.phases_ms["data"][0] - usual_ms) if "data" in table.phases_ms else 0.0
    loader = training_loader(loaders)
    workers = loader.num_workers if loader is not None else 0
    yield JobPart(
        part="first batch",
        s=round(batch_ms / 1e3, 3),
        what=f"{workers} workers start, and it is waited for" if workers else "it is waited for",
        site=loader.site if loader is not None else None,
    )
    compiled_ms = other_ms = 0.0
    steps = 0
    for i, ms in enumerate(table.wall_ms):
        beyond_ms = ms - true_ms - (batch_ms if i == 0 else 0.0)
        if table.compiled and table.compiled[i]:
            compiled_ms += beyond_ms
            steps += 1
        elif i < FIRST_STEPS and not (table.validation and table.validation[i]):
            other_ms += beyond_ms
    yield JobPart(
        part="compiling", s=round(max(0.0, compiled_ms) / 1e3, 3), what=f"in {steps} of the first steps"
    )
    yield JobPart(
        part="first steps",
        s=round(max(0.0, other_ms) / 1e3, 3),
        what=f"the first {min(FIRST_STEPS, len(table.wall_ms))}, beyond usual ones",
    )
