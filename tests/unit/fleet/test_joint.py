"""The joint replay of ranks, on programs small enough to reckon by hand, and on recorded runs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from recorded.diagnosed import diagnosis_of
from unit.fleet.jobs import STEP_MS, TRANSFER_MS, summary
from unit.fleet.test_compare import STEPS, job

from torch_bottleneck.fleet.causes import disturbed_ms
from torch_bottleneck.fleet.compare import compare_ranks
from torch_bottleneck.fleet.joint import Join, JointEdit, JointProgram, host_program
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
    assert program.steps_ms(edits) == pytest.approx([(17 + 14) / 2, (16 + 13) / 2, (12 + 14) / 2, 0.0])


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
    return JointProgram(edges_ms=edges, joins=tuple(joins))


def test_a_transfer_beside_own_work_costs_only_what_sticks_out() -> None:
    """It ends 7 ms after the step's begin; whoever needs it at 5 stands still for 2 ms."""
    assert overlapped(host=(10.0, 10.0), needed=9.0).steps_ms([ONE]) == pytest.approx([10.0])
    early = overlapped(host=(10.0, 10.0), needed=5.0)
    assert early.steps_ms([ONE, JointEdit(transfer=0.0)]) == pytest.approx([12.0, 10.0])


def test_a_host_that_is_ahead_makes_up_in_the_queue_and_one_that_waits_does_not() -> None:
    """Both hosts need 14 ms for 10 ms of device work: standing still for 2 ms costs nothing."""
    assert overlapped(host=(14.0, 14.0), needed=5.0).steps_ms([ONE]) == pytest.approx([14.0])
    tied = overlapped(host=(14.0, 14.0), needed=5.0, synced=True)
    assert tied.steps_ms([ONE]) == pytest.approx([14.2])


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


@pytest.mark.parametrize("case", ["ddp-h200", "ddp-straggler-h200", "fsdp-h200"])
def test_recorded_ranks_are_replayed_as_long_as_they_were(case: str) -> None:
    fleet = diagnosis_of(case).fleet
    assert fleet is not None
    assert fleet.replay_error is not None
    assert fleet.replay_error < 0.03


def test_the_recorded_late_rank_costs_what_it_sleeps() -> None:
    fleet = diagnosis_of("ddp-straggler-h200").fleet
    assert fleet is not None
    assert answers(fleet)[WhatIf.NO_LATE_RANK].saves_ms == pytest.approx(20.0, rel=0.05)
    assert fleet.path[0].rank == 1
    row = max(fleet.collective_rows, key=lambda row: row.waits_ms)
    assert (row.collective, row.ranks, row.bytes) == ("allreduce", 2, 33554432)
    assert row.gbytes_per_s is not None
    assert 100 < row.gbytes_per_s < 450, "NVLink of an H200"


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
