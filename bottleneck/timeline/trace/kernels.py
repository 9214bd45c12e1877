"""What a device kernel is, derived from its name.

In: kernel names. Out: `KernelKind` per name: the budget part it belongs to, its arithmetic type
where the name gives it, and a family that fixes speak of (attention, norm, layout, ...).

Names are read by families of spelling, not by lists of kernels: cuBLAS / cuBLASLt (`*gemm*`,
`nvjet_*`, `xmma`), CUTLASS (`cutlass_80_tensorop_*`, `cutlass_80_simt_*`), cuDNN
(`cudnn_generated_*`, `implicit_convolve_*`), FlashAttention (`flash_*`, `fmha*`), Triton as
inductor names it (`triton_poi|red|per|tem|mm_*`), ATen templates, NCCL / RCCL, and rocBLAS
(`Cijk_*`). A name that fits none is `family="other"` and counted as other math.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from .table import Trace

CollectiveSort = Literal["sum", "gather", "scatter", "exchange"]
Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "half", "fp8", "int8", ""]
Family = Literal[
    "matmul", "conv", "attention", "softmax", "norm", "loss", "layout", "copy", "fill",
    "multi-tensor", "elementwise", "reduction", "indexing", "fused", "communication", "other",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKind:
    """Class of one kernel name; `part` ignores where it was launched (the optimizer label does)."""

    part: Part
    family: Family
    dtype: Dtype = ""


_COMMUNICATION = re.compile(
    r"nccl|rccl|mscclpp|nvshmem|oneccl|symm_mem|one_shot_all_reduce|two_shot_all_reduce", re.IGNORECASE
)
_MESSAGE = re.compile(r"SendRecv|^(gloo:|mpi:|c10d::)(send|recv|coalesced)")
_BROADCAST = re.compile(r"(nccl|rccl)\w*Broadcast", re.IGNORECASE)
_ATTENTION = re.compile(
    r"flash_?(fwd|bwd|attn|fprop|bprop)|fmha|_sdpa_|mha_|AttentionKernel|AttentionBackwardKernel"
    r"|fused_attention|flex_attention|ck_tile.*Fmha|cudnn::fusion::(compute_dot|convert_dq)",
    re.IGNORECASE,
)
_CONV = re.compile(
    r"convolve|conv\dd|_conv_|cudnn.*conv(?!ert)|xmma_(fprop|dgrad|wgrad)|(fprop|dgrad|wgrad)_|winograd"
    r"|conv_depthwise|implicit_gemm|dgrad2d|wgrad2d|fprop2d|miopen.*conv|naive_conv|cudnn.*_engine_"
    r"|ConvolutionFwd|triton_(?!poi|red|per)\w*convolution",
    re.IGNORECASE,
)
_MATMUL = re.compile(
    r"gemm|gemv|nvjet_|cublas.*(dot|mm)|^Cijk_|triton_(mm|bmm|tem)|triton_(?!poi|red|per)\w*_mm_|matmul"
    r"|splitKreduce|cublasLt|dot_kernel|cutlass_\d+_",
    re.IGNORECASE,
)
_LAYOUT = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchwAddPadding|transpose_readWrite|batched_transpose", re.IGNORECASE
)
_FUSED = re.compile(r"^triton_|inductor|CompiledFxGraph|nvfuser", re.IGNORECASE)

_ATEN_FAMILIES: tuple[tuple[re.Pattern[str], Family], ...] = (
    (re.compile(r"multi_tensor_apply"), "multi-tensor"),
    (re.compile(r"soft_?max", re.IGNORECASE), "softmax"),
    (
        re.compile(
            r"layer_?norm|group_?norm|rms_?norm|batch_?norm|bn_fw|bn_bw|GammaBeta|instance_norm",
            re.IGNORECASE,
        ),
        "norm",
    ),
    (re.compile(r"nll_loss|cross_entropy|bce|mse_loss|ctc", re.IGNORECASE), "loss"),
    (re.compile(r"FillFunctor|fill_kernel|memset", re.IGNORECASE), "fill"),
    (
        re.compile(r"direct_copy|copy_kernel|CatArray|StoreWithCast|unpack|split_with_sizes", re.IGNORECASE),
        "copy",
    ),
    (
        re.compile(r"index|gather|scatter|embedding|sort|topk|unique|triu_tril|masked", re.IGNORECASE),
        "indexing",
    ),
    (re.compile(r"reduce_kernel|ReduceOp|sum_|mean|norm_kernel|scan_|cub::", re.IGNORECASE), "reduction"),
    (
        re.compile(
            r"elementwise|vectorized|distribution|dropout|pointwise|pool|upsample|lerp|addc",
            re.IGNORECASE,
        ),
        "elementwise",
    ),
)  # fmt: skip

_FULL_FP32 = re.compile(
    r"_ffma_|simt_s|sgemm(?!.*(tensorop|1688|tf32))|f32f32_f32f32_f32|gemmSN|scudnn|_fp32_"
    r"|implicit_convolve_sgemm|gemvN[SNT]P.*float|_f32_aligned",
    re.IGNORECASE,
)
_TF32 = re.compile(r"tf32|s1688(?!.*(f16|bf16))|tensorop_s\d*gemm_(?!f16|bf16)", re.IGNORECASE)
_TENSOR_CORE = re.compile(
    r"tensorop|wgmma|s16816|s1688|h1688|h884|s884|i8816|i16832|16816|hmma|imma|mma_sync|_mma_|nvjet_"
    r"|sm90_xmma|sm100|tcgen05|warpgroup|bf16|f16f16|_h_bz|MFMA|_MI\d+x|flash_",
    re.IGNORECASE,
)


def _dtype(name: str, family: Family) -> Dtype:
    lowered = name.lower()
    if re.search(r"e4m3|e5m2|fp8|f8f8|nvjet_(sm\d+_)?q", lowered):
        return "fp8"
    # cuBLASLt's nvjet kernels spell the operand types: t = bf16, h = fp16, s = fp32 through tf32.
    nvjet = re.match(r"nvjet_(?:sm\d+_)?([a-z])", lowered)
    if nvjet:
        table: dict[str, Dtype] = {"t": "bf16", "h": "fp16", "s": "tf32", "d": "fp64"}
        return table.get(nvjet[1], "")
    if re.search(r"bf16|bfloat16|bfloat", lowered) or "_BBS_" in name or "_BSS_" in name:
        return "bf16"
    if _TF32.search(name):
        return "tf32"
    if _FULL_FP32.search(name):
        return "fp32"
    if re.search(r"dgemm|f64|double", lowered):
        return "fp64"
    if re.search(r"f16|half|hgemm|h16816|h1688|h884", lowered) or "_HHS_" in name:
        # FlashAttention and cuDNN write f16 for fp16 and bf16 alike.
        return "half" if family == "attention" else "fp16"
    if family in ("matmul", "conv") and re.search(r"float|sgemm|_f32", lowered):
        return "fp32"
    return ""


@lru_cache(maxsize=65536)
def classify(name: str) -> KernelKind:
    """Tell what a kernel is from its name, demangled or mangled.

    Never raises: an unknown name is other math of family "other".
    """
    if name.startswith(("Memcpy DtoD", "CopyDeviceToDevice")):
        # clone() and contiguous(): traffic of the device's own memory, like a copying kernel.
        return KernelKind(part=Part.MEMORY_BOUND, family="copy")
    if name.startswith(("Memcpy", "Copy")):
        return KernelKind(part=Part.COPIES, family="copy")
    if name.startswith("Memset"):
        return KernelKind(part=Part.MEMORY_BOUND, family="fill")
    if _COMMUNICATION.search(name):
        return KernelKind(part=Part.COMMUNICATION, family="communication")
    if _LAYOUT.search(name):
        return KernelKind(part=Part.MEMORY_BOUND, family="layout")
    family: Family
    if _ATTENTION.search(name):
        family = "attention"
    elif "at::native" in name and not re.search(r"conv_depthwise|gemm|gemv", name):
        # ATen's own templates carry functor names that look like math; they move memory.
        for pattern, aten_family in _ATEN_FAMILIES:
            if pattern.search(name):
                return KernelKind(part=Part.MEMORY_BOUND, family=aten_family)
        return KernelKind(part=Part.MEMORY_BOUND, family="elementwise")
    elif _CONV.search(name):
        family = "conv"
    elif _MATMUL.search(name):
        family = "matmul"
    elif _FUSED.search(name):
        return KernelKind(part=Part.MEMORY_BOUND, family="fused")
    else:
        for pattern, other_family in _ATEN_FAMILIES:
            if pattern.search(name):
                return KernelKind(part=Part.MEMORY_BOUND, family=other_family)
        return KernelKind(part=Part.OTHER_MATH, family="other")
    dtype = _dtype(name, family)
    on_tensor_cores = dtype not in ("fp32", "fp64") and (
        bool(_TENSOR_CORE.search(name)) or dtype in ("tf32", "bf16", "fp16", "half", "fp8")
    )
    return KernelKind(
        part=Part.TENSOR_CORE if on_tensor_cores else Part.OTHER_MATH, family=family, dtype=dtype
    )


def is_collective(name: str) -> bool:
    """Return whether a kernel of that name is a collective."""
    return classify(name).part is Part.COMMUNICATION


_SORTS: tuple[tuple[str, CollectiveSort], ...] = (
    ("reducescatter", "scatter"),
    ("allreduce", "sum"),
    ("allgather", "gather"),
    ("alltoall", "exchange"),
)


def sort_of_collective(name: str) -> CollectiveSort | None:
    """Return what a collective does, from its name or its kernel's in any spelling; None for other ones."""
    spelled = name.lower().replace("_", "")
    return next((sort for part, sort in _SORTS if part in spelled), None)


def is_broadcast(name: str) -> bool:
    """Return whether a kernel of that name sends what one rank has to all others."""
    return bool(_BROADCAST.search(name))


def is_message(name: str) -> bool:
    """Return whether something of that name goes from one rank to another, as between stages.

    Two ranks only leave it together, and which two is not written.
    """
    return bool(_MESSAGE.search(name))


def are_messages(trace: Trace, rows: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return which of the rows are messages; NCCL's kernel of that name may also be an exchange of all."""
    out = trace.named(is_message, rows)
    told = np.asarray([is_message(f"c10d::{m.collective.lower()}") for m in trace.messages], dtype=bool)
    message = trace.message[rows]
    known = message >= 0
    out[known] = told[message[known]]
    return out
