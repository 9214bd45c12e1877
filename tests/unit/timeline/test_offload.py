"""Activations that are moved to the host and back, told from other copies, and the step without them."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.timeline.gpu.context import waits_for
from torch_bottleneck.timeline.gpu.offload import kept_on_device, offloaded
from torch_bottleneck.timeline.lanes.program import Program, build_program
from torch_bottleneck.timeline.lanes.replay import Replay
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.table import Trace

from .readings import read as read_whole
from .traces import BACKWARD, MAIN, TraceWriter

NODE = "autograd::engine::evaluate_function: "
TO_HOST, TO_DEVICE = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"
STEPS, STEP_US = 3, 2000.0


def copy(writer: TraceWriter, at: float, kind: str, size: int, *, tid: str = MAIN) -> None:
    """The host copies and waits for it, 100 us in all."""
    writer.row("aten::copy_", "cpu_op", at, 100, tid)
    writer.launch(
        at + 5, 5, kernel=kind, start=at + 15, length=80, cat="gpu_memcpy", tid=tid, bytes=size,
        call="cudaMemcpyAsync",
    )  # fmt: skip
    writer.row("cudaStreamSynchronize", "cuda_runtime", at + 11, 85, tid)


def step(writer: TraceWriter, at: float, number: int, *, node: str, back: int, packs: bool) -> None:
    """An operator copies 400 bytes to the host, its node copies some back; the batch came from the host."""
    copy(writer, at, TO_DEVICE, 400)
    writer.row("aten::gelu", "cpu_op", at + 120, 150 if packs else 10, sequence=number)
    copy(writer, at + 130, TO_HOST, 400)
    writer.launch(at + 260, 5, start=at + 270, length=50)
    writer.row(NODE + node, "cpu_op", at + 500, 250, BACKWARD, sequence=number)
    copy(writer, at + 510, TO_DEVICE, back, tid=BACKWARD)
    writer.launch(at + 640, 5, start=at + 650, length=50, tid=BACKWARD)
    writer.row("aten::copy_", "cpu_op", at + 800, 5)


def read(*, node: str = "GeluBackward0", back: int = 400, packs: bool = True) -> tuple[Trace, Program]:
    writer = TraceWriter()
    edges = [STEP_US * k for k in range(STEPS + 1)]
    for number, begin in enumerate(edges[:-1]):
        step(writer, begin, number, node=node, back=back, packs=packs)
    writer.steps(edges)
    trace = writer.build()
    program = build_program(trace, np.asarray(edges, dtype=np.int64) * 1000)
    assert program is not None
    return trace, program


def test_what_an_operator_copies_to_the_host_and_its_node_back_was_offloaded() -> None:
    trace, program = read()
    moved = program.activity_row[offloaded(trace, program)]
    within = (trace.ts_ns[moved] // 1000 % STEP_US).tolist()
    assert within == [145, 525] * STEPS, "not the batch"


@pytest.mark.parametrize(
    "other",
    [{"back": 4}, {"node": "ToCopyBackward0"}, {"node": "OnTheHostBackward"}, {"packs": False}],
    ids=["other bytes", "the gradient of .cpu()", "a Function of the user's", "outside the operator"],
)
def test_other_copies_are_not(other: dict[str, object]) -> None:
    assert not offloaded(*read(**other)).any()  # type: ignore[arg-type]


def test_most_waits_are_for_them() -> None:
    trace, program = read()
    assert waits_for(trace, program, offloaded(trace, program)) == "activations"
    assert waits_for(trace, program, np.zeros(len(program.event), dtype=bool)) != "activations"


def test_without_it_the_host_neither_copies_nor_waits() -> None:
    trace, program = read()
    edit = kept_on_device(trace, program, offloaded(trace, program))
    replay = Replay(program)
    before, after = replay.run().step_ns, replay.run(edit).step_ns
    assert before == pytest.approx(STEP_US * 1000, rel=0.02)
    assert before - after == pytest.approx(200_000, rel=0.05)


def test_the_reading_asks_for_the_step_without_it_and_tells_its_bytes() -> None:
    trace, _ = read()
    found = read_whole(trace, find_steps(trace), true_ms=STEP_US / 1e3)
    assert found.what_ifs[WhatIf.OFFLOADS_GONE].saves_ms == pytest.approx(0.2, rel=0.05)
    assert not found.what_ifs[WhatIf.OFFLOADS_GONE].bound
    # Of the three copies one is the batch's.
    others = read_whole(read(back=4)[0], find_steps(trace), true_ms=STEP_US / 1e3).what_ifs
    of_batch = found.what_ifs[WhatIf.COPIES_GONE].saves_ms
    assert of_batch < 0.5 * others[WhatIf.COPIES_GONE].saves_ms
    assert found.context["copies.offloaded_bytes"] == 400
    plain, _ = read(back=4)
    without = read_whole(plain, find_steps(plain), true_ms=STEP_US / 1e3)
    assert WhatIf.OFFLOADS_GONE not in without.what_ifs
    assert "copies.offloaded_bytes" not in without.context


@pytest.mark.parametrize("in_model", [True, False])
def test_what_the_model_reads_itself_may_be_needed_there(in_model: bool) -> None:
    writer = TraceWriter()
    edges = [STEP_US * k for k in range(STEPS + 1)]
    for at in edges[:-1]:
        writer.row("forward", "user_annotation", at + 5, 1000 if in_model else 20)
        writer.launch(at + 10, 5, start=at + 20, length=900)
        writer.row("cudaStreamSynchronize", "cuda_runtime", at + 30, 895)
        writer.launch(at + 1500, 5, start=at + 1510, length=300)
    writer.steps(edges)
    trace = writer.build()
    asked = read_whole(trace, find_steps(trace), true_ms=STEP_US / 1000).what_ifs
    late, gone = asked[WhatIf.READS_LATE], asked[WhatIf.SYNCS_GONE]
    assert late.saves_ms == gone.saves_ms > 0.1
    assert (late.bound, gone.bound) == (in_model, False)


def test_what_the_script_waits_for_by_itself_is_told_from_waits_for_values() -> None:
    writer = TraceWriter()
    edges = [STEP_US * k for k in range(STEPS + 1)]
    for at in edges[:-1]:
        writer.launch(at + 10, 5, start=at + 20, length=900)
        writer.row("cudaDeviceSynchronize", "cuda_runtime", at + 30, 895)
        # The host works on for 600 us; meanwhile the device is idle.
        writer.launch(at + 1500, 5, start=at + 1510, length=300)
    writer.steps(edges)
    trace = writer.build()
    program = build_program(trace, np.asarray(edges, dtype=np.int64) * 1000)
    assert program is not None
    assert waits_for(trace, program, np.zeros(len(program.event), dtype=bool)) == "device"
    asked = read_whole(trace, find_steps(trace), true_ms=STEP_US / 1000).what_ifs
    assert asked[WhatIf.ASKED_WAITS_GONE].saves_ms == pytest.approx(asked[WhatIf.SYNCS_GONE].saves_ms)
    assert asked[WhatIf.ASKED_WAITS_GONE].saves_ms > 0.1
