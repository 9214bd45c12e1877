"""Counting a step: device work by its launch, waits by their call, the lower median over steps."""

from __future__ import annotations

import pytest
from recorded.diagnosed import diagnosis_of
from unit.timeline.traces import TraceWriter

from torch_bottleneck.model.counters import COUNTERS
from torch_bottleneck.model.run import (
    CompileFacts,
    Counters,
    DeviceFacts,
    GraphBreak,
    OptimizerFacts,
    Recompile,
    Run,
    SiteTime,
    SourceSite,
    StepTable,
    Window,
)
from torch_bottleneck.timeline.counts.counters import count_steps
from torch_bottleneck.timeline.steps.traced import find_steps


def count(writer: TraceWriter, **facts):
    trace = writer.build()
    return count_steps(trace, find_steps(trace), **facts)


def gpu_steps(waits: list[int]) -> TraceWriter:
    """Steps of 100 us; the device runs each kernel 150 us after its launch: in the next step."""
    writer = TraceWriter()
    writer.steps([100.0 * k for k in range(len(waits) + 1)])
    for k, n in enumerate(waits):
        for i in range(3):
            begin = 100.0 * k + 10 * i
            writer.row("aten::mul", "cpu_op", begin, 8)
            writer.launch(begin + 1, 2, start=begin + 150, length=5)
        for i in range(n):
            writer.row("cudaStreamSynchronize", "cuda_runtime", 100.0 * k + 60 + i, 0.5)
    return writer


def test_device_work_counts_in_the_step_that_launched_it():
    found = count(gpu_steps([0, 0, 0, 0]))
    assert found.device == "gpu"
    assert found.values["kernels"].value == 3
    assert found.values["kernels"].low is None, "every step launches three, wherever they ran"
    assert found.values["launches"].value == 3
    assert found.names == {"void at::native::vectorized_elementwise_kernel<4>": 3.0}


def test_a_step_that_logs_widens_the_range_and_leaves_the_value():
    found = count(gpu_steps([1, 1, 5, 1]))
    assert (found.values["syncs"].value, found.values["syncs"].low, found.values["syncs"].high) == (1, 1, 5)


def test_the_value_is_a_count_that_occurred():
    assert count(gpu_steps([2, 3, 2, 3])).values["syncs"].value == 2


def test_dropped_kernels_make_the_counter_absent_not_small():
    found = count(gpu_steps([0, 0]), missing=4)
    assert "kernels" not in found.values
    assert "4 launches" in found.absent["kernels"]


def test_copies_between_host_and_device_count_with_their_bytes_and_copies_within_it_do_not():
    writer = gpu_steps([0, 0])
    for k in (0, 1):
        for i, name in enumerate(("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD (Device -> Device)")):
            writer.launch(
                100.0 * k + 70 + 5 * i, 2, kernel=name, start=100.0 * k + 80, length=1,
                call="cudaMemcpyAsync", cat="gpu_memcpy",
            )  # fmt: skip
            writer.rows[-1]["bytes"] = 4096
    found = count(writer)
    assert found.values["copies"].value == 1
    assert found.values["copied_bytes"].value == 4096


def cpu_steps(reads_in_optimizer: int, reads: int, label: str = "Optimizer.step#Adam.step") -> TraceWriter:
    writer = TraceWriter()
    writer.steps([0.0, 100.0, 200.0])
    for begin in (0.0, 100.0):
        writer.row("aten::addmm", "cpu_op", begin + 1, 20)
        writer.row("forward", "user_annotation", begin + 25, 20)
        for i in range(reads):
            writer.row("aten::_local_scalar_dense", "cpu_op", begin + 26 + i, 0.5)
        writer.row(label, "user_annotation", begin + 50, 30)
        for i in range(reads_in_optimizer):
            writer.row("aten::_local_scalar_dense", "cpu_op", begin + 51 + i, 0.5)
    return writer


def optimizer(module: str) -> Run:
    return Run(optimizers=[OptimizerFacts(cls="Adam", module=module)], devices=[DeviceFacts(kind="cpu")])


def test_without_a_device_reads_by_python_stand_for_synchronisations():
    found = count(cpu_steps(0, 3))
    assert found.device == "cpu"
    assert found.values["syncs"].value == 3
    assert found.syncs[0].phase == "forward"
    assert "kernels" in found.absent and found.values["operators"].value == 4


def test_torchs_own_optimizers_read_cpu_tensors_on_any_device_so_those_do_not_count():
    run = optimizer("torch.optim.adam")
    assert count(cpu_steps(4, 1), run=run).values["syncs"].value == 1


def test_an_optimizer_of_the_users_own_counts():
    run = optimizer("my_project.optim")
    assert count(cpu_steps(4, 1), run=run).values["syncs"].value == 5


def test_a_line_of_the_users_is_found_from_recorded_frames():
    writer = cpu_steps(0, 1)
    for begin in (0.0, 100.0):
        writer.row("model.py(48): training_step", "python_function", begin + 24, 22)
    site = count(writer).syncs[0].site
    assert site is not None and (site.file, site.line) == ("model.py", 48)


def test_a_line_that_the_gate_writes_into_the_trace_outranks_the_frames():
    writer = cpu_steps(0, 1)
    for begin in (0.0, 100.0):
        writer.row("model.py(40): training_step", "python_function", begin + 24, 22)
        writer.row("read at src/model.py(48): training_step", "user_annotation", begin + 25.9, 2)
    found = count(writer).syncs[0]
    assert found.site is not None
    assert (found.site.file, found.site.line, found.phase) == ("src/model.py", 48, "forward")


def test_without_lines_in_the_trace_those_of_the_memory_window_serve():
    site = SourceSite(file="train.py", line=7)
    run = Run(
        devices=[DeviceFacts(kind="cuda")],
        windows=[Window(name="memory", status="ok", steps=StepTable(index=[40, 41], wall_ms=[1.0, 1.0]))],
        sites=[SiteTime(site=site, phase="synchronisation", count=6)],
    )
    found = count(gpu_steps([3, 3]), run=run)
    assert [(item.what, item.site, item.count) for item in found.syncs] == [("synchronisation", site, 3.0)]


def allocator_run(**after: int) -> Run:
    def counters(values: dict[str, int]) -> Counters:
        return Counters(allocator=values)

    keys = ("allocation.all.allocated", "segment.all.allocated", "segment.all.freed")
    return Run(
        devices=[DeviceFacts(kind="cuda")],
        windows=[
            Window(
                name="baseline",
                status="ok",
                steps=StepTable(index=[5, 6], wall_ms=[1.0, 1.0]),
                before=counters(dict.fromkeys(keys, 10)),
                after=counters({**dict.fromkeys(keys, 10), **after}),
            )
        ],
    )


def test_allocator_counters_are_means_over_the_baseline_window():
    run = allocator_run(
        **{"allocation.all.allocated": 30, "segment.all.freed": 13, "segment.all.allocated": 11}
    )
    found = count(gpu_steps([0, 0]), run=run)
    assert found.values["allocations"].value == 10
    assert found.values["segments"].value == 2
    assert "peak_allocated_bytes" in found.absent, "not measured is not zero"
    assert found.run_steps == 7


def test_compiler_counters_keep_the_step_of_each_recompilation():
    facts = CompileFacts(
        used=True,
        unique_graphs=3,
        breaks=[GraphBreak(reason="print")],
        recompiles=[Recompile(frame="f", count=2, steps=[9, 4])],
    )
    found = count(gpu_steps([0, 0]), compile_facts=facts)
    assert (found.values["graph_breaks"].value, found.values["recompiles"].value) == (1, 2)
    assert found.recompile_steps == (4, 9)


def test_without_whole_steps_nothing_is_counted_and_it_says_so():
    writer = TraceWriter()
    writer.row("aten::mul", "cpu_op", 0, 1)
    found = count(writer)
    assert found.values == {}
    assert set(found.absent) == set(COUNTERS)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # 3 reads for each of 146 parameters, one blocking copy each.
        ("example-sync-bound", {"syncs": 438, "copies": 438, "copied_bytes": 876, "kernels": 1117}),
        ("ddp-h200", {"syncs": 0, "collectives": 26, "collective_bytes": 881_696_768}),
        ("example-graph-breaks-cpu", {"syncs": 0, "graph_breaks": 1, "graphs": 4}),
        ("example-allocator-thrashing", {"segments": 26.8, "peak_allocated_bytes": 3_643_995_136}),
    ],
)
def test_recorded_runs_count_what_their_scripts_do(case, expected):
    counters = diagnosis_of(case).counters
    assert counters is not None
    assert {name: counters.value(name) for name in expected} == expected
    assert set(counters.values) | set(counters.absent) == set(COUNTERS), "each is measured or says why not"
