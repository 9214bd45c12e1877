"""Detours over the host: what the device has made is copied there, worked on, and copied back.

In: a trace, its program. Out: the events of such detours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...model.run import SourceSite
from ..lanes.program import EventKind, Program
from ..lanes.replay import launching
from ..trace.dialect import TO_DEVICE, TO_HOST, Kind
from ..trace.table import Trace
from .by_line import Asked


@dataclass(frozen=True, slots=True)
class Detours:
    """All of a run."""

    events: NDArray[np.bool_]
    """From the copy to the host to the last copy back, (n,)."""
    begin: NDArray[np.bool_]
    """The first event of each, (n,): what the host did before it is none of it."""
    site: SourceSite | None
    """The line of the copies that the host spends most time for."""

    def host_work(self, program: Program) -> NDArray[np.float64]:
        """Return what the host works in them, (n, len(Work))."""
        return np.where((self.events & ~self.begin)[:, None], program.work, 0.0)


def detours(trace: Trace, program: Program, asked: Asked | None) -> Detours | None:
    """Return what goes to the host and back in a model's forward; None where nothing does."""
    events, begin = _events(trace, program)
    if not events.any():
        return None
    found = Detours(events=events, begin=begin, site=None)
    if asked is None:
        return found
    spent = found.host_work(program).sum(axis=1)[program.event]
    return replace(found, site=asked.main_line(events[program.event], spent))


def _events(trace: Trace, program: Program) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the events from a copy to the host to the last copy back, (n,), and the first of each.

    Both stand in one forward, and the device is given nothing else in between, so what comes back was made of
    what was sent. Behind a forward a value may be read to be shown, and the next batch copied.
    """
    found, begin = np.zeros((2, len(program.kind)), dtype=bool)
    sends, brings = (
        launching(program, trace.named(way, program.activity_row)) for way in (TO_HOST, TO_DEVICE)
    )
    forwards = trace.rows(Kind.ANNOTATION, named="forward")
    if not (sends.any() and brings.any() and len(forwards)):
        return found, begin
    # A trace has millions of launches, and few copies.
    copies = np.flatnonzero(sends | brings)
    launches, calls = np.diff(program.first_activity) > 0, program.row[copies]
    others = launches & ~sends & ~brings
    inside = trace.ranges(forwards).innermost(trace.ts_ns[calls], trace.tid[calls])
    # What is launched in between, and the end of the forward, begin anew.
    stretches = zip(np.cumsum(others)[copies].tolist(), inside.tolist(), strict=True)
    sent, last = -1, (0, -1)
    for event, stretch in zip(copies.tolist(), stretches, strict=True):
        if stretch != last:
            sent, last = -1, stretch
        if sends[event] and sent < 0 and stretch[1] >= 0:
            sent = event
        elif brings[event] and sent >= 0:
            found[sent : event + 1] = begin[sent] = True
    # Of pageable memory the call that copies and the one that waits are two.
    waits = (program.kind == EventKind.SYNC) & ~launches
    found[1:] |= found[:-1] & waits[1:]
    return found, begin
