"""The plain rows that the reports for people are made of, built before anything is rendered.

In: a diagnosis. Out: rows of short, clean strings and numbers; the terminal and the Markdown report
only lay them out. Tests assert these rows, and apart from them the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.codes import Part
from ..model.fix import Risk
from .wording import clean, clean_code, milliseconds, percent, place, sentence, step_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.diagnosis import Cause, Diagnosis
    from ..model.fix import Suggestion

__all__ = [
    "BudgetRow",
    "CauseRow",
    "FixRow",
    "bar_cells",
    "budget_rows",
    "capture_line",
    "cause_rows",
    "combination_line",
    "device_line",
    "fix_rows",
    "headline",
    "root_of",
    "settings_lines",
    "step_line",
]

_WORTH_A_LINE = 0.005
_BUDGET_LINES = 8
"""As many as a bar has segments that can be told apart without colour."""
_WORTH_TRYING = 0.02
"""A fix that saves less than the verdict's own threshold is not put before the reader first."""

_SAME_COST = 0.05
"""Causes that do not overlap cost the same after the others are gone; saying so says nothing."""

_OVERHEAD_TEXTS: dict[str, str] = {
    "hook_us_per_step": "hooks {:.1f} µs per step",
    "total_seconds": "capture added {:.1f} s to the run",
    "profiler_stop_ms": "stopping the profiler {:.0f} ms",
    "after_trace_ratio": "step after the trace {:.2f}× the one before",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One line of the budget, as shown."""

    label: str
    ms: float
    share: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One cause with its price."""

    name: str
    code: str
    cost: str
    share: str
    without: str
    headline: str
    sites: tuple[str, ...]
    after_previous: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRow:
    """One suggested fix."""

    fix: str
    title: str
    gain: str
    basis: str
    how: str
    code: str
    where: str
    warning: str
    risk: str
    """"changes numerics", "needs review", or nothing."""
    unchecked: str
    undo: str
    verify: str
    sources: tuple[str, ...]
    minor: bool
    """A note, or a gain below 2 % of the step."""


def budget_rows(diagnosis: Diagnosis, *, whole: bool = False) -> list[BudgetRow]:
    """Return the budget, largest first, small lines gathered in one; unexplained always has its own."""
    lines = sorted(diagnosis.budget, key=lambda line: -line.ms)
    rows: list[BudgetRow] = []
    small: list[BudgetRow] = []
    last: list[BudgetRow] = []
    for line in lines:
        row = BudgetRow(label=line.part.value, ms=line.ms, share=line.share, detail=clean(line.detail))
        if line.part is Part.UNEXPLAINED:
            last.append(row)
        elif whole or line.share >= _WORTH_A_LINE:
            rows.append(row)
        else:
            small.append(row)
    most = _BUDGET_LINES - len(last)
    if not whole and len(rows) > most:
        small = rows[most - 1 :] + small
        rows = rows[: most - 1]
    if len(small) == 1 and len(rows) < most:
        rows += small
    elif any(row.ms > 0 for row in small):
        rows.append(
            BudgetRow(
                label=f"{len(small)} smaller lines",
                ms=sum(row.ms for row in small),
                share=sum(row.share for row in small),
            )
        )
    return rows + last


def bar_cells(shares: Sequence[float], width: int) -> list[int]:
    """Divide `width` cells among shares by largest remainder, so that the bar is exactly full."""
    total = sum(share for share in shares if share > 0)
    if total <= 0 or width <= 0:
        return [0] * len(shares)
    exact = [max(share, 0.0) / total * width for share in shares]
    cells = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (cells[i] - exact[i], i))
    for i in by_remainder[: width - sum(cells)]:
        cells[i] += 1
    return cells


def root_of(diagnosis: Diagnosis) -> str:
    """Return the folder that the script was started from, as far as its own lines tell, else nothing."""
    script = diagnosis.command[0] if diagnosis.command else ""
    sites = [site for cause in diagnosis.causes for site in cause.sites]
    sites += [site for finding in diagnosis.findings for site in finding.sites]
    for site in sites:
        if script and site.file.endswith(f"/{script}"):
            return site.file.removesuffix(script)
    return ""


def cause_rows(diagnosis: Diagnosis) -> tuple[list[CauseRow], list[CauseRow]]:
    """Return the causes worth acting on and, apart, those below 2 % of the step."""
    true_ms = diagnosis.step.true_ms
    root = root_of(diagnosis)
    worth: list[CauseRow] = []
    small: list[CauseRow] = []
    for cause in diagnosis.causes:
        row = CauseRow(
            name=cause.bottleneck_class.value,
            code=clean(cause.code),
            cost=milliseconds(cause.cost_ms, like=true_ms),
            share=percent(cause.share),
            without=milliseconds(cause.predicted_ms, like=true_ms),
            headline=sentence(cause.headline),
            sites=tuple(place(site, root=root) for site in cause.sites),
            after_previous=_after(cause, true_ms),
        )
        (small if cause.negligible else worth).append(row)
    return worth, small


def _after(cause: Cause, true_ms: float | None) -> str:
    after = cause.after_previous_ms
    if after is None or abs(after - cause.cost_ms) <= _SAME_COST * abs(cause.cost_ms):
        return ""
    return f"once the causes above are gone: {milliseconds(after, like=true_ms)} ms"


def fix_rows(diagnosis: Diagnosis) -> list[FixRow]:
    """Return the suggestions in their order."""
    root = root_of(diagnosis)
    return [_fix_row(suggestion, diagnosis.step.true_ms, root) for suggestion in diagnosis.suggestions]


def combination_line(diagnosis: Diagnosis) -> str:
    """Return what the best pair of suggestions would bring, or an empty string."""
    pair = diagnosis.combination
    if pair is None:
        return ""
    gain = step_change(diagnosis.step.true_ms, pair.predicted_ms, bound=pair.bound)
    return f"{' and '.join(map(clean, pair.fixes))} together: {gain}"


def _fix_row(suggestion: Suggestion, true_ms: float | None, root: str) -> FixRow:
    if suggestion.predicted_ms is None:
        gain = "" if suggestion.note else "gain not predicted"
    else:
        gain = step_change(true_ms, suggestion.predicted_ms, bound=suggestion.bound)
    saves = suggestion.saves_ms
    small = saves is not None and true_ms is not None and saves < _WORTH_TRYING * true_ms
    risk = warning = "" if suggestion.risk is Risk.SAFE else suggestion.risk.value
    if suggestion.may_break:
        warning = f"{warning}: {clean(suggestion.may_break)}" if warning else clean(suggestion.may_break)
    return FixRow(
        fix=clean(suggestion.fix),
        title=sentence(suggestion.title),
        gain=gain,
        basis=clean(suggestion.basis),
        how=clean(suggestion.how),
        code=clean_code(suggestion.code).strip("\n"),
        where=place(suggestion.site, root=root) if suggestion.site else "",
        warning=warning,
        risk=risk,
        unchecked="; ".join(clean(text) for text in suggestion.unknown),
        undo=clean(suggestion.undo),
        verify=clean(suggestion.verify),
        sources=tuple(
            clean(f"{source.title}{f' says {source.claim}' if source.claim else ''} {source.url}")
            for source in suggestion.sources
        ),
        minor=suggestion.note or small,
    )


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict's sentence, without the class that stands above it anyway."""
    verdict = diagnosis.verdict
    return sentence(verdict.headline).removeprefix(f"{verdict.bottleneck_class.value}: ")


def step_line(diagnosis: Diagnosis) -> str:
    """Word the step time and how it is known."""
    step = diagnosis.step
    if step.true_ms is None:
        return "step time not measured"
    text = f"step {milliseconds(step.true_ms)} ms"
    if step.true_ci_ms is not None:
        low, high = (milliseconds(value, like=step.true_ms) for value in step.true_ci_ms)
        text += f" (95 %: {low} to {high})"
    if step.true_is == "profiled":
        return f"{text}, profiled and therefore inflated: no step was timed without the profiler"
    if step.true_is == "given":
        return f"{text}, as given"
    steps = f" over {step.count} steps" if step.count else ""
    return f"{text}{steps}, nothing attached"


def device_line(diagnosis: Diagnosis) -> str:
    """Word where it ran."""
    parts = []
    device = diagnosis.device
    if device is not None and device.kind != "cpu":
        parts.append(clean(device.name) or device.kind)
    elif device is not None:
        parts.append("CPU" if not diagnosis.host.cores else f"CPU, {diagnosis.host.cores} cores")
    if diagnosis.host.torch:
        parts.append(f"torch {clean(diagnosis.host.torch)}")
    if len(diagnosis.ranks) > 1:
        parts.append(f"{len(diagnosis.ranks)} ranks")
    return ", ".join(parts)


def settings_lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the acceleration state as (state, "a, b, c"), on first, unknown last."""
    lines = []
    for state in ("on", "partly", "off", "unknown"):
        names = []
        for row in diagnosis.acceleration:
            if row.state == state:
                value = clean(row.value)
                plain = not value or value.lower() in {"on", "off", "true", "false", "unknown", "none"}
                names.append(clean(row.name) if plain else f"{clean(row.name)} ({value})")
        if names:
            lines.append((state, ", ".join(names)))
    return lines


def capture_line(diagnosis: Diagnosis) -> str:
    """Word how good the capture is and what it cost."""
    capture = diagnosis.capture
    parts = [f"quality {capture.quality}"]
    if capture.replay_error is not None:
        parts.append(f"replay off by {percent(capture.replay_error)}")
    if capture.inflation is not None:
        parts.append(f"profiled step {capture.inflation:.2f}× the true one, corrected")
    if capture.missing_kernels:
        parts.append(f"{capture.missing_kernels} launches without a recorded kernel")
    for key, text in _OVERHEAD_TEXTS.items():
        if key in capture.overhead and key != "profiler_stop_ms":
            parts.append(text.format(capture.overhead[key]))
    return "; ".join(parts)
