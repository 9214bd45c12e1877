"""How much of a report the screen has room for, and how prose and lists are cut to it.

In: text. Out: as much of it as fits. `ROOMS` are tried one after the other until a report fits `SCREEN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..model.words import brief
from .page import Page

SCREEN = 40
"""Lines that a report keeps to: with the prompt and the command above it, what a window shows at once."""

NARROW = 60
"""Below this width columns give way to lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much of each section is shown."""

    budget: int = 8
    causes: int = 3
    code_lines: int = 4
    """Of the user's code."""
    ranks: int = 5
    """Rows for those of several ranks that are worth a look; 0: no more than who is late."""
    words: bool = True
    """Also what is behind a cause, beside its place."""
    memory: int = 8
    """0: not where lines of the user's code are shown."""
    fixes: int = 3
    code: int = 8
    """Lines of code for the first fix."""
    prose: bool = True
    """Say in words what the code above was cut from, and how far the first fix's predictions were from
    measurements; name its place though the cause has it."""
    further: int = 2
    """How many of the further fixes say more than their title."""
    ways: bool = True
    """Name other ways to the same gain below a fix, not among the others at the end."""
    settings: int = 2
    """Lines per state."""
    problems: int = 3
    lines: int = 2
    """Lines for a problem, a warning or a reason."""
    job: bool = False
    """Name what the job does once."""


_TIGHT = Room(
    budget=7,
    code_lines=2,
    ranks=0,
    words=False,
    memory=5,
    code=5,
    prose=False,
    further=0,
    ways=False,
    settings=1,
    problems=1,
    lines=1,
)
ROOMS = (
    Room(job=True),
    Room(),
    Room(code=6, ranks=3, settings=1, problems=2),
    Room(memory=6, code_lines=3, ranks=2, code=6, prose=False, further=1, settings=1, problems=2, lines=1),
    Room(memory=6, code_lines=3, ranks=2, code=6, prose=False, further=0, settings=1, problems=2, lines=1),
    replace(_TIGHT, words=True, code=6),
    _TIGHT,
    replace(_TIGHT, budget=6, causes=2, memory=4, code_lines=1),
    replace(_TIGHT, budget=6, causes=2, memory=3, code_lines=1, fixes=2, code=4, problems=0),
    replace(_TIGHT, budget=5, causes=2, memory=2, code_lines=1, fixes=2, code=2, problems=0),
    replace(_TIGHT, budget=5, causes=2, memory=0, code_lines=2, fixes=2, code=3, problems=0),
    replace(_TIGHT, budget=5, causes=2, memory=0, code_lines=1, fixes=2, code=2, problems=0),
    replace(_TIGHT, budget=5, causes=2, memory=2, code_lines=0, fixes=2, code=3, problems=0),
)
"""From roomy to tight; the first that fits the screen is taken."""


def cut(text: str, page: Page, room: Room | None, *, indent: int = 0) -> str:
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


def listed(head: str, names: Sequence[str], width: int, *, lines: int = 1) -> str:
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
