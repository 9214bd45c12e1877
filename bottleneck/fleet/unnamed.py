"""Names the process groups of collectives where the trace does not tell: gloo.

In: the lanes of all ranks, and the groups that each rank is in. Out: the same lanes with these names.

Each collective has the number of its queue (see `collectives.queues_of`). Which group that serves shows
beside the other ranks: its collectives end on all members together. Groups are made in one order on all
ranks, and their queues with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from .collectives import StatedGroup
from .match import Lane, match

__all__ = ["told_apart"]

_AS_GOOD = 1.5
"""Ends that differ by so many times the least do not tell a group from a larger one with it inside."""
_MOST_PATTERNS = 100


def told_apart(lanes: Sequence[Lane], groups: Sequence[Sequence[StatedGroup]]) -> list[Lane] | None:
    """Name the groups of the lanes' collectives; None where nothing tells which they are."""
    queues = {len({message.group for message, _ in lane.collectives.kinds}) for lane in lanes}
    sizes = {len(each) for each in groups}
    if len(queues) > 1 or len(sizes) > 1 or not lanes:
        return None
    found: list[tuple[float, list[Lane]]] = []
    for pattern in list(combinations(range(*sizes), *queues))[:_MOST_PATTERNS]:
        named = [_named(lane, [own[i] for i in pattern]) for lane, own in zip(lanes, groups, strict=True)]
        apart = _ends_apart(named)
        if apart is not None:
            found.append((apart, named))
    # The first groups are the larger ones.
    least = min((apart for apart, _ in found), default=0.0)
    return next((named for apart, named in found if apart <= _AS_GOOD * least), None)


def _named(lane: Lane, groups: Sequence[StatedGroup]) -> Lane:
    kinds = tuple(
        (
            replace(
                m,
                group=groups[int(m.group)][0],
                ranks=str(list(groups[int(m.group)][1])),
                description=groups[int(m.group)][0].rpartition(" ")[0],
            ),
            size,
        )
        for m, size in lane.collectives.kinds
    )
    return replace(lane, collectives=replace(lane.collectives, kinds=kinds))


def _ends_apart(lanes: Sequence[Lane]) -> float | None:
    """Return by how much the ends of a collective differ from one time to the next, ns; None if few match."""
    matched = match(lanes)
    if (
        matched.strangers
        or len(matched.groups) == 0
        or 2 * matched.unmatched.sum() > sum(len(lane.collectives) for lane in lanes)
    ):
        return None
    spread, count = 0.0, 0
    for group in matched.groups:
        members = enumerate(group.members.tolist())
        ends = np.stack([lanes[lane].collectives.end[group.rows[:, k]] for k, lane in members], axis=1)
        since = ends - ends[:, :1]
        spread += float(np.abs(since - np.median(since, axis=0)).sum())
        count += ends.size
    return spread / count
