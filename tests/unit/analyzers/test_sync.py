"""Many reads of values that cost nothing are said to cost nothing."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers.findings.sync import SynchronisationStalls
from torch_bottleneck.model.codes import WhatIf

from .facts import facts


@pytest.mark.parametrize(
    ("reads", "taken_ms", "told"),
    [
        (270.0, 1.5, ["270 reads of values per step take 1.50 ms"]),
        (4.0, 0.1, []),
        (5000.0, 30.0, []),  # not nothing: what it costs is that of its operators
    ],
)
def test_on_a_cpu_many_reads_are_told_with_what_they_take(
    reads: float, taken_ms: float, told: list[str]
) -> None:
    context = {"sync.per_step": reads, "sync.reads_ms": taken_ms}
    found = list(SynchronisationStalls().find(facts("cpu", context=context)))
    assert [each.title for each in found] == told
    assert all(each.cost_ms == taken_ms and not each.note for each in found)


@pytest.mark.parametrize(("waits", "note"), [(1.0, True), (270.0, False)])
def test_on_a_gpu_many_waits_that_cost_nothing_are_a_cause_with_their_price(waits: float, note: bool) -> None:
    known = facts(context={"sync.per_step": waits}, saves={WhatIf.SYNCS_GONE: 0.1})
    (found,) = SynchronisationStalls().find(known)
    assert found.note is note
    assert found.cost_ms == 0.1
