"""The account of each rank, who is late and why, and which ranks are left out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from unit.fleet.jobs import STEP_MS, TRANSFER_MS, collectives, summary
from unit.timeline.cpu_traces import make_steps
from unit.timeline.traces import TraceWriter

from torch_bottleneck.fleet.causes import Amounts, cause_of, in_single_steps
from torch_bottleneck.fleet.collectives import Collectives, PackedCollectives, messages_ms, pack, unpack
from torch_bottleneck.fleet.compare import compare_ranks
from torch_bottleneck.fleet.summary import RankSummary
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import UnreadRank
from torch_bottleneck.timeline.trace.table import Message

STEPS = 4


def job(late_ms: float = 6.0, *, late: int = 2, ranks: int = 4) -> list[RankSummary]:
    """A job in which one rank is late, and the others wait for it."""
    rng = np.random.default_rng(3)
    made = []
    for rank in range(ranks):
        waits = np.zeros(STEPS) if rank == late else late_ms + rng.uniform(0.0, 0.1, STEPS)
        made.append(summary(rank, waits.tolist()))
    return made


def test_own_work_waiting_and_transfer_add_up_to_the_step_of_each_rank() -> None:
    ranks = job()
    for account, each in zip(compare_ranks(ranks).rows, ranks, strict=True):
        parts = (account.own_ms, account.waits_for_others_ms, account.transfer_ms)
        assert sum(parts) == pytest.approx(each.true_ms)
        assert account.transfer_ms == pytest.approx(TRANSFER_MS)
        assert account.waits_for_others_ms == pytest.approx(0.0 if each.rank == 2 else 6.05, abs=0.06)
        assert account.waits_for == (None if each.rank == 2 else 2)


def stages(idle_ms: list[float], *, sent_ms: list[float]) -> list[RankSummary]:
    """A pipeline whose stages send four messages a step, and exchange nothing else."""
    return [
        summary(
            rank,
            [0.0] * STEPS,
            collectives=PackedCollectives(),
            alone_ms=(),
            messages_ms=((idle + sent, sent, 4),) * STEPS,
        )
        for rank, (idle, sent) in enumerate(zip(idle_ms, sent_ms, strict=True))
    ]


def test_what_a_rank_does_behind_its_last_collective_makes_it_late_by_all_of_it() -> None:
    """Its own second step is longer by 20 ms, and the third one of the other, which waits in it."""
    waits = np.array([0.0, 0.0, 20.0, 0.0])
    own = np.array([19.0, 39.0, 19.0, 19.0])
    known = {"true_ms": 25.0, "alone_edges_ms": ()}
    first = summary(
        0, waits.tolist(), **known, recorded_ms=(20.0, 20.0, 40.0, 20.0), alone_ms=(19.0,) * STEPS
    )
    second = summary(
        1, [0.0] * STEPS, **known, recorded_ms=(20.0, 40.0, 20.0, 20.0), alone_ms=tuple(own.tolist())
    )
    account = compare_ranks([first, second]).rows[1]
    assert account.late_steps_ms == pytest.approx((0.0, 20.0, 0.0, 0.0), abs=0.1)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_what_the_busiest_stage_waits_is_the_bubble_and_what_others_wait_longer_is_for_it(kind: str) -> None:
    ranks = [msgspec.structs.replace(s, kind=kind) for s in stages([7.0, 3.0, 5.0], sent_ms=[0.5] * 3)]
    told = compare_ranks(ranks)
    accounts = told.rows
    found = [(a.own_ms, a.waits_for_others_ms, a.transfer_ms, a.bubble_ms, a.waits_for) for a in accounts]
    assert found == [(12.5, 4.0, 0.5, 3.0, 1), (16.5, 0.0, 0.5, 3.0, None), (14.5, 2.0, 0.5, 3.0, 1)]
    assert told.fleet.stragglers == (), "each stage has its own work by design"
    assert told.skew is not None
    assert told.skew.critical == 1


@pytest.mark.parametrize(("collective", "counts"), [("coalesced", True), ("", True), ("all_to_allv", False)])
def test_of_a_devices_messages_counts_what_no_other_kernel_hides(collective: str, counts: bool) -> None:
    writer = TraceWriter()
    writer.messages = [Message("1", "[0, 1]", collective)] if collective else []
    for at in (0.0, 1000.0):
        for begin, length, stream in ((110.0, 500.0, 20), (700.0, 100.0, 20), (200.0, 200.0, 7)):
            kernel = "ncclDevKernel_SendRecv(ncclDevComm*)" if stream == 20 else "ampere_sgemm_32x32_nn"
            writer.launch(
                at + begin - 50.0, 5.0, kernel=kernel, start=at + begin, length=length, stream=stream
            )
            if stream == 20 and collective:
                writer.rows[-1]["message"] = 0
    writer.steps([0.0, 1000.0, 2000.0])
    trace = writer.build()
    found = messages_ms(trace, make_steps([(0.0, 1000.0), (1000.0, 2000.0)]), None)
    assert found == (((pytest.approx(0.4), pytest.approx(0.2), 2),) * 2 if counts else ())


def test_a_stage_that_waits_for_each_of_its_messages_transfers_no_longer_than_the_others() -> None:
    told = compare_ranks(stages([1.0, 2.0], sent_ms=[6.0, 0.4]))
    first, second = told.rows
    assert (first.transfer_ms, second.transfer_ms) == pytest.approx((0.4, 0.4))
    assert (first.waits_for_others_ms, first.bubble_ms) == pytest.approx((4.6, 2.0))


def test_stages_that_also_exchange_gradients_have_both() -> None:
    idle_ms = (2.0, 2.0, 3.0, 3.0)
    ranks = [
        msgspec.structs.replace(s, messages_ms=((idle, 0.0, 4),) * STEPS, alone_ms=())
        for s, idle in zip(job(late_ms=0.0), idle_ms, strict=True)
    ]
    for account, idle in zip(compare_ranks(ranks).rows, idle_ms, strict=True):
        assert account.transfer_ms == pytest.approx(TRANSFER_MS, rel=1e-3)
        assert account.bubble_ms == pytest.approx(2.0)
        assert account.waits_for_others_ms == pytest.approx(idle - 2.0, abs=0.2)
        parts = account.own_ms + account.waits_for_others_ms + account.transfer_ms + account.bubble_ms
        assert parts == pytest.approx(STEP_MS)


def test_the_late_rank_is_named_with_its_cause_and_what_the_step_is_without_it() -> None:
    told = compare_ranks(job()).fleet
    (late,) = told.stragglers
    assert (late.ranks, late.kind, late.cause) == ((2,), "persistent", "host")
    assert late.late_ms == pytest.approx(6.05, abs=0.1)
    assert told.step_without_late_ranks_ms == pytest.approx(STEP_MS - late.costs_ms)
    assert told.clock_error_us == pytest.approx(0.0, abs=0.1)
    assert (told.compared, told.collectives, told.unmatched) == (4, STEPS, 0)


def test_waiting_that_hides_the_ranks_own_host_is_own_work() -> None:
    """All hosts set the pace; three of the devices are ahead and wait, and nobody would be faster alone."""
    even = [msgspec.structs.replace(each, alone_ms=(STEP_MS - TRANSFER_MS,) * STEPS) for each in job(late=0)]
    told = compare_ranks(even)
    assert told.fleet.stragglers == ()
    assert [round(a.waits_for_others_ms, 6) for a in told.rows] == [0.0] * 4


def test_dispatching_that_is_hidden_on_the_others_is_not_the_cause() -> None:
    ranks = job()
    work = {"launch": (9.0,) * STEPS, "input": (6.2,) * STEPS}
    ranks[2] = msgspec.structs.replace(
        ranks[2], own_work_ms=work, budget={"dispatching operators": 9.0, "waiting for input": 6.2}
    )
    for rank in (0, 1, 3):
        ranks[rank] = msgspec.structs.replace(ranks[rank], own_work_ms={"launch": (9.1,) * STEPS}, budget={})
    assert compare_ranks(ranks).fleet.stragglers[0].cause == "input"


@pytest.mark.parametrize(
    ("compute", "update", "cause"),
    [(11.0, 2.0, "compute"), (11.0, 4.4, "slower device"), (5.0, 2.0, "unknown")],
)
def test_more_work_for_the_device_is_told_from_a_slower_device(
    compute: float, update: float, cause: str
) -> None:
    ranks = [
        msgspec.structs.replace(each, own_work_ms={"compute": (5.0,) * STEPS, "optimizer": (2.0,) * STEPS})
        for each in job()
    ]
    work = {"compute": (compute,) * STEPS, "optimizer": (update,) * STEPS}
    budget = {"tensor-core math": compute, "optimizer": update}
    ranks[2] = msgspec.structs.replace(ranks[2], own_work_ms=work, budget=budget)
    assert compare_ranks(ranks).fleet.stragglers[0].cause == cause


def test_a_collector_that_runs_now_here_and_now_there_is_named() -> None:
    waits = np.full((8, STEPS), 5.0)
    collects = np.zeros((8, STEPS))
    for step, rank in enumerate((1, 6, 3, 4)):
        waits[rank, step], collects[rank, step] = 0.0, 5.0
    ranks = [
        summary(k, waits[k].tolist(), own_work_ms={"host": (9.0,) * STEPS, "garbage collection": tuple(each)})
        for k, each in enumerate(collects.tolist())
    ]
    (late,) = compare_ranks(ranks).fleet.stragglers
    assert (late.kind, late.cause, late.ranks) == ("wandering", "garbage collection", (1, 3, 4, 6))


def test_a_rank_that_was_late_in_its_trace_alone_is_not_told() -> None:
    ranks = job()
    ranks[2] = msgspec.structs.replace(ranks[2], runs_ahead=True)
    told = compare_ranks(ranks)
    assert told.fleet.stragglers == ()
    assert told.fleet.step_without_late_ranks_ms == STEP_MS
    assert told.skew is None


@pytest.mark.parametrize(("longest_ms", "told"), [(STEP_MS + 5.0, ["wandering"]), (STEP_MS + 1.0, [])])
def test_single_late_steps_are_of_the_profiler_if_no_timed_step_was_as_long(
    longest_ms: float, told: list[str]
) -> None:
    """In ordinary steps the rank's host is ahead of its device; that says nothing of the others."""
    waits = np.full((4, 2 * STEPS), 5.0)
    waits[3] = np.array([5.0] * 6 + [0.0, 5.0])
    ranks = [summary(k, each.tolist()) for k, each in enumerate(waits)]
    timed = (STEP_MS,) * 8 + (longest_ms,)
    ranks[3] = msgspec.structs.replace(ranks[3], runs_ahead=True, timed_ms=timed)
    assert [late.kind for late in compare_ranks(ranks).fleet.stragglers] == told


def test_a_rank_of_another_job_is_told_by_its_messages_or_by_its_clock() -> None:
    ranks = job()
    ends = [STEP_MS * (k + 1) * 1.7 + (k % 2) * 9.0 for k in range(STEPS)]
    other = collectives(ends, [TRANSFER_MS] * STEPS, steps=range(STEPS))
    ranks[1] = msgspec.structs.replace(ranks[1], collectives=pack(other))
    resized = collectives(
        [STEP_MS * (k + 1) for k in range(STEPS)],
        [TRANSFER_MS] * STEPS,
        steps=range(STEPS),
        sizes=[5] * STEPS,
    )
    ranks[3] = msgspec.structs.replace(ranks[3], collectives=pack(resized))
    told = compare_ranks(ranks)
    reasons = {each.rank: each.reason for each in told.fleet.unread}
    assert "collectives end when those of the other ranks do not" in reasons[1]
    assert "collectives are not those of the other ranks" in reasons[3]
    assert told.rows[1].own_ms is None
    assert told.fleet.compared == 2
    captured = compare_ranks([msgspec.structs.replace(each, place=9) for each in ranks])
    assert [each.rank for each in captured.fleet.unread] == [3], "one capture: its clock alone accuses nobody"


def test_a_rank_that_was_cut_off_is_told_and_the_others_are_compared() -> None:
    ranks = job()
    ranks[0] = msgspec.structs.replace(ranks[0], whole=False)
    missing = UnreadRank(rank=7, reason="it was not given")
    told = compare_ranks(ranks, [missing]).fleet
    assert [each.rank for each in told.unread] == [7, 0]
    assert told.compared == 3
    assert told.stragglers[0].ranks == (2,)


def test_what_is_packed_comes_out_again() -> None:
    columns = collectives([20.0, 40.0, 61.5], [1.0, 0.25, 3.0], steps=[0, 0, 1], sizes=[10, 20, 10])
    again = unpack(pack(columns))
    assert again.kinds == columns.kinds
    for name in ("kind", "sequence", "step", "backward", "ready", "start", "end", "exposed"):
        assert np.array_equal(getattr(again, name), getattr(columns, name)), name


def test_a_kernel_that_was_launched_before_the_window_makes_no_rank_another_one() -> None:
    """Its message is not written, on the one rank whose host was further ahead."""
    usual, late = job(ranks=2, late=1)
    columns = unpack(usual.collectives)
    message = Message("", "", "ncclDevKernel_AllReduce")
    more = Collectives(
        kinds=(*columns.kinds, (message, -1)),
        **{
            name: np.concatenate([getattr(columns, name)[:1], getattr(columns, name)])
            for name in ("sequence", "backward", "phase", "ready", "start", "end", "alone", "exposed")
        },
        kind=np.concatenate([[len(columns.kinds)], columns.kind]),
        step=np.concatenate([[-1], columns.step]),
    )
    usual = msgspec.structs.replace(usual, collectives=pack(more))
    (found,) = compare_ranks([usual, late]).fleet.stragglers
    assert found.ranks == (1,)


def test_what_is_done_behind_the_last_collective_makes_the_next_step_late() -> None:
    (summary,) = job(ranks=1, late=0)
    summary = msgspec.structs.replace(summary, own_work_ms={"garbage collection": (0.0, 9.0, 0.0, 0.0)})
    assert in_single_steps([(summary, -2)]) == {"garbage collection": (9.0, 0.0)}
    assert in_single_steps([(summary, -1)]) == {"garbage collection": (0.0, 0.0)}
    assert in_single_steps([(summary, -4)]) == {"garbage collection": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("compute", "update", "taken_ms", "cause"),
    [
        (5.0, 0.0, 0.0, "compute"),
        (5.0, 0.0, 4.0, "slower device"),
        (9.0, 1.0, 0.0, "slower device"),
        (0.0, 1.0, 0.0, "slower device"),
    ],
)
def test_a_slower_device_is_told_by_the_update_or_by_what_another_process_takes(
    compute: float, update: float, taken_ms: float, cause: str
) -> None:
    """Of 50 ms the update has 10; peers differ in what they compute, so that its excess alone says little."""
    amounts: Amounts = {"compute": (40.0 + compute, 40.0), "optimizer": (10.0 + update, 10.0)}
    assert cause_of(amounts, 5.0, taken_ms=taken_ms) == cause


def test_a_late_node_and_the_same_place_of_all_nodes_are_named() -> None:
    def told(late: set[int]) -> list[tuple[str, tuple[int, ...]]]:
        ranks = [
            summary(k, [0.0 if k in late else 6.0 + 0.01 * (k % 5)] * STEPS, node=k // 8 * 8, world_size=64)
            for k in range(64)
        ]
        return [(each.group, each.ranks) for each in compare_ranks(ranks).fleet.stragglers]

    assert told(set(range(8, 16))) == [("node 1", tuple(range(8, 16)))]
    assert told(set(range(2, 64, 8))) == [("GPU 2 of each node", tuple(range(2, 64, 8)))]
    assert told({9}) == [("", (9,))]


def dealt(ranks: list[RankSummary]) -> float | None:
    """What is saved by dealing the work out evenly."""
    fleet = compare_ranks(ranks).fleet
    return next((each.saves_ms for each in fleet.what_ifs if each.question is WhatIf.WORK_DEALT), None)


def test_work_that_is_dealt_out_by_chance_has_a_price_by_the_forwards_of_many_steps() -> None:
    chance = np.random.default_rng(5)
    uneven = chance.lognormal(0.0, 0.5, (2, 60)) * 4.0
    beside = uneven - np.median(uneven, axis=1, keepdims=True)
    more = (beside.max(axis=0) - beside.mean(axis=0)).mean() / uneven.mean()
    turns = [[8.0, 0.0, 0.0, 6.0], [0.0, 7.0, 7.0, 0.0]]

    def ranks(forwards: np.ndarray, waits: list[list[float]]) -> list[RankSummary]:
        return [summary(k, waits[k], forwards_ms=tuple(forwards[k].tolist())) for k in range(2)]

    own_ms = STEP_MS - TRANSFER_MS - np.mean(turns)
    assert dealt(ranks(uneven, turns)) == pytest.approx(more * own_ms, rel=0.05)
    assert dealt(ranks(chance.normal(4.0, 0.05, (2, 60)), turns)) is None
    assert dealt(ranks(uneven, [[1.0] * STEPS] * 2)) is None, "no more than the traced steps may have"
    steady = np.stack([np.full(60, 6.0), np.full(60, 4.0)])
    assert dealt(ranks(steady, turns)) is None, "always the same rank"


def test_without_forwards_the_traced_steps_tell_it_and_a_rank_that_is_always_late_is_told_by_itself() -> None:
    turns = np.tile([8.0, 0.0], 8)
    assert dealt([summary(k, waits.tolist()) for k, waits in enumerate([turns, 8.0 - turns])]) == (
        pytest.approx(4.0, rel=0.05)
    )
    assert dealt(job()) is None
