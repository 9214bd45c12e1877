"""Which of several ranks decides the step: the one that others wait for, if not for the profiler's sake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torch_bottleneck.diagnose import ranks as ranks_module
from torch_bottleneck.diagnose.ranks import critical, skew_of
from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.diagnosis import BudgetLine, KernelRow
from torch_bottleneck.model.run import StepTable, Window
from torch_bottleneck.timeline.result import Timeline
from torch_bottleneck.timeline.trace.collectives import Skew


def rank(true_ms: float, exchanged_ms: float) -> Any:
    lines = (
        BudgetLine(part=Part.COMMUNICATION, ms=exchanged_ms, share=exchanged_ms / true_ms),
        BudgetLine(part=Part.INPUT, ms=true_ms - exchanged_ms, share=1 - exchanged_ms / true_ms),
    )
    timeline = Timeline(kind="cpu", true_ms=true_ms, profiled_ms=true_ms, steps=4, budget=lines, what_ifs={})
    return SimpleNamespace(timeline=timeline, rank=SimpleNamespace(trace=None), memory=())


def test_who_waits_least_in_collectives_decides_though_another_is_slower_by_the_clock() -> None:
    ranks = [rank(18.0, 10.7), rank(17.8, 2.1)]
    skew = skew_of(ranks)
    assert skew is not None
    assert skew.critical == 1
    assert skew.waits_ms.tolist() == pytest.approx([8.6, 0.0])
    assert critical(ranks, skew) is ranks[1]


@pytest.mark.parametrize(("one", "other"), [(2.1, 2.5), (0.0, 9.0)])
def test_ranks_that_are_even_or_exchange_nothing_are_told_by_the_clock(one: float, other: float) -> None:
    ranks = [rank(17.8, one), rank(18.0, other)]
    assert skew_of(ranks) is None
    assert critical(ranks, None) is ranks[1]


def test_one_rank_waits_for_nobody() -> None:
    assert skew_of([rank(18.0, 10.0)]) is None


def gpu_rank(host_ms: float, device_ms: float, own_ms: float) -> Any:
    """A rank whose host and device made their steps in so many ms, with nothing attached."""
    row = KernelRow(name="gemm", part=Part.TENSOR_CORE, count=1, ms=own_ms, share=0.5)
    timeline = Timeline(
        kind="gpu", true_ms=50.0, profiled_ms=60.0, steps=4, budget=(), what_ifs={}, kernels=(row,)
    )
    # One step in which the host waited for room.
    table = StepTable(wall_ms=[*[host_ms] * 9, 3 * host_ms], device_ms=[device_ms] * 10)
    window = Window(name="baseline", status="ok", planned_steps=10, steps=table)
    run = SimpleNamespace(window=lambda _name: window)
    basis = SimpleNamespace(run=run, kept=np.ones(10, dtype=bool))
    return SimpleNamespace(timeline=timeline, basis=basis, memory=())


LATE = Skew(waits_ms=np.asarray([10.0, 0.0]), critical=1)


@pytest.mark.parametrize(
    ("late", "artefact"),
    [
        ((44.0, 50.0, 40.0), True),
        ((50.0, 50.0, 40.0), False),  # its host sets its pace
        ((44.0, 50.0, 49.0), False),  # its device has more to do
    ],
)
def test_a_rank_is_late_for_its_host_or_its_device_and_not_for_the_profiler(
    late: tuple[float, float, float], artefact: bool
) -> None:
    readings = [gpu_rank(44.0, 50.0, 40.0), gpu_rank(*late)]
    assert ranks_module._of_the_profiler(readings, LATE) is artefact


def test_of_ranks_that_take_as_long_the_one_with_the_most_work_decides() -> None:
    readings = [gpu_rank(44.0, 50.0, 40.0), gpu_rank(44.0, 50.0, 42.0)]
    assert critical(readings, None) is readings[1]
