"""One and the same training run, as profilers of different versions and vendors would write it.

The files are made here; the dialects follow pytorch/kineto's sources and public traces: category
names before and after torch 1.13, absolute microseconds before torch 2.4, ROCm's call names and its
copies that are called kernels, CUDA graphs whose kernels share one correlation, CPU only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from torch_bottleneck.ingest import read_trace
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.dialect import Kind, is_launch, normalise

if TYPE_CHECKING:
    from pathlib import Path

    from torch_bottleneck.timeline.trace.table import Trace

MAIN, AUTOGRAD, STREAM = 100, 101, 7
LAYERS = 4
STEP_US = 1000


@dataclass(frozen=True)
class Dialect:
    """How one profiler writes a training run."""

    op: str = "cpu_op"
    annotation: str = "user_annotation"
    runtime: str = "cuda_runtime"
    kernel: str = "kernel"
    memcpy: str = "gpu_memcpy"
    launch: str = "cudaLaunchKernel"
    copy: str = "cudaMemcpyAsync"
    copied: str = "Memcpy HtoD (Pinned -> Device)"
    external_id: str = "External id"
    stream: int | str = STREAM
    device: bool = True
    graph: bool = False
    base_ns: int | None = 1790857026000000000
    origin_us: float = 4312767512000.0
    step_annotations: bool = True
    optimizer_annotations: bool = True
    optimizers: tuple[str, ...] = ("AdamW",)


DIALECTS: dict[str, Dialect] = {
    "torch 1.8": Dialect(
        op="Operator",
        annotation="Operator",
        runtime="Runtime",
        kernel="Kernel",
        memcpy="Memcpy",
        external_id="external id",
        base_ns=None,
        origin_us=1640000000000000,
    ),
    "torch 1.13": Dialect(base_ns=None, origin_us=1680000000000000),
    "torch 2.6": Dialect(),
    "ROCm 5": Dialect(
        runtime="Runtime",
        memcpy="kernel",
        launch="hipLaunchKernel",
        copy="hipMemcpyAsync",
        copied="CopyHostToDevice",
        stream="0x7",
    ),
    "ROCm 6": Dialect(runtime="hip_runtime", launch="hipExtModuleLaunchKernel", copy="hipMemcpyWithStream"),
    "CUDA graph": Dialect(launch="cudaGraphLaunch", graph=True),
    "CPU only": Dialect(device=False),
}


@dataclass
class Writer:
    """Writes the events of a few steps in a dialect."""

    dialect: Dialect
    events: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    def add(
        self, cat: str, name: str, pid: int, tid: object, at: float, length: float, **args: object
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": self.dialect.origin_us + at,
                "dur": length,
                "args": args,
            }
        )

    def call(self, name: str, tid: int, at: float, device_names: list[str], cat: str) -> None:
        d = self.dialect
        if not d.device:
            return
        self.number += 1
        ids: dict[str, object] = {"correlation": self.number, d.external_id: self.number}
        self.add(d.runtime, name, MAIN, tid, at, 5, **ids)
        for i, device_name in enumerate(device_names):
            node = {"graph node id": i + 1} if d.graph and cat == d.kernel else {}
            self.add(
                cat, device_name, 0, STREAM, at + 20 + 30 * i, 25, stream=d.stream, device=0, **ids, **node
            )

    def step(self, k: int) -> None:
        d, at = self.dialect, float(k * STEP_US)
        if d.step_annotations:
            self.add(d.annotation, f"ProfilerStep#{k}", MAIN, MAIN, at, STEP_US - 2)
            if d.device:
                self.add("gpu_user_annotation", f"ProfilerStep#{k}", 0, STREAM, at + 40, 700)
        self.add(d.annotation, "[pl][profile]run_training_batch", MAIN, MAIN, at + 90, 800)
        self.add(d.op, "aten::to", MAIN, MAIN, at + 100, 20)
        self.call(d.copy, MAIN, at + 102, [d.copied], d.memcpy)
        if d.graph:
            self.call(d.launch, MAIN, at + 150, [f"layer{i}" for i in range(LAYERS)], d.kernel)
        for i in range(0 if d.graph else LAYERS):
            self.add(d.op, "aten::mm", MAIN, MAIN, at + 150 + 20 * i, 15)
            self.call(d.launch, MAIN, at + 152 + 20 * i, ["gemm"], d.kernel)
            back = at + 400 + 20 * i
            self.add(d.op, "autograd::engine::evaluate_function: MmBackward0", MAIN, AUTOGRAD, back, 15)
            self.call(d.launch, AUTOGRAD, back + 2, ["gemm_backward"], d.kernel)
        name = d.optimizers[k % len(d.optimizers)]
        if d.optimizer_annotations:
            self.add(d.annotation, f"Optimizer.step#{name}.step", MAIN, MAIN, at + 700, 100)
            # A subclass that calls super().step() is seen twice.
            self.add(d.annotation, f"Optimizer.step#{name}.step", MAIN, MAIN, at + 710, 50)
        self.add(d.op, "aten::_fused_adamw_", MAIN, MAIN, at + 720, 30)
        self.call(d.launch, MAIN, at + 722, ["adamw"], d.kernel)

    def write(self, path: Path, steps: int) -> Trace:
        for k in range(steps):
            self.step(k)
        document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": self.events}
        if self.dialect.base_ns is not None:
            document["baseTimeNanoseconds"] = self.dialect.base_ns
        path.write_text(json.dumps(document, indent=1))
        return read_trace(path)


def made(folder: Path, dialect: str | Dialect, *, steps: int = 6, **changes: Any) -> tuple[Trace, float]:
    base = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    chosen = Dialect(**{**base.__dict__, **changes})
    return Writer(chosen).write(folder / "t.json", steps), chosen.origin_us


def starts_us(trace: Trace, origin_us: float, **kwargs: Any) -> list[int]:
    return [round(t / 1000 - origin_us) for t in find_steps(trace).start_ns]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rows_mean_the_same(tmp_path: Path, dialect: str) -> None:
    trace, _ = made(tmp_path, dialect)
    d = DIALECTS[dialect]
    counts = np.bincount(trace.kind, minlength=12)
    launches = 0 if not d.device else 6 * 2 if d.graph else 6 * (2 * LAYERS + 1)
    assert counts[Kind.KERNEL] == (6 * (LAYERS + 1) if d.graph else launches)
    assert counts[Kind.MEMCPY] == (6 if d.device else 0)
    assert counts[Kind.RUNTIME] == launches + (6 if d.device else 0)
    assert counts[Kind.GPU_ANNOTATION] == (6 if d.device else 0)
    assert counts[Kind.OTHER] == 0
    if d.device:
        assert set(trace.stream[trace.kind == Kind.KERNEL].tolist()) == {STREAM}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_profiler_s_own_steps(tmp_path: Path, dialect: str) -> None:
    trace, origin = made(tmp_path, dialect)
    steps = find_steps(trace)
    assert steps.how == "ProfilerStep"
    assert steps.numbers.tolist() == list(range(6))
    assert starts_us(trace, origin) == [k * STEP_US for k in range(6)]
    assert (steps.end_ns - steps.start_ns == (STEP_US - 2) * 1000).all()
    assert trace.tids[steps.thread[1]] == str(MAIN)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_steps_from_the_optimizer(tmp_path: Path, dialect: str) -> None:
    trace, origin = made(tmp_path, dialect, step_annotations=False)
    steps = find_steps(trace)
    assert steps.how == "optimizer"
    assert starts_us(trace, origin) == [k * STEP_US + 800 for k in range(5)]


def test_two_optimizers_in_turn_make_one_step_of_two_updates(tmp_path: Path) -> None:
    trace, origin = made(tmp_path, "torch 2.6", steps=9, step_annotations=False, optimizers=("SGD", "Adam"))
    steps = find_steps(trace)
    assert steps.how == "optimizer"
    assert starts_us(trace, origin) == [k * STEP_US + 800 for k in (0, 2, 4, 6)]
    assert "2 optimizer updates" in steps.note


def test_optimizers_in_no_order_cut_at_the_rarest(tmp_path: Path) -> None:
    order = ("D", "D", "G", "D", "D", "D", "G", "D", "G")
    trace, origin = made(tmp_path, "torch 2.6", steps=9, step_annotations=False, optimizers=order)
    steps = find_steps(trace)
    assert steps.how == "optimizer"
    assert starts_us(trace, origin) == [k * STEP_US + 800 for k in (2, 6)]
    assert "rarest" in steps.note


def test_two_optimizers_after_one_backward_are_one_update(tmp_path: Path) -> None:
    writer = Writer(Dialect(step_annotations=False))
    for k in range(4):
        writer.step(k)
        writer.add("user_annotation", "Optimizer.step#Muon.step", MAIN, MAIN, k * STEP_US + 810, 50)
    trace = writer.write(tmp_path / "t.json", 0)
    steps = find_steps(trace)
    assert steps.how == "optimizer"
    assert starts_us(trace, writer.dialect.origin_us) == [k * STEP_US + 860 for k in range(3)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_steps_from_what_repeats(tmp_path: Path, dialect: str) -> None:
    trace, _ = made(tmp_path, dialect, step_annotations=False, optimizer_annotations=False)
    steps = find_steps(trace)
    assert steps.how == "repeats"
    assert len(steps) == 5
    assert (steps.end_ns - steps.start_ns == STEP_US * 1000).all()
    assert "guess" in steps.note


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_single_step_is_the_whole_window(tmp_path: Path, dialect: str) -> None:
    trace, _ = made(tmp_path, dialect, steps=1, step_annotations=False)
    steps = find_steps(trace)
    assert steps.how == "window"
    assert len(steps) == 1
    assert int(steps.end_ns[0] - steps.start_ns[0]) >= 700_000


def test_an_empty_last_step_is_left_out(tmp_path: Path) -> None:
    writer = Writer(Dialect())
    for k in range(3):
        writer.step(k)
    writer.add("user_annotation", "ProfilerStep#3", MAIN, MAIN, 3 * STEP_US, 4)
    assert find_steps(writer.write(tmp_path / "t.json", 0)).numbers.tolist() == [0, 1, 2]


def test_launching_threads_come_busiest_first(tmp_path: Path) -> None:
    trace, _ = made(tmp_path, "torch 2.6")
    threads = [trace.tids[tid] for _, tid in find_steps(trace).threads]
    assert threads == [str(MAIN), str(AUTOGRAD)]


def test_the_device_s_waits_are_read(tmp_path: Path) -> None:
    writer = Writer(Dialect())
    waits = {"stream": 7, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 77, "device": 0}
    writer.add("cuda_sync", "Stream Wait Event", 0, STREAM, 300, 2, correlation=99, **waits)
    trace = writer.write(tmp_path / "t.json", 2)
    row = np.flatnonzero(trace.kind == Kind.SYNC)
    assert len(row) == 1


def test_a_trace_of_nothing_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    assert len(find_steps(read_trace(tmp_path / "t.json"))) == 0


@pytest.mark.parametrize(
    "name", ["cuLaunchKernelEx", "cudaLaunchKernelExC", "hipGraphLaunch", "hipLaunchKernel"]
)
def test_calls_that_launch(name: str) -> None:
    assert is_launch(name)


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaLaunchHostFunc", "cudaStreamSynchronize"])
def test_calls_that_do_not(name: str) -> None:
    assert not is_launch(name)


def test_an_unknown_category_is_other() -> None:
    assert normalise("mtia_insight") is Kind.OTHER


def test_lanes_for_display_are_no_streams(tmp_path: Path) -> None:
    """torch 2.15 with `graph_lanes="all"`: the work of a graph is shown on one lane, whatever ran it."""
    writer = Writer(Dialect())
    for k, stream in enumerate((20, 21, 7)):
        lane = {"stream": 7, "original_stream": stream} if stream != 7 else {"stream": 7}
        writer.add("kernel", "graphed", 0, 7, 100 * k, 10, correlation=5, device=0, **lane)
    writer.add("kernel", "named", 0, 9, 500, 10, correlation=6, device=0, stream=9, annotated_stream=30)
    trace = writer.write(tmp_path / "t.json", 0)
    assert trace.stream[trace.kind == Kind.KERNEL].tolist() == [20, 21, 7, 9]


def test_calls_that_belong_to_no_operator_are_joined_by_correlation_alone(tmp_path: Path) -> None:
    """torch 2.15: their external id is 0, and their correlation may be the id of an operator."""
    writer = Writer(Dialect())
    writer.add("cpu_op", "aten::other", MAIN, MAIN, 0, 50, **{"External id": 7})
    writer.add("cuda_runtime", "cudaLaunchKernel", MAIN, MAIN, 100, 5, correlation=7, **{"External id": 0})
    writer.add("cuda_runtime", "cudaLaunchKernel", MAIN, MAIN, 200, 5, correlation=0, **{"External id": 0})
    for at, correlation in ((110, 7), (210, 0)):
        told = {"correlation": correlation, "stream": STREAM, "device": 0, "External id": 0}
        writer.add("kernel", f"k{correlation}", 0, STREAM, at, 10, **told)
    trace = writer.write(tmp_path / "t.json", 0)
    callers = [trace.names[trace.name[row]] if row >= 0 else None for row in trace.launched_by.tolist()]
    starts = [int(trace.ts_ns[row]) if row >= 0 else None for row in trace.launched_by.tolist()]
    assert callers == ["cudaLaunchKernel", None]
    assert starts[0] == trace.ts_ns[trace.kind == Kind.RUNTIME][0]
