"""Kernels that take longer beside a collective that waits."""

from __future__ import annotations

import pytest
from unit.timeline.traces import TraceWriter

from torch_bottleneck.timeline.lanes.alone import interrupted, slowed_by_collectives, undisturbed
from torch_bottleneck.timeline.trace.dialect import Kind

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def factors(free: list[float], beside: list[float]) -> list[float]:
    """Of products one after the other, the later ones beside a collective."""
    writer, now = TraceWriter(), 0.0
    for length in free:
        writer.launch(now, 1.0, kernel="gemm", start=now + 2.0, length=length)
        now += length + 5.0
    whole = sum(length + 5.0 for length in beside)
    writer.launch(now, 1.0, kernel=NCCL, start=now, length=whole, stream=20)
    for length in beside:
        writer.launch(now, 1.0, kernel="gemm", start=now + 2.0, length=length)
        now += length + 5.0
    trace = writer.build()
    return undisturbed(trace)[trace.rows(Kind.KERNEL, named="gemm")].tolist()


def test_they_are_as_long_as_those_of_the_same_name_without_one() -> None:
    assert factors([100.0, 101.0, 99.0, 100.0], [150.0, 125.0]) == pytest.approx([1, 1, 1, 1, 2 / 3, 0.8])


def test_shorter_ones_are_not_made_longer() -> None:
    assert factors([100.0] * 4, [50.0]) == [1.0] * 5


def test_where_the_norm_is_not_known_nothing_is_changed() -> None:
    assert factors([100.0, 100.0], [150.0]) == [1.0] * 3
    assert factors([100.0, 30.0, 300.0, 70.0], [150.0]) == [1.0] * 5


def test_what_collectives_cost_the_kernels_beside_them() -> None:
    """Five products of 100 us, and one of 200 beside a collective that runs for the first 50 of them."""
    writer, now = TraceWriter(), 0.0
    for length in (100.0, 100.0, 100.0, 100.0, 100.0, 200.0):
        writer.launch(now, 1.0, kernel="gemm", start=now + 2.0, length=length)
        now += length + 5.0
    writer.launch(now - 205.0, 1.0, kernel=NCCL, start=now - 253.0, length=100.0, stream=20)
    trace = writer.build()
    assert undisturbed(trace)[trace.rows(Kind.KERNEL, named="gemm")].tolist() == [1.0] * 5 + [0.5]
    beside = 45.0 + 50.0  # of the last but one, and of the last
    assert slowed_by_collectives(trace) == pytest.approx(100.0 / beside)
    alone = TraceWriter()
    alone.launch(0.0, 1.0, kernel="gemm", start=2.0, length=50.0)
    assert slowed_by_collectives(alone.build()) == 0.0


def shared(*lengths: float) -> dict[str, float]:
    writer, now = TraceWriter(), 0.0
    for length in lengths:
        writer.launch(now, 1.0, kernel="gemm", start=now + 2.0, length=length)
        now += length + 5.0
    return interrupted(writer.build())


def test_another_process_on_the_device_makes_some_kernels_longer_by_its_turn() -> None:
    assert shared(*[100.0] * 6, 900.0, 900.0) == {"gemm": pytest.approx(1600.0 / 2400.0)}


def test_kernels_of_many_sizes_and_slower_ones_are_not_interrupted() -> None:
    assert shared(10.0, 40.0, 100.0, 400.0, 900.0) == {}
    assert shared(100.0, 150.0, 150.0, 150.0, 150.0) == {}
    assert shared(100.0, 900.0, 100.0) == {}, "too few to tell"
