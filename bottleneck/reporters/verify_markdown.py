"""verify.md: the same report for a ticket or a pull request.

In: a `Verification`. Out: GitHub-flavoured Markdown in which nothing from a script can act as markup.
"""

from __future__ import annotations

from ..model.verify import Verification
from .markdown_text import escape, tried_table
from .rows.verify import (
    closing_lines,
    combination_line,
    edit_rows,
    headline,
    how_lines,
    reason_lines,
)


def render(verification: Verification) -> str:
    """Return the report as Markdown."""
    name = verification.script or f"-m {verification.module}"
    lines = [f"# {escape(name)}: fixes tried", "", f"**{escape(headline(verification))}**", ""]
    lines += tried_table(verification.outcomes)
    told = reason_lines(verification)
    if told:
        lines += ["", *(f"- {escape(line)}" for line in told)]
    together = combination_line(verification)
    edits = edit_rows(verification)
    if together or edits:
        lines += ["", f"## {escape(together) or 'What to change'}"]
    for edit in edits:
        place = f" at {edit.where}" if edit.where else ""
        lines += ["", f"### {escape(edit.fix + place)}", ""]
        kind, code = ("diff", edit.diff) if edit.diff else ("python", edit.code)
        if edit.what and not edit.diff:
            lines += [escape(edit.what), ""]
        if code:
            lines += [f"````{kind}", code, "````"]
        if edit.also:
            lines += ["", escape(edit.also)]
        if edit.reason:
            lines += ["", escape(f"No patch: {edit.reason}")]
    lines += ["", "## How it was measured", ""]
    lines += [f"- {escape(line)}" for line in (*how_lines(verification), *closing_lines(verification))]
    return "\n".join(lines) + "\n"
