"""The timeline that reports draw: one step, all of its time, no more blocks than a screen can show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded.diagnosed import diagnosis_of
from unit.timeline.traces import TraceWriter

from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.view import Lane, StepTimeline
from torch_bottleneck.timeline.lanes.program import build_program
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace import intervals
from torch_bottleneck.timeline.trace.dialect import DEVICE_KINDS
from torch_bottleneck.timeline.views.idle import idle_pieces, observed_step_ends
from torch_bottleneck.timeline.views.thinned import MOST_LANES, MOST_SPANS, PARTS, choose_step, nesting

from .readings import read

GPU = ["example-launch-bound", "example-sync-bound", "example-transfer-bound", "input-h200", "ddp-h200"]
CPU = ["input-bound-cpu/run", "example-graph-breaks-cpu"]


def view(name: str) -> StepTimeline:
    timeline = diagnosis_of(name).timeline
    assert timeline is not None
    return timeline


def lane(timeline: StepTimeline, kind: str) -> Lane:
    return next(lane for lane in timeline.lanes if lane.kind == kind)


@pytest.mark.parametrize("name", GPU + CPU)
def test_every_block_lies_inside_the_step_and_lanes_are_bounded(name: str) -> None:
    timeline = view(name)
    assert 0 < len(timeline.lanes) <= MOST_LANES
    for row in timeline.lanes:
        assert 0 < len(row.spans) <= MOST_SPANS[row.kind]
        assert sum(span.count for span in row.spans) == row.events
        starts = [span.start_us for span in row.spans]
        assert starts == sorted(starts)
        for span in row.spans:
            assert span.start_us >= 0
            assert span.start_us + span.dur_us <= timeline.length_us + 0.02
            assert 0 <= span.name < len(timeline.names)
            assert span.part < len(timeline.parts)


@pytest.mark.parametrize("name", GPU)
def test_idle_and_busy_time_of_the_device_fill_the_step(name: str) -> None:
    """Thinning widens blocks by the gaps below its radius, so the sum may exceed the step a little."""
    timeline = view(name)
    idle = lane(timeline, "idle")
    edges: list[tuple[float, float]] = []
    for row in timeline.lanes:
        if row.kind in ("stream", "idle"):
            edges += [(s.start_us, s.start_us + s.dur_us) for s in row.spans]
    covered, reach = 0.0, 0.0
    for start, end in sorted(edges):
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    assert covered == pytest.approx(timeline.length_us, rel=0.002)
    assert all(PARTS[s.part] not in (Part.TENSOR_CORE, Part.MEMORY_BOUND) for s in idle.spans)


@pytest.mark.parametrize("name", CPU)
def test_the_training_thread_of_a_cpu_run_is_shown_without_a_hole(name: str) -> None:
    timeline = view(name)
    work = lane(timeline, "work")
    reach = 0.0
    for span in work.spans:
        assert span.start_us <= reach + 0.02 + work.merged_below_us
        reach = max(reach, span.start_us + span.dur_us)
    assert reach == pytest.approx(timeline.length_us, rel=1e-3)


def test_waiting_for_input_is_where_the_budget_has_it() -> None:
    timeline = view("input-h200")
    idle = lane(timeline, "idle")
    waiting = sum(s.dur_us for s in idle.spans if PARTS[s.part] is Part.INPUT)
    budget = next(line.ms for line in diagnosis_of("input-h200").budget if line.part is Part.INPUT)
    assert waiting / 1e3 == pytest.approx(budget, rel=0.1)


def test_an_idle_gap_takes_the_colour_of_what_the_host_did() -> None:
    """Kernels of 100 us; the host waits for a batch for 5 ms, is blocked for none, then launches again."""
    writer = TraceWriter()
    edges = [0.0, 10_000.0, 20_000.0, 30_000.0]
    writer.steps(edges)
    for begin in edges[:-1]:
        writer.row("data", "user_annotation", begin, 5_000)
        for k in range(20):
            at = begin + 5_000 + 200 * k
            writer.row("aten::mul", "cpu_op", at, 50)
            writer.launch(at + 10, 5, start=at + 18, length=100)
    trace = writer.build()
    timeline = read(trace, find_steps(trace), true_ms=10.0)
    assert timeline is not None
    assert timeline.view is not None
    idle = lane(timeline.view, "idle")
    longest = max(idle.spans, key=lambda s: s.dur_us)
    assert PARTS[longest.part] is Part.INPUT
    assert longest.dur_us == pytest.approx(5_000, rel=0.02)
    assert "batch" in timeline.view.names[longest.name]
    dispatch = [s for s in idle.spans if PARTS[s.part] is Part.DISPATCH]
    assert sum(s.dur_us for s in dispatch) > 1_500


def test_a_step_of_many_kernels_is_merged_by_the_rule_that_it_states() -> None:
    writer = TraceWriter()
    edges = [0.0, 50_000.0, 100_000.0, 150_000.0]
    writer.steps(edges)
    for begin in edges[:-1]:
        for k in range(4_000):
            at = begin + 12 * k
            writer.launch(at, 2, start=at + 4, length=3 if k != 2_000 else 9)
    trace = writer.build()
    timeline = read(trace, find_steps(trace), true_ms=50.0)
    assert timeline is not None
    assert timeline.view is not None
    stream = lane(timeline.view, "stream")
    assert stream.events >= 3_999
    assert len(stream.spans) <= MOST_SPANS["stream"]
    assert stream.merged_below_us > 9
    assert max(s.dur_us for s in stream.spans) <= 2 * stream.merged_below_us


def test_the_median_step_is_chosen_and_the_earlier_of_two() -> None:
    assert choose_step(np.asarray([9.0, 1.0, 5.0])) == 2
    assert choose_step(np.asarray([4.0, 1.0, 3.0, 9.0])) == 2
    assert choose_step(np.asarray([7.0])) == 0


def test_nesting_counts_the_open_events() -> None:
    start, end = np.asarray([0, 1, 2, 10, 11]), np.asarray([9, 8, 3, 20, 12])
    assert nesting(start, end).tolist() == [0, 1, 2, 0, 1]


def test_windows_hold_the_step_times_behind_the_figure() -> None:
    found = diagnosis_of("input-bound-cpu/run")
    baseline = next(w for w in found.windows if w.name == "baseline")
    left_out = set(baseline.left_out)
    kept = [t for i, t in zip(baseline.index, baseline.ms, strict=True) if i not in left_out]
    assert len(kept) == found.step.count
    assert sum(kept) / len(kept) == pytest.approx(found.step.true_ms, rel=1e-3)


def test_a_bare_trace_shows_its_profiled_steps() -> None:
    windows = diagnosis_of("input-h200").windows
    assert [w.clock for w in windows] == ["trace"]
    assert len(windows[0].ms) == windows[0].of_steps >= 3


def test_loaders_are_carried_with_their_lines() -> None:
    loader = diagnosis_of("input-bound-cpu/run").loaders[0]
    assert loader.production_ms is not None
    assert loader.production_ms > 0
    assert loader.site is not None


CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc", "data")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(CALLS),
            st.integers(0, 400),
            st.integers(1, 300),
            st.integers(0, 500),
            st.integers(1, 900),
            st.sampled_from((7, 20)),
        ),
        min_size=3,
        max_size=60,
    )
)
def test_idle_pieces_fill_exactly_the_gaps_of_the_device(
    events: list[tuple[str, int, int, int, int, int]],
) -> None:
    writer = TraceWriter()
    now, free = 0.0, {7: 0.0, 20: 0.0}
    edges = [0.0]
    for k, (call, pause, took, wait, length, stream) in enumerate(events):
        now += pause
        if call in ("cudaLaunchKernel", "cudaMemcpyAsync"):
            start = max(now + took + wait, free[stream])
            writer.launch(now, took, start=start, length=length, stream=stream, call=call)
            free[stream] = start + length
        else:
            writer.row(call, "user_annotation" if call == "data" else "cuda_runtime", now, took)
        now += took
        if k % 15 == 14:
            edges.append(now)
    edges.append(now + 1)
    writer.steps(edges)
    trace = writer.build()
    steps = find_steps(trace)
    if not len(steps):
        return
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    if program is None:
        return
    pieces = idle_pieces(trace, program)
    assert (pieces.end > pieces.start).all()
    assert (pieces.start[1:] >= pieces.end[:-1]).all()
    rows = trace.rows(*DEVICE_KINDS)
    low = int(program.mark_ns[0])
    high = int(max(observed_step_ends(program)))
    gap_start, gap_end = intervals.gaps(trace.ts_ns[rows], trace.end_of(rows), low, high)
    whole = float((gap_end - gap_start).sum())
    covered = float((pieces.end - pieces.start).sum())
    assert whole - len(gap_start) <= covered <= whole, "but for rounding to whole nanoseconds"
    for begin, end in zip(pieces.start.tolist(), pieces.end.tolist(), strict=True):
        inside = (gap_start <= begin) & (gap_end >= end)
        assert inside.any()
