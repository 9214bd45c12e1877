"""Ranks without a GPU: own work between what gloo writes on its own threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from unit.timeline.cpu_traces import Row, make_steps, make_trace

from torch_bottleneck.fleet.collectives import messages_ms
from torch_bottleneck.timeline.cpu.division import Division, split
from torch_bottleneck.timeline.cpu.exchanges import exchanges, own_work_of_steps, waits_of
from torch_bottleneck.timeline.cpu.segments import Segments, read_segments
from torch_bottleneck.timeline.lanes.alone import Alone
from torch_bottleneck.timeline.trace.table import Trace

STEP_US = 10_000.0


def step(at: float, *, sends: bool = True) -> list[Row]:
    """Computes 2 ms, begins to exchange, waits 3 ms, and computes 4 ms behind it."""
    rows: list[Row] = [("backward", "label", at, 5100.0), ("aten::mm", "op", at, 2000.0)]
    if sends:
        rows += [
            ("c10d::allreduce_", "op", at + 2000.0, 100.0),
            ("gloo:all_reduce", "label", at + 2050.0, 3050.0),
        ]
    return [*rows, ("aten::mm", "op", at + 5200.0, 4000.0)]


def read(*steps: list[Row]) -> tuple[Trace, Segments, Division]:
    trace = make_trace([row for rows in steps for row in rows])
    other = np.asarray([trace.names[name].startswith("gloo") for name in trace.name])
    trace = replace(trace, tid=other.astype(np.int32), tids=["1", "2"])
    bounds = make_steps([(i * STEP_US, (i + 1) * STEP_US) for i in range(len(steps))])
    segments = read_segments(trace, start_ns=bounds.start_ns, end_ns=bounds.end_ns, thread=(0, 0))
    return trace, segments, split(segments, dispatch_ns=None)


def found(*steps: list[Row]) -> Alone | None:
    made = read(*steps)
    return exchanges(*made, waits_of(*made))


def test_a_step_runs_from_exchange_to_exchange_and_waiting_is_no_own_work() -> None:
    alone = found(step(0.0), step(STEP_US), step(2 * STEP_US))
    assert alone is not None
    assert alone.moments is not None
    assert (alone.moments / 1e6).tolist() == pytest.approx([5.1, 15.1, 25.1])
    assert np.diff(alone.edges[:, 0]) / 1e6 == pytest.approx([7.0, 7.0], abs=0.06)
    arrival, left = alone.places[1, 0], alone.places[1, 2]
    assert arrival / 1e6 == pytest.approx(6.95, abs=0.06), "a little of the operator that begins it is left"
    assert (left - arrival) / 1e6 == pytest.approx(0.05, abs=0.06)


def test_what_is_done_behind_the_update_is_of_the_next_step() -> None:
    trace, segments, division = read(step(0.0), step(STEP_US), step(2 * STEP_US))
    alone = exchanges(trace, segments, division, waits_of(trace, segments, division))
    assert alone is not None
    assert alone.moments is not None
    own = own_work_of_steps(segments, division, alone.moments, [3.0, 0.0, 0.0])
    assert own["compute"] == pytest.approx([6.0, 6.0], abs=0.1)
    assert own["garbage collection"].tolist() == [3.0, 0.0]
    before = own_work_of_steps(segments, division, alone.moments, [0.0, 9.0, 0.0])
    assert before["garbage collection"].tolist() == [9.0, 0.0], "there is no room for it behind the exchange"


def test_a_collection_that_begins_before_gloo_has_noted_the_end_is_still_of_the_next_step() -> None:
    late = [
        ("gloo:all_reduce", "label", STEP_US + 1050.0, 1500.0),
        ("aten::mm", "op", STEP_US + 2600.0, 7000.0),
    ]
    trace, segments, division = read(step(0.0), late, step(2 * STEP_US))
    alone = exchanges(trace, segments, division, waits_of(trace, segments, division))
    assert alone is not None
    assert alone.moments is not None
    own = own_work_of_steps(segments, division, alone.moments, [0.0, 8.0, 0.0])
    assert own["garbage collection"].tolist() == [0.0, 8.0], "7.5 ms behind the exchange, 2.5 before it"


def test_without_an_exchange_in_each_step_nothing_is_told() -> None:
    assert found(step(0.0), step(STEP_US, sends=False), step(2 * STEP_US)) is None
    assert found(step(0.0)) is None


def stage(at: float, *, waits: float) -> list[Row]:
    """Waits for its input, computes 2 ms, sends its result, and computes on while that is on its way."""
    return [
        ("c10d::recv_", "op", at, 50.0),
        ("gloo:recv", "label", at + 40.0, waits),
        ("aten::mm", "op", at + 100.0 + waits, 2000.0),
        ("c10d::send", "op", at + 2100.0 + waits, 50.0),
        ("gloo:send", "label", at + 2140.0 + waits, 1000.0),
        ("aten::mm", "op", at + 2200.0 + waits, 1500.0),
    ]


def test_of_messages_counts_what_the_thread_stands_waiting_for() -> None:
    trace, segments, division = read(stage(0.0, waits=3000.0), stage(STEP_US, waits=500.0))
    waits = waits_of(trace, segments, division)
    bounds = make_steps([(0.0, STEP_US), (STEP_US, 2 * STEP_US)])
    first, second = messages_ms(trace, bounds, waits)
    assert first == (pytest.approx(3.04, abs=0.1), pytest.approx(0.54, abs=0.1), 2)
    assert second == (pytest.approx(0.54, abs=0.1), pytest.approx(0.54, abs=0.1), 2)
    one = read(stage(0.0, waits=3000.0), step(STEP_US))
    assert messages_ms(one[0], bounds, waits_of(*one)) == (), "a step without messages: no schedule"
