"""Kernels, labels and frames are told by their names, in the spellings of every vendor and version."""

from __future__ import annotations

import pytest

from torch_bottleneck.model.codes import Part
from torch_bottleneck.timeline.lanes.labels import Work, label_of
from torch_bottleneck.timeline.trace.kernels import classify
from torch_bottleneck.timeline.trace.stacks import UserFrames, parse_frame

from .traces import TraceWriter

# ruff: noqa: E501  (kernel names are as long as they are)
KERNELS = [
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", Part.TENSOR_CORE, "matmul", "bf16"),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", Part.TENSOR_CORE, "matmul", "fp16"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_aligna4_cublas", Part.OTHER_MATH, "matmul", "fp32"),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage3_cublas", Part.TENSOR_CORE, "matmul", "tf32"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)", Part.OTHER_MATH, "matmul", "fp32"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4>(Params)", Part.TENSOR_CORE, "matmul", "tf32"),
    ("ampere_sgemm_128x64_nn", Part.OTHER_MATH, "matmul", "fp32"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", Part.TENSOR_CORE, "matmul", "bf16"),
    ("volta_h884gemm_128x128_ldg8_tn", Part.TENSOR_CORE, "matmul", "fp16"),
    ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16", Part.TENSOR_CORE, "matmul", "bf16"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", Part.TENSOR_CORE, "attention", "half"),
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", Part.TENSOR_CORE, "attention", ""),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", Part.OTHER_MATH, "attention", "fp32"),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>", Part.MEMORY_BOUND, "layout", ""),
    ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1>", Part.OTHER_MATH, "conv", "fp32"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", Part.MEMORY_BOUND, "fill", ""),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizer>", Part.MEMORY_BOUND, "multi-tensor", ""),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>", Part.MEMORY_BOUND, "softmax", ""),
    ("triton_poi_fused_gelu_view_7", Part.MEMORY_BOUND, "fused", ""),
    ("triton_tem_fused_mm_3", Part.OTHER_MATH, "matmul", ""),
    ("triton_poi_fused__to_copy_convolution_relu_4", Part.MEMORY_BOUND, "fused", ""),
    ("triton_red_fused_mm_sum_7", Part.MEMORY_BOUND, "fused", ""),
    ("triton_tem_fused__to_copy_convolution_2", Part.OTHER_MATH, "conv", ""),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Part.COMMUNICATION, "communication", ""),
    ("Memcpy DtoD (Device -> Device)", Part.MEMORY_BOUND, "copy", ""),
    ("Memcpy HtoD (Pageable -> Device)", Part.COPIES, "copy", ""),
    ("my_own_kernel(float*, int)", Part.OTHER_MATH, "other", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "part", "family", "dtype"), KERNELS, ids=[k[0][:40] for k in KERNELS])
def test_a_kernel_is_told_by_its_name(name: str, part: Part, family: str, dtype: str) -> None:
    kind = classify(name)
    assert (kind.part, kind.family) == (part, family)
    if dtype:
        assert kind.dtype == dtype


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("data", Work.INPUT),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Work.INPUT),
        ("Optimizer.step#AdamW.step", Work.OPTIMIZER),
        ("Optimizer.zero_grad#AdamW.zero_grad", Work.ZERO_GRAD),
        ("forward", Work.DISPATCH),
        ("DistributedDataParallel.forward", Work.DISPATCH),
        ("evaluation", Work.HOST),
        ("compile_fx_inner (dynamo_timed)", Work.COMPILE),
        ("aten::add", None),
        ("my label", None),
        ("ProfilerStep#3", None),
    ],
)
def test_a_label_says_what_the_host_does(name: str, work: Work | None) -> None:
    assert label_of(name) is work


@pytest.mark.parametrize(
    ("frame", "file", "line"),
    [
        ("train.py(48): main", "train.py", 48),
        ("/home/me/project/model.py(7): forward", "/home/me/project/model.py", 7),
        ("models/net.py(12): __call__", "models/net.py", 12),
        ("torch/nn/modules/module.py(1779): _wrapped_call_impl", None, None),
        ("threading.py(975): run", None, None),
        ("/usr/lib/python3.11/contextlib.py(81): inner", None, None),
        ("/x/site-packages/einops/einops.py(3): rearrange", None, None),
        ("<built-in method item of Tensor object at 0x7f>", None, None),
        ("<string>(1): <module>", None, None),
    ],
)
def test_a_frame_belongs_to_the_user_or_to_a_library(frame: str, file: str | None, line: int | None) -> None:
    site = parse_frame(frame)
    assert (site.file, site.line) == (file, line) if site is not None else file is None


def test_the_innermost_user_frame_is_found_through_library_frames() -> None:
    writer = TraceWriter()
    writer.row("train.py(10): main", "python_function", 0, 1000)
    writer.row("model.py(5): forward", "python_function", 100, 50)
    writer.row("model.py(9): forward", "python_function", 200, 300)
    writer.row("torch/_tensor.py(3): item", "python_function", 250, 100)
    trace = writer.build()
    frames = UserFrames(trace)
    tid = int(trace.tid[0])
    assert frames.at(300_000, tid).line == 9
    assert frames.at(170_000, tid).line == 10
    assert frames.at(2_000_000, tid) is None
