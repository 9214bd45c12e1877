"""The replay: run a `Program` again, perhaps with something changed, and see how long a step takes.

In: a `Program` and an `Edit`. Out: a `Schedule`: when each host event and each piece of device work
would have happened.

    host  += own work * factor of its category
    start  = max(host + launch latency + delay, end of the work before on the stream, end of what it waits
             for) + what holds it up; of the first on a stream: not before work from before the window ended
    end    = start + duration
    a wait: host = max(host, end of what it waits for)
    the host runs at most QUEUE_DEPTH launches ahead

Between two waits the recurrence is a running sum and a running maximum (max-plus algebra:
`x[k] = max(r[k], x[k-1]) + d[k]` has the closed form `cumsum(d) + cummax(r - cumsum(d) + d)`), so a
stretch without waits is one vectorised pass per lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...model.codes import Part
from ..trace.intervals import latest
from .labels import Work
from .program import NO_WAIT, QUEUE_DEPTH, WAIT_ALL, EventKind, first_counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .program import Program

    Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

_BLOCK = 960
"""Launches per pass; below QUEUE_DEPTH, so that the queue limit of a pass is known before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What to change; the default changes nothing.

    Attributes:
        work: factor on host work, by category; 1 where missing.
        drop_waits: kinds of events whose waits are gone.
        drop_at: events whose waits are gone whatever their kind, shape (n,); None: none.
        duration: factor on device durations, shape (m,) or a scalar. What has the factor 0 is not
            launched at all: it takes no room between its neighbours either.
        spacing: factor on the pause behind each piece of device work, shape (m,) or a scalar.
        gone: host work that is not done at all, ns before any factor, shape (n, len(Work)); None: all is.
    """

    work: dict[Work, float] = field(default_factory=dict)
    drop_waits: frozenset[EventKind] = frozenset()
    duration: NDArray[np.float64] | float = 1.0
    spacing: NDArray[np.float64] | float = 1.0
    gone: NDArray[np.float64] | None = None
    drop_at: NDArray[np.bool_] | None = None

    def factors(self) -> NDArray[np.float64]:
        """Return the factor of each category, shape (len(Work),)."""
        out = np.ones(len(Work))
        for work, factor in self.work.items():
            out[work] = factor
        return out

    def and_also(self, other: Edit, *, apart: bool = False) -> Edit:
        """Return both edits together; factors multiply.

        `apart`: the host work that is gone with one is none of the other's. Else the same may go with both.
        """
        work = dict(self.work)
        for key, factor in other.work.items():
            work[key] = work.get(key, 1.0) * factor
        gone = self.gone if other.gone is None else other.gone
        if self.gone is not None and other.gone is not None:
            gone = self.gone + other.gone if apart else np.maximum(self.gone, other.gone)
        drop_at = self.drop_at if other.drop_at is None else other.drop_at
        if self.drop_at is not None and other.drop_at is not None:
            drop_at = self.drop_at | other.drop_at
        return Edit(
            work=work,
            drop_waits=self.drop_waits | other.drop_waits,
            duration=self.duration * other.duration,
            spacing=self.spacing * other.spacing,
            gone=gone,
            drop_at=drop_at,
        )


def not_launched(program: Program, mask: NDArray[np.bool_], share: float = 1.0) -> Edit:
    """Return the edit in which a share of these activities is not launched, nor dispatched on the host."""
    return replace(
        not_called(program, launching(program, mask), share), duration=np.where(mask, 1.0 - share, 1.0)
    )


def launching(program: Program, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the events, (n,), that launch one of these activities, (m,)."""
    events = np.zeros(len(program.kind), dtype=bool)
    events[program.event[mask]] = True
    return events


def not_called(
    program: Program, events: NDArray[np.bool_], share: float = 1.0, *, on_host: float | None = None
) -> Edit:
    """Return the edit without a share of these events (n,): what they launch, and the host between them.

    `on_host`: the share of the latter, where it is another one.
    """
    gone = np.where(events[:, None], (share if on_host is None else on_host) * program.work, 0.0)
    return Edit(duration=np.where(events[program.event], 1.0 - share, 1.0), gone=gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When everything happened, float64 ns from the first step boundary."""

    before: NDArray[np.float64]
    """Host time when the event's own work began (n,)."""
    issued: NDArray[np.float64]
    """Host time when the event was launched, or its wait began (n,)."""
    host: NDArray[np.float64]
    """Host time after the event (n,)."""
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    """Device times (m,)."""
    step_end: NDArray[np.float64]
    """End of each step: host part and device work both done; index 0 is the window's begin."""

    @property
    def whole(self) -> tuple[float, float, int]:
        """Begin, end and number of the steps that count; the end of one that does not sets the begin."""
        steps = len(self.step_end) - 1
        first = first_counted(steps)
        return float(self.step_end[first]), float(self.step_end[-1]), steps - first

    @property
    def step_ns(self) -> float:
        """Mean step time, between the ends of the first and the last whole step."""
        begin, end, steps = self.whole
        return (end - begin) / steps if steps else 0.0


@dataclass(frozen=True, slots=True)
class _Launched:
    """What a block launches on one lane."""

    lane: int
    at: NDArray[np.int64]
    """Activities, in order."""
    event: NDArray[np.int64]
    waits: Pairs | None
    """Those that wait for another activity, by their place in `at`, and that activity."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A stretch of events that is one pass: only the first may wait."""

    first: int
    last: int
    room: Pairs | None
    """Events that launch into the queue when it may be full, from `first` on, and whose end makes room."""
    lanes: tuple[_Launched, ...]


def step_ends(program: Program, host: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when each step ended: at its boundary, or when its last device work was done."""
    out = np.empty(len(program.marks))
    reach = np.maximum.accumulate(end) if len(end) else end
    for k, mark in enumerate(program.marks.tolist()):
        launched = int(program.first_activity[mark])
        out[k] = host[mark] if launched == 0 else max(host[mark], reach[launched - 1])
    return out


class Replay:
    """A program made ready to be run many times."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._busy_until, self._delay = self._begun_with()
        self._blocks = self._cut()
        # Most runs know few of the categories.
        self._known = np.flatnonzero(program.work.any(axis=0))
        self._work = program.work[:, self._known]

    def _begun_with(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return until when each lane has work from before the first step, ns, and all other delays.

        What the first activity waits for, and nothing in the window explains, is such work: where steps give
        the device less to do, there is less of it.
        """
        p = self.program
        until, delay = np.zeros(len(p.lanes)), p.delay.copy()
        lanes, first = np.unique(p.lane, return_index=True)
        if (p.part == p.parts.index(Part.COMMUNICATION)).any():
            return until, delay  # it may be other ranks that a collective before the window waits for
        for lane, at in zip(lanes.tolist(), first.tolist(), strict=True):
            since = p.observed_start[at] - p.origin_ns
            if delay[at] > since / 2 and p.event[at] < p.marks[1]:
                until[lane], delay[at] = since, 0.0
        return until, delay

    def _cut(self) -> tuple[_Block, ...]:
        p = self.program
        n = len(p.kind)
        starts = {0}
        starts.update(np.flatnonzero(p.wait != NO_WAIT).tolist())
        # The activity of a wait on its own copy is launched by the same event: cut after it too.
        starts.update((np.flatnonzero(p.wait != NO_WAIT) + 1).tolist())
        starts.update(p.event[np.flatnonzero(p.depends >= 0)].tolist())
        edges = sorted(s for s in starts if s < n)
        blocks: list[_Block] = []
        for first, stop in zip(edges, [*edges[1:], n], strict=True):
            while first < stop:
                block = self._block(first, stop)
                blocks.append(block)
                first = block.last  # noqa: PLW2901  (the stretch is cut from the front)
        return tuple(blocks)

    def _block(self, first: int, stop: int) -> _Block:
        """Return the longest block from `first` that stays below the launch limit of a pass."""
        p = self.program
        begin = int(p.first_activity[first])
        limit = int(latest(p.first_activity, begin + _BLOCK))
        last = min(stop, max(limit, first + 1), first + _BLOCK)
        lane = p.lane[begin : int(p.first_activity[last])]
        launched = p.first_activity[first : last + 1]
        full = np.flatnonzero((np.diff(launched) > 0) & (launched[1:] > QUEUE_DEPTH))
        return _Block(
            first=first,
            last=last,
            room=(full, launched[1:][full] - QUEUE_DEPTH - 1) if len(full) else None,
            lanes=tuple(self._launched(int(u), begin + np.flatnonzero(lane == u)) for u in np.unique(lane)),
        )

    def _launched(self, lane: int, at: NDArray[np.int64]) -> _Launched:
        p = self.program
        depends = p.depends[at]
        waits = np.flatnonzero(depends >= 0)
        return _Launched(
            lane=lane,
            at=at,
            event=p.event[at],
            waits=(waits, depends[waits]) if len(waits) else None,
        )

    def run(self, edit: Edit | None = None) -> Schedule:
        """Run the program once."""
        p = self.program
        edit = edit or Edit()
        factors = edit.factors()
        work = self._work
        if edit.gone is not None:
            work = np.maximum(work - edit.gone[:, self._known], 0.0)
        own = work @ factors[self._known]
        dropped = np.isin(p.kind, [int(k) for k in edit.drop_waits])
        if edit.drop_at is not None:
            dropped = dropped | edit.drop_at
        wait = np.where(dropped, NO_WAIT, p.wait)
        after = np.where(dropped, 0.0, p.after * factors[p.after_work])

        n, m = len(p.kind), len(p.event)
        duration = p.duration * edit.duration
        whole = float(p.duration.sum())
        left = float(duration.sum()) / whole if whole else 1.0
        gone = np.broadcast_to(edit.duration, m) == 0.0
        device = _Device(
            duration=duration,
            ready_after=np.where(gone, 0.0, p.latency + self._delay),
            held=np.where(gone, 0.0, p.held),
            spacing=np.where(gone, 0.0, p.spacing * edit.spacing),
            issued=np.empty(n),
            start=np.empty(m),
            end=np.empty(m),
            lane_end=self._busy_until * left,
        )
        host = np.empty(n)
        clock = 0.0
        for block in self._blocks:
            e0, e1 = block.first, block.last
            total = own[e0:e1].cumsum()
            times = clock + total
            if block.room is not None:
                events, oldest = block.room
                since = np.full(len(total), clock)
                since[events] = np.maximum(device.end[oldest] - total[events], clock)
                times = total + np.maximum.accumulate(since)
            device.issued[e0:e1] = times
            for launched in block.lanes:
                device.run(launched)
            if wait[e0] != NO_WAIT:
                # Only the first event of a block waits, and such a block holds that event alone.
                until = device.lane_end.max() if wait[e0] == WAIT_ALL else device.end[wait[e0]]
                times = np.maximum(times, until)
            host[e0:e1] = times + after[e0]
            clock = float(host[e1 - 1])
        return Schedule(
            before=np.concatenate([[0.0], host[:-1]]),
            issued=device.issued,
            host=host,
            start=device.start,
            end=device.end,
            step_end=step_ends(p, host, device.end),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """The lanes of one run; fills `start` and `end` block by block."""

    duration: NDArray[np.float64]
    ready_after: NDArray[np.float64]
    """From its launch."""
    held: NDArray[np.float64]
    spacing: NDArray[np.float64]
    issued: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    lane_end: NDArray[np.float64]

    def run(self, launched: _Launched) -> None:
        """Run what a block launches on one lane."""
        at, lane = launched.at, launched.lane
        ready = self.issued[launched.event] + self.ready_after[at]
        if launched.waits is not None:
            who, depends = launched.waits
            ready[who] = np.maximum(ready[who], self.end[depends])
        spacing, duration = self.spacing[at], self.duration[at]
        occupied = self.held[at] + duration + spacing
        total = occupied.cumsum()
        free = np.maximum(np.maximum.accumulate(ready - (total - occupied)), self.lane_end[lane])
        done = total + free
        end = done - spacing
        self.end[at] = end
        self.start[at] = end - duration
        self.lane_end[lane] = done[-1]
