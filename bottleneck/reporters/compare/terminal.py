"""The report of a comparison in the terminal.

In: a comparison. Out: text of a given width, with colour codes only where asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.compare import Comparison
from ...model.words import clean, sentence, shorten
from ..page import Page
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

_STYLE = {
    "ok": "bold green",
    "regression": "bold red",
    "undecided": "bold yellow",
    "incomparable": "bold red",
}
_FEW = 5


def render(
    comparison: Comparison,
    *,
    width: int = 80,
    color: bool = False,
    unicode: bool = True,
    verbose: bool = False,
) -> str:
    """Return the report, ending in a newline; `verbose` shows every counter, kernel and setting."""
    page = Page(width=width, color=color, unicode=unicode)
    page.line((comparison.outcome.upper(), _STYLE[comparison.outcome]))
    page.line((clean(comparison.headline), "bold"))
    page.line((f"base  {side_line(comparison.base)}", "dim"))
    page.line((f"head  {side_line(comparison.head)}", "dim"))
    if comparison.reasons:
        page.heading("Why")
        for reason in comparison.reasons:
            page.line(clean(reason), indent=2)
    _counters(page, comparison, verbose=verbose)
    _budget(page, comparison)
    _ranks(page, comparison)
    _job(page, comparison)
    _lists(page, comparison, verbose=verbose)
    if comparison.notes:
        page.heading("Notes")
        for note in comparison.notes:
            page.line(sentence(note), indent=2)
    return page.text()


def _counters(page: Page, comparison: Comparison, *, verbose: bool) -> None:
    rows = counter_rows(comparison, every=verbose)
    if not comparison.counters:
        return
    page.heading("Counters", "per step, without noise")
    for row in rows:
        line = f"{row.mark} {row.title:<36} {row.base:>11} → {row.head:<11} {row.change}"
        page.line((line.rstrip(), "red" if row.bad else ""))
        if row.bad or verbose:
            page.line((row.verdict, "dim"), indent=4)
    same = len(comparison.counters) - len(rows)
    if same:
        page.line((f"{same} counters the same or not gated", "dim"))


def _budget(page: Page, comparison: Comparison) -> None:
    rows = budget_rows(comparison)
    if not rows:
        return
    told = comparison.time.decision in ("slower", "faster")
    page.heading("Where the time went", "" if told else "differences may be noise")
    for part, base, head, change, because in rows:
        page.line(f"{part:<28} {base:>10} → {head:>10}  {change:>11}")
        if because:
            page.line((because, "dim"), indent=4)


def _ranks(page: Page, comparison: Comparison) -> None:
    rows = rank_rows(comparison)
    if rows:
        page.heading("Over the ranks", "ms per step; waiting and transfer: the mean over the ranks")
    for line, base, head, change in rows:
        page.columns((f"{line:<28} {base:>10} → {head:>10}", ""), change)


def _job(page: Page, comparison: Comparison) -> None:
    rows = job_rows(comparison)
    if rows:
        page.heading("Where the jobs went", "change of one")
    for part, base, head, often, change in rows:
        page.columns((f"{part:<24} {base:>10} → {head:>10}  {often}", ""), change)
    growth = growth_lines(comparison)
    if growth:
        page.heading("Steps that grow")
        for line in growth:
            page.line(line)


def _lists(page: Page, comparison: Comparison, *, verbose: bool) -> None:
    most = None if verbose else _FEW
    findings = [f"{change:<8} {code}  {text}" for change, code, text in finding_rows(comparison)]
    _list(page, ("Findings", ""), findings, most)
    settings = [f"{name}: {base} → {head}" for name, base, head in setting_rows(comparison)]
    _list(page, ("Settings that changed", ""), settings, most)
    width = page.width - 24
    names = [f"{shorten(name, width)}: {base} → {head}" for name, base, head in name_rows(comparison)]
    _list(page, ("Operators and kernels that changed", "per step"), names, most)


def _list(page: Page, heading: tuple[str, str], lines: Sequence[str], most: int | None) -> None:
    if not lines:
        return
    page.heading(*heading)
    for line in lines[:most]:
        page.line(line)
    if most is not None and len(lines) > most:
        page.line((f"… {len(lines) - most} more (--verbose)", "dim"))
