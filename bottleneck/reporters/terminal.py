"""The report in the terminal: one screen of 80 columns, or with `verbose` everything there is.

In: a diagnosis. Out: text, with colour codes only where asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..model.diagnosis import Diagnosis
from ..model.words import brief, clean, milliseconds, percent, sentence, shorten
from .page import Page
from .room import NARROW, ROOMS, SCREEN, Room, cut, listed
from .rows import details
from .rows.closing import capture_line, setting_names
from .rows.code import code_rows
from .rows.diagnosis import (
    NEGLIGIBLE,
    BudgetRow,
    CauseRow,
    bar_cells,
    budget_rows,
    cause_rows,
    device_line,
    headline,
    step_line,
    told_budget,
)
from .rows.fleet import (
    account_rows,
    bubble_line,
    bucket_lines,
    clock_line,
    late_lines,
    link_lines,
    own_lines,
    path_line,
    together_lines,
    traffic_rows,
    unread_lines,
)
from .rows.groups import group_lines
from .rows.heat import heat_lines
from .rows.job import job_line
from .rows.memory import memory_rows
from .terminal_fixes import show_fixes, show_whole_fixes

_FILLS = "█▓▒░▚▌▪·+x~=*o>"
"""Segments of the stacked bar must be distinguishable without colour too."""
_ASCII_FILLS = "#=+-%:o.x~*<>@&"
_COLORS = ("red", "yellow", "cyan", "green", "magenta", "blue", "bright_black", "white")

_MOST_RANKS = 64
"""In the whole report; diagnosis.json has all."""
_BELOW = f"below {NEGLIGIBLE} of the step"


def render(
    diagnosis: Diagnosis,
    *,
    width: int = 80,
    color: bool = False,
    verbose: bool = False,
    unicode: bool = True,
) -> str:
    """Return the report as text for a terminal.

    `verbose` adds every finding with its evidence, all what-ifs, kernels, settings and artefacts.
    """
    if verbose:
        return _whole(diagnosis, Page(width=width, color=color, unicode=unicode))
    text = ""
    for room in ROOMS:
        page = Page(width=width, color=color, unicode=unicode)
        text = _screen(diagnosis, page, room)
        if text.count("\n") <= SCREEN:
            break
    return text


def _screen(diagnosis: Diagnosis, page: Page, room: Room) -> str:
    _verdict(page, diagnosis, room)
    _budget(page, diagnosis, told_budget(diagnosis, room.budget), details_too=False)
    _causes(page, diagnosis, room)
    _ranks(page, diagnosis, room)
    code = _code(page, diagnosis, room)
    # Where there is no room for both, whose code it is says more.
    if room.memory or not code:
        _memory(page, memory_rows(diagnosis), room if room.memory else replace(room, memory=2))
    show_fixes(page, diagnosis, room)
    _closing(page, diagnosis, room)
    return page.text()


def _whole(diagnosis: Diagnosis, page: Page) -> str:
    _verdict(page, diagnosis, None)
    _budget(page, diagnosis, budget_rows(diagnosis, whole=True), details_too=True)
    _causes(page, diagnosis, None)
    _ranks(page, diagnosis, None)
    _code(page, diagnosis, None)
    _memory(page, memory_rows(diagnosis, whole=True), None)
    show_whole_fixes(page, diagnosis)
    _closing(page, diagnosis, None)
    for title, rows in details.sections(diagnosis):
        page.heading(title)
        for indent, text in rows:
            page.line(text, indent=2 + 2 * indent)
    return page.text()


def _verdict(page: Page, diagnosis: Diagnosis, room: Room | None) -> None:
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
    # The headline of an undetermined verdict is its reason.
    if reason and not undetermined and verdict.confidence != "high":
        page.line(cut(f"Confidence is {verdict.confidence}: {reason}", page, room))
    if verdict.remedy:
        page.line(("To get a verdict: " if undetermined else "To confirm: "), sentence(verdict.remedy))
    page.line((step_line(diagnosis), "dim"))
    where = " · ".join(filter(None, [clean(diagnosis.title), device_line(diagnosis)]))
    if where:
        page.line((where if room is None else shorten(where, page.width), "dim"))
    if diagnosis.outcome:
        page.line((cut(clean(diagnosis.outcome), page, room), "yellow"))


def _budget(page: Page, diagnosis: Diagnosis, rows: Sequence[BudgetRow], *, details_too: bool) -> None:
    if not rows:
        return
    if [row.label for row in rows] == ["unexplained"]:
        page.heading("Where the step goes")
        page.line("not measured: the capture has no data to divide the step", indent=2)
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


def _causes(page: Page, diagnosis: Diagnosis, room: Room | None) -> None:
    """Show the causes; those that disappear with the first, and small ones, share a line."""
    worth, small = cause_rows(diagnosis)
    if not worth and not small:
        return
    shown = worth if room is None else [row for row in worth if not row.covered][: room.causes]
    covered = [row for row in worth if row.covered and row not in shown]
    rest = [row for row in worth if row not in shown and row not in covered]
    page.heading("What each cause costs", "step without it" if any(row.without for row in shown) else "")
    for row in shown:
        _cause(page, row, room=room)
    gone = covered[0].after_previous if covered else ""
    groups = ((gone, covered), ("also", rest), (_BELOW, small))
    told = [f"{words}: {', '.join(row.brief for row in rows)}" for words, rows in groups if rows]
    one_line = "; ".join(told)
    for text in [one_line] if told and len(one_line) <= page.width else told:
        page.line((text, "dim"))


def _cause(page: Page, row: CauseRow, *, room: Room | None) -> None:
    cost = f"{'≤ ' if row.bound else ''}{row.cost}"
    without = f"{'≥ ' if row.bound else ''}{row.without} ms" if row.without else ""
    if page.width < NARROW:
        page.columns((f"{row.name} {cost} ms", "bold"), without)
    else:
        page.columns((f"{row.name:<20} {cost:>9} ms {row.share:>7}  ", "bold"), without, (row.code, "dim"))
    means = row.means if (room is None or room.words) and not row.in_headline else ""
    places = ", ".join(row.sites if room is None else row.sites[:2])
    told = [means, places, row.after_previous]
    one_line = " · ".join(filter(None, told))
    if len(one_line) <= page.width - 2:
        told = [one_line]
    elif room is not None:
        places = "".join(row.sites[:1])
        told = [brief(means, page.width - 2), places, row.after_previous]
        if not means and places and row.after_previous:
            folder, _, name = places.rpartition("/")
            forms = (places, f"…/{name}") if folder else (places,)
            lines = [f"{form} · {row.after_previous}" for form in forms]
            told = next(([line] for line in lines if len(line) <= page.width - 2), told)
    for text in filter(None, told):
        page.line(text, indent=2)


def _ranks(page: Page, diagnosis: Diagnosis, room: Room | None) -> None:
    """Show who is late and what that costs all ranks, and the ranks worth a look."""
    late, unread = late_lines(diagnosis), unread_lines(diagnosis)
    if room is not None and not room.ranks:
        late = [line for line in late if line[2]]
    if not late and not unread:
        return
    page.heading("Ranks", "step without it" if any(without for _, _, without in late) else "")
    for who, why, without in late if room is None else late[: room.causes]:
        page.columns((shorten(who, page.width - len(without) - 1), "bold"), without)
        if why:
            page.line(cut(why, page, room, indent=2), indent=2)
    if page.width >= NARROW:
        rows = account_rows(diagnosis, most=_MOST_RANKS if room is None else room.ranks)
        if rows:
            stages = any(row.bubble for row in rows)
            head = f"{'rank':>5} {'step':>9} {'own work':>9} {'waits':>9} {'transfer':>9}"
            page.line((f"{head} {'bubble':>9}" if stages else head, "dim"))
        for row in rows:
            figures = f"{row.rank:>5} {row.step:>9} {row.own:>9} {row.waits:>9} {row.transfer:>9}"
            figures += f" {row.bubble:>9}" if stages else ""
            page.line(figures, (f"  {shorten(row.why, page.width - len(figures) - 2)}", "dim"))
    if room is None or room.ranks:
        for text in own_lines(diagnosis):
            page.line((text, "dim"))
    if room is None:
        _ranks_together(page, diagnosis)
    for text in unread if room is None else unread[: max(room.problems, 1)]:
        page.line(("! ", "yellow"), cut(text, page, room, indent=2))
    if room is not None and len(unread) > max(room.problems, 1):
        page.line((f"! {len(unread) - max(room.problems, 1)} more with --verbose", "dim"))


def _ranks_together(page: Page, diagnosis: Diagnosis) -> None:
    """Show lateness step by step, what the step consists of, the joint replay and the collectives."""
    lines = heat_lines(diagnosis, page.width - 2, unicode=page.unicode)
    if lines:
        page.line(("lateness, ranks from left to right, a line per step", "dim"))
    for text in lines:
        page.line(text, indent=2)
    said = [
        *group_lines(diagnosis),
        bubble_line(diagnosis),
        path_line(diagnosis),
        *together_lines(diagnosis),
        *bucket_lines(diagnosis),
    ]
    for text in filter(None, said):
        page.line(text)
    rows = traffic_rows(diagnosis) if page.width >= NARROW else []
    if rows:
        head = f"{'collective':<18}{'ranks':>5} {'size':>9} {'a step':>6} {'ms':>6} {'GB/s':>5} {'waits':>6}"
        page.line((f"{head} {'of best':>7} {'latency':>7}", "dim"))
    for row in rows:
        kind, ranks = shorten(row.kind, 17), row.ranks.partition(" ")[0]
        figures = f"{row.per_step:>6} {row.transfer:>6} {row.rate:>5} {row.waits:>6}"
        page.line(f"{kind:<18}{ranks:>5} {row.size:>9} {figures} {row.of_best:>7} {row.latency:>7}")
    for text in link_lines(diagnosis):
        page.line(text)
    clock = clock_line(diagnosis)
    if clock:
        page.line((clock, "dim"))


def _code(page: Page, diagnosis: Diagnosis, room: Room | None) -> bool:
    """Show the user's lines that cost most beside forward, backward and update; say whether there are any."""
    rows = code_rows(diagnosis)
    rows = rows if room is None else rows[: room.code_lines]
    if not rows:
        return False
    page.heading("Whose code", "step without it" if any(row.without for row in rows) else "")
    for row in rows:
        figures, where = f" {row.ms:>8} ms {row.share:>6}  ", row.where.partition(" (")[0]
        if page.width < NARROW:
            page.columns((f"{shorten(row.name, page.width // 2)} {row.ms} ms", "bold"), row.without)
            continue
        room_left = page.width - len(figures) - 15
        at = shorten(where, min(len(where), room_left // 2))
        last = row.name
        # A call, not what a comprehension makes, nor a whole line.
        if last[:1].isidentifier() and row.role != "device":
            last = last[last.rfind(".", 0, last.find("(")) + 1 :]
        ways = (f"{row.role}: {row.name}", f"{row.role}: {last}", last)
        name = next((way for way in ways if len(way) <= room_left - len(at)), None)
        if name is None:
            most = room_left - len(at)
            name = f"{last[: most - 1].rstrip(' …')}…" if row.role == "device" else shorten(last, most)
        page.columns((f"{name:<{room_left - len(at)}}{figures}", "bold"), row.without, (at, "dim"))
    return True


def _memory(page: Page, rows: Sequence[tuple[int, str]], room: Room | None) -> None:
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


def _closing(page: Page, diagnosis: Diagnosis, room: Room | None) -> None:
    page.line()
    for state, names in setting_names(diagnosis, short=room is not None):
        head = f"{state}: "
        text = f"{head}{', '.join(names)}"
        if room is not None:
            text = listed(head, names, page.width, lines=room.settings)
        page.line((head, "bold"), text.removeprefix(head))
    job = job_line(diagnosis)
    if job and room is not None and room.job:
        page.line(("the rest of the job: ", "bold"), brief(job, page.width - 21))
    page.line(("capture: ", "bold"), capture_line(diagnosis, short=room is not None))
    capture = diagnosis.capture
    said = {capture.codes[code] for code in diagnosis.verdict.doubts if code in capture.codes}
    problems = [text for i, text in enumerate(capture.problems) if room is None or i not in said]
    for problem in problems if room is None else problems[: room.problems]:
        page.line(("! ", "yellow"), cut(sentence(problem), page, room, indent=2))
    if room is not None and len(problems) > room.problems:
        left = len(problems) - room.problems
        what = "more" if room.problems else f"note{'s' if left > 1 else ''} on the capture"
        page.line((f"! {left} {what} with --verbose", "dim"))
    for note in diagnosis.notes:
        page.line(sentence(note))
