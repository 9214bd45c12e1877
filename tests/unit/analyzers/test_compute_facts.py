"""Compute-bound's second question: what is said of rates, and where nothing is."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers import find_all
from torch_bottleneck.analyzers.sections.compute_facts import compute_facts
from torch_bottleneck.model.run import Artefact, FlopCount, Run
from torch_bottleneck.model.work import ComputeFacts, MathRow

from .facts import STEP_MS, facts

BF16 = MathRow(dtype="bf16", tensor_cores=True, ms=60.0, share=1.0)
MIXED = (
    MathRow(dtype="tf32", tensor_cores=True, ms=30.0, share=0.5),
    MathRow(dtype="fp32", tensor_cores=False, ms=30.0, share=0.5),
)
TFLOP = 20.0


def joined(
    *,
    math: tuple[MathRow, ...] = (BF16,),
    device: str = "NVIDIA H200",
    tflop: float | None = TFLOP,
    cover: float | None = 1.0,
    context: dict[str, object] | None = None,
    run: Run | None = None,
) -> ComputeFacts:
    count = FlopCount(step=30, flops=tflop * 1e12) if tflop is not None else None
    found = compute_facts(
        facts(
            context={"device.name": device, **(context or {})},
            compute=ComputeFacts(math=math, math_share=0.6, flops_cover=cover),
            run=run or Run(flops=count),
        )
    )
    assert found is not None
    return found


def test_achieved_is_over_the_step_and_utilisation_over_the_peak_of_the_type() -> None:
    found = joined()
    assert found.achieved_tflops == pytest.approx(TFLOP / STEP_MS * 1e3)
    assert found.math_tflops == pytest.approx(TFLOP / 60.0 * 1e3)
    assert (found.peak_tflops, found.peak_dtype) == (989.5, "bf16")
    assert found.utilisation == pytest.approx(200.0 / 989.5)
    assert found.math[0].peak_tflops == 989.5


def test_of_several_types_the_peak_is_what_the_device_could_do_in_the_time_of_each() -> None:
    found = joined(math=MIXED)
    assert found.peak_tflops == pytest.approx((494.5 + 67) / 2)
    assert found.peak_dtype == "tf32 50 %, fp32 50 %"


def test_an_unknown_device_says_so_unless_its_rate_was_timed() -> None:
    unknown = joined(device="Some GPU")
    assert (unknown.peak_tflops, unknown.utilisation) == (None, None)
    assert "no peak is known" in unknown.peak_source
    assert unknown.achieved_tflops is not None
    run = Run(flops=FlopCount(step=1, flops=TFLOP * 1e12), matmul_tflops={"bf16": 400.0})
    timed = joined(device="Some GPU", run=run)
    assert timed.utilisation == pytest.approx(0.5)
    assert "timed on this device" in timed.peak_source


def test_a_count_that_misses_math_gives_no_rate() -> None:
    found = joined(cover=0.4)
    assert (found.achieved_tflops, found.utilisation) == (None, None)
    assert found.tflop_per_step == TFLOP
    assert "not counted" in found.flops_from


def test_no_count_says_why() -> None:
    run = Run(artefacts={"flops": Artefact(status="absent", reason="time limit")})
    found = joined(run=run)
    assert (found.tflop_per_step, found.flops_from) == (None, "not counted: time limit")
    nothing = joined(tflop=0.0)
    assert nothing.tflop_per_step is None
    assert "CUDA graphs" in nothing.flops_from


def test_steps_of_different_sizes_give_no_rate_from_one_of_them() -> None:
    found = joined(context={"step.varying_shapes": True})
    assert found.achieved_tflops is None
    assert "one size among several" in found.flops_from


def test_the_finding_tells_types_rate_and_padding() -> None:
    given = facts(
        context={"device.name": "NVIDIA H200", "batch.padding_share": 0.25},
        compute=ComputeFacts(math=MIXED, math_share=0.6, tensor_core_share=0.5, flops_cover=1.0),
        run=Run(flops=FlopCount(step=30, flops=TFLOP * 1e12)),
    )
    busy = next(f for f in find_all(given) if f.code == "BN301")
    told = " | ".join(e.text for e in busy.evidence)
    assert "tf32 50 %, fp32 50 % outside the tensor cores" in told
    assert "200 TFLOP/s achieved over the step" in told
    assert "25 % of the batch is padding" in told
