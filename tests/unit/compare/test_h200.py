"""Counters of a GPU are the program's, not the day's: two captures of one example agree exactly.

In: baselines that the gate wrote on an H200, and the recorded runs of the same examples, which are of
another day, another length of warm-up and another number of traced steps.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from recorded.diagnosed import side_of

from torch_bottleneck.compare.baseline_file import baseline_text, read_baseline
from torch_bottleneck.compare.decide import compare_sides
from torch_bottleneck.compare.sides import Side
from torch_bottleneck.model.counters import COUNTERS, SyncSite

HERE = Path(__file__).parent / "h200"
EXACT = ("syncs", "copies", "copied_bytes", "kernels", "launches", "operators", "graph_breaks", "graphs")
NAMES = sorted(path.stem for path in HERE.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_counter_of_a_gpu_run_is_there(name):
    baseline = read_baseline(HERE / f"{name}.json")
    assert baseline.counters is not None
    assert set(baseline.counters.values) == set(COUNTERS)
    assert baseline_text(baseline) == (HERE / f"{name}.json").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_another_capture_of_the_example_counts_the_same(name):
    base = Side(label="gate", baseline=read_baseline(HERE / f"{name}.json"))
    head = side_of(f"example-{name.replace('_', '-')}")
    rows = {row.name: row for row in compare_sides(base, head).counters}
    assert {key: rows[key].status for key in EXACT} == dict.fromkeys(EXACT, "same")


def test_one_read_more_is_found_and_placed():
    baseline = read_baseline(HERE / "sync_bound.json")
    counters = baseline.counters
    assert counters is not None
    site = msgspec.structs.replace(counters.syncs[0].site, line=88, function="main")
    more = SyncSite(what="cudaStreamSynchronize", count=1.0, site=site, code="print(loss.item())")
    values = {**counters.values, "syncs": msgspec.structs.replace(counters.values["syncs"], value=439.0)}
    grown = msgspec.structs.replace(counters, values=values, syncs=(*counters.syncs, more))
    found = compare_sides(
        Side(label="base", baseline=baseline),
        Side(label="head", baseline=msgspec.structs.replace(baseline, counters=grown)),
    )
    assert found.outcome == "regression"
    assert "synchronisations 438 → 439 per step" in found.headline
    assert "new `print(loss.item())` at examples/sync_bound.py:88." in found.headline
