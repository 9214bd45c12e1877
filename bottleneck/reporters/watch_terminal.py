"""The account of a job in the terminal.

In: a `Watch`. Out: text of a given width, with colour codes only where asked for.
"""

from __future__ import annotations

from ..model.watch import Watch
from ..model.words import clean, shorten
from .page import Page
from .rows.watch import headline, lists, part_rows, under_headline


def render(watch: Watch, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Return the whole report, ending in a newline."""
    page = Page(width=width, color=color, unicode=unicode)
    page.line((headline(watch), "bold"))
    for line in under_headline(watch):
        page.line(line)
    if watch.command:
        page.line((shorten(clean(" ".join(watch.command)), page.width), "dim"))
    page.heading("Where the job goes")
    rows = part_rows(watch)
    part_width = max(len(row.part) for row in rows)
    for row in rows:
        figures = f"{row.part:<{part_width}} {row.time:>11} {row.share:>7}"
        beside = "  ".join(filter(None, [row.times, row.where]))
        room = page.width - len(figures) - 2
        if len(beside) <= room:
            page.line(figures, (f"  {beside}", "dim"))
            continue
        page.line(figures, (f"  {row.times}", "dim"))
        page.line((shorten(row.where, page.width - 4), "dim"), indent=4)
    for heading, lines in lists(watch):
        page.heading(heading)
        for line in lines:
            page.line(line)
    return page.text()
