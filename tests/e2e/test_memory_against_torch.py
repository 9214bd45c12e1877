"""Every recorded snapshot, read by us and by torch's own reader, `torch.cuda._memory_viz`: the same figures.

torch counts what is reserved and allocated at the end in Python (`segsum`); its curve is drawn in JavaScript,
by walking from the state at the end back to the first event, which is done here again.
"""

from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from torch_bottleneck.ingest.snapshot import read_snapshot
from torch_bottleneck.timeline.memory.summary import summarise_memory

RECORDED = Path(__file__).parents[1] / "recorded"
SNAPSHOTS = sorted(RECORDED.rglob("*.snapshot.pickle.gz"))


def torch_totals(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    monkeypatch.setattr(_memory_viz, "_format_size", str)
    text = _memory_viz.segsum(content)
    return {
        name: int(value) for name, value in re.findall(r"^(segments|total_\w+): (\d+)", text, re.MULTILINE)
    }


def curve_backwards(content: dict[str, Any], device: int) -> list[int]:
    blocks = [b for s in content["segments"] if s["device"] == device for b in s["blocks"]]
    now = sum(b["requested_size"] for b in blocks if b["state"] == "active_allocated")
    found = []
    for event in reversed(content["device_traces"][device]):
        found.append(now)
        if event["action"] == "alloc":
            now -= event["size"]
        elif event["action"] == "free_requested":
            now += event["size"]
    assert now >= 0
    return found[::-1]


def test_there_are_recordings() -> None:
    assert len(SNAPSHOTS) >= 14


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.parents[1].name + "/" + path.name[-30:])
def test_the_same_file_gives_the_same_figures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.loads(gzip.decompress(path.read_bytes()))
    snapshot = read_snapshot(path)
    found = {summary.device: summary for summary in summarise_memory(snapshot)}
    totals = torch_totals(content, monkeypatch)
    assert totals["segments"] == sum(len(device.segment_size) for device in snapshot.devices)
    assert totals["total_reserved"] == sum(summary.reserved_bytes or 0 for summary in found.values())
    live = 0
    for number, events in enumerate(content["device_traces"]):
        if number not in found:
            assert not events
            continue
        curve = curve_backwards(content, number)
        live += curve[-1] if curve else found[number].peak_bytes
        if curve:
            assert found[number].peak_bytes == max(curve)
            assert found[number].curve.live_bytes[-1] == curve[-1]
    assert totals["total_allocated"] == live
