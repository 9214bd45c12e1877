"""From trace rows to the program: waits, blocking copies, the allocator, streams, graph launches."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.model.codes import Part
from torch_bottleneck.timeline.lanes.calibrate import calibrate, observed_step_ns
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import NO_WAIT, WAIT_ALL, EventKind, Program, build_program
from torch_bottleneck.timeline.lanes.replay import Edit, Replay

from .traces import BACKWARD, TraceWriter


def program_of(trace: TraceWriter, edges: list[float], *, own_input: float = 0.0) -> Program:
    trace.steps(edges)
    built = trace.build()
    marks = np.asarray([round(e * 1000) for e in edges], dtype=np.int64)
    program = build_program(built, marks, own_input=own_input)
    assert program is not None
    return program


def test_a_trace_without_device_work_has_no_program() -> None:
    writer = TraceWriter()
    writer.row("aten::add", "cpu_op", 0, 10)
    trace = writer.build()
    assert build_program(trace, np.asarray([0, 10_000])) is None


def test_launches_of_the_autograd_thread_are_merged_in_order_of_time() -> None:
    writer = TraceWriter()
    writer.launch(10, 5, start=18, length=20)
    writer.launch(30, 5, start=40, length=20, tid=BACKWARD)
    writer.launch(50, 5, start=62, length=20)
    program = program_of(writer, [0, 100])
    assert list(program.event) == sorted(program.event)
    assert program.work[:, Work.DISPATCH].sum() == pytest.approx(100_000)


@pytest.mark.parametrize(
    ("share", "input_us", "operators_us"),
    [(0.0, 0, 0), (0.45, 0, 4_000), (0.7, 3_000, 4_000), (1, 5_000, 4_000)],
)
def test_between_update_and_forward_the_last_part_makes_the_batch(
    share: float, input_us: int, operators_us: int
) -> None:
    """Each step: 2 and 3 ms of Python, a sort of 4 ms on the host, then forward and update."""
    writer = TraceWriter()
    for begin in (0.0, 10_000.0):
        writer.row("aten::size", "cpu_op", begin + 2_000, 1)
        writer.row("aten::sort", "cpu_op", begin + 5_000, 4_000)
        writer.row("forward", "user_annotation", begin + 9_000, 500)
        writer.row("aten::mm", "cpu_op", begin + 9_000, 1_000)
        writer.launch(begin + 9_100, 5, start=begin + 9_110, length=100)
        writer.row("optimizer", "user_annotation", begin + 9_600, 400)
        writer.launch(begin + 9_700, 5, start=begin + 9_710, length=100)
    program = program_of(writer, [0, 10_000, 20_000], own_input=share)
    spent = program.work.sum(axis=0) / 2_000
    assert spent[Work.INPUT] == pytest.approx(input_us, abs=5)
    assert spent[Work.BATCH_OPERATORS] == pytest.approx(operators_us, abs=5)
    assert spent[Work.HOST] == pytest.approx(5_000 - input_us, abs=5)
    assert spent[Work.OPERATORS] == pytest.approx(4_000 - operators_us, abs=5)


def test_a_synchronisation_waits_for_what_was_launched_and_its_waiting_is_no_work() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=8, length=500)
    writer.row("cudaDeviceSynchronize", "cuda_runtime", 10, 505, correlation=99)
    program = program_of(writer, [0, 600])
    (sync,) = np.flatnonzero(program.kind == EventKind.SYNC)
    assert program.wait[sync] == WAIT_ALL
    assert program.work[sync].sum() == pytest.approx(5_000)  # from the launch to the call
    assert program.after[sync] == pytest.approx(7_000)  # 515 - 508


def test_a_pageable_copy_that_the_host_stages_is_a_blocking_copy() -> None:
    writer = TraceWriter()
    writer.launch(
        0, 900, kernel="Memcpy HtoD (Pageable -> Device)", cat="gpu_memcpy", call="cudaMemcpyAsync",
        start=60, length=850,
    )  # fmt: skip
    writer.row("cudaStreamSynchronize", "cuda_runtime", 902, 12, correlation=98)
    writer.launch(920, 5, start=928, length=10)
    program = program_of(writer, [0, 1000])
    copies = np.flatnonzero(program.kind == EventKind.COPY)
    assert len(copies) == 2  # the copy, and the synchronisation that belongs to it
    assert program.wait[copies[0]] != NO_WAIT


def test_a_pageable_copy_that_first_waits_for_its_stream_is_a_blocking_copy_too() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=8, length=9000)
    writer.launch(
        10, 14_000, kernel="Memcpy HtoD (Pageable -> Device)", cat="gpu_memcpy", call="cudaMemcpyAsync",
        start=9_020, length=5_000,
    )  # fmt: skip
    writer.row("cudaStreamSynchronize", "cuda_runtime", 14_012, 12, correlation=98)
    program = program_of(writer, [0, 15_000])
    assert (program.kind == EventKind.COPY).sum() == 2
    assert Replay(program).run().step_ns == pytest.approx(15_000_000, rel=0.01)


def test_a_pinned_copy_is_a_launch_like_any_other() -> None:
    writer = TraceWriter()
    writer.launch(
        0, 6, kernel="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", call="cudaMemcpyAsync",
        start=10, length=850,
    )  # fmt: skip
    program = program_of(writer, [0, 1000])
    assert not (program.kind == EventKind.COPY).any()
    assert program.parts[program.part[0]] is Part.COPIES


@pytest.mark.parametrize(
    ("name", "call", "kind"),
    [
        ("Memcpy DtoD (Device -> Device)", "cudaMemcpyAsync", EventKind.LAUNCH),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync", EventKind.LAUNCH),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", EventKind.LAUNCH),
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", EventKind.COPY),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpy", EventKind.COPY),
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", EventKind.SYNC),
    ],
)
def test_an_idle_device_is_done_before_the_call_returns_and_nobody_has_waited(
    name: str, call: str, kind: EventKind
) -> None:
    writer = TraceWriter()
    writer.launch(0, 60, kernel=name, cat="gpu_memcpy", call=call, start=40, length=2)
    program = program_of(writer, [0, 100])
    assert program.kind[program.event[0]] == kind
    assert (program.wait[program.event[0]] == NO_WAIT) == (kind == EventKind.LAUNCH)


def test_a_pinned_copy_that_is_waited_for_is_one_blocking_copy_and_no_read() -> None:
    writer = TraceWriter()
    writer.launch(
        0, 60, kernel="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", call="cudaMemcpyAsync", start=40,
        length=2,
    )  # fmt: skip
    writer.row("cudaStreamSynchronize", "cuda_runtime", 62, 12, correlation=98)
    program = program_of(writer, [0, 100])
    assert (program.kind == EventKind.COPY).sum() == 1
    assert not (program.kind == EventKind.SYNC).any()


def test_an_allocator_call_waits_only_if_the_times_say_so() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=8, length=100)
    writer.row("cudaMalloc", "cuda_runtime", 10, 30, correlation=97)
    writer.row("cudaFree", "cuda_runtime", 50, 62, correlation=96)
    program = program_of(writer, [0, 200])
    malloc, free = np.flatnonzero(program.kind == EventKind.ALLOCATOR)
    assert program.wait[malloc] == NO_WAIT
    assert program.work[malloc, Work.ALLOCATOR] == pytest.approx(30_000)
    assert program.wait[free] == WAIT_ALL


def test_kernels_of_one_graph_launch_are_one_piece_of_work() -> None:
    writer = TraceWriter()
    writer.row("cudaGraphLaunch", "cuda_runtime", 0, 20, correlation=500)
    for k in range(50):
        writer.row(f"kernel_{k}", "kernel", 30 + 4 * k, 3, "7", correlation=500, stream=7, device=0)
    program = program_of(writer, [0, 300])
    assert len(program.event) == 1
    assert program.duration[0] == pytest.approx((30 + 4 * 49 + 3 - 30) * 1000)


def test_a_kernel_that_waits_for_another_stream_depends_on_it() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=10, length=300, stream=20)
    writer.launch(10, 5, start=312, length=10, stream=7)
    program = program_of(writer, [0, 400])
    assert list(program.depends) == [-1, 0]


def _told(writer: TraceWriter, at: float, stream: int) -> None:
    writer.row("cudaStreamWaitEvent", "cuda_runtime", at, 2, correlation=900 + int(at))
    writer.row("Stream Wait Event", "cuda_sync", at + 1, 1, str(stream), stream=stream, device=0)


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_a_stream_that_is_told_to_wait_does_so_also_where_the_host_comes_later(told: bool) -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=10, length=100)
    writer.launch(6, 5, start=15, length=900, stream=30)
    if told:
        _told(writer, 200, stream=20)
    writer.launch(210, 5, start=220, length=100, stream=20)
    writer.launch(220, 5, start=320, length=100, stream=20)
    program = program_of(writer, [0, 1000])
    # Not for the stream that was still at work when it went on.
    assert list(program.depends) == [-1, -1, 0 if told else -1, -1]
    sooner = Replay(program).run(Edit(work={Work.DISPATCH: 0.0}))
    at = int(np.flatnonzero(program.lane == program.lane[2])[0])
    assert (sooner.start[at] >= sooner.end[0]) == told


def test_what_was_launched_after_a_stream_was_told_to_wait_is_not_waited_for() -> None:
    writer = TraceWriter()
    _told(writer, 2, stream=20)
    writer.launch(10, 5, start=20, length=100)
    writer.launch(200, 5, start=210, length=100, stream=20)
    assert list(program_of(writer, [0, 400]).depends) == [-1, -1]


@pytest.mark.parametrize(("name", "depends"), [("ncclDevKernel_AllGather_RING_LL", 0), ("gemm", -1)])
def test_a_collective_starts_a_while_after_what_it_waited_for(name: str, depends: int) -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=10, length=300, stream=20)
    writer.launch(10, 5, start=475, length=10, stream=7, kernel=name)
    program = program_of(writer, [0, 600])
    assert list(program.depends) == [-1, depends]
    assert bool(program.delay[1]) == (depends < 0), (
        "the time since its launch is the other work's, or its own"
    )


def test_launches_without_kernels_and_kernels_without_launches_are_counted() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=8, length=10)
    writer.row("cudaLaunchKernel", "cuda_runtime", 20, 5, correlation=777)
    writer.row("orphan", "kernel", 50, 5, "7", correlation=888, stream=7, device=0)
    program = program_of(writer, [0, 100])
    assert program.missing_activities == 1
    assert program.orphan_activities == 1


def test_what_a_thread_launches_into_a_graph_that_it_records_is_not_missed() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=8, length=10)
    for at, call in ((20, "cudaStreamBeginCapture"), (60, "cudaStreamEndCapture")):
        writer.row(call, "cuda_runtime", at, 5)
    writer.row("cudaLaunchKernel", "cuda_runtime", 30, 5, correlation=777)
    writer.row("cudaLaunchKernel", "cuda_runtime", 80, 5, correlation=778)
    assert program_of(writer, [0, 100]).missing_activities == 1


def steady(
    steps: int, *, host: float, device: float, launches: int = 40, pause: float = 0.0
) -> tuple[TraceWriter, list[float]]:
    """Steps of equal launches on one stream, scheduled as a device would."""
    writer = TraceWriter()
    now, free = 0.0, 0.0
    edges = [0.0]
    for _ in range(steps):
        writer.row("forward", "user_annotation", now, launches * host)
        for _ in range(launches):
            writer.row("aten::add", "cpu_op", now, host)
            start = max(now + host + 2.5, free + 1.0)
            writer.launch(now + host - 5, 5, start=start, length=device)
            free = start + device
            now += host
        now += pause
        edges.append(now)
    return writer, edges


@pytest.mark.parametrize(("host", "device"), [(20.0, 4.0), (6.0, 30.0)])
def test_the_replay_reproduces_what_was_observed(host: float, device: float) -> None:
    program = program_of(*steady(6, host=host, device=device))
    replay = Replay(program)
    assert replay.run().step_ns == pytest.approx(observed_step_ns(program), rel=0.01)


def test_few_operators_on_data_with_other_work_between_them_are_no_loop() -> None:
    writer = TraceWriter()
    writer.launch(0, 5, start=10, length=20)
    for at in (20, 2_100):
        writer.row("aten::copy_", "cpu_op", at, 60)
    for k in range(200):
        writer.row("aten::select", "cpu_op", 90 + 10 * k, 8)
    writer.launch(2_200, 5, start=2_210, length=20)
    assert program_of(writer, [0, 2_300]).work[:, Work.HOST].sum() == 0


@pytest.mark.parametrize("host", [10.0, 40.0], ids=["far ahead", "close"])
def test_what_holds_a_kernel_up_behind_other_work_is_not_lost(host: float) -> None:
    """A kernel starts 60 us after the one before it ends, on its own stream: no launch explains that."""
    writer, edges = TraceWriter(), [0.0]
    now, free = 0.0, 0.0
    for _ in range(6):
        for _ in range(10):
            writer.row("aten::add", "cpu_op", now, host)
            start = max(now + host + 2.5, free + 60.0)
            writer.launch(now + host - 5, 5, start=start, length=30.0)
            free = start + 30.0
            now += host
        writer.row("cudaDeviceSynchronize", "cuda_runtime", now, free + 5 - now)
        now = free + 10
        edges.append(now)
    program = program_of(writer, edges)
    replay = Replay(program)
    assert replay.run().step_ns == pytest.approx(observed_step_ns(program), rel=0.02)
    shorter = replay.run(Edit(duration=0.5))
    saved_us = (replay.run().step_ns - shorter.step_ns) / 1e3
    assert saved_us == pytest.approx(10 * 15.0, rel=0.1), "what holds them up remains"


def test_calibration_takes_the_profilers_cost_out_of_dispatch() -> None:
    program = program_of(*steady(6, host=20.0, device=4.0))
    found = calibrate(Replay(program), true_ms=0.5)
    assert found.dispatch_scale == pytest.approx(0.5 / 0.8, rel=0.02)
    assert found.replayed_true_ms == pytest.approx(0.5, rel=0.001)


def test_calibration_leaves_the_kernels_of_a_device_bound_step_alone() -> None:
    program = program_of(*steady(6, host=6.0, device=30.0))
    found = calibrate(Replay(program), true_ms=observed_step_ns(program) / 1e6)
    assert found.device_scale == pytest.approx(1.0, abs=0.01)


def test_a_long_silence_of_the_host_is_host_work_and_not_dispatch() -> None:
    program = program_of(*steady(6, host=20.0, device=4.0, pause=3000.0))
    replay = Replay(program)
    per_step = program.work[:, Work.HOST].sum() / program.steps
    assert per_step == pytest.approx(3_000_000, rel=0.05)
    assert replay.run(Edit(work={Work.HOST: 0.0})).step_ns == pytest.approx(800_000, rel=0.05)


@pytest.mark.parametrize(
    ("name", "host_us"),
    [("aten::copy_", 2_000), ("aten::select", 0), ("PythonSubclass", 0)],
    ids=["entries", "views", "a function of the program"],
)
def test_many_small_operators_on_data_between_two_device_calls_are_host_work(
    name: str, host_us: float
) -> None:
    writer = TraceWriter()
    for begin in (0.0, 2_500.0):
        writer.launch(begin, 5, start=begin + 10, length=20)
        for k in range(200):
            writer.row(name, "cpu_op", begin + 300 + 10 * k, 8)
        writer.launch(begin + 2_400, 5, start=begin + 2_410, length=20)
    program = program_of(writer, [0, 2_500, 5_000])
    assert program.work[:, Work.HOST].sum() / 2_000 == pytest.approx(host_us, rel=0.02)


def test_what_the_compiler_does_around_its_ranges_is_compiling_too() -> None:
    """Guards before the first range, wrappers after the last: up to the nearest operator or call."""
    writer = TraceWriter()
    writer.row("TorchDynamo Cache Lookup", "cpu_op", 10, 20)
    writer.row("dynamo", "cpu_op", 50, 5_000)
    writer.row("compile_fx_inner (dynamo_timed)", "cpu_op", 500, 4_000)
    writer.launch(5_400, 10, start=5_420, length=20)
    writer.launch(5_500, 10, start=5_520, length=20)
    program = program_of(writer, [0, 6_000])
    compiling = program.work[:, Work.COMPILE].sum()
    assert compiling == pytest.approx(1000 * (5_400 - 30))
    assert program.work.sum() == pytest.approx(1000 * 6_000)
