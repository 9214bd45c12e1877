"""The report in the terminal: one screen of 80 columns, or with `verbose` everything there is.

In: a diagnosis. Out: text, with colour codes only where asked for.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import details
from .closing_rows import capture_line, setting_names
from .fix_rows import FixRow, combined, fix_rows, together_measured
from .memory_rows import memory_rows
from .page import Page
from .rows import BudgetRow, CauseRow, bar_cells, budget_rows, cause_rows, device_line, headline, step_line
from .wording import brief, clean, milliseconds, percent, sentence, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.diagnosis import Diagnosis

__all__ = ["render"]

SCREEN = 40
"""Lines that a report keeps to: with the prompt and the command above it, what a window shows at once."""

_FILLS = "█▓▒░▚▌▪·+x~=*o>"
"""Segments of the stacked bar must be told apart without colour too."""
_ASCII_FILLS = "#=+-%:o.x~*<>@&"
_COLORS = ("red", "yellow", "cyan", "green", "magenta", "blue", "bright_black", "white")

_BELOW = "below 2 % of the step"
_NARROW = 60
"""Below this width columns give way to lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """How much of each section is shown."""

    budget: int = 8
    causes: int = 3
    words: bool = True
    """Also what is behind a cause, beside its place."""
    memory: int = 8
    fixes: int = 3
    code: int = 8
    """Lines of code for the first fix."""
    prose: bool = True
    """Say in words what the code above was cut from; name the first fix's place though the cause has it."""
    further: int = 2
    """How many of the further fixes say more than their title."""
    settings: int = 2
    """Lines per state."""
    problems: int = 3
    lines: int = 2
    """Lines for a problem, a warning or a reason."""


_TIGHT = _Room(
    budget=7, words=False, memory=5, code=5, prose=False, further=0, settings=1, problems=1, lines=1
)
_ROOMS = (
    _Room(),
    _Room(code=6, settings=1, problems=2),
    _Room(memory=6, code=6, prose=False, further=1, settings=1, problems=2, lines=1),
    _Room(memory=6, code=6, prose=False, further=0, settings=1, problems=2, lines=1),
    replace(_TIGHT, words=True, code=6),
    _TIGHT,
    replace(_TIGHT, budget=6, causes=2, memory=4),
    replace(_TIGHT, budget=6, causes=2, memory=3, fixes=2, code=4, problems=0),
    replace(_TIGHT, budget=5, causes=2, memory=2, fixes=2, code=3, problems=0),
)
"""From roomy to tight; the first that fits the screen is taken."""


def render(
    diagnosis: Diagnosis,
    *,
    width: int = 80,
    color: bool = False,
    verbose: bool = False,
    unicode: bool = True,
) -> str:
    """Return the report as text for a terminal.

    Args:
        diagnosis: what to show, fully resolved.
        width: columns to fill.
        color: emit ANSI colours.
        verbose: add every finding with its evidence, all what-ifs, kernels, settings and artefacts.
        unicode: False keeps to ASCII for streams that cannot show more.
    """
    if verbose:
        return _whole(diagnosis, Page(width=width, color=color, unicode=unicode))
    text = ""
    for room in _ROOMS:
        page = Page(width=width, color=color, unicode=unicode)
        text = _screen(diagnosis, page, room)
        if text.count("\n") <= SCREEN:
            break
    return text


def _screen(diagnosis: Diagnosis, page: Page, room: _Room) -> str:
    _verdict(page, diagnosis, room)
    _budget(page, diagnosis, budget_rows(diagnosis, most=room.budget), details_too=False)
    _causes(page, diagnosis, room)
    _memory(page, memory_rows(diagnosis), room)
    _fixes(page, diagnosis, room)
    _closing(page, diagnosis, room)
    return page.text()


def _whole(diagnosis: Diagnosis, page: Page) -> str:
    _verdict(page, diagnosis, None)
    _budget(page, diagnosis, budget_rows(diagnosis, whole=True), details_too=True)
    _causes(page, diagnosis, None)
    _memory(page, memory_rows(diagnosis, whole=True), None)
    _whole_fixes(page, diagnosis)
    _closing(page, diagnosis, None)
    for title, rows in details.sections(diagnosis):
        page.heading(title)
        for indent, text in rows:
            page.line(text, indent=2 + 2 * indent)
    return page.text()


def _verdict(page: Page, diagnosis: Diagnosis, room: _Room | None) -> None:
    verdict = diagnosis.verdict
    undetermined = verdict.bottleneck_class.value == "undetermined"
    also = "".join(f" / {other.value}" for other in verdict.also)
    style = "bold yellow" if undetermined else "bold red"
    pieces: list[str | tuple[str, str]] = [(f"{verdict.bottleneck_class.value}{also}".upper(), style)]
    if not undetermined:
        pieces.append(f"   confidence {verdict.confidence}")
    page.line(*pieces)
    page.line((headline(diagnosis), "bold"))
    reason = clean(verdict.reason)
    if reason and verdict.reason not in verdict.headline and (undetermined or verdict.confidence != "high"):
        said = reason if undetermined else f"Confidence is {verdict.confidence}: {reason}"
        page.line(_cut(said, page, room))
    if verdict.remedy:
        page.line(("To get a verdict: " if undetermined else "To be surer: "), sentence(verdict.remedy))
    page.line((step_line(diagnosis), "dim"))
    where = " · ".join(filter(None, [clean(diagnosis.title), device_line(diagnosis)]))
    if where:
        page.line((where if room is None else shorten(where, page.width), "dim"))
    if diagnosis.outcome:
        page.line((_cut(clean(diagnosis.outcome), page, room), "yellow"))


def _cut(text: str, page: Page, room: _Room | None, *, indent: int = 0) -> str:
    """Cut prose to the lines that there is room for."""
    if room is None:
        return text
    # A wrapped line may end a word early.
    width = room.lines * (page.width - indent) - 8 * (room.lines - 1)
    clauses = text.split("; ")
    for count in range(len(clauses) - 1, 0, -1):
        whole = "; ".join(clauses[:count])
        if len(text) > width and width // 2 < len(whole) <= width - 3:
            return f"{whole}; …"
    return brief(text, width)


def _budget(page: Page, diagnosis: Diagnosis, rows: Sequence[BudgetRow], *, details_too: bool) -> None:
    if not rows:
        return
    if [row.label for row in rows] == ["unexplained"]:
        page.heading("Where the step goes")
        page.line("not measured: nothing was captured that would divide it", indent=2)
        return
    page.heading("Where the step goes")
    fills = _FILLS if page.unicode else _ASCII_FILLS
    cells = bar_cells([row.share for row in rows], page.width)
    page.line(*((fills[i % len(fills)] * n, _COLORS[i % len(_COLORS)]) for i, n in enumerate(cells)))
    label_width = min(max(len(row.label) for row in rows), max(page.width - 25, 8))
    for i, row in enumerate(rows):
        mark = (fills[i % len(fills)], _COLORS[i % len(_COLORS)])
        cost = milliseconds(row.ms, like=diagnosis.step.true_ms)
        label = shorten(row.label, label_width)
        figures = f" {label:<{label_width}} {cost:>9} ms {percent(row.share):>7}"
        room = page.width - len(figures) - 4
        detail = f"  {row.detail}" if row.detail and (details_too or len(row.detail) <= room) else ""
        page.line(mark, figures, (detail, "dim"))


def _causes(page: Page, diagnosis: Diagnosis, room: _Room | None) -> None:
    """Show the causes; those that go with the first one, and the small ones, in a line for all of them."""
    worth, small = cause_rows(diagnosis)
    if not worth and not small:
        return
    shown = worth if room is None else [row for row in worth if not row.covered][: room.causes]
    covered = [row for row in worth if row.covered and row not in shown]
    rest = [row for row in worth if row not in shown and row not in covered]
    page.heading("What each cause costs", "step without it" if any(row.without for row in shown) else "")
    for row in shown:
        _cause(page, row, said=headline(diagnosis), room=room)
    gone = covered[0].after_previous if covered else ""
    groups = ((gone, covered), ("also", rest), (_BELOW, small))
    told = [f"{words}: {', '.join(map(_named_cause, rows))}" for words, rows in groups if rows]
    one_line = "; ".join(told)
    for text in [one_line] if told and len(one_line) <= page.width else told:
        page.line((text, "dim"))


def _named_cause(row: CauseRow) -> str:
    return f"{row.name} {'≤ ' if row.bound else ''}{row.cost} ms"


def _cause(page: Page, row: CauseRow, *, said: str, room: _Room | None) -> None:
    cost = f"{'≤ ' if row.bound else ''}{row.cost}"
    without = f"{'≥ ' if row.bound else ''}{row.without} ms" if row.without else ""
    if page.width < _NARROW:
        page.columns((f"{row.name} {cost} ms", "bold"), without)
    else:
        page.columns((f"{row.name:<20} {cost:>9} ms {row.share:>7}  ", "bold"), without, (row.code, "dim"))
    means = row.means if (room is None or room.words) and row.means not in said else ""
    places = ", ".join(row.sites if room is None else row.sites[:2])
    told = [means, places, row.after_previous]
    one_line = " · ".join(filter(None, told))
    if len(one_line) <= page.width - 2:
        told = [one_line]
    elif room is not None:
        told = [brief(means, page.width - 2), *row.sites[:1], row.after_previous]
    for text in filter(None, told):
        page.line(text, indent=2)


def _memory(page: Page, rows: Sequence[tuple[int, str]], room: _Room | None) -> None:
    if not rows:
        return
    page.heading("Memory")
    shown = rows if room is None or len(rows) <= room.memory else rows[: room.memory - 1]
    for indent, text in shown:
        lines = 0 if room is None else room.lines + (indent == 0)
        most = lines * (page.width - 2 * indent) - 4 * (lines - 1) if lines else len(text)
        page.line(brief(text, most), indent=2 * indent)
    if len(shown) < len(rows):
        page.line((f"{len(rows) - len(shown)} more with --verbose", "dim"))


def _fixes_heading(page: Page, diagnosis: Diagnosis, rows: Sequence[FixRow]) -> None:
    now = diagnosis.step.true_ms
    priced = now is not None and any(row.after not in ("", "not predicted") for row in rows)
    right = f"(now {milliseconds(now)} ms)" if priced else ""
    page.heading("What to change", f"predicted step {right}" if right and page.width >= _NARROW else right)


def _fixes(page: Page, diagnosis: Diagnosis, room: _Room) -> None:
    rows = fix_rows(diagnosis)
    if not rows:
        return
    top = [row for row in rows if not row.minor][: room.fixes]
    _fixes_heading(page, diagnosis, top)
    for number, row in enumerate(top):
        _fix_title(page, row)
        if number == 0:
            _first_fix(page, row, room, told=_places(diagnosis))
        elif number <= room.further:
            _further_fix(page, row)
    pair, together = combined(diagnosis)
    if pair:
        page.columns((pair, "green"), together)
    for names, figures in together_measured(diagnosis):
        page.line((names, "green"), (" measured: ", "bold"), figures)
    others = [row for row in rows if row not in top]
    if others:
        page.line((_listed("also: ", [f"{row.fix} {row.title}" for row in others], page.width), "dim"))


def _listed(head: str, names: Sequence[str], width: int, *, lines: int = 1) -> str:
    """List as many names as fit, and count the others."""
    for count in range(len(names), 0, -1):
        rest = f", {len(names) - count} more" if count < len(names) else ""
        text = f"{head}{', '.join(names[:count])}{rest}"
        # A wrapped line may end one long word early.
        if len(text) <= width * lines - 12 * (lines - 1):
            return text
    return brief(f"{head}{names[0]}", max(width - 10, 20)) + (
        f", {len(names) - 1} more" if len(names) > 1 else ""
    )


def _fix_title(page: Page, row: FixRow) -> None:
    page.columns((f"{row.fix} {row.title}", "bold green"), row.after)
    if row.measured:
        page.line(("measured: ", "bold"), row.measured, indent=2)


def _places(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the places that the first cause names."""
    worth, _ = cause_rows(diagnosis)
    return worth[0].sites[:1] if worth else ()


def _first_fix(page: Page, row: FixRow, room: _Room, *, told: Sequence[str]) -> None:
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
    if row.risk:
        page.line(("careful: ", "yellow"), _cut(row.warning, page, room, indent=11), indent=2)
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
    """Return the lines of code that say what to change: without the imports before them, and closed up."""
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


def _whole_fixes(page: Page, diagnosis: Diagnosis) -> None:
    """Show all that is known of every fix."""
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


def _closing(page: Page, diagnosis: Diagnosis, room: _Room | None) -> None:
    page.line()
    for state, names in setting_names(diagnosis, short=room is not None):
        head = f"{state}: "
        text = f"{head}{', '.join(names)}"
        if room is not None:
            text = _listed(head, names, page.width, lines=room.settings)
        page.line((head, "bold"), text.removeprefix(head))
    page.line(("capture: ", "bold"), capture_line(diagnosis, short=room is not None))
    said = sentence(diagnosis.verdict.reason)
    problems = [
        text
        for text in diagnosis.capture.problems
        if room is None or clean(text).partition(". ")[0] not in said
    ]
    for problem in problems if room is None else problems[: room.problems]:
        page.line(("! ", "yellow"), _cut(sentence(problem), page, room, indent=2))
    if room is not None and len(problems) > room.problems:
        more = "more" if room.problems else "on the capture"
        page.line((f"! {len(problems) - room.problems} {more} with --verbose", "dim"))
    for note in diagnosis.notes:
        page.line(sentence(note))
