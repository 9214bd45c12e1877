"""A process that grows, seen in a real run: the windows lie as `diagnose` lays them, not as a test would."""

from __future__ import annotations

import sys
from pathlib import Path

import forked
import msgspec
import pytest

from torch_bottleneck.model.diagnosis import Diagnosis

SCRIPT = """
import torch

model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for _ in range(200):
    loss = model(torch.randn(512, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history = torch.ones(5_000_000)
    if KEEPS:
        kept.append(history)
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_what_each_step_keeps_is_found_and_what_it_gives_back_is_not(tmp_path: Path, keeps: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("KEEPS", str(keeps)))
    command = [sys.executable, "-m", "torch_bottleneck", "diagnose", "--quiet", "--out", "run", str(script)]
    forked.run(command, cwd=tmp_path, check=False, capture_output=True, timeout=600)
    diagnosis = msgspec.json.decode((tmp_path / "run" / "diagnosis.json").read_bytes(), type=Diagnosis)
    found = [finding for finding in diagnosis.findings if finding.code == "BN214"]
    assert len(found) == keeps
    if keeps:
        (evidence, *_) = found[0].evidence
        assert evidence.value == pytest.approx(20e6, rel=0.3), "five million numbers a step"
