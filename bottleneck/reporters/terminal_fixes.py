"""The section of the terminal report that says what to change.

In: a page, a diagnosis, and the room there is. Out: lines on the page.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..model.diagnosis import Diagnosis
from ..model.words import brief, milliseconds
from .page import Page
from .room import NARROW, Room, cut, listed
from .rows.diagnosis import cause_rows
from .rows.fixes import FixRow, combined, fix_rows, named_together, together_measured, useless_rows


def _fixes_heading(page: Page, diagnosis: Diagnosis, rows: Sequence[FixRow]) -> None:
    now = diagnosis.step.true_ms
    priced = now is not None and any(row.after not in ("", "not predicted") for row in rows)
    right = f"(now {milliseconds(now)} ms)" if priced else ""
    page.heading("What to change", f"predicted step {right}" if right and page.width >= NARROW else right)


def show_fixes(page: Page, diagnosis: Diagnosis, room: Room) -> None:
    """Show the first fix with its code, some with their title, and list the others.

    What a line about fixes together names has its own line, too.
    """
    rows = fix_rows(diagnosis)
    if not rows:
        return
    first = [row for row in rows if not row.minor and not row.instead_of][: room.fixes]
    named = named_together(diagnosis)
    top = [row for row in rows if row in first or row.fix in named]
    _fixes_heading(page, diagnosis, top)
    for number, row in enumerate(top):
        _fix_title(page, row, ways=room.ways)
        if number == 0:
            _first_fix(page, row, room, told=_places(diagnosis))
        elif number <= room.further:
            _further_fix(page, row)
    pair, together = combined(diagnosis)
    if pair:
        page.columns((pair, "green"), together)
    for names, figures in together_measured(diagnosis):
        page.line((names, "green"), (" measured: ", "bold"), figures)
    told = {row.fix for row in top} if room.ways else set()
    others = [row for row in rows if row not in top and row.instead_of not in told]
    others.sort(key=lambda row: not top or row.instead_of != top[0].fix)
    if others:
        head = "also: " if top else "worth a look: "
        lines = 1 if top else 2
        page.line(
            (listed(head, [f"{row.fix} {row.title}" for row in others], page.width, lines=lines), "dim")
        )
    useless = [f"{name.split(' ', 1)[0]} {figures}" for name, figures in useless_rows(diagnosis)]
    if useless:
        page.line((listed("tried here, does not help: ", useless, page.width, lines=2), "dim"))


def _fix_title(page: Page, row: FixRow, *, ways: bool = True) -> None:
    page.columns((f"{row.fix} {row.title}", "bold green"), row.after)
    if row.measured:
        page.line(("measured: ", "bold"), row.measured, indent=2)
    if ways and row.others:
        page.line((listed("or: ", row.others, page.width - 2, lines=1), "green"), indent=2)


def _places(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the places that the first cause names."""
    worth, _ = cause_rows(diagnosis)
    return worth[0].sites[:1] if worth else ()


def _first_fix(page: Page, row: FixRow, room: Room, *, told: Sequence[str]) -> None:
    """Show the best fix with its place and its code."""
    if row.where and (room.prose or row.where not in told):
        page.line(("at ", "dim"), row.where, indent=2)
    code = _excerpt(row.code)
    if not code or (room.prose and len(code) > room.code):
        page.line(brief(row.how, 2 * page.width - 12), indent=2)
    shown = code if len(code) <= room.code else code[: room.code - 1]
    page.code("\n".join(shown), indent=4)
    if len(shown) < len(code):
        more = f"… {len(code) - len(shown)} more lines: bottleneck catalog show {row.fix}"
        page.line((more, "dim"), indent=4)
    if row.record and room.prose:
        page.line((f"record: {row.record}", "dim"), indent=2)
    if row.risk:
        page.line(("careful: ", "yellow"), cut(row.warning, page, room, indent=11), indent=2)
    if row.unchecked:
        page.line(("not checked: ", "yellow"), brief(row.unchecked, page.width - 15), indent=2)


def _further_fix(page: Page, row: FixRow) -> None:
    """Say more of another fix in one line: its code where that is one line, else what to change."""
    doubts = "; ".join(filter(None, [row.risk, "not all checked" if row.unchecked else ""]))
    room = page.width - 4 - (len(doubts) + 3 if doubts else 0)
    code = _excerpt(row.code)
    if len(code) == 1 and len(code[0]) <= room:
        page.line((code[0], "cyan"), (f" [{doubts}]" if doubts else "", "yellow"), indent=4)
    else:
        page.line(brief(row.how, room), (f" [{doubts}]" if doubts else "", "yellow"), indent=2)


def _excerpt(code: str) -> list[str]:
    """Return the lines of code to change, without leading imports and blank lines."""
    lines = code.splitlines()
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        body = []
    first = next((node for node in body if not isinstance(node, (ast.Import, ast.ImportFrom))), None)
    if first is not None:
        imports = [node.end_lineno or 0 for node in body if node.lineno < first.lineno]
        lines = lines[max(imports, default=0) :]
    return [line for line in lines if line.strip()]


def show_whole_fixes(page: Page, diagnosis: Diagnosis) -> None:
    """Show everything about every fix."""
    rows = fix_rows(diagnosis)
    if not rows:
        return
    _fixes_heading(page, diagnosis, rows)
    for row in rows:
        _fix_title(page, row)
        if row.where:
            page.line(("at ", "dim"), row.where, indent=2)
        page.line(row.how, indent=2)
        page.code(row.code, indent=4)
        told = (
            ("careful", row.warning, "yellow"),
            ("not checked", row.unchecked, "yellow"),
            ("gain", row.basis, "dim"),
            ("record", row.record, "dim"),
            ("undo", row.undo, "dim"),
            ("verify", row.verify, "dim"),
            *(("source", source, "dim") for source in row.sources),
        )
        for name, text, style in told:
            if text:
                page.line((f"{name}: ", style), text, indent=2)
    pair, together = combined(diagnosis)
    if pair:
        page.columns((pair, "green"), together)
    useless = useless_rows(diagnosis)
    if useless:
        page.heading("Tried here, does not help", "")
    for name, figures in useless:
        page.line(name, indent=2)
        page.line((figures, "dim"), indent=4)
