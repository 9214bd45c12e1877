"""Recorded memory histories of an H200, analysed anew: what is said of them is what was measured.

tests/benchmarks/record_memory.py recorded them, truth.json holds the measurements with nothing attached.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed

from torch_bottleneck.ingest.snapshot import read_snapshot
from torch_bottleneck.model.codes import BottleneckClass
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.finding import Finding
from torch_bottleneck.model.memory import MemoryCategory, MemorySummary
from torch_bottleneck.timeline.memory.summary import summarise_memory

RECORDED = sorted(name for name in CASES if name.startswith("memory-"))
SCRIPT = "tests/benchmarks/memory_cases.py"


def diagnosis_of(case: str) -> Diagnosis:
    return diagnosed(CASES[f"memory-{case}-h200"].folder)


def memory_of(case: str) -> MemorySummary:
    return diagnosis_of(case).memory[0]


def truth_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CASES[name].folder / "truth.json").read_text())
    return content


def found(case: str, code: str) -> Finding:
    return next(finding for finding in diagnosis_of(case).findings if finding.code == code)


def functions(finding: Finding) -> list[str]:
    """The functions of the script that a finding points to."""
    return [site.function for site in finding.sites if site.file == SCRIPT]


STEADY = [
    name
    for name in RECORDED
    if truth_of(name).get("slow_peak_bytes") and truth_of(name)["slow_grown_bytes"] < 1e6
    if truth_of(name)["fix"] != "FX201"
]


@pytest.mark.parametrize("name", STEADY)
def test_the_peak_of_the_history_is_the_peak_that_torch_counts(name: str) -> None:
    summary = diagnosed(CASES[name].folder).memory[0]
    # The history counts what was asked for, torch what the allocator made of it.
    assert summary.peak_bytes == pytest.approx(truth_of(name)["slow_peak_bytes"], rel=0.03)
    assert summary.unknown_share is not None and summary.unknown_share < 0.1
    assert (summary.steps, summary.steps_from, summary.stacks) == (5, "harness", "python")


@pytest.mark.parametrize("name", RECORDED)
def test_shares_add_up_and_lists_are_bounded(name: str) -> None:
    for summary in diagnosed(CASES[name].folder).memory:
        assert sum(row.share for row in summary.composition) == pytest.approx(1)
        columns = summary.curve.by_category.values()
        assert [sum(c) for c in zip(*columns, strict=True)] == summary.curve.live_bytes


def test_the_leak_has_its_rate_to_the_byte_and_its_line() -> None:
    leak = found("leak", "BN205")
    truth = truth_of("memory-leak-h200")
    assert memory_of("leak").leaks[0].bytes_per_step == pytest.approx(truth["slow_grown_bytes"], rel=0.001)
    assert functions(leak) == ["forward"], "where the logits are made that are kept"
    assert not leak.note


def test_gradients_kept_cost_what_the_mended_twin_does_not_need() -> None:
    truth = truth_of("memory-gradients-kept-h200")
    freed = truth["slow_peak_bytes"] - truth["fixed_peak_bytes"]
    assert memory_of("gradients-kept").stale_gradients_bytes == pytest.approx(freed, rel=0.02)
    assert found("gradients-kept", "BN204")


def test_optimizer_state_is_known_by_address_and_is_what_another_optimizer_saves() -> None:
    truth = truth_of("memory-optimizer-state-h200")
    rows = {row.category: row for row in memory_of("optimizer-state").composition}
    state = rows[MemoryCategory.OPTIMIZER]
    assert state.how == "by address"
    assert state.bytes == pytest.approx(truth["slow_peak_bytes"] - truth["fixed_peak_bytes"], rel=0.05)
    assert found("optimizer-state", "BN207")


def test_logits_are_most_of_the_peak_and_of_what_chunks_save() -> None:
    truth = truth_of("memory-vocabulary-h200")
    freed = truth["slow_peak_bytes"] - truth["fixed_peak_bytes"]
    held = memory_of("vocabulary").loss_bytes
    assert held is not None and freed <= held <= 1.25 * freed
    assert found("vocabulary", "BN209")


def test_the_headroom_is_what_a_larger_batch_takes() -> None:
    truth = truth_of("memory-small-batch-h200")
    room = memory_of("small-batch").headroom
    assert room is not None
    times = truth["fixed_batch"] / truth["slow_batch"]
    said = room.fixed_bytes + times * room.per_batch_bytes
    assert said == pytest.approx(truth["fixed_peak_bytes"], rel=0.02)
    assert found("small-batch", "BN210")


def test_the_peak_without_the_spike() -> None:
    spike = memory_of("spike").spike
    assert spike is not None
    assert spike.peak_without_bytes == pytest.approx(
        truth_of("memory-spike-h200")["fixed_peak_bytes"], rel=0.02
    )


def test_recomputation_costs_what_its_absence_saves() -> None:
    truth = truth_of("memory-recompute-h200")
    diagnosis = diagnosis_of("recompute")
    assert memory_of("recompute").checkpointed
    assert memory_of("activations").checkpointed is False
    suggestion = next(s for s in diagnosis.suggestions if s.fix == "FX214")
    measured = truth["fixed_ms"] / truth["slow_ms"] * (diagnosis.step.true_ms or 0)
    assert suggestion.predicted_ms == pytest.approx(measured, rel=0.05)


def test_empty_cache_is_named_with_its_own_line() -> None:
    assert memory_of("empty-cache").empty_cache_per_step == 1
    finding = found("empty-cache", "BN202")
    assert functions(finding) == ["step"]
    suggestion = next(s for s in diagnosis_of("empty-cache").suggestions if s.fix == "FX204")
    assert suggestion.site == finding.sites[0]


# --------------------------------------------------------------------------------------- out of memory


def test_running_out_at_once_is_told_without_a_single_step() -> None:
    diagnosis = diagnosis_of("oom-at-once")
    failure = memory_of("oom-at-once").out_of_memory
    assert diagnosis.step.true_ms is None and failure is not None and not failure.caught
    assert failure.when == "forward of step 1"
    assert failure.composition[0].category is MemoryCategory.ACTIVATIONS
    assert "FX220" in {suggestion.fix for suggestion in diagnosis.suggestions}


def test_running_out_in_the_loop_is_told_beside_the_steps_before() -> None:
    diagnosis = diagnosis_of("oom-in-loop")
    assert diagnosis.step.true_ms is not None
    assert found("oom-in-loop", "BN213") and diagnosis.outcome.startswith("The script ran out of memory")


def test_a_failure_of_fragments_alone_asks_for_segments_that_grow() -> None:
    failure = memory_of("oom-fragmented").out_of_memory
    assert failure is not None and failure.unused_bytes is not None
    assert failure.unused_bytes > (failure.requested_bytes or 0), "room enough, were it in one piece"
    assert "try expandable_segments:True first" in found("oom-fragmented", "BN213").title
    assert found("oom-fragmented", "BN212")
    assert "FX201" in {suggestion.fix for suggestion in diagnosis_of("oom-fragmented").suggestions}


def test_varying_lengths_that_cost_nothing_are_not_blamed_on_the_allocator() -> None:
    """With segments that grow the measured step was as long, though segments come and go."""
    diagnosis = diagnosis_of("variable-lengths")
    assert memory_of("variable-lengths").varying_sizes
    assert diagnosis.verdict.bottleneck_class is not BottleneckClass.ALLOCATOR
    assert "FX201" not in {s.fix for s in diagnosis.suggestions if s.predicted_ms is not None}


@pytest.mark.parametrize(
    "case", ["recompute", "gradients-kept", "lengths-near-cap", "optimizer-state", "spike"]
)
@pytest.mark.parametrize("annotated", [True, False])
def test_without_notes_the_same_is_said_of_the_peak(case: str, annotated: bool) -> None:
    """As of anybody's snapshot: steps from annotations or from stacks, categories from lives alone."""
    (path,) = (CASES[f"memory-{case}-h200"].folder / "memory").glob("*[0-9].snapshot.pickle.gz")
    snapshot = read_snapshot(path)
    if not annotated:
        snapshot = dataclasses.replace(snapshot, annotations=())
    (alone,) = summarise_memory(snapshot)
    known = memory_of(case)
    assert alone.steps_from == ("annotations" if annotated else "stacks")
    assert alone.steps == (4 if annotated else 3), "whole ones of five"
    shares = {row.category: row.share for row in known.composition}
    for row in alone.composition:
        assert row.share == pytest.approx(shares.get(row.category, 0.0), abs=0.01)
    assert alone.gradients_in_forward_bytes == known.gradients_in_forward_bytes
    assert (alone.checkpointed, alone.varying_sizes) == (known.checkpointed, known.varying_sizes)


def test_lengths_near_the_cap_are_priced_as_segments_that_grow_measured() -> None:
    """The allocator really costs here: 31 blocks a step go back to the driver, and the device runs dry."""
    truth = truth_of("memory-lengths-near-cap-h200")
    diagnosis = diagnosis_of("lengths-near-cap")
    finding = found("lengths-near-cap", "BN201")
    assert any("max_split_size_mb is set" in evidence.text for evidence in finding.evidence)
    predicted = {s.fix: s for s in diagnosis.suggestions if s.predicted_ms is not None}
    measured = truth["fixed_ms"] / truth["slow_ms"] * (diagnosis.step.true_ms or 0)
    assert predicted["FX201"].predicted_ms == pytest.approx(measured, rel=0.06)
    assert predicted["FX202"].bound, "padding computes more, which is not in the prediction"
    assert "FX203" not in {s.fix for s in diagnosis.suggestions}, "measured: it brings nothing here"
    assert truth["other_fixes_ms"]["FX203"] > 0.97 * truth["slow_ms"]


def test_checkpointing_is_priced_at_no_less_than_it_measured() -> None:
    truth = truth_of("memory-activations-h200")
    diagnosis = diagnosis_of("activations")
    now = diagnosis.step.true_ms or 0
    suggestion = next(s for s in diagnosis.suggestions if s.fix == "FX213")
    measured = truth["fixed_step_ms"] / truth["slow_step_ms"] * now
    assert suggestion.adds_ms is not None and suggestion.saves_ms is None
    assert measured <= now + suggestion.adds_ms <= 1.06 * measured


def test_somebodys_snapshot_with_cpp_stacks_and_no_notes() -> None:
    diagnosis = diagnosed(CASES["alloc-cap-h200"].folder / "alloc.snapshot.pickle.gz")
    (summary,) = diagnosis.memory
    assert (summary.steps, summary.steps_from, summary.stacks) == (8, "annotations", "python and C++")
    held = {row.category: row.bytes for row in summary.composition}
    # AdamW: two states per parameter, told by the sizes of the gradients alone.
    assert held[MemoryCategory.OPTIMIZER] == 2 * held[MemoryCategory.PARAMETERS] == 2 * 283_473_920
    assert summary.unknown_share is not None and summary.unknown_share < 0.01
    assert summary.holders[0].site is not None and summary.holders[0].site.line == 30
    assert summary.churn is not None and summary.churn.frees == 19 / 8, "the 19 cudaFree calls of the trace"
    assert summary.varying_sizes and diagnosis.step.true_ms is None


def test_a_failure_that_the_script_catches_joins_the_history() -> None:
    summary = memory_of("oom-caught")
    assert summary.steps == 5
    assert summary.out_of_memory is not None and summary.out_of_memory.caught
    assert "script continued" in found("oom-caught", "BN213").title


def test_the_published_comparison_is_that_of_the_recordings() -> None:
    root = Path(__file__).parents[2]
    script = root / "tests" / "benchmarks" / "memory_accuracy.py"
    ended = forked.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
