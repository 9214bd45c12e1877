"""How much faster math gets in another type, and which kernels do."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import FlopCount, MaskFacts, Run
from torch_bottleneck.timeline.gpu.device_work import read_device_work
from torch_bottleneck.timeline.gpu.math_rates import FIXED_NS, attention_speed_up, math_speed_up
from torch_bottleneck.timeline.gpu.questions.circumstances import Circumstances
from torch_bottleneck.timeline.gpu.questions.device import device_questions
from torch_bottleneck.timeline.steps.facts import Facts

from .test_gpu_compute import BF16, FP32, Steps

LARGE = {"fp32": 50.0, "tf32": 400.0, "bf16": 800.0, "fp16": 800.0}
OWN = {"fp32": 40.0, "tf32": 100.0, "bf16": 160.0}
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8"
ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)"


def run_of(*, products: float = 0.0, **more: object) -> Run:
    flops = FlopCount(step=1, flops=4.0, by_operator={"mm": 4.0 * products, "convolution": 4 - 4 * products})
    return Run(matmul_tflops=LARGE, flops=flops, **more)  # type: ignore[arg-type]


def test_products_count_at_the_step_s_own_sizes_and_other_math_at_those_of_a_large_one() -> None:
    plain = math_speed_up(run_of(), None, of="fp32", to="tf32")
    assert plain is not None
    assert (plain.ratio, plain.fixed_ns) == (8.0, FIXED_NS)
    own = math_speed_up(run_of(products=1.0, product_tflops=OWN), None, of="fp32", to="tf32")
    assert own is not None
    assert (own.ratio, own.fixed_ns) == (2.5, 0.0)
    half = math_speed_up(run_of(products=0.5, product_tflops=OWN), None, of="fp32", to="tf32")
    assert half is not None
    assert half.ratio == pytest.approx((0.5 / 40 + 0.5 / 50) / (0.5 / 100 + 0.5 / 400))
    assert half.fixed_ns == FIXED_NS / 2
    assert "50 % of it in products of the step's own sizes" in half.told


def test_what_runs_in_tf32_gains_less_from_16_bits() -> None:
    found = math_speed_up(run_of(), None, of="tf32", to="bf16")
    assert found is not None
    assert found.ratio == 2.0
    published = math_speed_up(None, "9.0", of="tf32", to="bf16")
    assert published is not None
    assert published.ratio == 2.0
    assert math_speed_up(None, "7.0", of="tf32", to="fp16") is None
    assert math_speed_up(None, None, of="fp32", to="bf16") is None


def test_attention_gains_as_much_as_was_timed() -> None:
    otherwise = math_speed_up(run_of(), None, of="fp32", to="bf16")
    assert attention_speed_up(None, otherwise) is otherwise
    timed = run_of(masks=MaskFacts(calls=3, single_ms=(6.0, 4.0)))
    found = attention_speed_up(timed, otherwise)
    assert found is not None
    assert (found.ratio, found.fixed_ns) == (1.5, 0.0)


def factors(writer: Steps, run: Run | None = None) -> dict[WhatIf, list[float]]:
    """Return what is left of each kernel of a step."""
    trace, program = writer.read()
    known = Circumstances(facts=Facts(true_ms=1.0, run=run or run_of(products=1.0, product_tflops=OWN)))
    asked = device_questions(program, read_device_work(trace, program), known)
    each = {question.name: np.asarray(question.edit.duration) for question in asked}
    return {name: duration.reshape(2, -1)[0].tolist() for name, duration in each.items()}


def test_no_switch_reaches_what_solves_and_autocast_not_its_backward() -> None:
    writer = Steps()
    writer.op("aten::mm", FP32)
    writer.op("aten::linalg_solve_triangular", FP32)
    for step in (0, 1000):
        writer.row("LinalgSolveTriangularBackward0", "cpu_op", step + writer.at - 1, 20)
    writer.op("aten::mm", FP32)
    found = factors(writer)
    assert found[WhatIf.TF32] == pytest.approx([0.4, 1.0, 0.4])
    assert found[WhatIf.BF16] == pytest.approx([0.25, 1.0, 1.0])


@pytest.mark.parametrize(("allowed", "left"), [(True, 1.0), (None, 1.0), (False, 0.4)])
def test_convolutions_in_fp32_stay_where_cudnn_may_use_tf32(allowed: bool | None, left: float) -> None:
    writer = Steps()
    writer.op("aten::mm", FP32)
    writer.op("aten::convolution_backward", FP32)
    settings = {} if allowed is None else {"cudnn.allow_tf32": allowed}
    found = factors(writer, run_of(products=1.0, product_tflops=OWN, settings=settings))
    assert found[WhatIf.TF32] == pytest.approx([0.4, left])
    assert found[WhatIf.BF16] == pytest.approx([0.25, 0.25])


def test_in_bf16_each_kernel_gains_by_its_own_type() -> None:
    writer = Steps()
    writer.op("aten::mm", FP32)
    writer.op("aten::mm", TF32)
    writer.op("aten::mm", BF16)
    writer.op("aten::_efficient_attention_forward", ATTENTION)
    run = run_of(products=1.0, product_tflops=OWN, masks=MaskFacts(calls=1, single_ms=(8.0, 4.0)))
    assert factors(writer, run)[WhatIf.BF16] == pytest.approx([0.25, 100 / 160, 1.0, 0.5])
