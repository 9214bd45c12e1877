"""The replay of several ranks together: the own work of each, joined by collectives that all leave at once.

In: where collectives stand in the own work of each rank, and the collectives matched. Out: `JointProgram`,
which runs again under several `JointEdit`s at once, and tells what the step consists of.

    a rank reaches a place at
        max(its host's pace, what its device has still to do since it last waited for a collective)
    a collective ends at
        max(the last rank's arrival, the end of the group's collective before it) + transfer
    and each rank's device stands still from where it needs the result until then;
        up to there its own work is slower while the transfer runs beside it

So a host that is ahead of its device makes up in the queue what a late rank has cost; one that waits for its
device does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..stats.spread import median_of_others
from ..timeline.trace.table import NONE
from .clock import Clock
from .match import Lane, Matched
from .summary import RankSummary

__all__ = ["At", "Join", "JointEdit", "JointProgram", "PathPart", "host_program", "joint_program"]

_NOTHING = 1e-4
"""Of a step: less than that on its path is rounding."""
_MOST_JOINS = 20_000
"""Collectives in a replay; of more the last steps are enough."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class At(IntEnum):
    """Columns of the places of a collective, as in `Alone.places`."""

    LAUNCH = 0
    DONE = 1
    NEEDED = 2
    SYNCED = 3
    SYNCED_DONE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """One collective."""

    group: int
    step: int
    members: Ints
    places_ms: Floats
    """(m, PLACES), since the window's begin on each rank."""
    transfer_ms: float
    collective: str = ""
    size: int = NONE
    """Bytes; NONE: nothing tells."""
    backward: int = NONE
    """See `Collectives.backward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointEdit:
    """What to change; the default changes nothing."""

    less_ms: Floats | None = None
    """(n, steps): own work that is not done: between those two collectives where the rank does most more
    than the others, as far as there is so much between them, else in proportion."""
    late_ms: Floats | None = None
    """(n, steps): likewise lateness that is gone, and with it what the device does more than the others and
    has made up for where it else waits for its host."""
    hosts_ms: Floats | None = None
    """(n, steps): what the hosts take for themselves, however little their devices have to do."""
    transfer: float = 1.0
    """Factor on what transfers take."""
    beside: float = 1.0
    """Factor on how long they slow down what the devices do meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """Part of the step's critical path over the ranks."""

    lane: int
    """-1: transfer."""
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JointProgram:
    """n ranks and their last `steps` steps."""

    edges_ms: Floats
    """(n, steps + 1, 2): when each step ends on a rank alone, and its device's work up to there."""
    joins: tuple[Join, ...]
    slowed: Floats
    """(n,): what a rank's own work takes longer per time that a transfer runs beside it."""

    @property
    def steps(self) -> int:
        """How many there are."""
        return int(self.edges_ms.shape[1]) - 1

    @property
    def busy_ms(self) -> float:
        """Longest time per step that one process group needs for its transfers, one after the other."""
        sums: dict[int, float] = {}
        for join in self.joins:
            sums[join.group] = sums.get(join.group, 0.0) + join.transfer_ms
        return max(sums.values(), default=0.0) / self.steps

    def lengths_ms(self, edits: Sequence[JointEdit]) -> Floats:
        """Return the length of each step under each edit, (edits, steps)."""
        return np.diff(self._run(edits)[0].max(axis=2), axis=1, prepend=0.0)

    def path(self) -> tuple[PathPart, ...]:
        """Return what the steps consist of, going back from the rank that ends last; largest part first."""
        ends, told = self._run([JointEdit()], trace=True)
        n = len(self.edges_ms)
        spent = np.zeros(n + 1)
        lane = int(ends[0, -1].argmax())
        moment, at = float(ends[0, -1, lane]), int(told.raised[lane])
        while at >= 0:
            spent[lane] += max(0.0, moment - told.end[at])
            spent[n] += told.end[at] - told.arrival[at]
            lane, moment = int(told.latest[at]), float(told.arrival[at])
            at = int(told.previous[at])
        spent[lane] += moment
        parts = [PathPart(lane=i if i < n else -1, ms=float(spent[i]) / self.steps) for i in range(n + 1)]
        least = _NOTHING * float(spent.sum()) / self.steps
        return tuple(sorted((part for part in parts if part.ms > least), key=lambda part: -part.ms))

    def _run(self, edits: Sequence[JointEdit], *, trace: bool = False) -> tuple[Floats, _Told]:
        """Run the program under all edits at once; return when each step ends, (edits, steps, n)."""
        n, steps = len(self.edges_ms), self.steps
        cut = _Cut(self, edits)
        factor = np.asarray([e.transfer for e in edits])
        beside = np.asarray([e.beside for e in edits])
        host, device = np.zeros((2, len(edits), n))
        synced = self.edges_ms[:, 0, 0].copy()
        free: dict[int, Floats] = {}
        told = _Told(len(self.joins) if trace else 0, n)
        last_of_group: dict[int, int] = {}
        ends = np.zeros((len(edits), steps, n))
        following = 0
        for step in range(steps):
            while following < len(self.joins) and self.joins[following].step == step:
                join = self.joins[following]
                of = join.members
                at = cut.moved(join.places_ms, of, step)
                behind = device[:, of]
                # Where the host has waited for its device since the last collective, it is as late as the
                # device was; what the device has waited since a wait before that is not the host's.
                waited = join.places_ms[:, At.SYNCED] > synced[of]
                synced[of] = join.places_ms[:, At.SYNCED]
                tied = np.where(waited, behind + at[At.SYNCED_DONE] - at[At.SYNCED], 0.0)
                host[:, of] = np.maximum(host[:, of], tied)
                paced = host[:, of] + at[At.LAUNCH]
                own = np.maximum(paced, behind + at[At.DONE])
                arrival = np.maximum(own.max(axis=1), free.get(join.group, -np.inf))
                end = arrival + join.transfer_ms * factor
                free[join.group] = end
                needs = end[:, None] - at[At.NEEDED]
                took = (join.transfer_ms * beside)[:, None]
                behind = behind + self.slowed[of] * (took - np.clip(needs - behind, 0.0, took))
                if trace:
                    k = int(own[0].argmax())
                    told.arrival[following], told.end[following] = arrival[0], end[0]
                    told.latest[following] = of[k]
                    # A host at its own pace has waited for nothing; who is early waits for the one before.
                    told.previous[following] = (
                        last_of_group.get(join.group, -1)
                        if arrival[0] > own[0, k]
                        else told.raised[of[k]]
                        if own[0, k] > paced[0, k] or host[0, of[k]] > 0
                        else -1
                    )
                    told.raised[of[needs[0] > behind[0]]] = following
                    last_of_group[join.group] = following
                device[:, of] = np.maximum(behind, needs)
                following += 1
            edge = cut.edges(step + 1)
            ends[:, step] = np.maximum(host + edge[0], device + edge[1])
        return ends, told


class _Told:
    """Why each collective ended when it did."""

    def __init__(self, joins: int, lanes: int) -> None:
        self.arrival, self.end = np.zeros(joins), np.zeros(joins)
        self.latest = np.zeros(joins, dtype=np.int64)
        """Who came last."""
        self.previous = np.full(joins, -1, dtype=np.int64)
        """The collective that this rank had waited for before; -1 for none."""
        self.raised = np.full(lanes, -1, dtype=np.int64)
        """By rank, the last collective that it stood still for."""


class _Cut:
    """Moves places by the work that is left out; of pairs, one is the host's pace, one the device's work."""

    def __init__(self, program: JointProgram, edits: Sequence[JointEdit]) -> None:
        edges = program.edges_ms - program.edges_ms[:, :1]
        self._zero, self._edges = program.edges_ms[:, 0], edges
        self._from, self._to, more = _longest_beside_others(program, edges)
        hidden = np.maximum(more[..., 1] - more[..., 0], 0.0)
        nothing = np.zeros((len(edges), program.steps))
        late = np.stack([nothing if e.late_ms is None else e.late_ms for e in edits])
        less = np.stack([nothing if e.less_ms is None else e.less_ms for e in edits])
        less = less + np.where(late > 0, late + hidden, 0.0)
        begin, end = edges[:, :-1], edges[:, 1:]
        part, rest = self._to - self._from, self._from - begin + end - self._to
        longest = part.max(axis=2)
        gone = np.minimum(less, longest)
        left = rest[..., 0] - (less - gone)
        # Neither host nor device can have more to do than there is time for, but each host takes its own.
        self._gone = part - np.minimum(part, (longest - gone)[..., None])
        spare = (end - begin)[..., 0] - np.stack(
            [nothing if e.hosts_ms is None else e.hosts_ms for e in edits]
        )
        self._gone[..., 0] = np.minimum(self._gone[..., 0], spare.clip(min=0.0))
        paced = rest[..., 0] - (spare - self._gone[..., 0]).clip(min=0.0)
        room = np.stack([np.maximum(left, paced), np.minimum(rest[..., 1], left)], axis=-1).clip(min=0.0)
        self._shrink = np.divide(room, rest, out=np.ones_like(room), where=rest > 0)
        whole = self._gone + rest - room
        self._so_far = np.concatenate([np.zeros_like(whole[:, :, :1]), np.cumsum(whole, axis=2)], axis=2)

    def moved(self, places: Floats, of: Ints, step: int) -> dict[At, Floats]:
        """Return the places of a collective under each edit, (edits, m)."""
        out = {}
        for at in At:
            side = 0 if at in (At.LAUNCH, At.SYNCED) else 1
            place = places[:, at] - self._zero[of, side]
            begin, end = self._edges[of, step, side], self._edges[of, step + 1, side]
            low, high = self._from[of, step, side], self._to[of, step, side]
            outside = np.clip(place, begin, low) - begin + np.clip(place, high, end) - high
            gone, shrink = self._gone[:, of, step, side], self._shrink[:, of, step, side]
            moved = np.where(place > low, np.maximum(low, place - gone), place)
            out[at] = moved - (1.0 - shrink) * outside - self._so_far[:, of, step, side]
        return out

    def edges(self, step: int) -> Floats:
        """Return the end of a step under each edit, (2, edits, n): on the host, and the device's work."""
        return np.moveaxis(self._edges[:, step] - self._so_far[:, :, step], -1, 0)


def _longest_beside_others(program: JointProgram, edges: Floats) -> tuple[Floats, Floats, Floats]:
    """Return where in each step a rank does most more than the others, and how much more in the whole step.

    From where, to where and how much, (n, steps, 2) each. Between two of its collectives: all ranks of a
    group have them.
    """
    low, high = edges[:, :-1].copy(), edges[:, :-1].copy()
    most, whole = np.zeros(low.shape[:2]), np.zeros_like(low)
    last = edges[:, 0].copy()

    def look(of: Ints, step: int, place: Floats) -> None:
        place = np.clip(place, last[of], edges[of, step + 1])
        both = place - last[of]
        whole[of, step] += both - median_of_others(both)
        length = both.max(axis=1)
        more = length - median_of_others(length)
        found = more > most[of, step]
        lanes = of[found]
        most[lanes, step], low[lanes, step], high[lanes, step] = more[found], last[lanes], place[found]
        last[of] = place

    following = 0
    for step in range(program.steps):
        last[:] = edges[:, step]
        for join in program.joins[following:]:
            if join.step != step:
                break
            following += 1
            look(join.members, step, join.places_ms[:, : At.NEEDED] - program.edges_ms[join.members, 0])
        look(np.arange(len(edges)), step, edges[:, step + 1])
    return low, high, whole


def host_program(work_ms: Floats, transfer_ms: float) -> JointProgram:
    """Build the program of ranks without devices that exchange everything at the end of a step."""
    n, steps = work_ms.shape
    until = np.concatenate([np.zeros((n, 1)), np.cumsum(work_ms, axis=1)], axis=1)
    # The host itself waits: what it has done is the device's work.
    joins = tuple(
        Join(
            group=0,
            step=step,
            members=np.arange(n),
            places_ms=np.repeat(until[:, step + 1, None], len(At), axis=1),
            transfer_ms=transfer_ms,
        )
        for step in range(steps)
    )
    return JointProgram(edges_ms=np.stack([until, until], axis=2), joins=joins, slowed=np.zeros(n))


def joint_program(
    lanes: Sequence[Lane],
    matched: Matched,
    clock: Clock,
    scale: Floats,
    summaries: Sequence[RankSummary],
) -> JointProgram | None:
    """Build the program of ranks with matched collectives; None where a rank has no replay of its own.

    `scale`, (n,), is from the traced to the true step.
    """
    traced = min(len(s.alone_edges_ms) for s in summaries) - 1
    # A host that runs ahead has no begin of its first step: that only sets the begin of the next.
    steps = _replayed(matched, traced if all(s.kind == "cpu" for s in summaries) else traced - 1)
    edges = [_edges(lane, k, matched, steps, summaries[k]) for k, lane in enumerate(lanes)]
    if any(each is None for each in edges):
        return None
    joins: list[tuple[int, float, Join]] = []
    for g, group in enumerate(matched.groups):
        inside = np.flatnonzero(group.inside(steps))
        rows = group.rows[inside]
        columns = [lanes[m].collectives for m in group.members.tolist()]
        places = np.stack([c.alone[rows[:, k]] for k, c in enumerate(columns)], axis=1) / 1e6
        transfer = (group.lengths_ns(lanes)[inside] / 1e6 * scale[group.members]).min(axis=1)
        moments = _moments(columns[0].end[rows[:, 0]], int(group.members[0]), clock)
        for i, at in enumerate(inside.tolist()):
            step = steps + int(group.step[at])
            first = rows[i, 0]
            message, size = columns[0].kinds[columns[0].kind[first]]
            join = Join(
                group=g,
                step=step,
                members=group.members,
                places_ms=places[i],
                transfer_ms=float(transfer[i]),
                collective=message.collective,
                size=size,
                backward=int(columns[0].backward[first]),
            )
            joins.append((step, float(moments[i]), join))
    joins.sort(key=lambda each: each[:2])
    return JointProgram(
        edges_ms=np.stack([each for each in edges if each is not None]),
        joins=tuple(join for _, _, join in joins),
        slowed=np.asarray([s.slowed_by_collectives for s in summaries]),
    )


def _replayed(matched: Matched, traced: int) -> int:
    """Return how many of the last steps to replay."""
    each = np.concatenate([group.step for group in matched.groups])
    per_step = np.bincount(-each[(each < 0) & (each >= -matched.steps)], minlength=matched.steps + 1)[1:]
    fit = int((np.cumsum(per_step) <= _MOST_JOINS).sum())
    return max(1, min(fit, traced))


def _moments(end: Ints, lane: int, clock: Clock) -> Floats:
    """Return when collectives ended, on the clock of the first rank."""
    return np.asarray(np.nan_to_num(clock.common(lane, end)))


def _edges(lane: Lane, k: int, matched: Matched, steps: int, summary: RankSummary) -> Floats | None:
    """Return the ends of the steps that the ranks have in common, (steps + 1, 2)."""
    found = np.asarray(summary.alone_edges_ms)
    for group in matched.groups:
        member = np.flatnonzero(group.members == k)
        inside = np.flatnonzero(group.step < 0)
        if len(member) and len(inside):
            # Its own number of a step, beside that counted from the last one in common.
            own = lane.collectives.step[group.rows[inside, member[0]]] - group.step[inside]
            # Kept are the last steps only.
            last = int(np.median(own)) - lane.steps + len(found)
            return found[last - steps - 1 : last] if len(found) >= last > steps else None
    return None
