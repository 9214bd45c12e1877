"""Finds each collective again in the traces of all ranks of its group.

In: the collectives of each rank. Out: `Matched`, one `Group` per process group.

A collective is the same on two ranks if process group, kind, size and number agree. The number is the one
in the process group where torch wrote it; else which one of the step it is, by the host's steps, for these
are the same on all ranks; else which one from the end, since ranks begin their windows at different
moments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..timeline.trace.kernels import sort_of_collective
from ..timeline.trace.table import NONE
from .collectives import Collectives

__all__ = ["Group", "Lane", "Matched", "match"]

_IN_COMMON = 0.5
"""Share of its collectives that a rank has in common with the others of its group, or it is of another
job."""

_REPEATS, _KINDS = 1 << 18, 1 << 12
"""Room in a key for collectives of one step, and for kinds; 2^33 numbers are left."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What of a rank takes part in the matching."""

    collectives: Collectives
    steps: int
    numbers: Ints
    """The profiler's step numbers; empty where steps were found by other marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One process group."""

    name: str
    ranks: str
    """As the traces write them."""
    members: Ints
    """Positions of its lanes, (m,)."""
    rows: Ints
    """(c, m): position of each collective in the columns of each member, in the order of their starts."""
    step: Ints
    """(c,): step from the end, -1 the last; 0 outside all."""

    def inside(self, steps: int) -> NDArray[np.bool_]:
        """Return which collectives are in the last steps, (c,)."""
        return np.asarray((self.step < 0) & (self.step >= -steps))

    def lengths_ns(self, lanes: Sequence[Lane]) -> Floats:
        """Return how long each member was in each collective, (c, m)."""
        out = np.empty(self.rows.shape)
        for k, lane in enumerate(self.members.tolist()):
            columns, rows = lanes[lane].collectives, self.rows[:, k]
            out[:, k] = columns.end[rows] - columns.start[rows]
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The collectives that all members of a group have."""

    groups: tuple[Group, ...]
    strangers: tuple[int, ...]
    """Lanes whose collectives are not those of the others."""
    unmatched: Ints
    """Per lane: collectives that were left out."""
    steps: int
    """That the lanes have in common."""


def match(lanes: Sequence[Lane], *, least: int = 2) -> Matched:
    """Match the collectives of several ranks; a group has at least `least` of them."""
    shared = _shared_numbers(lanes)
    numbered = shared is not None
    labels = [_labels(lane, shared) for lane in lanes]
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, lane in enumerate(lanes):
        names = dict.fromkeys((m.group, m.ranks) for m, _ in lane.collectives.kinds)
        # Without its launch a kernel's group is not told: which of the others' it is nobody can know.
        for key in [name for name in names if any(name) or not any(map(any, names))]:
            members[key].append(i)
    found: list[Group] = []
    unmatched = np.array([len(lane.collectives) for lane in lanes], dtype=np.int64)
    for (name, ranks), own in members.items():
        if len(own) < least:
            continue
        mine = [_of_group(lanes[i].collectives, name, ranks) for i in own]
        keys = _keys([lanes[i].collectives for i in own], mine, [labels[i] for i in own], numbered=numbered)
        values, counts = np.unique(np.concatenate(keys), return_counts=True)
        # Of the same job are those that have what most have.
        usual = values[counts * 2 > len(own)] if len(own) > 2 else values[counts == len(own)]
        kept = [k for k, key in enumerate(keys) if len(key) and np.isin(key, usual).mean() >= _IN_COMMON]
        if len(kept) < least:
            continue
        values, counts = np.unique(np.concatenate([keys[k] for k in kept]), return_counts=True)
        common = values[counts == len(kept)]
        if not len(common):
            continue
        rows = np.stack([_rows_of(common, keys[k], mine[k]) for k in kept], axis=1)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        found.append(
            Group(
                name=name,
                ranks=ranks,
                members=np.asarray([own[k] for k in kept], dtype=np.int64),
                rows=rows,
                step=labels[own[kept[0]]][rows[:, 0]],
            )
        )
        for k in kept:
            unmatched[own[k]] -= len(rows)
    # Of one job are those that have what most have; where nothing fits, nobody is the stranger.
    few = [len(lane.collectives) * _IN_COMMON < unmatched[i] for i, lane in enumerate(lanes)]
    strangers = tuple(np.flatnonzero(few).tolist()) if found and not all(few) else ()
    steps = len(shared) if shared is not None else min((lane.steps for lane in lanes), default=0)
    return Matched(groups=tuple(found), strangers=strangers, unmatched=unmatched, steps=steps)


def _shared_numbers(lanes: Sequence[Lane]) -> Ints | None:
    """Return the step numbers that most lanes have; None where a lane has none, or they share none."""
    if not lanes or any(len(lane.numbers) != lane.steps or not lane.steps for lane in lanes):
        return None
    values, counts = np.unique(np.concatenate([lane.numbers for lane in lanes]), return_counts=True)
    shared = values[counts * 2 > len(lanes)]
    return shared if len(shared) else None


def _labels(lane: Lane, shared: Ints | None) -> Ints:
    """Return the step of each collective, counted from the end (-1); 0 outside all steps."""
    step = lane.collectives.step
    if not len(step):
        return step
    if shared is None:
        return np.where(step != NONE, step - lane.steps, 0)
    place = {number: i - len(shared) for i, number in enumerate(shared.tolist())}
    # The last entry is that of collectives outside all steps.
    label = np.asarray([*(place.get(number, 0) for number in lane.numbers.tolist()), 0], dtype=np.int64)
    return label[step]


def _of_group(collectives: Collectives, name: str, ranks: str) -> Ints:
    wanted = np.asarray([(m.group, m.ranks) == (name, ranks) for m, _ in collectives.kinds], dtype=bool)
    return np.flatnonzero(wanted[collectives.kind])


def _keys(
    columns: Sequence[Collectives], mine: list[Ints], labels: Sequence[Ints], *, numbered: bool
) -> list[Ints]:
    """Return a number per collective that is the same on all ranks, for one group.

    Where the steps number them, those outside all steps are taken from `mine`.
    """
    told = all((c.sequence[rows] != NONE).all() for c, rows in zip(columns, mine, strict=True))
    kinds: dict[tuple[str, int], int] = {}
    out = []
    for i, (c, label) in enumerate(zip(columns, labels, strict=True)):
        if told:
            number = _with_repeats(c.sequence[mine[i]])
        elif numbered:
            mine[i] = mine[i][label[mine[i]] < 0]
            number = _with_repeats(label[mine[i]])
        else:
            number = np.arange(len(mine[i]), dtype=np.int64) - len(mine[i])
        # Of an exchange in uneven parts each rank puts in its own number of bytes.
        sizes = [0 if sort_of_collective(m.collective) == "exchange" else size for m, size in c.kinds]
        codes = [
            kinds.setdefault((m.collective, size), len(kinds)) % _KINDS
            for (m, _), size in zip(c.kinds, sizes, strict=True)
        ]
        out.append(number * _KINDS + np.asarray(codes, dtype=np.int64)[c.kind[mine[i]]])
    return out


def _with_repeats(values: Ints) -> Ints:
    """Return each value together with how often it occurred before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=bool)
    begin = np.maximum.accumulate(np.where(first, np.arange(len(values)), 0))
    before = np.empty(len(values), dtype=np.int64)
    before[order] = np.arange(len(values)) - begin
    return values * _REPEATS + before


def _rows_of(common: Ints, keys: Ints, rows: Ints) -> Ints:
    _, _, at = np.intersect1d(common, keys, return_indices=True)
    return rows[at]
