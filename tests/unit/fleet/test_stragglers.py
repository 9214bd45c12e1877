"""Who is late: the same rank, now this and now that one, a whole group, or nobody."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.fleet.stragglers import Found, excess_of, find_late, uneven_ms
from torch_bottleneck.stats.student import student_tail

STEP_MS = 100.0


def found(
    work: np.ndarray,
    *,
    groups: list = [],  # noqa: B006
    sent: list | None = None,
    parts: np.ndarray | None = None,
) -> Found:
    n = len(work)
    return find_late(
        work,
        step_ms=STEP_MS,
        worth=0.02,
        sent=sent or [""] * n,
        groups=groups,
        numbers=range(n),
        whole=work.shape[1],
        parts_ms=parts,
    )


def noise(ranks: int, steps: int, seed: int = 1) -> np.ndarray:
    return 80.0 + np.random.default_rng(seed).normal(0.0, 0.5, (ranks, steps))


@pytest.mark.parametrize(("ranks", "steps"), [(2, 4), (3, 3), (4, 3), (8, 2), (64, 4), (1024, 4)])
def test_one_rank_that_is_late_in_each_step(ranks: int, steps: int) -> None:
    work = noise(ranks, steps)
    work[1] += 15.0
    (late,) = found(work).late
    assert (late.lanes, late.kind) == ((1,), "persistent")
    assert late.late_ms == pytest.approx(15.0, abs=2.0)
    assert late.costs_ms == pytest.approx(15.0, abs=4.0)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_of_healthy_ranks_none_is_late(ranks: int) -> None:
    told = [found(noise(ranks, 4, seed)).late for seed in range(200)]
    assert sum(map(bool, told)) <= 2


def test_two_late_ranks_are_told_each_with_what_it_would_cost_alone() -> None:
    work = noise(64, 4)
    work[5] += 20.0
    work[40] += 10.0
    first, second = found(work).late
    assert (first.lanes, second.lanes) == ((5,), (40,))
    assert first.costs_ms == pytest.approx(20.0, abs=3.0)
    assert second.costs_ms == pytest.approx(10.0, abs=3.0)


def test_neighbours_that_are_late_together_are_a_group() -> None:
    work = noise(64, 4)
    work[16:24] += 12.0
    (late,) = found(work).late
    assert late.kind == "group"
    assert late.lanes == tuple(range(16, 24))
    assert late.group == "ranks 16 to 23"


def test_a_process_group_is_named() -> None:
    work = noise(32, 4)
    members = list(range(3, 32, 8))
    work[members] += 12.0
    (late,) = found(work, groups=[("process group tp", members)]).late
    assert (late.kind, late.group) == ("group", "process group tp")


def test_now_this_rank_and_now_that_one() -> None:
    work = noise(64, 6)
    for step, rank in enumerate((3, 17, 17, 40, 3, 9)):
        work[rank, step] += 15.0
    (late,) = found(work).late
    assert late.kind == "wandering"
    assert set(late.lanes) == {3, 9, 17, 40}
    assert late.costs_ms == pytest.approx(15.0, abs=3.0)
    assert (40, -3) in late.cells


def test_a_stage_with_more_work_by_design_is_the_norm_for_its_own_ranks() -> None:
    work = noise(32, 4)
    work[16:] += 30.0
    work[20] += 15.0
    (late,) = found(work, sent=["first"] * 16 + ["last"] * 16).late
    assert late.lanes == (20,)


def test_what_costs_next_to_nothing_is_not_told() -> None:
    work = np.full((64, 4), 80.0) + np.random.default_rng(2).normal(0.0, 0.01, (64, 4))
    work[7] += 1.0
    assert found(work).late == ()


def test_among_a_thousand_a_rank_is_late_though_others_are_nearly_as_late_by_chance() -> None:
    """Late by 4 in each step of 100; the latest of the others is late by 2 to 4 of them, in turns."""
    rng = np.random.default_rng(12)
    work = 80.0 * (1.0 + rng.normal(0.0, 0.007, (1024, 1)) + 0.0035 * rng.standard_t(4, (1024, 5)))
    assert found(work).late == ()
    work[300] += 80.0 * 0.006 - (work[300].mean() - 80.0) + 3.6
    (late,) = found(work).late
    assert (late.lanes, late.kind) == ((300,), "persistent")
    assert 0.0 < late.costs_ms < 2.0, "told is what it costs, which is little"


def test_a_rank_that_decides_no_ordinary_step_is_not_told() -> None:
    """Rank 5 is late by 6 in each step, but ranks of the other stage come later by design."""
    work = noise(32, 5)
    work[16:] += 30.0
    work[5] += 6.0
    assert found(work, sent=["first"] * 16 + ["last"] * 16).late == ()


@pytest.mark.parametrize(
    ("chance", "freedom", "value"),
    [(0.025, 5, 2.5706), (0.005, 1, 63.657), (0.005, 2, 9.9248), (0.0005, 10, 4.5869), (0.025, 30, 2.0423)],
)
def test_student_agrees_with_the_tables(chance: float, freedom: int, value: float) -> None:
    assert student_tail(chance, freedom) == pytest.approx(value, rel=1e-4)


def test_of_two_ranks_single_steps_tell_though_they_are_most_of_the_spread() -> None:
    work = noise(2, 7)
    work[1, [2, 5]] += 60.0
    (late,) = found(work).late
    assert (late.kind, late.lanes) == ("wandering", (1,))
    assert late.cells == ((1, -5), (1, -2))


def test_the_step_in_which_recording_begins_tells_nothing() -> None:
    work = noise(2, 7)
    work[1, 0] += 60.0
    everything = find_late(
        work, step_ms=STEP_MS, worth=0.02, sent=["", ""], groups=[], numbers=range(2), whole=6
    )
    assert everything.late == ()
    assert found(work).late


def test_a_rank_that_is_not_late_any_more_still_differs_from_step_to_step() -> None:
    work = np.full((2, 8), 80.0)
    work[1] += 15.0 + np.array([0.0, 2.0, -1.0, 0.0, 1.0, -2.0, 0.0, 0.0])
    told = found(work)
    assert excess_of(told.late[0], told, 6).tolist() == [[0.0] * 6, [15.0] * 6]


def test_a_late_rank_that_is_much_later_in_one_step_is_late_for_two_causes() -> None:
    work = noise(4, 8)
    work[1] += 15.0
    work[1, 6] += 60.0
    told = found(work)
    usual, single = sorted(told.late, key=lambda late: late.kind)
    assert (usual.kind, single.kind, single.cells) == ("persistent", "wandering", ((1, -2),))
    assert usual.costs_ms == pytest.approx(15.0, rel=0.1)
    assert single.costs_ms == pytest.approx(60.0 / 8, rel=0.05)
    always = np.delete(told.lateness_ms[1], 6).mean()
    assert excess_of(usual, told, 8)[1].tolist() == pytest.approx([always] * 8)
    assert excess_of(single, told, 8)[1].nonzero()[0].tolist() == [6]
    assert told.costs_ms == pytest.approx(usual.costs_ms + single.costs_ms, rel=0.05)


def test_how_the_lateness_of_a_late_rank_varies_only_its_own_steps_tell() -> None:
    """A sleep of 15 to 45 ms is one cause, though its steps differ by far more than those of the others."""
    work = noise(4, 8)
    work[1] += np.array([15.0, 45.0, 30.0, 22.0, 38.0, 30.0, 41.0, 19.0])
    assert [late.kind for late in found(work).late] == ["persistent"]


def test_three_peers_are_enough_to_tell_a_rank_that_takes_two_thirds_longer() -> None:
    """Four ranks of a job on four GPUs whose peers differ by a tenth, as measured."""
    work = noise(4, 8) + np.array([1.5, -3.6, -3.4, 35.0])[:, None]
    (late,) = found(work).late
    assert (late.lanes, late.kind) == ((3,), "persistent")
    # Ranks that differ by as much among each other are no norm for one that differs a little more.
    assert found(noise(4, 8) + np.array([0.0, 12.0, -12.0, 24.0])[:, None]).late == ()


def test_a_rank_that_differs_in_one_part_is_late_though_the_sums_of_its_peers_differ_as_much() -> None:
    """A grid of FSDP and tensor parallelism on four GPUs, as measured: hosts differ, and one sleeps."""
    work = noise(4, 8) + np.array([-34.0, -25.0, -20.0, 5.0])[:, None]
    hosts, sleeps = np.array([44.7, 48.1, 58.1, 46.4]), np.array([2.2, 7.5, 2.0, 32.9])
    assert found(work).late == ()
    (late,) = found(work, parts=np.stack([hosts, sleeps])).late
    assert (late.lanes, late.kind) == ((3,), "persistent")
    # What differs by less than half of the lateness does not explain it.
    assert found(work, parts=np.stack([hosts, sleeps / 3.0])).late == ()
    # Hosts of which the last is slower, as much as they differ, are chance.
    assert (
        found(work, parts=np.stack([hosts + np.array([0, 0, 0, 30]), sleeps * np.array([1, 1, 1, 0])])).late
        == ()
    )


def test_uneven_is_what_the_rank_with_most_work_has_more_than_its_peers_on_average() -> None:
    work = np.array([[10.0, 40.0], [30.0, 20.0], [100.0, 100.0]])
    assert uneven_ms(work, ["a", "a", "b"]).tolist() == [10.0, 10.0], "the last has no peers"
    assert uneven_ms(work[:2], ["a", "b"]).tolist() == [0.0, 0.0]
