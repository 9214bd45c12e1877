"""Forward work inside backward is told from backward's own, whichever way it is checkpointed."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.timeline.lanes.calibrate import calibrate
from torch_bottleneck.timeline.lanes.program import Program, build_program
from torch_bottleneck.timeline.lanes.recompute import (
    checkpoint_ms,
    first_passes,
    forward_work,
    later_work,
    recomputed,
    unrecorded,
)
from torch_bottleneck.timeline.lanes.replay import Replay, not_launched
from torch_bottleneck.timeline.trace.table import Trace

from .traces import BACKWARD, TraceWriter

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def node(writer: TraceWriter, begin: float, length: float, name: str = "AddmmBackward0") -> None:
    """A node of the backward: what the engine does for it, hooks included, and what it runs itself."""
    writer.row(f"autograd::engine::evaluate_function: {name}", "cpu_op", begin, length, BACKWARD)
    writer.row(name, "cpu_op", begin + 1, length - 2, BACKWARD)


def read(writer: TraceWriter, end: float) -> tuple[Trace, Program]:
    writer.steps([0, end])
    trace = writer.build()
    program = build_program(trace, np.asarray([0, round(end * 1000)], dtype=np.int64))
    assert program is not None
    return trace, program


def marked(writer: TraceWriter, end: float) -> list[bool]:
    trace, program = read(writer, end)
    mask = recomputed(trace, program)
    order = np.argsort(program.observed_start)
    return [bool(value) for value in mask[order]]


def forward(writer: TraceWriter) -> None:
    writer.row("aten::linear", "cpu_op", 0, 20)
    writer.launch(5, 5, start=12, length=50)


def test_what_lies_between_the_first_and_the_last_forward_operator_is_recomputed() -> None:
    writer = TraceWriter()
    forward(writer)
    node(writer, 100, 200)
    writer.row("aten::layer_norm", "cpu_op", 110, 20, BACKWARD)
    writer.launch(112, 5, start=120, length=10, tid=BACKWARD)
    writer.row("aten::add", "cpu_op", 140, 10, BACKWARD)
    writer.launch(142, 5, start=150, length=10, tid=BACKWARD)
    writer.row("aten::linear", "cpu_op", 160, 20, BACKWARD)
    writer.launch(165, 5, start=175, length=10, tid=BACKWARD)
    writer.row("aten::mm", "cpu_op", 220, 20, BACKWARD)
    writer.launch(225, 5, start=235, length=10, tid=BACKWARD)
    assert marked(writer, 400) == [False, True, True, True, False]


def test_what_a_hook_computes_is_no_recomputation() -> None:
    """As gradients of each sample are: an einsum of what the forward had and of the gradient."""
    writer = TraceWriter()
    forward(writer)
    writer.row(NODE, "cpu_op", 100, 200, BACKWARD)
    writer.row("aten::einsum", "cpu_op", 110, 20, BACKWARD)
    writer.launch(112, 5, start=120, length=10, tid=BACKWARD)
    writer.row("AddmmBackward0", "cpu_op", 200, 90, BACKWARD)
    writer.row("aten::mm", "cpu_op", 220, 20, BACKWARD)
    writer.launch(225, 5, start=235, length=10, tid=BACKWARD)
    assert marked(writer, 400) == [False, False, False]


def test_reentrant_recomputation_ends_where_its_own_backward_begins() -> None:
    writer = TraceWriter()
    forward(writer)
    node(writer, 100, 300, "CheckpointFunctionBackward")
    writer.row("aten::linear", "cpu_op", 110, 20, BACKWARD)
    writer.launch(115, 5, start=125, length=10, tid=BACKWARD)
    node(writer, 200, 100)
    writer.row("aten::mm", "cpu_op", 210, 20, BACKWARD)
    writer.launch(215, 5, start=225, length=10, tid=BACKWARD)
    assert marked(writer, 500) == [False, True, False]


def test_a_backward_of_the_user_s_own_recomputes_by_steps() -> None:
    writer = TraceWriter()
    node(writer, 100, 300, "FlowBackward")
    for begin in (110, 210):
        writer.row("aten::linear", "cpu_op", begin, 20, BACKWARD)
        writer.launch(begin + 5, 5, start=begin + 15, length=10, tid=BACKWARD)
        node(writer, begin + 30, 50)
        writer.row("aten::mm", "cpu_op", begin + 40, 20, BACKWARD)
        writer.launch(begin + 45, 5, start=begin + 55, length=10, tid=BACKWARD)
    assert marked(writer, 500) == [True, False, True, False]


def test_what_no_backward_visits_is_told_from_what_it_does() -> None:
    writer = TraceWriter()
    writer.row("forward", "user_annotation", 0, 100)
    writer.row("aten::linear", "cpu_op", 0, 20, sequence=7)  # of a frozen layer: it records nothing
    writer.row("aten::mm", "cpu_op", 5, 10, sequence=7)
    writer.row("aten::linear", "cpu_op", 30, 20, sequence=7)
    writer.row("aten::addmm", "cpu_op", 35, 10, sequence=7)
    writer.row("aten::dropout", "cpu_op", 60, 5)  # under no_grad
    writer.row("aten::sum", "cpu_op", 120, 10, sequence=8)
    writer.row(NODE, "cpu_op", 200, 50, BACKWARD, sequence=7)
    writer.steps([0, 400])
    trace = writer.build()
    whole, unvisited = unrecorded(trace)
    assert trace.ts_ns[whole].tolist() == [0, 30_000, 60_000]
    assert trace.ts_ns[unvisited].tolist() == [0, 60_000]


def test_without_numbers_nothing_is_said_of_what_the_backward_visits() -> None:
    writer = TraceWriter()
    writer.row("forward", "user_annotation", 0, 100)
    forward(writer)
    writer.row(NODE, "cpu_op", 200, 50, BACKWARD)
    writer.steps([0, 400])
    whole, unvisited = unrecorded(writer.build())
    assert (len(whole), len(unvisited)) == (1, 0)


def test_gradients_of_gradients_and_second_visits_do_not_go_with_the_forward() -> None:
    writer = TraceWriter()
    writer.row("aten::addmm", "cpu_op", 0, 20, sequence=7)
    writer.row(NODE, "cpu_op", 100, 50, BACKWARD, sequence=7)  # create_graph=True: its own operators count
    writer.row("aten::mm", "cpu_op", 110, 30, BACKWARD, sequence=8)
    writer.launch(120, 5, start=130, length=1, tid=BACKWARD)
    writer.row(NODE, "cpu_op", 200, 50, BACKWARD, sequence=8)
    writer.launch(220, 5, start=230, length=2, tid=BACKWARD)
    writer.row(NODE, "cpu_op", 300, 50, BACKWARD, sequence=7)
    writer.launch(320, 5, start=330, length=4, tid=BACKWARD)
    writer.row(NODE, "cpu_op", 400, 50, BACKWARD)  # gradients with a hook: it has no number
    writer.launch(420, 5, start=430, length=8, tid=BACKWARD)
    trace, program = read(writer, 600)
    assert first_passes(trace).tolist() == [True, False, False, True]
    assert program.duration[later_work(trace, program)].tolist() == [2000, 4000]


def test_the_forward_on_its_own_thread_is_no_recomputation() -> None:
    writer = TraceWriter()
    # A long node on the autograd thread while the main thread goes on with the next forward.
    writer.row(NODE, "cpu_op", 0, 300, BACKWARD)
    writer.row("aten::mm", "cpu_op", 5, 20, BACKWARD)
    writer.launch(10, 5, start=20, length=10, tid=BACKWARD)
    writer.row("aten::linear", "cpu_op", 100, 20)
    writer.launch(105, 5, start=115, length=10)
    assert marked(writer, 400) == [False, False]


def test_what_the_labelled_forward_launches_could_be_repeated() -> None:
    writer = TraceWriter()
    writer.row("forward", "user_annotation", 0, 30)
    forward(writer)
    writer.launch(40, 5, start=70, length=10)
    writer.launch(10, 5, start=90, length=10, tid=BACKWARD)
    trace, program = read(writer, 200)
    mask = forward_work(trace, program)
    assert program.duration[mask].tolist() == [50_000], "not the loss, not another thread"


def test_without_it_neither_device_nor_host_does_the_work() -> None:
    writer = TraceWriter()
    forward(writer)
    node(writer, 100, 400)
    writer.row("aten::linear", "cpu_op", 110, 100, BACKWARD)
    writer.launch(200, 5, start=210, length=100, tid=BACKWARD)
    writer.row("aten::mm", "cpu_op", 320, 20, BACKWARD)
    writer.launch(325, 5, start=335, length=10, tid=BACKWARD)
    trace, program = read(writer, 500)
    mask = recomputed(trace, program)
    assert mask.sum() == 1
    replay = Replay(program)
    whole, without = replay.run(), replay.run(not_launched(program, mask))
    assert without.step_ns < whole.step_ns


def test_a_forward_done_twice_costs_its_work_where_that_decides() -> None:
    """A busy device takes the forward's kernels again; a busy host its launches."""
    for kernel, host, longer in ((300, 20, 300), (5, 200, 200)):
        writer = TraceWriter()
        writer.row("forward", "user_annotation", 0, host)
        writer.row("aten::linear", "cpu_op", 0, host)
        writer.launch(host - 10, 5, start=host, length=kernel)
        trace, program = read(writer, host + 5)
        replay = Replay(program)
        calibration = calibrate(replay, None)
        mask = forward_work(trace, program)
        true_ms = replay.run(calibration.base).step_ns / 1e6
        added = checkpoint_ms(replay, calibration, mask, true_ms=true_ms)
        assert added * 1e3 == pytest.approx(longer, rel=0.15)
