"""What ranks agree on through a store that they share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.windows import meeting
from torch_bottleneck.harness.windows.lengths import Schedule
from torch_bottleneck.harness.windows.table import Row
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
    store = dist.HashStore()
    monkeypatch.setattr(torch_private, "default_store", lambda: store)

    def call(what: Callable[[int], Any], count: int) -> list[Any]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(what, range(count)))

    return call


def row(*, data_ms: float, backward_ms: float) -> Row:
    phases = {"data": int(data_ms * 1e6), "forward": 4_000_000, "backward": int(backward_ms * 1e6)}
    return Row(index=0, start_ns=0, wall_ms=data_ms + 4.0 + backward_ms + 1.0, phases_ns=phases)


def test_a_rank_whose_work_keeps_the_others_waiting_is_traced(together: Any) -> None:
    """Rank 5 loads for 20 ms; the others wait for it in their backward pass, and all steps are as long."""

    def asks(rank: int) -> list[int]:
        late = rank == 5
        rows = [row(data_ms=20.0 if late else 1.0, backward_ms=10.0 if late else 29.0)] * 5
        return meeting._late(rank, 12, meeting.before_waiting_ms(rows), step_ms=35.0)

    assert together(asks, 12) == [[5]] * 12


def test_of_ranks_alike_none_is_late_and_of_many_late_ones_the_latest(together: Any) -> None:
    assert together(lambda rank: meeting._late(rank, 9, 10.0 + rank / 100, step_ms=20.0), 9) == [[]] * 9


def test_of_many_late_ones_the_latest_are_traced(together: Any) -> None:
    def asks(rank: int) -> list[int]:
        return meeting._late(rank, 16, 10.0 + (rank if rank > 8 else 0.0), step_ms=20.0)

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
    assert meeting._late(0, 9, 50.0, step_ms=20.0) == []
