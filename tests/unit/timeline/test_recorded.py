"""Lengths of recorded steps: the host's marks, unless the device lags behind them."""

from __future__ import annotations

import numpy as np
import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed

from torch_bottleneck.ingest.reader import read_trace
from torch_bottleneck.timeline.steps.recorded import recorded_ms, runs_ahead
from torch_bottleneck.timeline.steps.traced import find_steps


@pytest.mark.parametrize("name", ["fp32-h200", "naive-attention-h200"])
def test_where_the_host_runs_ahead_the_device_tells_the_step(name: str) -> None:
    case = CASES[name]
    trace = read_trace(case.traces[0])
    steps = find_steps(trace)
    assert runs_ahead(trace, steps)
    lengths = recorded_ms(trace, steps)
    assert len(lengths) == len(steps) - 1
    # Measured without a profiler; on a run that waits for the device, profiling hardly slows it.
    assert lengths.mean() == pytest.approx(case.true_step_ms, rel=0.02)


def test_a_bare_trace_of_a_busy_device_is_not_taken_for_faster_than_it_is() -> None:
    case = CASES["fp32-h200"]
    found = diagnosed(case.folder)
    assert found.step.true_is == "profiled"
    assert found.step.true_ms == pytest.approx(case.true_step_ms, rel=0.02)


@pytest.mark.parametrize("name", ["launch-h200", "input-h200", "input-bound-cpu"])
def test_where_the_device_waits_for_the_host_the_marks_tell_it(name: str) -> None:
    trace = read_trace(CASES[name].traces[0])
    steps = find_steps(trace)
    assert not runs_ahead(trace, steps)
    assert np.allclose(recorded_ms(trace, steps), (steps.end_ns - steps.start_ns) / 1e6)
