"""The top of the page: the large figures under the verdict, and the step budget in groups.

In: a diagnosis. Out: rows of clean text, for the templates.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from ...model.codes import BUDGET_PARTS, Part
from ...model.diagnosis import Diagnosis
from ...model.words import clean, milliseconds, percent, times
from ..rows.diagnosis import is_bound
from ..rows.fixes import fix_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One of the large figures under the verdict."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    how: str = ""
    """Topic in how.HOW."""


def figures(diagnosis: Diagnosis, *, undetermined: bool) -> tuple[Figure, ...]:
    """Return the step time, the cost of the first cause, the gain of the first fix, and the quality."""
    step = diagnosis.step
    note, how = "", "step"
    if step.true_ms is not None and step.true_is == "profiled":
        note, how = "profiled, so inflated", "step_profiled"
    elif step.true_is == "given":
        note, how = "as given", "step_given"
    elif step.true_ci_ms is not None:
        low, high = (milliseconds(value, like=step.true_ms) for value in step.true_ci_ms)
        note = f"95 %: {low} to {high}; {step.count} steps, without the profiler"
    shown = [
        Figure(
            label="Step time",
            value=milliseconds(step.true_ms),
            unit="ms" if step.true_ms is not None else "",
            note=note,
            how=how,
        )
    ]
    worth = [cause for cause in diagnosis.causes if not cause.negligible]
    if worth and not undetermined:
        cause = worth[0]
        most = " at most" if is_bound(diagnosis, cause) else ""
        shown.append(
            Figure(
                label=f"{cause.bottleneck_class.value} costs{most}",
                value=milliseconds(cause.cost_ms, like=step.true_ms),
                unit="ms",
                note=f"{percent(cause.share)} of the step",
                how="cost",
            )
        )
    shown += _prediction(diagnosis)
    shown.append(
        Figure(
            label="Capture",
            value=diagnosis.capture.quality,
            note=_trust(diagnosis),
            how="capture",
        )
    )
    return tuple(shown)


def _prediction(diagnosis: Diagnosis) -> list[Figure]:
    """Return the gain of the first fix on the page."""
    true_ms = diagnosis.step.true_ms
    rows = fix_rows(diagnosis)
    first = next((i for i, row in enumerate(rows) if not row.minor), None)
    if first is None or true_ms is None:
        return []
    suggestion = diagnosis.suggestions[first]
    measured = suggestion.measured
    if measured is not None and measured.verdict == "faster" and measured.step_ms:
        return [
            Figure(
                label="Step with the fix, measured",
                value=milliseconds(measured.step_ms, like=true_ms),
                unit="ms",
                note=f"{times(true_ms, measured.step_ms)} as fast, with {clean(suggestion.fix)}",
                how="measured_here",
            )
        ]
    if suggestion.predicted_ms is None:
        return []
    faster = f"{times(true_ms, suggestion.predicted_ms)} as fast" if suggestion.predicted_ms > 0 else ""
    return [
        Figure(
            label="Step with the fix, at best" if suggestion.bound else "Step with the fix",
            value=milliseconds(suggestion.predicted_ms, like=true_ms),
            unit="ms",
            note=f"{faster}, with {clean(suggestion.fix)}",
            how="predicted",
        )
    ]


def _trust(diagnosis: Diagnosis) -> str:
    capture = diagnosis.capture
    if capture.replay_error is not None:
        return f"replay off by {percent(capture.replay_error)}"
    if capture.inflation is not None:
        return f"profiled step {capture.inflation:.2f}× the true one, corrected"
    return ""


def budget_groups(diagnosis: Diagnosis, *, gpu: bool) -> tuple[SimpleNamespace, ...]:
    """Return the budget as device work and the rest, the larger first; bars have a width in %."""
    groups: dict[str, list[SimpleNamespace]] = {}
    sums: dict[str, list[float]] = {}
    work = "GPU at work" if gpu else "Operators at work"
    rest = "GPU idle, by what the host did" if gpu else "Everything else in the step"
    largest = max((line.share for line in diagnosis.budget), default=0.0)
    for line in sorted(diagnosis.budget, key=lambda line: (line.part is Part.UNEXPLAINED, -line.ms)):
        title = work if BUDGET_PARTS[line.part].device in ("computes", "moves") else rest
        groups.setdefault(title, []).append(
            SimpleNamespace(
                part=list(Part).index(line.part),
                label=line.part.value,
                ms=milliseconds(line.ms, like=diagnosis.step.true_ms),
                share=percent(line.share),
                width=round(100 * max(line.share, 0.0) / largest, 2) if largest > 0 else 0.0,
                detail=clean(line.detail),
            )
        )
        sums.setdefault(title, []).append(line.ms)
    true_ms = diagnosis.step.true_ms
    ordered = sorted(groups, key=lambda title: -sum(sums[title]))
    return tuple(
        SimpleNamespace(
            title=title,
            ms=milliseconds(sum(sums[title]), like=true_ms),
            share=percent(sum(sums[title]) / true_ms) if true_ms else "-",
            rows=tuple(groups[title]),
        )
        for title in ordered
    )
