"""The account of a job for a ticket or a TensorBoard text panel.

In: a `Watch`. Out: GitHub-flavoured Markdown in which nothing from a script can act as markup.
"""

from __future__ import annotations

from ..model.watch import Watch
from .markdown_text import escape
from .rows.watch import (
    capture_lines,
    fix_lines,
    growth_lines,
    headline,
    part_rows,
    rank_lines,
    under_headline,
)


def render(watch: Watch) -> str:
    """Return the whole report."""
    lines = ["# The whole job", "", f"**{escape(headline(watch))}**"]
    for text in (*under_headline(watch), " ".join(watch.command)):
        if text:
            lines += ["", escape(text)]
    lines += [
        "",
        "## Where the job goes",
        "",
        "| part | time | share | times | |",
        "|---|---:|---:|---:|---|",
    ]
    for row in part_rows(watch):
        cells = (row.part, row.time, row.share, row.times, row.where)
        lines.append(f"| {' | '.join(map(escape, cells))} |")
    for title, texts in (
        ("What to change", fix_lines(watch)),
        ("Ranks", list(rank_lines(watch))),
        ("What changes over the job", list(growth_lines(watch))),
        ("Captures", list(capture_lines(watch))),
    ):
        if texts:
            lines += ["", f"## {title}", "", *(f"- {escape(text)}" for text in texts)]
    return "\n".join(lines) + "\n"
