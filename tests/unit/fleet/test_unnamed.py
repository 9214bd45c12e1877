"""Groups of collectives without a name: by their threads, and by who leaves them together."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from unit.fleet.jobs import collectives, lane, summary

from torch_bottleneck.fleet.collectives import Collectives, pack, queues_of, stated_groups
from torch_bottleneck.fleet.compare import compare_ranks
from torch_bottleneck.fleet.match import match
from torch_bottleneck.fleet.unnamed import told_apart
from torch_bottleneck.timeline.trace.table import Message, TraceMeta

STEPS = 5
WORLD = ("default_pg 0", (0, 1, 2, 3))


def groups_of(rank: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Two by two: the world, rows that exchange gradients, columns that share tensors."""
    dp, tp = (rank % 2, rank % 2 + 2), (rank // 2 * 2, rank // 2 * 2 + 1)
    return (WORLD, (f"mesh_dp {1 + rank % 2}", dp), (f"mesh_tp {3 + rank // 2}", tp))


def unnamed(rank: int, moments: np.ndarray, *, clock_ms: float = 0.0) -> Collectives:
    """In each step two of the first queue, two of the second."""
    ends = [20.0 * k + at + clock_ms for k in range(STEPS) for at in moments[k]]
    found = collectives(
        ends, [1.0] * len(ends), steps=np.repeat(range(STEPS), 4).tolist(), sizes=[-1] * len(ends)
    )
    kinds = tuple((Message(queue, "", "gloo:all_reduce"), -1) for queue in "01")
    return replace(found, kinds=kinds, kind=np.tile([0, 0, 1, 1], STEPS))


def two_by_two(order: tuple[int, int] = (1, 2), *, error_ms: float = 0.05) -> list[Collectives]:
    """Queues 0 and 1 serve these of each rank's groups; a group's ends differ by its own chance each time."""
    made = []
    for rank in range(4):
        own = np.random.default_rng(100 + rank)
        moments = np.empty((STEPS, 4))
        for queue, position in enumerate(order):
            name = groups_of(rank)[position][0]
            shared = np.random.default_rng([ord(c) for c in name])
            moments[:, 2 * queue] = 4.0 + 9.0 * queue + shared.uniform(0.0, 3.0, STEPS)
            moments[:, 2 * queue + 1] = 8.0 + 9.0 * queue + shared.uniform(0.0, 3.0, STEPS)
        made.append(unnamed(rank, moments + own.uniform(0.0, error_ms, moments.shape), clock_ms=700.0 * rank))
    return made


@pytest.mark.parametrize("order", [(0, 1), (0, 2), (1, 2)])
def test_a_group_is_told_by_the_ranks_that_leave_it_together(order: tuple[int, int]) -> None:
    lanes = [lane(found, steps=STEPS, numbers=range(STEPS)) for found in two_by_two(order)]
    named = told_apart(lanes, [groups_of(rank) for rank in range(4)])
    assert named is not None
    expected = {str(list(groups_of(rank)[i][1])) for rank in range(4) for i in order}
    assert {group.ranks for group in match(named).groups} == expected
    assert match(named).unmatched.tolist() == [0] * 4


def test_ranks_with_another_number_of_queues_cannot_be_told_apart() -> None:
    lanes = [lane(found, steps=STEPS, numbers=range(STEPS)) for found in two_by_two()]
    assert told_apart(lanes, [groups_of(0)[:2], *(groups_of(rank) for rank in range(1, 4))]) is None
    one = replace(lanes[0].collectives, kinds=(lanes[0].collectives.kinds[0],) * 2)
    assert (
        told_apart([replace(lanes[0], collectives=one), *lanes[1:]], [groups_of(r) for r in range(4)]) is None
    )


def test_the_table_and_the_account_keep_groups_apart() -> None:
    ranks = [
        summary(rank, [0.0] * STEPS, kind="cpu", groups=groups_of(rank), collectives=pack(found))
        for rank, found in enumerate(two_by_two())
    ]
    fleet = compare_ranks(ranks).fleet
    assert fleet.compared == 4
    assert {(row.example, row.ranks, row.groups) for row in fleet.collective_rows} == {
        ("[0, 2]", 2, 2),
        ("[0, 1]", 2, 2),
    }
    alike = [msgspec.structs.replace(each, groups=()) for each in ranks]
    assert compare_ranks(alike).fleet.compared == 4


@pytest.mark.parametrize(
    ("threads", "queues"),
    [
        ([51, 50, 51, 50], [0, 0, 0, 0]),
        ([50, 51, 70, 73], [0, 0, 1, 1]),
        ([50, 70, 71], [0, 1, 1]),
        ([50, 51, 70], [0, 0, 1]),
        ([50, 51, 60, 70, 71], [0, 0, 1, 2, 2]),
        ([], []),
    ],
)
def test_two_threads_serve_a_group(threads: list[int], queues: list[int]) -> None:
    assert queues_of(np.asarray(threads, dtype=np.int64)).tolist() == queues


def test_groups_are_as_the_trace_states_them_if_some_are_not_of_all_ranks() -> None:
    whole = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}
    part = {"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [0, 1]}
    strange = [{"pg_name": "4", "ranks": "0, 1"}, {"ranks": [0]}, "5"]

    def stated(*groups: object) -> object:
        return stated_groups(TraceMeta(distributed={"world_size": 4, "pg_config": list(groups)}))

    assert stated(whole, part, *strange) == (WORLD, ("mesh_tp 3", (0, 1)))
    assert stated(whole) == ()
    assert stated_groups(TraceMeta()) == ()
