"""What the Diagnosis tab shows, ready to be put on the page: page.json beside the adapted traces.

In: a diagnosis and its copied traces. Out: a `Page` of short, clean strings; the tab adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from ..model.diagnosis import Diagnosis
from ..model.watch import Watch
from ..model.words import clean, milliseconds, percent
from ..reporters.html.palette import COLOURS, JOB_COLOURS
from ..reporters.rows.closing import capture_line, settings_lines
from ..reporters.rows.diagnosis import budget_rows, cause_rows, device_line, headline, step_line
from ..reporters.rows.fixes import combination_line, fix_rows, useless_rows
from ..reporters.rows.fleet import account_rows, late_lines
from ..reporters.rows.groups import group_lines
from ..reporters.rows.watch import fix_words, growth_lines, under_headline
from ..reporters.rows.watch import headline as headline_of_job
from .lane import Place

PAGE_FILE = "bottleneck-page.json"
"""What the plugin looks for in the log folder."""
PAGE_FORMAT = 1
_COLOURS = {part.value: colours for part, colours in COLOURS.items()}
"""Light and dark, as in report.html; gathered small lines have none."""
_MOST_RANKS = 8
_SLOWED = 1.03
"""Recorded over true step from which the difference is worth a sentence."""


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One adapted trace beside the page."""

    file: str
    worker: str
    """As the stock tab's menu names it."""
    rank: int
    steps: int
    of_steps: int
    events: int
    bytes: int
    note: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the tab for one run."""

    format: int = PAGE_FORMAT
    title: str
    created: str
    classes: tuple[str, ...]
    confidence: str
    headline: str
    reason: str
    step: str
    step_ms: float | None
    device: str
    traced: str
    """How the times in the trace relate to the true step."""
    budget: tuple[dict[str, Any], ...] = ()
    causes: tuple[dict[str, Any], ...] = ()
    budget_title: str = "Where the step goes"
    budget_unit: str = "ms"
    small_causes: str = ""
    late: tuple[tuple[str, str, str], ...] = ()
    """Of several ranks: who is late, why, and the step without it."""
    ranks: tuple[dict[str, str], ...] = ()
    """Those worth a look."""
    groups: tuple[str, ...] = ()
    """What the process groups of the ranks are for."""
    fixes: tuple[dict[str, Any], ...] = ()
    useless: tuple[tuple[str, str], ...] = ()
    """Fixes that were tried in the run and do not help, and why."""
    together: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    capture: str = ""
    problems: tuple[str, ...] = ()
    traces: tuple[TraceFile, ...] = ()
    places: dict[str, Place] = {}


def make_page(
    diagnosis: Diagnosis,
    *,
    traces: Sequence[TraceFile],
    places: dict[str, Place],
    problems: Sequence[str] = (),
) -> Page:
    """Put the tab's page together."""
    verdict, true_ms = diagnosis.verdict, diagnosis.step.true_ms
    worth, small = cause_rows(diagnosis)
    return Page(
        title=clean(diagnosis.title) or "run",
        created=clean(diagnosis.created),
        classes=tuple(c.value for c in (verdict.bottleneck_class, *verdict.also)),
        confidence=verdict.confidence,
        headline=headline(diagnosis),
        reason=clean(" ".join(filter(None, [verdict.reason, verdict.remedy]))),
        step=step_line(diagnosis),
        step_ms=true_ms,
        device=device_line(diagnosis),
        traced=_traced(diagnosis),
        budget=tuple(
            {
                "label": row.label,
                "ms": milliseconds(row.ms, like=true_ms),
                "share": row.share,
                "percent": percent(row.share),
                "detail": row.detail,
                "colours": _COLOURS.get(row.label),
            }
            for row in budget_rows(diagnosis)
        ),
        causes=tuple(asdict(row) for row in worth),
        small_causes=", ".join(f"{row.name} {row.cost} ms" for row in small),
        late=tuple(late_lines(diagnosis)),
        ranks=tuple(asdict(row) for row in account_rows(diagnosis, most=_MOST_RANKS)),
        groups=tuple(group_lines(diagnosis)),
        fixes=tuple(asdict(row) for row in fix_rows(diagnosis)),
        useless=tuple(useless_rows(diagnosis)),
        together=combination_line(diagnosis),
        settings=tuple(settings_lines(diagnosis)),
        capture=capture_line(diagnosis),
        problems=tuple(clean(text) for text in (*diagnosis.capture.problems, *diagnosis.notes, *problems)),
        traces=tuple(traces),
        places=places,
    )


def make_watched_page(watch: Watch) -> Page:
    """Put the tab's page of a watched job together: its account in the place of the step's budget."""
    return Page(
        title=clean(" ".join(watch.command)) or "run",
        created="",
        classes=("watched",),
        confidence="none",
        headline=headline_of_job(watch),
        reason=" ".join(growth_lines(watch)),
        step="; ".join(under_headline(watch)),
        step_ms=watch.step_ms,
        device="",
        traced="`bottleneck watch` records no trace; `bottleneck diagnose` divides the step.",
        budget=tuple(
            {
                "label": line.part,
                "ms": f"{line.s:.1f}",
                "share": line.share,
                "percent": percent(line.share),
                "detail": fix_words(line),
                "colours": JOB_COLOURS.get(line.part),
            }
            for line in watch.account
        ),
        budget_title="Where the job goes",
        budget_unit="s",
        capture=f"{percent(watch.explained_share)} of the job is explained",
        problems=(clean(watch.problem),) if watch.problem else (),
    )


def _traced(diagnosis: Diagnosis) -> str:
    """Say how far the recorded times are from the true ones: the stock tab shows the recorded."""
    step = diagnosis.step
    if step.true_ms is None or step.profiled_ms is None:
        return "Times in the trace are as recorded under the profiler."
    if step.true_is == "profiled":
        return "Times in the trace are as recorded; no step was timed without the profiler."
    profiled, ratio = milliseconds(step.profiled_ms, like=step.true_ms), step.profiled_ms / step.true_ms
    if ratio < _SLOWED:
        return "Times in the trace and in the PYTORCH_PROFILER tab are as recorded under the profiler."
    return (
        f"The trace and the PYTORCH_PROFILER tab show the recorded step, {profiled} ms: {ratio:.2f}× the"
        f" true one ({milliseconds(step.true_ms)} ms), since the profiler slows the host."
    )
