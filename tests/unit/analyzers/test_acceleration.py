"""The acceleration state: what ran outranks what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from torch_bottleneck.analyzers.sections.acceleration import acceleration_rows
from torch_bottleneck.analyzers.sections.context import _compile
from torch_bottleneck.catalog.conditions import evaluate
from torch_bottleneck.catalog.registry import by_id
from torch_bottleneck.model.diagnosis import SettingRow
from torch_bottleneck.model.run import CompileEvent, CompileFacts
from torch_bottleneck.model.work import CompileSummary, ComputeFacts, MathRow


def math(**shares: float) -> ComputeFacts:
    return ComputeFacts(
        math=tuple(
            MathRow(dtype=name, tensor_cores=name != "fp32", ms=share, share=share)
            for name, share in shares.items()
        ),
        attention="none seen",
    )


def rows(
    context: Mapping[str, object] | None = None,
    *,
    compute: ComputeFacts | None = None,
    compiled: CompileSummary | None = None,
    kind: str = "cuda",
) -> dict[str, SettingRow]:
    given = {"device.kind": kind, "device.capability": 9.0, **(context or {})}
    found = acceleration_rows(given, {}, compute=compute, compiled=compiled)  # type: ignore[arg-type]
    return {row.name: row for row in found}


@pytest.mark.parametrize(
    ("asked", "ran", "state"),
    [
        ("none", math(fp32=1.0), "off"),
        ("bfloat16", math(bf16=0.97, fp32=0.03), "on"),
        ("bfloat16", math(bf16=0.4, fp32=0.6), "partly"),
        ("bfloat16", math(fp32=1.0), "partly"),  # asked for, and nothing came of it
        ("none", math(bf16=1.0), "on"),  # a model cast to bfloat16
        ("none", None, "off"),
        (None, None, "unknown"),
    ],
)
def test_mixed_precision_is_told_by_the_time_of_the_math(asked, ran, state) -> None:
    assert rows({"autocast.dtype": asked}, compute=ran)["mixed precision"].state == state


@pytest.mark.parametrize(
    ("precision", "ran", "state"),
    [
        ("highest", math(fp32=1.0), "off"),
        ("high", math(tf32=1.0), "on"),
        ("high", math(tf32=0.5, fp32=0.5), "partly"),
        ("high", math(fp32=1.0), "off"),  # asked for, yet another kind of kernel ran
        ("highest", math(bf16=1.0), "not applicable"),
        ("high", None, "on"),
        ("highest", None, "off"),
    ],
)
def test_tf32_is_told_by_kernels_before_flags(precision, ran, state) -> None:
    assert rows({"matmul.precision": precision}, compute=ran)["TF32"].state == state


def test_tf32_is_no_matter_of_older_devices_nor_of_none() -> None:
    assert rows({"device.capability": 7.5})["TF32"].state == "not applicable"
    assert rows(kind="cpu")["TF32"].state == "not applicable"


@pytest.mark.parametrize(
    ("seen", "backends", "state"),
    [
        ("fused", ("flash",), "on"),
        ("both", ("flash",), "partly"),
        ("scores in memory", ("math",), "off"),
        ("none seen", (), "not applicable"),
    ],
)
def test_the_back_end_of_attention_that_ran_is_named(seen, backends, state) -> None:
    row = rows(compute=ComputeFacts(attention=seen, attention_backends=backends))["fused attention"]
    assert row.state == state
    assert all(name in row.value for name in backends)


def test_what_is_compiled_and_never_called_is_said() -> None:
    context = _compile(CompileFacts(used=False, compiled_modules=["Net"]))
    row = rows(context)["torch.compile"]
    assert (row.state, row.value) == ("off", "asked for but not in use, Net")
    fix = by_id("FX414")
    condition, code = fix.other_code[-1]
    assert evaluate(condition, context) and "the one it returns" in code
    assert rows(_compile(CompileFacts(used=False)))["torch.compile"].value == ""


def test_what_fails_to_compile_and_runs_without_is_not_in_force() -> None:
    fails = CompileEvent(frame="forward", fail="BackendCompilerFailed")
    row = rows(_compile(CompileFacts(used=True, mode="default", compiles=[fails])))["torch.compile"]
    assert (row.state, row.value) == ("off", "asked for but it fails, BackendCompilerFailed")
    other = CompileEvent(frame="loss")
    row = rows(_compile(CompileFacts(used=True, mode="default", compiles=[fails, other])))["torch.compile"]
    assert row.state != "off"


def test_compile_tells_its_coverage_and_cuda_graphs_what_was_launched() -> None:
    context = {"compile.used": True, "compile.mode": "reduce-overhead", "compile.breaks": 0}
    part = rows(context, compiled=CompileSummary(compiled_time_share=0.5, compiled_kernel_share=0.4))
    assert part["torch.compile"].state == "partly"
    assert "50 % of forward's and backward's work" in part["torch.compile"].value
    assert "CUDA graphs" not in part
    graphs = rows(context, compiled=CompileSummary(compiled_time_share=0.99, graph_launches_per_step=2.0))
    assert (graphs["torch.compile"].state, graphs["CUDA graphs"].state) == ("on", "on")
    skipped = rows(
        context,
        compiled=CompileSummary(
            compiled_time_share=0.99, graph_launches_per_step=0.0, cudagraph_skips=("cpu device",)
        ),
    )
    assert (skipped["CUDA graphs"].state, skipped["CUDA graphs"].value) == ("off", "asked for, 1 skipped")


def test_zero_grad_without_a_call_is_told_by_its_fills() -> None:
    assert rows({"kernels.zero_grad_share": 0.02})["gradients set to None"].state == "off"
    assert rows({"zero_grad.set_to_none": True})["gradients set to None"].state == "on"
    assert rows()["gradients set to None"].state == "unknown"


def test_the_loader_and_the_allocator_show_how_they_were_set() -> None:
    found = rows(
        {
            "loader.present": True,
            "loader.num_workers": 4,
            "loader.persistent_workers": False,
            "loader.prefetch_factor": 2,
            "loader.pin_memory": True,
            "allocator.backend": "cudaMallocAsync",
            "allocator.expandable_segments": False,
        }
    )
    assert (found["DataLoader workers"].value, found["persistent workers"].state) == ("4", "off")
    assert found["batches queued ahead"].value == "2 batches per worker"
    assert found["pinned batches"].state == "on"
    assert found["caching allocator"].value == "cudaMallocAsync"
