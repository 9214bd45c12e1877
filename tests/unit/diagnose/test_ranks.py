"""Which of several ranks decides the step: the one that others wait for, if not for the profiler's sake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torch_bottleneck.diagnose.ranks import _runs_ahead, critical
from torch_bottleneck.fleet.compare import compare_ranks, late_by_profiler
from torch_bottleneck.fleet.summary import RankSummary
from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.run import StepTable, Window


def rank(true_ms: float, exchanged_ms: float, number: int = 0) -> RankSummary:
    budget = {Part.COMMUNICATION.value: exchanged_ms, Part.INPUT.value: true_ms - exchanged_ms}
    work = {"input": (true_ms - exchanged_ms,) * 4}
    return RankSummary(rank=number, kind="cpu", true_ms=true_ms, steps=4, budget=budget, own_work_ms=work)


def test_who_waits_least_in_collectives_decides_though_another_is_slower_by_the_clock() -> None:
    ranks = [rank(18.0, 10.7), rank(17.8, 2.1, 1)]
    together = compare_ranks(ranks)
    assert together.skew is not None
    assert together.skew.critical == 1
    assert together.skew.waits_ms.tolist() == pytest.approx([8.6, 0.0])
    assert critical(ranks, together.skew) == 1
    (late,) = together.fleet.stragglers
    assert (late.ranks, late.cause) == ((1,), "input")
    assert late.late_ms == pytest.approx(8.6)
    for account, each in zip(together.rows, ranks, strict=True):
        parts = (account.own_ms, account.waits_for_others_ms, account.transfer_ms)
        assert sum(parts) == pytest.approx(each.true_ms)


@pytest.mark.parametrize(("one", "other"), [(2.1, 2.5), (0.0, 9.0)])
def test_ranks_that_are_even_or_exchange_nothing_are_told_by_the_clock(one: float, other: float) -> None:
    ranks = [rank(17.8, one), rank(18.0, other, 1)]
    together = compare_ranks(ranks)
    assert together.skew is None
    assert together.fleet.stragglers == ()
    assert critical(ranks, None) == 1


def test_one_rank_waits_for_nobody() -> None:
    assert compare_ranks([rank(18.0, 10.0)]).skew is None


def runs_ahead(host_ms: float, device_ms: float) -> bool:
    """A rank whose host and device made their steps in so many ms, with nothing attached."""
    # One step in which the host waited for room.
    table = StepTable(wall_ms=[*[host_ms] * 9, 3 * host_ms], device_ms=[device_ms] * 10)
    window = Window(name="baseline", status="ok", planned_steps=10, steps=table)
    run = SimpleNamespace(window=lambda _name: window)
    reading: Any = SimpleNamespace(basis=SimpleNamespace(run=run, kept=np.ones(10, dtype=bool)))
    return _runs_ahead(reading)


@pytest.mark.parametrize(
    ("host_ms", "device_ms", "own_ms", "artefact"),
    [
        (44.0, 50.0, 40.0, True),
        (50.0, 50.0, 40.0, False),  # its host sets its pace
        (44.0, 50.0, 49.0, False),  # its device has more to do
    ],
)
def test_a_rank_is_late_for_its_host_or_its_device_and_not_for_the_profiler(
    host_ms: float, device_ms: float, own_ms: float, artefact: bool
) -> None:
    late = RankSummary(rank=1, own_kernels_ms=own_ms, runs_ahead=runs_ahead(host_ms, device_ms))
    patient = RankSummary(rank=0, own_kernels_ms=40.0, runs_ahead=True)
    assert late_by_profiler(late, [patient], 10.0) is artefact


def test_of_ranks_that_take_as_long_the_one_with_the_most_work_decides() -> None:
    ranks = [RankSummary(rank=i, true_ms=50.0, own_kernels_ms=own) for i, own in enumerate((40.0, 42.0))]
    assert critical(ranks, None) == 1
