"""What a memory history says, held against trainings whose truth is written down by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.snapshots import ACCUMULATE, ENGINE, MB, Allocator, Training, main_line

from torch_bottleneck.ingest.snapshot import read_snapshot
from torch_bottleneck.model.memory import MAX_POINTS, MAX_ROWS, MemoryCategory, MemorySummary
from torch_bottleneck.model.snapshot import MemoryNotes, NotedFailure
from torch_bottleneck.timeline.memory.curve import thin
from torch_bottleneck.timeline.memory.lives import find_lives, reserved_after
from torch_bottleneck.timeline.memory.segments import _segments_at
from torch_bottleneck.timeline.memory.summary import join_failure, summarise_memory

STATE = (6 + 7 + 8 + 9) * MB


def summary_of(training: Training, folder: Path, *, notes: bool = True, **options: Any) -> MemorySummary:
    snapshot = read_snapshot(training.write(folder / "s.pickle", **options))
    (found,) = summarise_memory(snapshot, training.notes if notes else None)
    return found


def trained(
    steps: int = 5, *, layers: int = 4, allocator: dict[str, Any] | None = None, **kinds: Any
) -> Training:
    training = Training(layers=layers, **(allocator or {}))
    for _ in range(steps):
        training.step(**kinds)
    return training


def held(summary: MemorySummary) -> dict[MemoryCategory, int]:
    return {row.category: row.bytes for row in summary.composition}


# ------------------------------------------------------------------------------------- blocks in time


@st.composite
def histories(draw: Any) -> Allocator:
    """Any order of asking and giving back."""
    memory = Allocator()
    live: list[int] = []
    for _ in range(draw(st.integers(1, 60))):
        if live and draw(st.booleans()):
            memory.free(live.pop(draw(st.integers(0, len(live) - 1))))
        else:
            live.append(memory.alloc(draw(st.integers(1, 9)) * MB))
        if draw(st.integers(0, 9)) == 0:
            memory.empty_cache()
    return memory


@settings(max_examples=60, deadline=None)
@given(memory=histories(), cut=st.floats(0, 1))
def test_live_bytes_do_not_depend_on_how_much_of_the_history_is_left(
    tmp_path_factory: pytest.TempPathFactory, memory: Allocator, cut: float
) -> None:
    from unit.ingest.test_snapshot import written

    folder = tmp_path_factory.mktemp("ring")
    whole = read_snapshot(written(folder, memory.snapshot())).devices[0]
    kept = max(1, int(len(memory.events) * cut))
    part = read_snapshot(written(folder, memory.snapshot(ring=kept))).devices[0]
    all_of_it, rest = find_lives(whole).live_after(), find_lives(part).live_after()
    assert rest.tolist() == all_of_it[-kept:].tolist()
    assert all_of_it[-1] == sum(size for size, _ in memory.live.values())
    reserved = reserved_after(whole)
    assert reserved[-1] == whole.segment_size.sum()
    assert (reserved >= all_of_it).all()


@settings(max_examples=60, deadline=None)
@given(memory=histories(), at=st.floats(0, 1))
def test_segments_of_any_moment_add_up_to_what_is_reserved_then(
    tmp_path_factory: pytest.TempPathFactory, memory: Allocator, at: float
) -> None:
    device = read_snapshot(_written(tmp_path_factory.mktemp("segments"), memory)).devices[0]
    event = int(at * (len(device.action) - 1))
    start, size = _segments_at(device, event)
    assert size.sum() == reserved_after(device)[event]
    assert (np.diff(start.astype(np.int64)) > 0).all()


def test_what_lies_free_beside_a_live_block_is_told_from_whole_free_segments(tmp_path: Path) -> None:
    memory = Allocator()
    small, whole = memory.alloc(20 * MB), memory.alloc(30 * MB)
    memory.free(whole)
    content = memory.snapshot()
    # The first segment's block has been split: 4 of its 20 MB are in use.
    (block,) = content["segments"][0]["blocks"]
    block["size"] = block["requested_size"] = 4 * MB
    rest = {**block, "address": small + 4 * MB, "size": 16 * MB, "state": "inactive"}
    content["segments"][0]["blocks"].append(rest)
    for event in content["device_traces"][0]:
        if event["action"] == "alloc" and event["addr"] == small:
            event["size"] = 4 * MB
    from unit.ingest.test_snapshot import written

    (summary,) = summarise_memory(read_snapshot(written(tmp_path, content)))
    pieces = summary.fragmentation
    assert pieces is not None
    assert (pieces.segments, pieces.unfreeable_segments) == (2, 1)
    assert pieces.inactive_split_bytes == 16 * MB and pieces.largest_free_bytes == 30 * MB
    assert pieces.unused_at_peak_bytes == 16 * MB, "30 MB of the second segment were in use then"


@settings(max_examples=50, deadline=None)
@given(
    live=st.lists(st.integers(0, 10**12), min_size=1, max_size=3000),
    still=st.booleans(),
)
def test_a_thinned_curve_keeps_its_ends_and_its_peak(live: list[int], still: bool) -> None:
    values = np.array(live, np.int64)
    at = np.zeros(len(live)) if still else np.cumsum(np.ones(len(live)))
    chosen = thin(at, values)
    assert len(chosen) <= MAX_POINTS
    assert chosen[0] == 0 and chosen[-1] == len(live) - 1
    assert values[chosen].max() == values.max()
    assert (np.diff(chosen) > 0).all()


# ---------------------------------------------------------------------------------- what the peak is


def test_the_peak_is_divided_by_what_the_harness_knows_and_what_lives_tell(tmp_path: Path) -> None:
    summary = summary_of(trained(), tmp_path)
    assert summary.steps == 5 and summary.steps_from == "harness"
    assert held(summary) == {
        MemoryCategory.PARAMETERS: STATE,
        MemoryCategory.OPTIMIZER: 2 * STATE,
        MemoryCategory.ACTIVATIONS: (4 * 8 + 32 + 64) * MB,
        MemoryCategory.INPUTS: 2 * MB,
    }
    assert sum(row.share for row in summary.composition) == pytest.approx(1)
    assert summary.peak_bytes == sum(row.bytes for row in summary.composition)
    assert summary.unknown_share == 0
    how = {row.category: row.how for row in summary.composition}
    assert how[MemoryCategory.PARAMETERS] == how[MemoryCategory.OPTIMIZER] == "by address"
    assert how[MemoryCategory.ACTIVATIONS] == "inferred"


def test_without_notes_sizes_of_gradients_tell_parameters_and_states(tmp_path: Path) -> None:
    training = trained()
    found = held(summary_of(training, tmp_path, notes=False))
    assert found[MemoryCategory.PARAMETERS] == STATE
    assert found[MemoryCategory.OPTIMIZER] == 2 * STATE
    assert found[MemoryCategory.ACTIVATIONS] == (4 * 8 + 32 + 64) * MB


def test_holders_are_lines_of_the_users_program(tmp_path: Path) -> None:
    holders = summary_of(trained(), tmp_path).holders
    by_line = {(h.site.file, h.site.line): h for h in holders if h.site is not None}
    assert by_line["/home/me/train.py", 30].bytes == 64 * MB, "not the line of the loss in torch"
    assert by_line["/home/me/model.py", 40].category is MemoryCategory.ACTIVATIONS
    assert [h.bytes for h in holders] == sorted((h.bytes for h in holders), reverse=True)


def test_the_list_of_holders_is_bounded(tmp_path: Path) -> None:
    memory = Allocator()
    for line in range(2 * MAX_ROWS):
        memory.alloc((1 + line) * MB, main_line(line))
    (summary,) = summarise_memory(read_snapshot(_written(tmp_path, memory)))
    assert [h.bytes for h in summary.holders] == [(2 * MAX_ROWS - i) * MB for i in range(MAX_ROWS)]


def test_gradients_made_by_the_engine_are_told_by_cpp_frames(tmp_path: Path) -> None:
    memory = Allocator()
    activation = memory.alloc(8 * MB, ("_call_impl", "/v/site-packages/torch/nn/modules/module.py", 1))
    gradient = memory.alloc(4 * MB, ACCUMULATE, ENGINE)
    memory.free(memory.alloc(2 * MB, ENGINE), ENGINE)
    memory.free(activation, ENGINE)
    snapshot = read_snapshot(_written(tmp_path, memory))
    (summary,) = summarise_memory(snapshot)
    assert summary.stacks == "python and C++"
    assert held(summary)[MemoryCategory.GRADIENTS] == 4 * MB
    assert gradient in memory.live


def test_the_curve_is_bounded_and_its_columns_add_up(tmp_path: Path) -> None:
    summary = summary_of(trained(60), tmp_path)
    curve = summary.curve
    assert summary.events > MAX_POINTS >= len(curve.at)
    assert max(curve.live_bytes) == summary.peak_bytes
    assert [sum(column) for column in zip(*curve.by_category.values(), strict=True)] == curve.live_bytes
    assert len(curve.reserved_bytes) == len(curve.at)
    assert all(r >= v for r, v in zip(curve.reserved_bytes, curve.live_bytes, strict=True))
    assert curve.unit == "ms" and curve.at == sorted(curve.at)
    assert len(msgspec.json.encode(summary)) < 100_000


def test_marks_lie_on_the_curve(tmp_path: Path) -> None:
    summary = summary_of(trained(3), tmp_path)
    assert [m.name for m in summary.marks].count("step") == 3
    assert {"forward", "backward"} <= {m.name for m in summary.marks}
    end = summary.curve.at[-1]
    assert all(0 <= m.begin <= m.end <= end for m in summary.marks)


# -------------------------------------------------------------------------------------------- findings


def test_a_leak_is_found_with_its_line_rate_and_end(tmp_path: Path) -> None:
    summary = summary_of(trained(6, leak_bytes=5 * MB), tmp_path)
    (leak,) = summary.leaks
    assert leak.site is not None and leak.site.line == 31
    assert leak.bytes_per_step == 5 * MB and leak.blocks_per_step == 1
    assert leak.steps_seen == 4
    assert leak.steps_left == (2000 * MB - summary.peak_bytes) // (5 * MB)


def test_the_peak_without_a_leak_is_that_of_the_mended_training(tmp_path: Path) -> None:
    """What the steps before the history left behind is told by its size."""
    calm = summary_of(trained(6), tmp_path)
    assert calm.peak_without_leaks_bytes is None
    training = trained(3, leak_bytes=5 * MB)
    training.memory.forget_history()
    owners = [noted for noted in training.notes.owners if noted.owner != "gradients"]
    training.notes = MemoryNotes(device=0, capacity_bytes=2000 * MB, owners=owners)
    for _ in range(6):
        training.step(leak_bytes=5 * MB)
    summary = summary_of(training, tmp_path)
    assert summary.peak_bytes == calm.peak_bytes + 9 * 5 * MB
    assert summary.peak_without_leaks_bytes == calm.peak_bytes + 5 * MB, "in its own step it is needed"


def test_a_buffer_of_the_last_steps_is_no_leak(tmp_path: Path) -> None:
    assert summary_of(trained(8, leak_bytes=5 * MB, keep_last=3), tmp_path).leaks == ()


def test_gradients_and_states_are_no_leak(tmp_path: Path) -> None:
    assert summary_of(trained(6), tmp_path).leaks == ()
    assert summary_of(trained(6, keep_gradients=True), tmp_path).leaks == ()


def test_few_steps_say_nothing_of_leaks(tmp_path: Path) -> None:
    assert summary_of(trained(3, leak_bytes=5 * MB), tmp_path).leaks == ()


def test_gradients_alive_in_forward(tmp_path: Path) -> None:
    careless, careful = summary_of(trained(keep_gradients=True), tmp_path), summary_of(trained(), tmp_path)
    assert careless.gradients_in_forward_bytes == STATE
    assert careless.peak_bytes - (careless.stale_gradients_bytes or 0) == careful.peak_bytes
    assert careful.gradients_in_forward_bytes == careful.stale_gradients_bytes == 0


def test_accumulated_gradients_are_needed(tmp_path: Path) -> None:
    """Micro-steps behind the first find gradients, and must."""
    assert summary_of(trained(micro_steps=3), tmp_path).gradients_in_forward_bytes == 0


def test_a_narrow_spike_and_the_peak_without_it(tmp_path: Path) -> None:
    calm = summary_of(trained(), tmp_path)
    summary = summary_of(trained(spike_bytes=700 * MB), tmp_path)
    spike = summary.spike
    assert spike is not None and spike.width_share <= 0.05
    assert spike.above_bytes > 500 * MB
    assert spike.holders[0].site is not None and spike.holders[0].site.line == 50
    assert spike.peak_without_bytes == calm.peak_bytes


def test_headroom_is_what_a_larger_batch_really_takes(tmp_path: Path) -> None:
    one, three = summary_of(trained(), tmp_path), summary_of(trained(scale=3.0), tmp_path)
    room = one.headroom
    assert room is not None
    assert room.fixed_bytes + 3 * room.per_batch_bytes == three.peak_bytes
    assert room.fixed_bytes + room.factor * room.per_batch_bytes == pytest.approx(0.9 * 2000 * MB)


def test_logits_and_what_the_loss_makes_of_them(tmp_path: Path) -> None:
    summary = summary_of(trained(), tmp_path)
    assert summary.loss_bytes == (32 + 64) * MB


def test_churn_and_empty_cache_with_their_lines(tmp_path: Path) -> None:
    summary = summary_of(trained(empty_cache=True), tmp_path)
    assert summary.empty_cache_per_step == 1
    assert [site.line for site in summary.empty_cache_sites] == [60]
    assert summary.churn is not None and summary.churn.frees > 5
    lines = {site.line for site, _ in summary.churn.sites}
    assert {10, 40} <= lines
    # What is freed has no stack in our own histories: who freed it is not known.
    training = trained(empty_cache=True)
    for event in training.memory.events:
        event["frames"] = [] if event["action"] == "segment_free" else event["frames"]
    assert summary_of(training, tmp_path).empty_cache_per_step is None
    calm = summary_of(trained(), tmp_path)
    assert calm.empty_cache_per_step == 0
    assert calm.churn is not None and calm.churn.frees == 0


def test_sizes_that_change_from_step_to_step(tmp_path: Path) -> None:
    assert summary_of(trained(), tmp_path).varying_sizes is False
    training = Training()
    for scale in (1.0, 1.5, 2.0, 0.5):
        training.step(scale=scale)
    summary = summary_of(training, tmp_path)
    assert summary.varying_sizes
    assert summary.churn is not None and summary.churn.distinct_sizes == 4
    assert summary_of(trained(2), tmp_path).varying_sizes is None
    training = trained(8)
    training.step(scale=0.5)
    assert summary_of(training, tmp_path).varying_sizes is False, "the short last batch of an epoch"


# --------------------------------------------------------------------------------- what is not there


def test_a_history_without_stacks_names_no_line_and_says_so(tmp_path: Path) -> None:
    summary = summary_of(trained(allocator={"stacks": False}), tmp_path)
    assert summary.stacks == "none" and "no stacks" in summary.problems[0]
    assert summary.loss_bytes is None and summary.checkpointed is None
    assert summary.empty_cache_per_step is None
    assert held(summary)[MemoryCategory.PARAMETERS] == STATE, "addresses need no stack"


def test_a_history_without_times_has_events_for_a_clock(tmp_path: Path) -> None:
    summary = summary_of(trained(allocator={"times": False}), tmp_path)
    assert summary.curve.unit == "event" and summary.spike is None
    assert summary.steps_from == "stacks"
    assert held(summary)[MemoryCategory.PARAMETERS] == STATE


def test_a_state_without_a_history(tmp_path: Path) -> None:
    training = Training()
    summary = summary_of(training, tmp_path, notes=False)
    assert summary.events == 0 and summary.curve.at == []
    assert summary.peak_bytes == 3 * STATE and summary.unknown_share == 1
    assert summary.steps is None and summary.churn is None and summary.leaks == ()
    assert "no history" in summary.problems[0]


def test_a_truncated_ring_is_noticed(tmp_path: Path) -> None:
    training = trained(6)
    assert not summary_of(training, tmp_path).truncated
    # A parameter made while recording: its event has left the ring, its stack is in the state.
    training = Training()
    training.parameters.append(training.memory.alloc(3 * MB, main_line(3)))
    training.memory.pass_time(1)
    for _ in range(5):
        training.step()
    summary = summary_of(training, tmp_path, ring=len(training.memory.events) - 3)
    assert summary.truncated and any("only the last events" in text for text in summary.problems)


def test_steps_come_from_annotations_where_the_harness_was_not_there(tmp_path: Path) -> None:
    training = trained(4)
    notes = training.notes
    marks = [
        entry
        for number, (begin, end) in enumerate(zip(notes.step_begin_us, notes.step_end_us, strict=True))
        for entry in (
            {"name": f"ProfilerStep#{number}", "stage": "START", "time_us": begin, "device": 0},
            {"name": f"ProfilerStep#{number}", "stage": "END", "time_us": end, "device": 0},
        )
    ]
    summary = summary_of(training, tmp_path, notes=False, annotations=marks)
    assert (summary.steps, summary.steps_from) == (4, "annotations")
    updates = [{**m, "name": "Optimizer.step#AdamW.step"} for m in marks]
    summary = summary_of(training, tmp_path, notes=False, annotations=updates)
    assert (summary.steps, summary.steps_from) == (3, "annotations"), "from update to update"
    summary = summary_of(training, tmp_path, notes=False)
    assert (summary.steps, summary.steps_from) == (2, "stacks"), "between ends of backward, whole ones"


# ------------------------------------------------------------------------------------ out of memory


def _failed(training: Training, tmp_path: Path, *, phase: str = "backward") -> tuple[MemorySummary, ...]:
    failure = NotedFailure(
        at_us=training.memory.now_us, device=0, requested_bytes=64 * MB, limit_bytes=500 * MB,
        device_free_bytes=3 * MB, phase=phase, step=6, window="baseline",
    )  # fmt: skip
    owners = [o for o in training.notes.owners if o.owner != "gradients"]
    notes = MemoryNotes(device=0, capacity_bytes=500 * MB, owners=owners, failure=failure)
    training.memory.forget_history()
    training.memory.alloc(100 * MB)
    training.memory.forget_history()
    return summarise_memory(read_snapshot(training.write(tmp_path / "oom.pickle")), notes)


def test_a_failure_without_history_is_divided_by_addresses(tmp_path: Path) -> None:
    (summary,) = _failed(Training(), tmp_path)
    failure = summary.out_of_memory
    assert failure is not None
    assert failure.when == "backward of step 7" and failure.requested_bytes == 64 * MB
    assert failure.live_bytes == 3 * STATE + 100 * MB
    shares = {row.category: row.bytes for row in failure.composition}
    assert shares == {
        MemoryCategory.PARAMETERS: STATE,
        MemoryCategory.OPTIMIZER: 2 * STATE,
        MemoryCategory.ACTIVATIONS: 100 * MB,
    }
    assert summary.problems == (), "nobody can record a history of a failure to come"


def test_a_failure_outside_of_forward_and_backward_stays_unknown(tmp_path: Path) -> None:
    (summary,) = _failed(Training(), tmp_path, phase="optimizer")
    assert summary.out_of_memory is not None
    shares = {row.category: row.bytes for row in summary.out_of_memory.composition}
    assert shares[MemoryCategory.UNKNOWN] == 100 * MB


def test_a_failure_joins_the_history_of_its_device(tmp_path: Path) -> None:
    history = (summary_of(trained(), tmp_path),)
    failure = _failed(Training(), tmp_path)
    (joined,) = join_failure(history, failure, caught=True)
    assert joined.steps == 5 and joined.out_of_memory is not None and joined.out_of_memory.caught
    (alone,) = join_failure((), failure, caught=False)
    assert alone.out_of_memory is not None and not alone.out_of_memory.caught


def test_a_failure_inside_somebodys_history(tmp_path: Path) -> None:
    memory = Allocator()
    memory.alloc(30 * MB, main_line(8))
    memory.fail(90 * MB, main_line(9))
    (summary,) = summarise_memory(read_snapshot(_written(tmp_path, memory)))
    failure = summary.out_of_memory
    assert failure is not None and failure.site is not None
    assert (failure.site.line, failure.requested_bytes, failure.live_bytes) == (9, 90 * MB, 30 * MB)


def _written(folder: Path, memory: Allocator) -> Path:
    from unit.ingest.test_snapshot import written

    return written(folder, memory.snapshot())
