"""Which of several ranks on the CPU decides the step: the one that the others wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torch_bottleneck.diagnose.ranks import critical, skew_of
from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.diagnosis import BudgetLine
from torch_bottleneck.timeline.result import Timeline


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
