"""Rows of a comparison's report, built before anything is rendered.

In: a `Comparison`. Out: rows of short clean strings, the same for the terminal and for Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model.compare import Comparison, CounterRow, SideSummary, TimeRow, growth_words, number, signed_ms
from ...model.words import clean, duration, milliseconds, place, sentence

CHANGED = ("worse", "unstable", "unknown", "within", "better")
"""Statuses of counters that are shown in the short report; the others only say that nothing happened."""

_MARKS = {
    "worse": "✗",
    "unstable": "?",
    "unknown": "?",
    "within": "~",
    "better": "✓",
    "same": "=",
    "off": "-",
}
_WORDS = {
    "worse": "beyond the limit",
    "unstable": "varies between runs",
    "unknown": "not measured on one side",
    "within": "within the limit",
    "better": "lower",
    "same": "same",
    "off": "not gated",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCounter:
    """One counter, as shown."""

    mark: str
    title: str
    base: str
    head: str
    change: str
    verdict: str
    bad: bool


def _change(row: CounterRow) -> str:
    if row.base is None or row.head is None or row.base == row.head:
        return ""
    if row.base == 0:
        return "new"
    return f"{(row.head / row.base - 1) * 100:+.1f} %"


def counter_rows(comparison: Comparison, *, every: bool = False) -> list[ShownCounter]:
    """Return the counters that changed or could not be compared; `every` adds the rest."""
    return [
        ShownCounter(
            mark=_MARKS[row.status],
            title=row.title if row.scope == "step" else f"{row.title} (run)",
            base=number(row.base, row.unit),
            head=number(row.head, row.unit),
            change=_change(row),
            verdict=_WORDS[row.status] + (f": {clean(row.note)}" if row.note else ""),
            bad=row.status in ("worse", "unstable", "unknown"),
        )
        for row in comparison.counters
        if every or row.status in CHANGED
    ]


def side_line(side: SideSummary) -> str:
    """Word one side: what it is, how many runs, its step time."""
    runs = "1 run" if side.runs == 1 else f"{side.runs} runs"
    step = f"step {milliseconds(side.step_ms)} ms" if side.step_ms is not None else "no step time"
    if side.spread is not None:
        step += f" ± {side.spread * 100:.1f} % from run to run"
    parts = [clean(side.label), runs, step, clean(side.device), f"torch {side.torch}" if side.torch else ""]
    return " · ".join(part for part in parts if part)


def budget_rows(comparison: Comparison) -> list[tuple[str, str, str, str, str]]:
    """Return (line, base ms, head ms, change, because) of the budget's changes."""
    return [
        (
            row.part.value,
            milliseconds(row.base_ms),
            milliseconds(row.head_ms),
            signed_ms(row.delta_ms),
            "; ".join(sentence(text) for text in row.because),
        )
        for row in comparison.budget
    ]


def job_rows(comparison: Comparison) -> list[tuple[str, str, str, str, str]]:
    """Return (part, base, head, times, change) of the whole job and its parts."""
    rows = []
    for row in comparison.job:
        often = (
            ""
            if row.base_count is None or row.head_count is None
            else f"{row.base_count} → {row.head_count} ×"
        )
        rows.append((row.part, duration(row.base_s), duration(row.head_s), often, _time_change(row.time)))
    return rows


def _time_change(time: TimeRow) -> str:
    if time.ratio is None:
        return ""
    change = f"{(time.ratio - 1) * 100:+.1f} %"
    if time.interval is not None:
        low, high = ((bound - 1) * 100 for bound in time.interval)
        change += f" [{low:+.1f}, {high:+.1f}]"
    return change if time.decision in ("undecided", "not compared") else f"{change} {time.decision}"


def rank_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Return (line, base ms, head ms, change) of the account of the job's step over its ranks."""
    return [
        (
            row.what if row.rank is None else f"rank {row.rank}: {row.what}",
            milliseconds(row.time.base_ms),
            milliseconds(row.time.head_ms),
            f"{_time_change(row.time)}{f', late: {row.late}' if row.late else ''}".removeprefix(", "),
        )
        for row in comparison.ranks
    ]


def growth_lines(comparison: Comparison) -> list[str]:
    """Return what is said of steps that grow, or no longer do."""
    growth = comparison.growth
    if growth is None or (growth.base_interval is None and growth.head_interval is None):
        return []
    return [clean(growth_words(growth))]


def finding_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return (change, code, text) of the findings."""
    rows: list[tuple[str, str, str]] = []
    for row in comparison.findings:
        price = ""
        if row.base_ms is not None and row.head_ms is not None:
            price = f" ({milliseconds(row.base_ms)} → {milliseconds(row.head_ms)} ms)"
        where = f" at {place(row.site)}" if row.site is not None and row.change != "gone" else ""
        rows.append((row.change, row.code, f"{sentence(row.title)}{price}{where}"))
    return rows


def setting_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return (setting, base, head)."""
    return [
        (
            sentence(row.name) + (f" at {place(row.site)}" if row.site is not None else ""),
            sentence(row.base),
            sentence(row.head),
        )
        for row in comparison.settings
    ]


def name_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return (kernel or operator, base, head), counts per step."""
    return [(clean(row.name), number(row.base), number(row.head)) for row in comparison.names]
