"""The account of a job for a ticket or a TensorBoard text panel.

In: a `Watch`. Out: GitHub-flavoured Markdown in which nothing from a script can act as markup.
"""

from __future__ import annotations

from dataclasses import astuple

from ..model.watch import Watch
from .markdown_text import escape, table
from .rows.watch import headline, lists, part_rows, under_headline


def render(watch: Watch) -> str:
    """Return the whole report."""
    lines = ["# The whole job", "", f"**{escape(headline(watch))}**"]
    for text in (*under_headline(watch), " ".join(watch.command)):
        if text:
            lines += ["", escape(text)]
    head, line = "| part | time | share | times | |", "|---|---:|---:|---:|---|"
    lines += ["", "## Where the job goes", "", *table(head, line, map(astuple, part_rows(watch)))]
    for title, texts in lists(watch):
        lines += ["", f"## {title}", "", *(f"- {escape(text)}" for text in texts)]
    return "\n".join(lines) + "\n"
