"""A collective is found again on all ranks of its group, wherever their windows begin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from unit.fleet.jobs import WORLD, collectives, lane

from torch_bottleneck.fleet.match import Lane, match
from torch_bottleneck.timeline.trace.table import Message

SIZES = (10, 20, 30, 10, 20, 30)


def test_steps_that_the_profiler_numbered_tell_which_one_it_is() -> None:
    whole = lane(
        collectives(range(1, 7), [0.5] * 6, steps=[0, 0, 0, 1, 1, 1], sizes=SIZES), steps=2, numbers=[4, 5]
    )
    # Its window began in the middle of a step: that one has no number, and so no partner.
    later = lane(
        collectives(range(2, 7), [0.5] * 5, steps=[-1, -1, 0, 0, 0], sizes=SIZES[1:]), steps=1, numbers=[5]
    )
    found = match([whole, later, whole])
    (group,) = found.groups
    assert group.rows.tolist() == [[3, 2, 3], [4, 3, 4], [5, 4, 5]]
    assert found.unmatched.tolist() == [3, 2, 3]
    assert found.strangers == ()


def test_numbers_with_gaps_are_steps_one_after_the_other() -> None:
    columns = collectives(range(1, 5), [0.5] * 4, steps=[0, 0, 1, 1])
    found = match([lane(columns, steps=2, numbers=[3, 13])] * 2)
    assert found.steps == 2
    assert found.groups[0].step.tolist() == [-2, -2, -1, -1]


def test_the_number_in_the_process_group_counts_before_the_step() -> None:
    one = lane(collectives([1, 2, 3], [0.5] * 3, steps=[0, 0, 0], sequence=[7, 8, 9]), steps=1, numbers=[0])
    other = lane(collectives([2, 3], [0.5] * 2, steps=[0, 0], sequence=[8, 9]), steps=1, numbers=[0])
    assert match([one, other]).groups[0].rows.tolist() == [[1, 0], [2, 1]]


def test_without_numbers_the_windows_end_together() -> None:
    one = lane(collectives(range(1, 7), [0.5] * 6, steps=[0] * 6, sizes=SIZES), steps=1)
    other = lane(collectives(range(3, 7), [0.5] * 4, steps=[0] * 4, sizes=SIZES[2:]), steps=1)
    assert match([one, other]).groups[0].rows.tolist() == [[2, 0], [3, 1], [4, 2], [5, 3]]


def test_groups_are_told_apart_by_name_and_ranks() -> None:
    pairs = [Message("1", "[0, 1]", "allreduce"), Message("2", "[2, 3]", "allreduce")]
    lanes = [
        lane(collectives([1, 2], [0.5] * 2, steps=[0, 0], message=pairs[k // 2]), steps=1, numbers=[0])
        for k in range(4)
    ]
    found = match(lanes)
    assert [group.members.tolist() for group in found.groups] == [[0, 1], [2, 3]]


def test_kernels_without_a_launch_take_no_part_where_others_have_one() -> None:
    """Of one rank two were launched before the window, of another one: which they are nobody can tell."""
    bare = Message("", "", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")

    def rank(before: int) -> Lane:
        named = collectives([3, 4], [0.5] * 2, steps=[0, 0])
        columns = collectives([1, 2, 3, 4][2 - before :], [0.5] * (2 + before), steps=[0] * (2 + before))
        kinds = (*named.kinds, (bare, -1))
        return lane(
            replace(columns, kinds=kinds, kind=np.asarray([1] * before + [0, 0])), steps=1, numbers=[0]
        )

    found = match([rank(2), rank(1), rank(0)])
    (group,) = found.groups
    assert group.rows.tolist() == [[2, 1, 0], [3, 2, 1]]
    assert found.unmatched.tolist() == [2, 1, 0]
    only = lane(collectives([1, 2], [0.5] * 2, steps=[0, 0], message=bare), steps=1, numbers=[0])
    assert len(match([only, only]).groups[0].rows) == 2


def test_a_rank_with_other_messages_is_a_stranger() -> None:
    one = lane(collectives([1, 2, 3], [0.5] * 3, steps=[0] * 3), steps=1, numbers=[0])
    odd = lane(collectives([1, 2], [0.5] * 2, steps=[0] * 2, sizes=[7, 8]), steps=1, numbers=[0])
    found = match([one, odd, one])
    assert found.strangers == (1,)
    assert found.groups[0].members.tolist() == [0, 2]


def test_of_ranks_that_have_nothing_in_common_nobody_is_the_stranger() -> None:
    one = lane(collectives([1], [0.5], steps=[0], message=WORLD), steps=1, numbers=[0])
    other = lane(collectives([1], [0.5], steps=[0], sizes=[7]), steps=1, numbers=[0])
    found = match([one, other])
    assert found.groups == ()
    assert found.strangers == ()
    assert np.array_equal(found.unmatched, [1, 1])
