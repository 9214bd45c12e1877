"""What the math ran as, what ran compiled, which back end of attention, and what bf16 would halve."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.model.work import ComputeFacts
from torch_bottleneck.timeline.gpu.compute import (
    attention_backends,
    compiled_work,
    slowest_backend,
    trace_compute,
)
from torch_bottleneck.timeline.gpu.device_work import read_device_work
from torch_bottleneck.timeline.lanes.program import Program, build_program
from torch_bottleneck.timeline.trace.table import Trace

from .traces import TraceWriter

BF16 = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"


class Steps(TraceWriter):
    """Two steps of 1000 us; operators and their kernels follow one another."""

    def __init__(self) -> None:
        super().__init__()
        self.steps([0, 1000, 2000])
        self.at = 0.0

    def op(self, name: str, kernel: str, length: float = 10.0) -> None:
        for step in (0, 1000):
            begin = step + self.at
            self.row(name, "cpu_op", begin, 8)
            self.launch(begin + 2, 3, kernel=kernel, start=begin + 10, length=length)
        self.at += 40

    def read(self) -> tuple[Trace, Program]:
        trace = self.build()
        program = build_program(trace, np.asarray([0, 1_000_000, 2_000_000]))
        assert program is not None
        return trace, program


def compute_of(writer: Steps, *, counted: tuple[str, ...] = ()) -> ComputeFacts:
    trace, program = writer.read()
    return trace_compute(
        trace,
        program,
        read_device_work(trace, program),
        memory_bound_ms=0.02,
        true_ms=1.0,
        device_scale=1.0,
        counted=counted,
    )


def test_the_time_of_the_math_is_told_by_type_and_unit() -> None:
    writer = Steps()
    writer.op("aten::mm", BF16, 30)
    writer.op("aten::mm", FP32, 10)
    writer.op("aten::gelu", GELU, 20)
    found = compute_of(writer)
    assert [(r.dtype, r.tensor_cores, r.share) for r in found.math] == [
        ("bf16", True, pytest.approx(0.75)),
        ("fp32", False, pytest.approx(0.25)),
    ]
    assert found.tensor_core_share == pytest.approx(0.75)
    assert found.math_share == pytest.approx(0.04)


def test_the_count_covers_the_math_that_counted_operators_launched() -> None:
    writer = Steps()
    writer.op("aten::mm", FP32, 30)
    writer.op("triton_tem_fused_mm_0", "triton_tem_fused_mm_0", 10)
    assert compute_of(writer, counted=("aten::mm",)).flops_cover == pytest.approx(0.75)
    assert compute_of(writer).flops_cover is None


def test_what_fusing_takes_away_is_all_but_the_longest_of_neighbours() -> None:
    writer = Steps()
    writer.op("aten::mm", FP32, 30)
    for length in (5, 20, 10):
        writer.op("aten::gelu", GELU, length)
    writer.op("aten::mm", FP32, 30)
    writer.op("aten::gelu", GELU, 7)
    assert compute_of(writer).fusable_ms == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("aten::_scaled_dot_product_flash_attention", "flash"),
        ("aten::_scaled_dot_product_efficient_attention_backward", "efficient"),
        ("aten::_scaled_dot_product_cudnn_attention", "cudnn"),
        ("aten::_scaled_dot_product_attention_math", "math"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "efficient"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "flash"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob", "cudnn"),
    ],
)
def test_the_back_end_is_told_by_operators_or_kernels(name: str, backend: str) -> None:
    writer = TraceWriter()
    writer.row(name, "cpu_op", 0, 1)
    trace = writer.build()
    assert backend in attention_backends(trace)


def test_of_several_back_ends_the_slowest_is_the_one_to_ask_about() -> None:
    writer = TraceWriter()
    writer.row("aten::_scaled_dot_product_flash_attention", "cpu_op", 0, 1)
    assert slowest_backend(writer.build()) == "flash"
    writer.row("aten::_scaled_dot_product_attention_math", "cpu_op", 2, 1)
    assert slowest_backend(writer.build()) == "math"
    assert slowest_backend(TraceWriter().build()) is None


def test_compiled_work_is_what_compiled_regions_launched() -> None:
    writer = Steps()
    for step in (0, 1000):
        writer.row("Torch-Compiled Region: 0/0", "cpu_op", step, 75)
    writer.op("aten::mm", FP32, 30)
    writer.op("aten::gelu", GELU, 10)
    writer.op("aten::mm", FP32, 10)  # behind the region
    trace, program = writer.read()
    found = compiled_work(trace, program)
    assert found is not None
    assert found.kernel_share == pytest.approx(2 / 3)
    assert found.time_share == pytest.approx(0.8)
    assert found.regions == 1
    assert compiled_work(*without_regions().read()) is None


def without_regions() -> Steps:
    writer = Steps()
    writer.op("aten::mm", FP32, 30)
    return writer


def test_kernels_of_a_cuda_graph_are_one_launch_and_have_no_count() -> None:
    writer = Steps()
    for step in (0, 1000):
        writer.row("Torch-Compiled Region: 0/0", "cpu_op", step + 100, 50)
        correlation = writer.next_correlation
        writer.next_correlation += 1
        writer.row("cudaGraphLaunch", "cuda_runtime", step + 110, 10, correlation=correlation)
        for k in range(3):
            writer.row(
                FP32, "kernel", step + 130 + 10 * k, 8, "7", correlation=correlation, stream=7, device=0
            )
    found = compiled_work(*writer.read())
    assert found is not None
    assert (found.graph_launches, found.kernel_share) == (1.0, None)


def test_bf16_halves_what_follows_a_product_up_to_what_is_lifted_to_fp32() -> None:
    writer = Steps()
    writer.op("aten::gelu", GELU)  # before any product
    writer.op("aten::mm", FP32)
    writer.op("aten::gelu", GELU)
    writer.op("aten::mul", GELU)
    writer.op("aten::native_layer_norm", NORM)
    writer.op("aten::gelu", GELU)  # of the norm's output, which is in fp32
    trace, program = writer.read()
    low = read_device_work(trace, program).low_traffic
    assert low.reshape(2, -1)[0].tolist() == [False, False, True, True, False, False]


NODE = "autograd::engine::evaluate_function: IndexBackward0"
SUMS = "void at::native::indexing_backward_kernel_stride_1<float>"


def picking(*, mask: bool) -> Steps:
    """An index and its backward; of a mask it asks where the mask holds."""
    writer = Steps()
    for step in (0, 1000):
        writer.row("aten::index", "cpu_op", step, 75, sequence=3)
        writer.row(NODE, "cpu_op", step + 78, 40, sequence=3)
    writer.op("aten::nonzero" if mask else "aten::view", "select", 10)
    writer.op("aten::gather", "gather", 10)
    writer.op("aten::_index_put_impl_", SUMS, 30)
    writer.op("aten::mm", FP32, 10)
    return writer


def test_what_picks_by_a_mask_is_told_with_its_backward_and_is_no_sum_of_rows() -> None:
    work = read_device_work(*picking(mask=True).read())
    assert work.picked.tolist() == 2 * [True, True, True, False]
    assert not work.index_sums.any(), "a mask names no row twice"
    work = read_device_work(*picking(mask=False).read())
    assert not work.picked.any()
    assert work.index_sums.tolist() == 2 * [False, False, True, False]
