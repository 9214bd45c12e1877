"""The report in the terminal: one screen of 80 columns, or with `verbose` everything there is.

In: a diagnosis. Out: text, with colour codes only where asked for.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from . import details
from .memory_rows import memory_rows
from .rows import (
    FixRow,
    bar_cells,
    budget_rows,
    capture_line,
    cause_rows,
    combination_line,
    device_line,
    fix_rows,
    headline,
    settings_lines,
    step_line,
)
from .wording import brief, clean, milliseconds, percent, sentence, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..model.diagnosis import Diagnosis

__all__ = ["Page", "render"]

_FILLS = "█▓▒░▚▌▪·"
"""Segments of the stacked bar must be told apart without colour too."""
_ASCII_FILLS = "#=+-%:o."
_COLORS = ("red", "yellow", "cyan", "green", "magenta", "blue", "bright_black", "white")

_ASCII = str.maketrans(
    {
        "→": "->",
        "×": "x",
        "±": "+/-",
        "µ": "u",
        "μ": "u",
        "…": "...",
        "\u2013": "-",
        "\u2014": "-",
        "·": "|",
        "─": "-",
        "\u201c": '"',
        "\u201d": '"',
        "\u2019": "'",
        "≤": "<=",
        "≥": ">=",
    }
)

_TOP_FIXES = 3
_CODE_LINES = 6
"""Lines of code shown for the first fix."""
_CAUSES = 3
_OTHERS = 3
_PROBLEMS = 3


class Page:
    """Lays lines on a page of fixed width; the only place that touches the terminal library."""

    def __init__(self, *, width: int, color: bool, unicode: bool) -> None:
        self._file = io.StringIO()
        self.width = width
        self.unicode = unicode
        self._console = Console(
            file=self._file,
            width=width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            # The environment was read by whoever chose width and colour; rich must not read it again.
            _environ={},
        )

    def plain(self, text: str) -> str:
        """Return the text with what the stream can show."""
        return text if self.unicode else text.translate(_ASCII)

    def line(self, *pieces: str | tuple[str, str], indent: int = 0) -> None:
        """Print pieces (text, or text and style) as one line, wrapped under its own indent."""
        text = Text(overflow="fold", no_wrap=False)
        for piece in pieces:
            words, style = (piece, "") if isinstance(piece, str) else piece
            text.append(self.plain(words), style=style)
        self._console.print(Padding(text, (0, 0, 0, indent)) if indent else text)

    def code(self, code: str, *, indent: int, most: int | None = None) -> None:
        """Print lines of code; a line too long is folded, never cut, so that it can be copied.

        With `most`, the imports at the top are left out, and what is longer is cut.
        """
        lines = code.splitlines() if most is None else _without_imports(code)
        shown = lines if most is None or len(lines) <= most else lines[: most - 1]
        for line in shown:
            self.line((line, "cyan"), indent=indent)
        if len(shown) < len(lines):
            self.line((f"… {len(lines) - len(shown)} more lines", "dim"), indent=indent)

    def show(self, renderable: RenderableType) -> None:
        """Print something of the terminal library's own, such as a table."""
        self._console.print(renderable)

    def heading(self, title: str, right: str = "") -> None:
        """Print a heading after an empty line."""
        gap = " " * max(self.width - len(title) - len(right), 1) if right else ""
        self._console.print()
        self.line((title, "bold"), gap, (right, "dim"))

    def text(self) -> str:
        """Return the page, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self._file.getvalue().splitlines()) + "\n"


def _without_imports(code: str) -> list[str]:
    lines = code.splitlines()
    start = 0
    while start < len(lines) - 1 and (not lines[start] or lines[start].startswith(("import ", "from "))):
        start += 1
    return lines[start:]


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
    page = Page(width=width, color=color, unicode=unicode)
    _verdict(page, diagnosis)
    _budget(page, diagnosis, verbose=verbose)
    _causes(page, diagnosis)
    _memory(page, diagnosis, verbose=verbose)
    _fixes(page, diagnosis, verbose=verbose)
    _closing(page, diagnosis, verbose=verbose)
    if verbose:
        for title, rows in details.sections(diagnosis):
            page.heading(title)
            for indent, text in rows:
                page.line(text, indent=2 + 2 * indent)
    return page.text()


def _verdict(page: Page, diagnosis: Diagnosis) -> None:
    verdict = diagnosis.verdict
    undetermined = verdict.bottleneck_class.value == "undetermined"
    also = "".join(f" / {other.value}" for other in verdict.also)
    style = "bold yellow" if undetermined else "bold red"
    pieces: list[str | tuple[str, str]] = [(f"{verdict.bottleneck_class.value}{also}".upper(), style)]
    if not undetermined:
        pieces.append(f"   confidence {verdict.confidence}")
    page.line(*pieces)
    page.line((headline(diagnosis), "bold"))
    told = verdict.reason in verdict.headline
    if verdict.reason and not told and (undetermined or verdict.confidence != "high"):
        page.line(sentence(verdict.reason))
    if verdict.remedy:
        page.line(("To get a verdict: " if undetermined else "To be surer: "), sentence(verdict.remedy))
    page.line((" · ".join(filter(None, [clean(diagnosis.title), step_line(diagnosis)])), "dim"))
    where = device_line(diagnosis)
    if where:
        page.line((where, "dim"))
    if diagnosis.outcome:
        page.line((sentence(diagnosis.outcome), "yellow"))


def _budget(page: Page, diagnosis: Diagnosis, *, verbose: bool) -> None:
    rows = budget_rows(diagnosis, whole=verbose)
    if not rows:
        return
    page.heading("Where the step goes")
    fills = _FILLS if page.unicode else _ASCII_FILLS
    cells = bar_cells([row.share for row in rows], page.width)
    bar: list[str | tuple[str, str]] = []
    for i, count in enumerate(cells):
        bar.append((fills[i % len(fills)] * count, _COLORS[i % len(_COLORS)]))
    page.line(*bar)
    label_width = max(len(row.label) for row in rows)
    size = diagnosis.step.true_ms
    for i, row in enumerate(rows):
        mark = (fills[i % len(fills)], _COLORS[i % len(_COLORS)])
        cost = milliseconds(row.ms, like=size)
        figures = f" {row.label:<{label_width}} {cost:>9} ms {percent(row.share):>7}"
        room = page.width - len(figures) - 4
        detail = f"  {row.detail}" if row.detail and (verbose or len(row.detail) <= room) else ""
        page.line(mark, figures, (detail, "dim"))


def _causes(page: Page, diagnosis: Diagnosis) -> None:
    worth, small = cause_rows(diagnosis)
    if worth:
        page.heading("What each cause costs", "step without it")
        for row in worth[:_CAUSES]:
            left = f"{row.name:<20} {row.cost:>9} ms {row.share:>7}  "
            right = f"{row.without} ms"
            gap = " " * max(page.width - len(left) - len(row.code) - len(right) - 1, 1)
            page.line((left, "bold"), (row.code, "dim"), gap, right)
            said = headline(diagnosis)
            told = [
                row.headline if row.headline not in said else "",
                ", ".join(row.sites[:2]),
                row.after_previous,
            ]
            one_line = " · ".join(filter(None, told))
            if len(one_line) <= page.width - 2:
                told = [one_line]
            for text in filter(None, told):
                page.line(text, indent=2)
        if len(worth) > _CAUSES:
            page.line((f"and {len(worth) - _CAUSES} more with --verbose", "dim"))
    if small:
        listed = ", ".join(f"{row.name} {row.cost} ms" for row in small)
        if not worth:
            page.heading("What each cause costs")
        page.line((f"below 2 % of the step: {listed}", "dim"))


def _memory(page: Page, diagnosis: Diagnosis, *, verbose: bool) -> None:
    rows = memory_rows(diagnosis, whole=verbose)
    if rows:
        page.heading("Memory")
        for indent, text in rows:
            page.line(text, indent=2 * indent)


def _fixes(page: Page, diagnosis: Diagnosis, *, verbose: bool) -> None:
    rows = fix_rows(diagnosis)
    if not rows:
        return
    top = rows if verbose else [row for row in rows if not row.minor][:_TOP_FIXES]
    if top:
        page.heading("What to change", "predicted step")
    for number, row in enumerate(top):
        if verbose:
            _whole_fix(page, row)
        elif number == 0:
            _first_fix(page, row)
        else:
            _further_fix(page, row)
    together = combination_line(diagnosis)
    if together:
        page.line((together, "green"))
    others = [row for row in rows if row not in top]
    if others:
        if not top:
            page.heading("What to change")
        listed = ", ".join(f"{row.fix} {shorten(row.title, 70)}" for row in others[:_OTHERS])
        more = f", {len(others) - _OTHERS} more" if len(others) > _OTHERS else ""
        page.line((f"also: {listed}{more}", "dim"))


def _fix_title(page: Page, row: FixRow) -> None:
    left = f"{row.fix} {row.title}"
    gap = page.width - len(left) - len(page.plain(row.gain))
    if gap >= 2:
        page.line((left, "bold green"), " " * gap, row.gain)
    else:
        page.line((left, "bold green"))
        page.line(row.gain, indent=6)


def _first_fix(page: Page, row: FixRow) -> None:
    """Show the best fix with its place and its code."""
    _fix_title(page, row)
    if row.where:
        page.line(("at ", "dim"), row.where, indent=2)
    if not row.code or len(_without_imports(row.code)) > _CODE_LINES:
        page.line(brief(row.how, 2 * page.width - 8), indent=2)
    page.code(row.code, indent=4, most=_CODE_LINES)
    if row.risk:
        page.line(("careful: ", "yellow"), row.warning, indent=2)
    if row.unchecked:
        page.line(("not checked: ", "yellow"), row.unchecked, indent=2)


def _further_fix(page: Page, row: FixRow) -> None:
    """Show another fix in two lines: its code where that is one line, else what to change."""
    _fix_title(page, row)
    doubts = "; ".join(filter(None, [row.risk, "not all checked" if row.unchecked else ""]))
    room = page.width - 4 - (len(doubts) + 3 if doubts else 0)
    code = _without_imports(row.code)
    if len(code) == 1 and len(code[0]) <= room:
        page.line((code[0], "cyan"), (f" [{doubts}]" if doubts else "", "yellow"), indent=4)
    else:
        page.line(brief(row.how, room), (f" [{doubts}]" if doubts else "", "yellow"), indent=2)


def _whole_fix(page: Page, row: FixRow) -> None:
    """Show all that is known of a fix."""
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


def _closing(page: Page, diagnosis: Diagnosis, *, verbose: bool) -> None:
    page.line()
    for state, names in settings_lines(diagnosis):
        page.line((f"{state}: ", "bold"), names)
    page.line(("capture: ", "bold"), capture_line(diagnosis))
    said = sentence(diagnosis.verdict.reason)
    problems = [problem for problem in diagnosis.capture.problems if verbose or problem not in said]
    for problem in problems if verbose else problems[:_PROBLEMS]:
        page.line(("! ", "yellow"), sentence(problem))
    if not verbose and len(problems) > _PROBLEMS:
        page.line((f"! {len(problems) - _PROBLEMS} more with --verbose", "dim"))
    for note in diagnosis.notes:
        page.line(sentence(note))
