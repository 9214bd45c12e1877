"""The report of a verification in the terminal.

In: a `Verification`. Out: text of a given width, with colour codes only where asked for.
"""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from ..model.verify import Verification
from ..model.words import clean
from .page import Page
from .room import NARROW
from .rows.verify import (
    COLUMNS,
    Row,
    closing_lines,
    combination_line,
    edit_rows,
    headline,
    how_lines,
    reason_lines,
    rows_of,
)


def render(verification: Verification, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Return the whole report, ending in a newline."""
    page = Page(width=width, color=color, unicode=unicode)
    page.line((headline(verification), "bold"))
    name = verification.script or f"-m {verification.module}"
    where = verification.device.name if verification.device is not None else ""
    page.line((" · ".join(filter(None, [clean(name), clean(where)])), "dim"))
    page.line()
    if width < NARROW:
        _as_lines(page, verification)
    else:
        _as_table(page, verification)
    for line in reason_lines(verification):
        page.line(line)
    together = combination_line(verification)
    if together:
        page.heading(together)
    for edit in edit_rows(verification):
        place = f" at {edit.where}" if edit.where else ""
        page.line((f"{edit.fix}{place}", "bold green"))
        if edit.diff:
            page.code(edit.diff, indent=2)
            if edit.also:
                page.line(edit.also, indent=2)
            continue
        if edit.what:
            page.line(edit.what, indent=2)
        page.code(edit.code, indent=4)
        if edit.reason:
            page.line((f"no patch: {edit.reason}", "dim"), indent=2)
    page.line()
    for line in how_lines(verification):
        page.line(line)
    for line in closing_lines(verification):
        page.line(("! ", "yellow"), line)
    return page.text()


def _as_table(page: Page, verification: Verification) -> None:
    style = box.SIMPLE_HEAD if page.unicode else box.ASCII2
    table = Table(box=style, width=page.width, pad_edge=False, padding=(0, 1))
    for column in COLUMNS:
        # A single id is never broken; combinations are, between their ids.
        table.add_column(page.plain(column), min_width=5, overflow="fold")
    for row in rows_of(verification.outcomes):
        cells = [page.plain(cell) for cell in row.cells]
        table.add_row(*(Text(cell) for cell in cells[:-1]), Text(cells[-1], style=_style(row)))
    page.show(table)


def _as_lines(page: Page, verification: Verification) -> None:
    """Show each fix as a few lines, where a table's columns would be narrower than their words."""
    for row in rows_of(verification.outcomes):
        name, *figures, verdict = row.cells
        page.columns((name, "bold"), verdict)
        for column, figure in zip(COLUMNS[1:-1], figures, strict=True):
            page.line((f"{column}: ", "dim"), figure, indent=2)
    page.line()


def _style(row: Row) -> str:
    return "green" if row.good else "red" if row.bad else ""
