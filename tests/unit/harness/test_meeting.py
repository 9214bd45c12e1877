"""What ranks agree on through a store that they share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch.distributed as dist

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.windows import meeting
from torch_bottleneck.harness.windows.horizon import Horizon
from torch_bottleneck.harness.windows.lengths import Schedule
from torch_bottleneck.harness.windows.table import Row
from torch_bottleneck.harness.windows.timetable import Timetable
from torch_bottleneck.model.run import Run
from torch_bottleneck.runs.layout import guests
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

OWN = Schedule(
    before=meeting.FIXED.before, whole=meeting.FIXED.whole, after=7, traced=3, trace_warmup=1, memory=0
)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any], int], list[Any]]:
    """Calls something as each of so many ranks, at once."""
    store, place = dist.HashStore(), threading.local()
    monkeypatch.setattr(torch_private, "default_store", lambda: store)
    monkeypatch.setattr(torch_private, "world", lambda: place.is_at)

    def call(what: Callable[[int], Any], count: int) -> list[Any]:
        def as_rank(rank: int) -> Any:
            place.is_at = (rank, count)
            return what(rank)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(as_rank, range(count)))

    return call


def late(own_ms: float, *, step_ms: float) -> list[int]:
    return meeting._late(meeting.gather("own", own_ms, kind=float) or [], step_ms=step_ms)


def row(*, data_ms: float, backward_ms: float) -> Row:
    phases = {"data": int(data_ms * 1e6), "forward": 4_000_000, "backward": int(backward_ms * 1e6)}
    return Row(index=0, start_ns=0, wall_ms=data_ms + 4.0 + backward_ms + 1.0, phases_ns=phases)


def test_a_rank_whose_work_keeps_the_others_waiting_is_traced(together: Any) -> None:
    """Rank 5 loads for 20 ms; the others wait for it in their backward pass, and all steps are as long."""

    def asks(rank: int) -> list[int]:
        data_ms, backward_ms = (20.0, 10.0) if rank == 5 else (1.0, 29.0)
        rows = [row(data_ms=data_ms, backward_ms=backward_ms)] * 5
        return late(meeting.before_waiting_ms(rows), step_ms=35.0)

    assert together(asks, 12) == [[5]] * 12


def test_a_rank_whose_device_is_slower_is_traced(together: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is as quick as the others'; up to the backward pass its device takes 9 ms, and theirs 6."""
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cuda")
    rows = [row(data_ms=1.0, backward_ms=29.0)] * 5

    def asks(rank: int) -> bool:
        device_ms = 9.0 if rank == 17 else 6.0
        return meeting.traced_here(Plan(), rows, step_ms=35.0, before_backward_ms=device_ms)

    asked = together(lambda _: meeting.compares_devices(Plan()), 24)
    assert asked == [True] * 24
    assert together(lambda _: meeting.compares_devices(Plan()), 8) == [False] * 8
    traced = together(asks, 24)
    assert traced[17]
    assert sum(traced) < 6


def test_of_ranks_alike_none_is_late_and_of_many_late_ones_the_latest(together: Any) -> None:
    assert together(lambda rank: late(10.0 + rank / 100, step_ms=20.0), 9) == [[]] * 9


def test_of_many_late_ones_the_latest_are_traced(together: Any) -> None:
    def asks(rank: int) -> list[int]:
        return late(10.0 + (rank if rank > 8 else 0.0), step_ms=20.0)

    assert together(asks, 16) == [[15, 14, 13, 12]] * 16


def test_all_take_the_schedule_of_rank_0_and_note_where_it_writes(together: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    stores = [Store(tmp_path / f"rank{rank}", run=Run()) for rank in range(3)]

    def agrees(rank: int) -> Schedule:
        # Rank 2 is on another machine.
        plan = Plan(meet=str(there if rank == 2 else here))
        own = OWN if rank == 0 else meeting.FIXED
        return meeting.agree(own, rank=rank, plan=plan, store=stores[rank])

    assert together(agrees, 3) == [OWN] * 3
    assert guests(here) == {2}
    assert [store.run.meet for store in stores] == ["", "", str(here)]


def test_a_folder_that_a_machine_does_not_see_is_left_alone(together: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "rank1", run=Run())
    meeting._meet(str(tmp_path / "elsewhere"), rank=1, plan=Plan(meet=str(tmp_path)), store=store)
    assert store.run.meet == ""


def test_ranks_that_cannot_talk_use_fixed_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch_private, "default_store", lambda: None)
    store = Store(tmp_path / "rank0", run=Run())
    assert meeting.agree(OWN, rank=0, plan=Plan(), store=store) == meeting.FIXED
    assert meeting.gather("own", 50.0, kind=float) is None


def test_what_every_rank_says_arrives_in_their_order(together: Any) -> None:
    said = together(lambda rank: meeting.gather("seconds", (0.1 * rank, rank == 2), kind=Any), 3)
    assert said == [[[0.0, False], [0.1, False], [0.2, True]]] * 3


def test_what_a_rank_said_of_one_thing_is_no_answer_about_another_of_a_longer_name(together: Any) -> None:
    def says(rank: int) -> Any:
        first = meeting.gather("trials", {"step": rank}, kind=Any)
        if rank == 0:
            # The other one asks first, so that it finds what is there already.
            sleep(0.1)
        return first, meeting.gather("trials/1", rank, kind=int)

    assert together(says, 2) == [([{"step": 0}, {"step": 1}], [0, 1])] * 2


def test_a_rank_that_does_not_come_is_not_waited_for_without_end(together: Any) -> None:
    def says(rank: int) -> Any:
        return None if rank == 1 else meeting.gather("gone", rank, kind=int, patience_s=0.2)

    assert together(says, 3) == [None] * 3


def test_ranks_sample_as_many_stacks_as_rank_0_planned_all_before_the_last_stretch(
    together: Callable[[Callable[[int], Any], int], list[Any]], tmp_path: Path
) -> None:
    def sampled(rank: int) -> tuple[int, int]:
        store = Store(tmp_path / str(rank), run=Run())
        times = Timetable(Plan(script="train.py"), Horizon(), store)
        times.draw_up([Row(index=i, start_ns=i, wall_ms=20.0 + 80.0 * rank) for i in range(8)])
        return times.steps_to_sample(behind=False), times.steps_to_sample(behind=True)

    assert together(sampled, 2) == [(30, 30), (30, 30)], "rank 1 alone would take 15 of its longer steps"
