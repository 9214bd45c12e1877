"""The joint replay of ranks, on programs small enough to reckon by hand, and on recorded runs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from recorded.diagnosed import diagnosis_of
from unit.fleet.jobs import STEP_MS, TRANSFER_MS, summary
from unit.fleet.test_compare import STEPS, job

from torch_bottleneck.fleet.causes import disturbed_ms
from torch_bottleneck.fleet.compare import compare_ranks
from torch_bottleneck.fleet.joint import At, Join, JointEdit, JointProgram, host_program
from torch_bottleneck.fleet.summary import AloneWithout, KernelSketch
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import Fleet, WhatIfResult

ONE = JointEdit()


def answers(fleet: Fleet) -> dict[WhatIf, WhatIfResult]:
    return {each.question: each for each in fleet.what_ifs}


def test_the_step_is_the_latest_ranks_work_and_the_transfer() -> None:
    program = host_program(np.array([[10.0, 12.0], [15.0, 9.0], [7.0, 7.0]]), 2.0)
    edits = [
        ONE,
        JointEdit(transfer=0.5),
        JointEdit(less_ms=np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0]])),
        JointEdit(less_ms=np.full((3, 2), 100.0), transfer=0.0),
    ]
    assert program.lengths_ms(edits).mean(axis=1) == pytest.approx(
        [(17 + 14) / 2, (16 + 13) / 2, (12 + 14) / 2, 0.0]
    )


def test_the_path_names_who_was_waited_for_in_each_step_and_adds_up() -> None:
    program = host_program(np.array([[10.0, 12.0], [15.0, 9.0], [7.0, 7.0]]), 2.0)
    found = {part.lane: part.ms for part in program.path()}
    assert found == pytest.approx({1: 7.5, 0: 6.0, -1: 2.0})


def overlapped(*, host: tuple[float, float], needed: float, synced: bool = False) -> JointProgram:
    """Two ranks, two steps of 10 ms of device work; one collective at 4 ms, whose result is needed later.

    Their steps take so long alone, and perhaps their hosts wait for the devices after 8 ms of work.
    """
    joins = []
    for step in range(2):
        places = np.array(
            [
                [
                    step * pace + 0.4 * pace,
                    step * 10.0 + 4.0,
                    step * 10.0 + needed,
                    (step - 1) * pace + 0.8 * pace if synced and step else 0.0,
                    (step - 1) * 10.0 + 8.0 if synced and step else 0.0,
                ]
                for pace in host
            ]
        )
        joins.append(Join(group=0, step=step, members=np.arange(2), places_ms=places, transfer_ms=3.0))
    edges = np.array([[[step * pace, step * 10.0] for step in range(3)] for pace in host])
    return JointProgram(edges_ms=edges, joins=tuple(joins), slowed=np.zeros(len(edges)))


def test_a_transfer_beside_own_work_costs_only_what_sticks_out() -> None:
    """It ends 7 ms after the step's begin; whoever needs it at 5 stands still for 2 ms."""
    assert overlapped(host=(10.0, 10.0), needed=9.0).lengths_ms([ONE]).mean(axis=1) == pytest.approx([10.0])
    early = overlapped(host=(10.0, 10.0), needed=5.0)
    assert early.lengths_ms([ONE, JointEdit(transfer=0.0)]).mean(axis=1) == pytest.approx([12.0, 10.0])


def test_own_work_is_slower_while_a_transfer_runs_beside_it() -> None:
    """By half as long as that is: of 3 ms all is beside it, or 1 ms, after which the device stands still."""
    slow = np.array([0.0, 0.5])
    beside = replace(overlapped(host=(10.0, 10.0), needed=9.0), slowed=slow)
    gone = JointEdit(transfer=0.5, beside=0.5)
    assert beside.lengths_ms([ONE, gone]).mean(axis=1) == pytest.approx([11.5, 10.75])
    assert beside.lengths_ms([JointEdit(transfer=0.0)]).mean() == pytest.approx(11.5)
    early = replace(overlapped(host=(10.0, 10.0), needed=5.0), slowed=slow)
    assert early.lengths_ms([ONE]).mean() == pytest.approx(12.0)


def test_a_host_that_is_ahead_makes_up_in_the_queue_and_one_that_waits_does_not() -> None:
    """Both hosts need 14 ms for 10 ms of device work: standing still for 2 ms costs nothing."""
    assert overlapped(host=(14.0, 14.0), needed=5.0).lengths_ms([ONE]).mean(axis=1) == pytest.approx([14.0])
    tied = overlapped(host=(14.0, 14.0), needed=5.0, synced=True)
    assert tied.lengths_ms([ONE]).mean(axis=1) == pytest.approx([14.2])


def test_a_host_is_not_delayed_by_what_its_device_waits_after_the_host_has_waited_for_it() -> None:
    """Both hosts wait at the begin of each step; then the collectives of one step follow each other."""
    steps = range(3)
    joins = [
        Join(
            group=0,
            step=step,
            members=np.arange(2),
            places_ms=np.array(
                [[at + later, at - 2.0, at, 20.0 * step + 0.5, 18.0 * step + 0.5] for later in (0.0, 0.5)]
            ),
            transfer_ms=2.0,
        )
        for step in steps
        for at in (20.0 * step + 4.0, 20.0 * step + 8.0, 20.0 * step + 12.0)
    ]
    edges = np.array([[[20.0 * step, 18.0 * step] for step in range(4)]] * 2)
    program = JointProgram(edges_ms=edges, joins=tuple(joins), slowed=np.zeros(len(edges)))
    assert program.lengths_ms([ONE])[0, 0] == pytest.approx(20.5, abs=0.01)
    assert program.lengths_ms([ONE]).mean() < 22.0


def test_work_is_left_out_between_the_collectives_where_the_rank_does_more_than_the_other() -> None:
    """The second rank computes 6 ms more between its collectives; behind them both have as much to do."""
    edges = np.array([[[0.0, 0.0], [20.0, 20.0]], [[0.0, 0.0], [26.0, 26.0]]])
    joins = tuple(
        Join(
            group=0,
            step=0,
            members=np.arange(2),
            places_ms=np.array([[at, at, at, 0.0, 0.0] for at in places]),
            transfer_ms=1.0,
        )
        for places in ((4.0, 4.0), (8.0, 14.0))
    )
    program = JointProgram(edges_ms=edges, joins=joins, slowed=np.zeros(len(edges)))
    gone = JointEdit(less_ms=np.array([[0.0], [6.0]]))
    assert program.lengths_ms([ONE, gone])[:, 0] == pytest.approx([28.0, 22.0])
    more = JointEdit(less_ms=np.array([[0.0], [26.0]]))
    assert program.lengths_ms([more])[0, 0] == pytest.approx(22.0), "then the first rank decides"


def test_what_a_device_has_made_up_for_is_gone_with_its_lateness() -> None:
    """The second device does 12 ms more before its first collective, and then waits less for its host.

    Its step is only 6 ms longer. Without its lateness the first rank decides.
    """
    places = [
        np.array([[4.0, 2.0, 2.0, 0.0, 0.0], [16.0, 14.0, 14.0, 0.0, 0.0]]),
        np.array([[12.0, 4.0, 4.0, 0.0, 0.0], [18.0, 16.0, 16.0, 0.0, 0.0]]),
    ]
    joins = tuple(
        Join(group=0, step=0, members=np.arange(2), places_ms=each, transfer_ms=1.0) for each in places
    )
    edges = np.array([[[0.0, 0.0], [14.0, 6.0]], [[0.0, 0.0], [20.0, 18.0]]])
    program = JointProgram(edges_ms=edges, joins=joins, slowed=np.zeros(len(edges)))
    late = np.array([[0.0], [6.0]])
    whole, work, lateness = program.lengths_ms([ONE, JointEdit(less_ms=late), JointEdit(late_ms=late)])[:, 0]
    assert (whole, lateness) == pytest.approx((22.0, 15.0))
    assert work == pytest.approx(16.0), "what was made up for would still be done"


def test_a_host_keeps_its_pace_when_its_device_is_not_late_any_more() -> None:
    """Of 20 ms that a device takes 10 are gone: its host has hidden 14 ms behind them."""
    own = np.array([10.0, 20.0])
    joins = tuple(
        Join(
            group=0,
            step=step,
            members=np.arange(2),
            places_ms=np.repeat((own * (step + 1))[:, None], len(At), axis=1),
            transfer_ms=1.0,
        )
        for step in range(2)
    )
    edges = (own[:, None] * np.arange(3))[..., None].repeat(2, axis=2)
    program = JointProgram(edges_ms=edges, joins=joins, slowed=np.zeros(2))
    late = np.array([[0.0] * 2, [10.0] * 2])
    hosts = np.array([[0.0] * 2, [14.0] * 2])
    edits = [ONE, JointEdit(late_ms=late), JointEdit(late_ms=late, hosts_ms=hosts)]
    assert program.lengths_ms(edits)[:, 0] == pytest.approx([21.0, 11.0, 15.0])


def test_of_the_traced_steps_as_many_are_late_as_the_baseline_tells() -> None:
    """One of four traced steps is late by 20 ms; of the baseline a third."""
    late = np.array([0.0, 0.0, 20.0, 0.0])
    own = np.array([[STEP_MS - TRANSFER_MS] * STEPS, STEP_MS - TRANSFER_MS + late])
    ranks = [
        summary(
            rank,
            (late if rank == 0 else 0.0 * late).tolist(),
            true_ms=STEP_MS + 20.0 / 3,
            window_ms=STEP_MS + 20.0 / 4,
            recorded_ms=tuple((STEP_MS + late).tolist()),
            alone_ms=tuple(own[rank].tolist()),
            alone_edges_ms=tuple((float(ms), float(ms)) for ms in np.cumsum([0.0, *own[rank]])),
            timed_ms=(STEP_MS, STEP_MS, STEP_MS + 20.0) * 5,
        )
        for rank in range(2)
    ]
    compared = compare_ranks(ranks)
    punctual, later = compared.rows
    assert punctual.waits_for_others_ms == pytest.approx(20.0 / 3, rel=0.05)
    assert later.own_ms == pytest.approx(STEP_MS + 20.0 / 3 - TRANSFER_MS, rel=0.05)
    for row in compared.rows:
        parts = (row.own_ms, row.waits_for_others_ms, row.transfer_ms)
        assert sum(part or 0.0 for part in parts) == pytest.approx(STEP_MS + 20.0 / 3)
    (straggler,) = compared.fleet.stragglers
    assert (straggler.ranks, straggler.kind) == ((1,), "wandering")
    assert compared.fleet.step_without_late_ranks_ms == pytest.approx(STEP_MS, rel=0.05)


def test_nobody_late_and_the_network_twice_as_fast() -> None:
    told = compare_ranks(job()).fleet
    (late,) = told.stragglers
    found = answers(told)
    assert told.replay_error == pytest.approx(0.0, abs=0.01)
    assert found[WhatIf.NO_LATE_RANK].step_ms == pytest.approx(STEP_MS - 6.05, abs=0.1)
    assert found[WhatIf.NO_LATE_RANK].step_ms == told.step_without_late_ranks_ms
    assert late.costs_ms == pytest.approx(found[WhatIf.NO_LATE_RANK].saves_ms)
    assert found[WhatIf.NETWORK_TWICE].saves_ms == pytest.approx(TRANSFER_MS / 2, abs=0.01)
    assert [part.rank for part in told.path] == [2, None]
    assert sum(part.ms for part in told.path) == pytest.approx(STEP_MS)


def test_a_cause_is_gone_on_all_ranks_at_once() -> None:
    """The late rank has 8 ms of input and the others 4: without input the next rank decides."""
    ranks = [
        msgspec.structs.replace(
            each,
            alone_without=(
                AloneWithout(WhatIf.INPUT_READY, ((8.0 if each.rank == 2 else 4.0),) * STEPS, False),
            ),
        )
        for each in job()
    ]
    found = answers(compare_ranks(ranks).fleet)
    assert found[WhatIf.INPUT_READY].saves_ms == pytest.approx(8.0, abs=0.1)
    assert "gone on all" in found[WhatIf.INPUT_READY].basis


def test_without_a_replay_of_a_rank_the_arrival_of_the_next_one_is_the_answer() -> None:
    ranks = [msgspec.structs.replace(each, alone_edges_ms=()) for each in job()]
    told = compare_ranks(ranks).fleet
    assert (told.what_ifs, told.replay_error, told.path) == ((), None, ())
    assert told.step_without_late_ranks_ms == pytest.approx(STEP_MS - 6.05, abs=0.1)


@pytest.mark.parametrize(
    "case", ["ddp-h200", "ddp-straggler-h200", "fsdp-h200", "grid-straggler-h200", "ddp-collections-h200"]
)
def test_recorded_ranks_are_replayed_as_long_as_they_were(case: str) -> None:
    fleet = diagnosis_of(case).fleet
    assert fleet is not None
    assert fleet.replay_error is not None
    assert fleet.replay_error < 0.03


def test_the_recorded_late_rank_costs_what_it_sleeps() -> None:
    fleet = diagnosis_of("ddp-straggler-h200").fleet
    assert fleet is not None
    # It sleeps 20.0 ms; the same script without the sleep takes 22.2 ms less, traced.
    assert 20.0 <= answers(fleet)[WhatIf.NO_LATE_RANK].saves_ms <= 22.2
    assert fleet.path[0].rank == 1
    row = max(fleet.collective_rows, key=lambda row: row.waits_ms)
    assert (row.collective, row.ranks, row.bytes) == ("allreduce", 2, 33554432)
    assert row.gbytes_per_s is not None
    assert 100 < row.gbytes_per_s < 450, "NVLink of an H200"


def test_of_four_recorded_ranks_the_late_one_is_named_with_its_cause() -> None:
    fleet = diagnosis_of("grid-straggler-h200").fleet
    assert fleet is not None
    (late,) = fleet.stragglers
    assert (late.ranks, late.kind, late.cause) == ((3,), "persistent", "input")
    # Measured in turns of one run: 86.5 ms with the sleep, 60.1 without.
    assert fleet.step_without_late_ranks_ms / fleet.step_ms == pytest.approx(60.1 / 86.5, rel=0.05)
    assert {(row.collective, row.ranks, row.groups) for row in fleet.collective_rows} == {
        ("allreduce", 2, 2),
        ("_allgather_base", 2, 2),
        ("_reduce_scatter_base", 2, 2),
    }


def test_without_the_recorded_collections_steps_are_ordinary() -> None:
    diagnosis = diagnosis_of("ddp-collections-h200")
    assert diagnosis.fleet is not None
    (late,) = diagnosis.fleet.stragglers
    assert (late.ranks, late.kind, late.cause) == ((1,), "wandering", "garbage collection")
    # Measured in turns of one run: 20.1 ms without.
    assert diagnosis.fleet.step_without_late_ranks_ms == pytest.approx(20.1, rel=0.05)
    for row in diagnosis.ranks:
        assert row.own_ms is not None
        assert row.waits_for_others_ms is not None
        assert row.own_ms + row.waits_for_others_ms == pytest.approx(diagnosis.fleet.step_ms, rel=0.03)


def test_kernels_beside_a_waiting_collective_are_shorter_once_nobody_is_late() -> None:
    """Products of the first rank take 4 ms longer than as many of the second, which waits for nobody."""
    ranks = [
        summary(0, [10.0] * 4, kernels=(KernelSketch("gemm", 8.0, 9.0),), own_kernels_ms=5.0),
        summary(1, [0.0] * 4, kernels=(KernelSketch("gemm", 8.0, 5.0),), own_kernels_ms=5.0),
    ]
    disturbed = disturbed_ms(ranks, ["", ""], np.asarray([10.0, 0.0]))
    assert disturbed.tolist() == [4.0, 0.0]
    other = msgspec.structs.replace(ranks[1], kernels=(KernelSketch("gemm", 16.0, 10.0),))
    assert disturbed_ms([ranks[0], other], ["", ""], np.asarray([10.0, 0.0])).tolist() == [0.0, 0.0], (
        "not the same"
    )
    assert disturbed_ms(ranks, ["", ""], np.asarray([3.0, 0.0])).tolist() == [3.0, 0.0], (
        "no more than it waits"
    )
    fleet = compare_ranks(ranks).fleet
    assert fleet.step_without_late_ranks_ms == pytest.approx(STEP_MS - 10.0 - 4.0, abs=0.1)
    beside = msgspec.structs.replace(ranks[0], alone_host_ms=tuple(ms - 1.5 for ms in ranks[0].alone_ms))
    assert disturbed_ms([beside, ranks[1]], ["", ""], np.asarray([10.0, 0.0])).tolist() == [1.5, 0.0], (
        "no more than the host waits for the device"
    )
    shared = msgspec.structs.replace(ranks[1], kernels=(KernelSketch("gemm", 8.0, 12.0, 7.0),))
    assert disturbed_ms([ranks[0], shared], ["", ""], np.asarray([10.0, 0.0])).tolist() == [4.0, 0.0], (
        "another process's turns are no norm"
    )
