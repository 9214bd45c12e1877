"""The head of the page and what stands in every report: verdict, budget, causes, fixes, settings.

In: a diagnosis. Out: `Page`, plain rows of clean text; the templates only lay them out and escape them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...model.codes import BottleneckClass, Part
from .. import details
from ..rows import (
    CauseRow,
    FixRow,
    capture_line,
    cause_rows,
    combination_line,
    device_line,
    fix_rows,
    headline,
)
from ..wording import clean, milliseconds, percent, times
from .charts import blocks_of
from .sections import (
    Facts,
    compile_section,
    compute_facts,
    kernel_rows,
    loader_rows,
    memory_sections,
    rank_rows,
    window_rows,
)

if TYPE_CHECKING:
    from ...model.diagnosis import Diagnosis
    from .sections import CompileSection, KernelCells, LoaderCells, MemorySection, RankCells, WindowCells

__all__ = ["Figure", "Page", "build"]

_WORK = (
    Part.TENSOR_CORE,
    Part.OTHER_MATH,
    Part.MEMORY_BOUND,
    Part.OPTIMIZER,
    Part.COMMUNICATION,
    Part.COPIES,
)
_FEW_FIXES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One of the large figures under the verdict."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    how: str = ""
    """Topic in how.HOW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCells:
    """One line of the budget."""

    part: int
    label: str
    ms: str
    share: str
    width: float
    """Of the bar, in %."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGroup:
    """Lines that belong together, with their sum."""

    title: str
    ms: str
    share: str
    rows: tuple[BudgetCells, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseCells:
    """One cause, with where it shows on the timeline."""

    row: CauseRow
    width: float
    blocks: int
    blocks_ms: str
    index: int
    """Among all causes of the diagnosis, as the page's script knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that the templates lay out."""

    title: str
    verdict: str
    classes: tuple[str, ...]
    undetermined: bool
    confidence: str
    headline: str
    reason: str
    remedy: str
    outcome: str
    where: str
    command: str
    created: str
    version: str
    figures: tuple[Figure, ...]
    first_fix: FixRow | None
    fixes: tuple[FixRow, ...]
    more_fixes: tuple[FixRow, ...]
    notes_fixes: tuple[FixRow, ...]
    combination: str
    budget: tuple[BudgetGroup, ...]
    budget_total: str
    gpu: bool
    causes: tuple[CauseCells, ...]
    small_causes: tuple[CauseRow, ...]
    windows: tuple[WindowCells, ...]
    timeline: Facts | None
    timeline_rule: str
    timeline_blocks: tuple[tuple[str, str, str, str, str], ...]
    kernels: tuple[KernelCells, ...]
    memory: tuple[MemorySection, ...]
    memory_absent: str
    compile: CompileSection | None
    compiled: bool
    """The acceleration state says that something was compiled, whether its details are known or not."""
    compute: Facts
    math: tuple[tuple[str, str, str, str, str], ...]
    loaders: tuple[LoaderCells, ...]
    settings: tuple[tuple[str, str, str, str], ...]
    ranks: tuple[RankCells, ...]
    quality: str
    capture: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    evidence: tuple[tuple[str, tuple[tuple[int, str], ...]], ...]
    sections: frozenset[str] = field(default_factory=frozenset)


def build(diagnosis: Diagnosis) -> Page:
    """Return the rows of the page."""
    verdict = diagnosis.verdict
    undetermined = verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    gpu = _on_gpu(diagnosis)
    worth, small = cause_rows(diagnosis)
    fixes = fix_rows(diagnosis)
    shown = [f for f in fixes if not f.minor]
    timeline, rule, blocks = _timeline(diagnosis)
    absent = diagnosis.capture.artefacts.get("memory", "")
    return Page(
        title=clean(diagnosis.title) or "Diagnosis",
        verdict=verdict.bottleneck_class.value,
        classes=tuple(c.value for c in verdict.also),
        undetermined=undetermined,
        confidence=verdict.confidence,
        headline=headline(diagnosis),
        reason=clean(verdict.reason),
        remedy=clean(verdict.remedy),
        outcome=clean(diagnosis.outcome),
        where=device_line(diagnosis),
        command=clean(" ".join(diagnosis.command)),
        created=clean(diagnosis.created),
        version=clean(diagnosis.tool_version),
        figures=_figures(diagnosis, undetermined=undetermined),
        first_fix=shown[0] if shown else None,
        fixes=tuple(shown[:_FEW_FIXES]),
        more_fixes=tuple(shown[_FEW_FIXES:]),
        notes_fixes=tuple(f for f in fixes if f.minor),
        combination=combination_line(diagnosis),
        budget=_budget(diagnosis, gpu=gpu),
        budget_total=milliseconds(diagnosis.step.true_ms),
        gpu=gpu,
        causes=_causes(diagnosis, worth),
        small_causes=tuple(small),
        windows=window_rows(diagnosis),
        timeline=timeline,
        timeline_rule=rule,
        timeline_blocks=blocks,
        kernels=kernel_rows(diagnosis),
        memory=memory_sections(diagnosis),
        memory_absent=clean(absent).removeprefix("absent: ") if absent != "ok" else "",
        compile=compile_section(diagnosis),
        compiled=any(
            row.name == "torch.compile" and row.state in ("on", "partly") for row in diagnosis.acceleration
        ),
        compute=compute_facts(diagnosis),
        math=_math(diagnosis),
        loaders=loader_rows(diagnosis),
        settings=tuple(
            (clean(row.name), row.state, clean(row.value), clean(row.seen_by))
            for row in diagnosis.acceleration
        ),
        ranks=rank_rows(diagnosis),
        quality=diagnosis.capture.quality,
        capture=capture_line(diagnosis),
        problems=tuple(clean(text) for text in diagnosis.capture.problems),
        notes=tuple(clean(text) for text in diagnosis.notes),
        evidence=tuple(
            (title, tuple(rows))
            for title, rows in details.sections(diagnosis)
            if title not in _SHOWN_ELSEWHERE
        ),
    )


_SHOWN_ELSEWHERE = frozenset({"Kernels and operators, per step", "Ranks"})


def _on_gpu(diagnosis: Diagnosis) -> bool:
    if diagnosis.device is not None:
        return diagnosis.device.kind != "cpu"
    return diagnosis.timeline is not None and any(lane.kind == "stream" for lane in diagnosis.timeline.lanes)


def _figures(diagnosis: Diagnosis, *, undetermined: bool) -> tuple[Figure, ...]:
    step = diagnosis.step
    note, how = "", "step"
    if step.true_ms is not None and step.true_is == "profiled":
        note, how = "profiled, so inflated", "step_profiled"
    elif step.true_is == "given":
        note, how = "as given", "step_given"
    elif step.true_ci_ms is not None:
        low, high = (milliseconds(value, like=step.true_ms) for value in step.true_ci_ms)
        note = f"95 %: {low} to {high}; {step.count} steps, nothing attached"
    figures = [
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
        figures.append(
            Figure(
                label=f"{cause.bottleneck_class.value} costs",
                value=milliseconds(cause.cost_ms, like=step.true_ms),
                unit="ms",
                note=f"{percent(cause.share)} of the step",
                how="cost",
            )
        )
    figures += _prediction(diagnosis)
    figures.append(
        Figure(
            label="Capture",
            value=diagnosis.capture.quality,
            note=_trust(diagnosis),
            how="capture",
        )
    )
    return tuple(figures)


def _prediction(diagnosis: Diagnosis) -> list[Figure]:
    """Return what the first fix on the page brings."""
    true_ms = diagnosis.step.true_ms
    rows = fix_rows(diagnosis)
    first = next((i for i, row in enumerate(rows) if not row.minor), None)
    if first is None or true_ms is None:
        return []
    suggestion = diagnosis.suggestions[first]
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


def _budget(diagnosis: Diagnosis, *, gpu: bool) -> tuple[BudgetGroup, ...]:
    groups: dict[str, list[BudgetCells]] = {}
    sums: dict[str, list[float]] = {}
    work = "GPU at work" if gpu else "Operators at work"
    rest = "GPU idle, by what the host did" if gpu else "Everything else in the step"
    largest = max((line.share for line in diagnosis.budget), default=0.0)
    for line in sorted(diagnosis.budget, key=lambda line: (line.part is Part.UNEXPLAINED, -line.ms)):
        title = work if line.part in _WORK else rest
        groups.setdefault(title, []).append(
            BudgetCells(
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
        BudgetGroup(
            title=title,
            ms=milliseconds(sum(sums[title]), like=true_ms),
            share=percent(sum(sums[title]) / true_ms) if true_ms else "-",
            rows=tuple(groups[title]),
        )
        for title in ordered
    )


def _causes(diagnosis: Diagnosis, worth: list[CauseRow]) -> tuple[CauseCells, ...]:
    causes = [cause for cause in diagnosis.causes if not cause.negligible]
    largest = max((cause.share for cause in causes), default=0.0)
    cells = []
    for cause, row in zip(causes, worth, strict=True):
        blocks, ms = blocks_of(diagnosis.timeline, cause.bottleneck_class)
        cells.append(
            CauseCells(
                row=row,
                width=round(100 * max(cause.share, 0.0) / largest, 2) if largest > 0 else 0.0,
                blocks=blocks,
                blocks_ms=milliseconds(ms),
                index=diagnosis.causes.index(cause),
            )
        )
    return tuple(cells)


def _timeline(
    diagnosis: Diagnosis,
) -> tuple[Facts | None, str, tuple[tuple[str, str, str, str, str], ...]]:
    """Return the facts of the step shown, the rule of thinning, and the longest blocks as rows."""
    timeline = diagnosis.timeline
    if timeline is None:
        return None, "", ()
    length_ms = timeline.length_us / 1e3
    true_ms = diagnosis.step.true_ms if diagnosis.step.true_is != "profiled" else None
    slower = f" ({length_ms / true_ms:.2f}× the true one)" if true_ms else ""
    facts = [
        (
            "Step shown",
            f"number {timeline.step}, {clean(timeline.chosen)}" if timeline.step is not None else "",
        ),
        ("Its length", f"{milliseconds(length_ms)} ms, profiled{slower}"),
        (
            "True step",
            f"{milliseconds(diagnosis.step.true_ms)} ms" if diagnosis.step.true_ms else "not measured",
        ),
    ]
    merged = [lane for lane in timeline.lanes if lane.merged_below_us > 0]
    rule = "Every event is drawn."
    if merged:
        longest = max(lane.merged_below_us for lane in merged)
        rule = (
            f"In {len(merged)} of {len(timeline.lanes)} lanes, events shorter than up to {longest:.3g} µs "
            "that begin within the same stretch of that length are drawn as one block."
        )
    if timeline.lanes_left_out:
        rule += f" {timeline.lanes_left_out} lanes with less time are left out."
    spans = [
        (span, lane)
        for lane in timeline.lanes
        if lane.kind in ("idle", "work", "stream", "calls")
        for span in lane.spans
    ]
    spans.sort(key=lambda pair: -pair[0].dur_us)
    blocks = tuple(
        (
            _name(timeline.names, span.name, span.count),
            timeline.parts[span.part].value if 0 <= span.part < len(timeline.parts) else "",
            clean(lane.name),
            milliseconds(span.start_us / 1e3, like=length_ms),
            milliseconds(span.dur_us / 1e3, like=length_ms),
        )
        for span, lane in spans[:20]
    )
    return tuple((k, v) for k, v in facts if v), rule, blocks


def _name(names: tuple[str, ...], index: int, count: int) -> str:
    name = clean(names[index]) if 0 <= index < len(names) else ""
    return f"{name} and {count - 1} more" if count > 1 else name


def _math(diagnosis: Diagnosis) -> tuple[tuple[str, str, str, str, str], ...]:
    compute = diagnosis.compute
    if compute is None:
        return ()
    return tuple(
        (
            clean(row.dtype),
            "yes" if row.tensor_cores else "no",
            milliseconds(row.ms),
            percent(row.share),
            f"{row.peak_tflops:.0f}" if row.peak_tflops is not None else "not known",
        )
        for row in compute.math
    )
