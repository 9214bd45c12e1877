"""New memory that deterministic mode fills before it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded.cases import CASES
from torch import profiler

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis

CASE = CASES["thread-fills-h100"]


def test_the_step_without_the_fills_is_the_one_measured() -> None:
    (fix,) = (s for s in diagnose_paths([CASE.folder]).suggestions if s.fix == "FX328")
    assert not fix.bound
    assert fix.predicted_ms == pytest.approx(float(CASE.facts["measured_fixed_ms"]), rel=0.05)


def traced(path: Path) -> Diagnosis:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(256, 64)).sum().backward()
            optimizer.step()
            profile.step()
    profile.export_chrome_trace(str(path))
    return diagnose_paths([path])


@pytest.mark.parametrize("fills", [True, False])
def test_on_the_cpu_they_are_told_where_there_are_any(
    fills: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", fills)
    torch.use_deterministic_algorithms(True)
    try:
        found = traced(tmp_path / "one.pt.trace.json")
    finally:
        torch.use_deterministic_algorithms(False)
    saved = {answer.question: answer.saves_ms for answer in found.what_ifs}
    assert (saved.get(WhatIf.FILLS_GONE, 0.0) > 0.0) is fills
