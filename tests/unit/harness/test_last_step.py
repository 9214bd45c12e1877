"""The last step ends with its update: what the program does after its training is not the step's."""

from __future__ import annotations

import gc
import time

import pytest

from torch_bottleneck.clocks import perf_counter_ns
from torch_bottleneck.harness.windows.meter import StepMeter


def work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


@pytest.mark.parametrize("held", [False, True], ids=["taken at once", "held"])
def test_counters_after_the_last_update_are_not_the_step_s(held: bool) -> None:
    meter = StepMeter()
    meter.garbage.install()
    try:
        meter.begin(perf_counter_ns())
        work(0.02)
        gc.collect()
        meter.updated()
        ended_ns, collected = perf_counter_ns(), meter.garbage.total_ns
        assert collected > 0
        meter.late = held
        work(0.4)
        gc.collect()
        row = meter.last_row(ended_ns, index=0, compiled=False)
        meter.share_usage(at_end=True)
    finally:
        meter.garbage.uninstall()
    assert row.gc_ms == collected / 1e6 <= row.wall_ms
    # Of the processor time it gets its share of the time, and no more than it can have used.
    assert 0 < row.user_cpu_ms + row.system_cpu_ms <= 1.5 * row.wall_ms


def test_a_step_that_is_several_of_those_seen_before_holds_their_forwards_without_gradients() -> None:
    """Once the rhythm of its three optimizers was learned, the first steps of an agent were evaluations."""
    meter = StepMeter()
    meter.begin(perf_counter_ns())

    def is_validation(forwards: int) -> bool:
        meter.evaluations = forwards
        row = meter.row(perf_counter_ns(), index=0, compiled=False)
        meter.begin(perf_counter_ns())
        return row.validation

    for forwards in (3, 1, 0, 3, 1, 0, 3, 1, 0):
        is_validation(forwards)
    meter.regroup(3)
    assert [is_validation(forwards) for forwards in (4, 4, 40, 4)] == [False, False, True, False]
