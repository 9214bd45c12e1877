"""What every Markdown report writes alike: text that cannot act as markup, and tables.

In: text from a script or a trace, or outcomes. Out: GitHub-flavoured Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..model.verify import Outcome
from ..model.words import clean
from .rows.verify import COLUMNS, rows_of

# An underscore inside a word is text to GitHub and CommonMark, and names are full of them.
_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~$!]|(?<!\w)_|_(?!\w))")


def escape(text: str) -> str:
    """Return `text` on one line with Markdown's and HTML's special characters made harmless."""
    escaped = _SPECIAL.sub(r"\\\1", clean(text))
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")


def table(head: str, line: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table under its head and the line that aligns its columns; none without rows."""
    lines = [f"| {' | '.join(map(escape, row))} |" for row in rows]
    return [head, line, *lines] if lines else []


def tried_table(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the lines of the table of fixes that were tried."""
    line = "| --- | ---: | ---: | ---: | --- | --- |"
    return table(f"| {' | '.join(COLUMNS)} |", line, (row.cells for row in rows_of(outcomes)))
