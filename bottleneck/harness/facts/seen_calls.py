"""What is kept of a call that could be spared, and where the user's code makes it.

In: calls as `repeats` sees them. Out: `SeenCall`, and the user's lines with their time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

from ...model.run import SiteTime, SourceSite
from ..lines.calls import Position, call_at, position_of
from ..lines.sites import user_frame

Place = tuple[CodeType, int]
"""The user's code, and the instruction in it."""


@dataclass(slots=True)
class SeenCall:
    """A call of a module or a function, with the time that it took."""

    name: str
    ns: int
    graded: bool
    at: Place | None
    """The user's code that leads to it."""
    alike_ns: list[int]
    """Of all calls with this input, the first included."""
    steady: bool = False
    """It is another step that has computed the same."""
    later: bool = False
    """In a step behind the first one."""
    outside: bool = False
    """Of all modules."""
    tests: bool = False
    """The model is trained on the same input in this step: its outputs are as good."""


def user_place() -> Place | None:
    """Return where the user's code is now."""
    frame = user_frame(2)
    return (frame.f_code, frame.f_lasti) if frame is not None else None


def line_at(place: Place) -> tuple[SourceSite, Position]:
    """Return the line of a place, and where in it that is."""
    code, position = place[0], position_of(*place)
    return SourceSite(file=code.co_filename, line=position[0], function=code.co_name), position


def ns_of(calls: Iterable[SeenCall]) -> int:
    """Return their time together."""
    return sum(each.ns for each in calls)


def most_of(calls: Iterable[SeenCall]) -> str:
    """Return the name that most of their time is in; empty for none."""
    names: Counter[str] = Counter()
    for each in calls:
        names[each.name] += each.ns
    return names.most_common(1)[0][0] if names else ""


def sites_of(calls: Iterable[SeenCall], phase: str) -> Iterator[SiteTime]:
    """Yield the user's lines that lead to them, the most expensive first, with their calls."""
    lines: defaultdict[SourceSite, Counter[Position]] = defaultdict(Counter)
    counts: Counter[SourceSite] = Counter()
    for each in calls:
        if each.at is not None:
            site, position = line_at(each.at)
            lines[site][position] += each.ns
            counts[site] += 1
    for site, positions in sorted(lines.items(), key=lambda item: -item[1].total()):
        most = positions.most_common(1)[0][0]
        # Before Python 3.11 no column tells which call of a line it is.
        call, callee = call_at(site.file, most, {}) if most[2] is not None else ("", "")
        yield SiteTime(
            site=site,
            phase=phase,
            call=call,
            callee=callee,
            count=counts[site],
            total_ms=positions.total() / 1e6,
        )
