"""Snapshots that somebody else recorded: other options, cut by the ring, CUDA graphs, failures."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from unit.snapshots import MB, Allocator, Training, frame, main_line
from unit.timeline.test_memory import STATE, held, summary_of, trained

from torch_bottleneck.ingest.snapshot import read_snapshot
from torch_bottleneck.model.memory import MemoryCategory, MemorySummary
from torch_bottleneck.timeline.memory.summary import summarise_memory


def summarised(content: dict[str, Any], folder: Path) -> MemorySummary:
    path = folder / "s.pickle"
    path.write_bytes(pickle.dumps(content))
    (found,) = summarise_memory(read_snapshot(path))
    return found


def test_stacks_of_what_asks_alone_tell_the_same_phases(tmp_path: Path) -> None:
    """context="alloc": what gives back has no stack, and is not backward for that."""
    training = trained(5)
    whole = summary_of(training, tmp_path, notes=False)
    content = training.memory.snapshot()
    content["device_traces"] = [
        [{**e, "frames": []} if e["action"].startswith("free") else e for e in content["device_traces"][0]]
    ]
    summary = summarised(content, tmp_path)
    assert (summary.steps, summary.steps_from) == (whole.steps, "stacks")
    assert held(summary) == held(whole)
    assert held(summary)[MemoryCategory.PARAMETERS] == STATE


def test_without_any_phase_nothing_is_said_of_what_a_block_is(tmp_path: Path) -> None:
    training = trained(3, allocator={"stacks": False})
    summary = summary_of(training, tmp_path, notes=False)
    assert held(summary) == {MemoryCategory.UNKNOWN: summary.peak_bytes}
    assert summary.unknown_share == 1


@pytest.mark.parametrize("lost", [2, 9])
def test_a_step_whose_first_events_are_lost_is_no_whole_step(tmp_path: Path, lost: int) -> None:
    training = trained(6)
    left = len(training.memory.events) - lost
    training.notes = msgspec.structs.replace(training.notes, ring_entries=left)
    summary = summary_of(training, tmp_path, ring=left)
    assert summary.truncated and summary.steps == 5
    assert summary.varying_sizes is False, "a cut step asks for less, which is no change of sizes"
    training.notes = msgspec.structs.replace(training.notes, ring_entries=10 * left)
    assert summary_of(training, tmp_path).steps == 6


def test_gradients_of_what_may_be_micro_steps_are_not_called_stale(tmp_path: Path) -> None:
    """Rounds told by backwards alone: without a sign of an update, gradients may be accumulating."""
    accumulating = trained(4, micro_steps=4)
    summary = summary_of(accumulating, tmp_path, notes=False)
    assert summary.steps_from == "stacks"
    assert summary.gradients_in_forward_bytes is None and summary.stale_gradients_bytes is None
    careless = summary_of(trained(6, keep_gradients=True), tmp_path, notes=False)
    assert careless.gradients_in_forward_bytes == STATE, "zero_grad shows that each round is a step"


def graphs(memory: Allocator, *, private: bool) -> dict[str, Any]:
    """A segment of 40 MB of which a captured graph uses 40 MB when replayed, and the allocator none."""
    kept, captured = memory.alloc(20 * MB, main_line(4)), memory.alloc(40 * MB, main_line(5))
    memory.free(captured, main_line(6))
    content = memory.snapshot()
    for segment in content["segments"]:
        if segment["address"] == captured:
            segment["segment_pool_id"] = (0, 1) if private else (0, 0)
    assert kept in memory.live
    return content


def test_what_is_free_in_the_pool_of_a_cuda_graph_is_not_free(tmp_path: Path) -> None:
    mine = summarised(graphs(Allocator(), private=True), tmp_path).fragmentation
    shared = summarised(graphs(Allocator(), private=False), tmp_path).fragmentation
    assert mine is not None and shared is not None
    assert (shared.private_bytes, shared.largest_free_bytes) == (0, 40 * MB)
    assert (mine.private_bytes, mine.private_free_bytes) == (40 * MB, 40 * MB)
    assert mine.largest_free_bytes == 0, "nobody else can have it"
    assert mine.reserved_bytes == shared.reserved_bytes == 60 * MB
    said = summarised(graphs(Allocator(), private=True), tmp_path).problems
    assert any("40 MiB" in text and "CUDA graphs" in text for text in said)
    assert not any("CUDA graphs" in text for text in summary_of(Training(), tmp_path).problems)


def test_the_allocators_own_settings_are_read(tmp_path: Path) -> None:
    def told(**settings: Any) -> tuple[bool | None, int | None]:
        content = Allocator().snapshot()
        content["allocator_settings"] = settings
        content["segments"] = trained(1).memory.segments()
        summary = summarised(content, tmp_path)
        return summary.expandable_segments, summary.max_split_bytes

    assert told(expandable_segments=True, max_split_size=-1) == (True, 0)
    assert told(expandable_segments=False, max_split_size=32 * MB) == (False, 32 * MB)
    assert told(max_split_size=2**61) == (None, 0), "a limit beyond any device is none"
    assert told(expandable_segments="yes") == (None, None)


def test_free_pages_of_a_segment_that_grows_can_be_given_back(tmp_path: Path) -> None:
    """One segment holds everything, in steady state with no page mapped in the history."""
    memory = Allocator()
    kept, freed = memory.alloc(20 * MB, main_line(4)), memory.alloc(40 * MB, main_line(5))
    memory.free(freed, main_line(6))
    content = memory.snapshot()
    one, other = content["segments"]
    merged = {**one, "total_size": 60 * MB, "blocks": [*one["blocks"], *other["blocks"]]}
    content["device_traces"] = [[e for e in memory.events if not e["action"].startswith("segment")]]
    for grows in (True, False):
        content["segments"] = [{**merged, "is_expandable": grows}]
        pieces = summarised(content, tmp_path).fragmentation
        assert pieces is not None and kept in memory.live
        assert pieces.inactive_split_bytes == (0 if grows else 40 * MB)
        assert pieces.unfreeable_segments == (0 if grows else 1)
        assert (pieces.unused_at_peak_bytes is None) is grows


def test_a_failure_in_the_history_says_what_was_free_on_the_device(tmp_path: Path) -> None:
    memory = Allocator()
    memory.alloc(30 * MB, main_line(8))
    content = memory.snapshot()
    failed = {"action": "oom", "device_free": 7 * MB, "size": 90 * MB, "stream": 0, "frames": []}
    content["device_traces"][0].append({**failed, "frames": [frame(*main_line(9))], "time_us": memory.now_us})
    failure = summarised(content, tmp_path).out_of_memory
    assert failure is not None and failure.device_free_bytes == 7 * MB


def test_each_device_is_read_by_itself_and_the_fullest_comes_first(tmp_path: Path) -> None:
    first = trained(5)
    second = trained(6, leak_bytes=5 * MB, allocator={"device": 1})
    content = first.memory.snapshot()
    content["segments"] += second.memory.segments()
    content["device_traces"] = [first.memory.events, second.memory.events]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(content))
    found = summarise_memory(read_snapshot(path), first.notes, capacities={0: 1, 1: 1000 * MB})
    assert [summary.device for summary in found] == [1, 0]
    fuller, other = found
    alone = summary_of(first, tmp_path)
    assert other.peak_bytes == alone.peak_bytes and held(other) == held(alone)
    assert other.capacity_bytes == 2000 * MB, "what the harness noted of its own device"
    assert fuller.capacity_bytes == 1000 * MB, "what run.json says of another"
    assert fuller.peak_bytes == other.peak_bytes + 6 * 5 * MB
