"""A comparison for a pull request: the outcome and its cause in sight, the rest folded.

In: a comparison. Out: GitHub-flavoured Markdown in which nothing from a script can act as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...model.compare import Comparison
from ..markdown_text import escape, table
from ..rows.compare import (
    budget_rows,
    counter_rows,
    finding_rows,
    growth_lines,
    job_rows,
    name_rows,
    rank_rows,
    setting_rows,
    side_line,
)

_TITLES = {
    "ok": "✅ No performance regression",
    "regression": "❌ Performance regression",
    "undecided": "⚠️ Performance undecided",
    "incomparable": "⛔ Runs not comparable",
}


def render(comparison: Comparison) -> str:
    """Return the report."""
    title = escape(comparison.head.title or comparison.head.label)
    lines = [f"### {_TITLES[comparison.outcome]}: {title}", "", escape(comparison.headline)]
    if comparison.reasons:
        lines += ["", *(f"- {escape(reason)}" for reason in comparison.reasons)]
    bad = [(row.title, row.base, row.head, row.change) for row in counter_rows(comparison) if row.bad]
    if bad:
        lines += ["", *_table(("counter", "base", "head", "change"), bad)]
    lines += _folded("All counters", _all_counters(comparison))
    lines += _folded("Where the time went", _budget(comparison))
    lines += _folded(
        "Over the ranks", _table(("ms per step", "base", "head", "change"), rank_rows(comparison))
    )
    lines += _folded(
        "Where the jobs went",
        [
            *_table(("part", "base", "head", "times", "change of one"), job_rows(comparison)),
            *(["", *map(escape, growth)] if (growth := growth_lines(comparison)) else []),
        ],
    )
    findings = finding_rows(comparison)
    lines += _folded("Findings", [f"- {change} **{code}** {escape(text)}" for change, code, text in findings])
    lines += _folded("Settings that changed", _table(("setting", "base", "head"), setting_rows(comparison)))
    lines += _folded(
        "Operators and kernels that changed", _table(("name", "base", "head"), name_rows(comparison))
    )
    lines += ["", *(f"- {escape(note)}" for note in comparison.notes)] if comparison.notes else []
    for name, side in (("base", comparison.base), ("head", comparison.head)):
        lines += ["", f"{name}: {escape(side_line(side))}"]
    return "\n".join(lines) + "\n"


def _all_counters(comparison: Comparison) -> list[str]:
    rows = counter_rows(comparison, every=True)
    if not rows:
        return []
    return _table(
        ("", "counter", "base", "head", "change", ""),
        ((r.mark, r.title, r.base, r.head, r.change, r.verdict) for r in rows),
    )


def _budget(comparison: Comparison) -> list[str]:
    rows = budget_rows(comparison)
    if not rows:
        return []
    lines = _table(("step budget, ms", "base", "head", "change", "because"), rows)
    if comparison.time.decision not in ("slower", "faster"):
        lines += ["", "The step time itself does not differ measurably, so these differences may be noise."]
    return lines


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return table(f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", rows)


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    return ["", "<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]
