"""Detours over the host: what the device has made is copied there, worked on, and copied back.

In: a trace, its program. Out: the events of such detours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.run import SourceSite
from ..lanes.labels import PHASES
from ..lanes.program import EventKind, Program
from ..trace.dialect import TO_DEVICE, TO_HOST, Kind
from ..trace.intervals import latest
from ..trace.table import NONE, Trace
from .by_line import Asked


@dataclass(frozen=True, slots=True)
class Detours:
    """All of a run."""

    events: NDArray[np.bool_]
    """From the copy to the host to the last copy back, (n,)."""
    site: SourceSite | None
    """The line of the copies that the host spends most time for."""

    @property
    def begin(self) -> NDArray[np.bool_]:
        """The first event of each, (n,)."""
        return np.asarray(self.events & ~np.append(False, self.events[:-1]))


def detours(trace: Trace, program: Program, asked: Asked | None) -> Detours | None:
    """Return what goes to the host and back in forward and loss; None where nothing does."""
    events = _events(trace, program)
    if not events.any():
        return None
    spent = program.work.sum(axis=1)[program.event]
    return Detours(
        events=events,
        site=asked.main_line(events[program.event], spent) if asked is not None else None,
    )


def _events(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Return the events from a copy to the host to the last copy back, (n,), in forward and loss.

    The device is given nothing else in between, so what comes back was made of what was sent. A value that is
    read to be shown, or to decide, is followed by no copy back before the backward.
    """
    found = np.zeros(len(program.kind), dtype=bool)
    sends, brings = (
        _that_launch(program, trace.named(way, program.activity_row)) for way in (TO_HOST, TO_DEVICE)
    )
    if not (sends.any() and brings.any()):
        return found
    others = _that_launch(program, program.activity_row >= 0) & ~sends & ~brings
    begun = _phase_begun(trace, program)
    sent, phase = -1, NONE
    for event in np.flatnonzero(sends | brings | others).tolist():
        if others[event] or begun[event] != phase:
            sent = -1
        phase = int(begun[event])
        if sends[event] and sent < 0 and phase != NONE:
            sent = event
        elif brings[event] and sent >= 0:
            found[sent : event + 1] = True
    # Of pageable memory the call that copies and the one that waits are two.
    waits = (program.kind == EventKind.SYNC) & (np.diff(program.first_activity) == 0)
    found[1:] |= found[:-1] & waits[1:]
    return found


def _that_launch(program: Program, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the events, (n,), that launch one of these activities, (m,)."""
    out = np.zeros(len(program.kind), dtype=bool)
    out[program.event[chosen]] = True
    return out


def _phase_begun(trace: Trace, program: Program) -> NDArray[np.intp]:
    """Return of each event which phase began last, (n,), where that is a forward; NONE elsewhere."""
    # Copies have a label also where they stand in a forward.
    notes = trace.rows(Kind.ANNOTATION, named=frozenset(PHASES) - {"h2d"})
    notes = notes[np.argsort(trace.ts_ns[notes], kind="stable")]
    if not len(notes):
        return np.full(len(program.row), NONE, dtype=np.intp)
    begun = latest(trace.ts_ns[notes], trace.ts_ns[program.row])
    is_forward = (program.row >= 0) & (begun >= 0) & trace.named("forward", notes)[begun]
    return np.where(is_forward, begun, NONE)
