"""How much faster full-precision math gets in a smaller type: measured, or by published peaks.

In: measured rates of dense products, large ones and the step's own, the device's compute capability. Out: a
`SpeedUp`; None for a device that is not known, never another device's figure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model.run import Run
from ...model.words import percent

PEAK_RATIO: dict[str, dict[str, float]] = {
    # Dense peak rate over plain fp32, from the rows of peaks.py; where parts of one capability differ
    # (8.6: A40 and RTX 3090, 8.9: L40S and RTX 4090), that of the part that gains least.
    "7.0": {"fp16": 8.0},
    "7.5": {"fp16": 8.0},
    "8.0": {"tf32": 8.0, "bf16": 16.0, "fp16": 16.0},
    "8.6": {"tf32": 1.0, "bf16": 2.0, "fp16": 2.0},
    "8.9": {"tf32": 1.0, "bf16": 2.0, "fp16": 2.0},
    "9.0": {"tf32": 7.4, "bf16": 14.8, "fp16": 14.8},
    "10.0": {"tf32": 14.7, "bf16": 30.0, "fp16": 30.0},
}

FIXED_NS = 20_000.0
"""Time per kernel that a faster unit does not shorten: operand traffic, the last wave, the epilogue.
On an H200 with a peak ratio of 15.8 (bf16) and 8.4 (TF32), 75 fp32 kernels of 41 ms in all took 4.4 and
7.0 ms: the quotient, and 24 to 28 us each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """How much faster math is in another type."""

    ratio: float
    """At least 1."""
    fixed_ns: float
    """What of each kernel stays besides."""
    told: str


def attention_speed_up(run: Run | None, otherwise: SpeedUp | None) -> SpeedUp | None:
    """Return how much faster fused attention in fp32 gets in bf16: as timed, or as products do."""
    timed = run.masks.single_ms if run is not None and run.masks is not None else None
    if timed is None or min(timed) <= 0:
        return otherwise
    ratio = timed[0] / timed[1]
    return SpeedUp(ratio=max(1.0, ratio), fixed_ns=0.0, told=f"{ratio:.1f}x timed at its own sizes")


def math_speed_up(run: Run | None, capability: str | None, *, of: str, to: str) -> SpeedUp | None:
    """Return how much faster math in the type `of` gets in `to`: "fp32", "tf32", "bf16", "fp16".

    The rates of the step's largest products, at their own shapes, count for the share of all of its products
    in its FLOPs, and those of a large product for the rest. `capability`: compute capability, like "9.0".
    """
    large = run.matmul_tflops if run is not None else {}
    if run is not None and large.get(of) and large.get(to):
        own, share = run.product_tflops, run.flops.products_share if run.flops is not None else 0.0
        if not (own.get(of) and own.get(to)):
            own, share = large, 0.0
        took, takes = (share / own[kind] + (1.0 - share) / large[kind] for kind in (of, to))
        source = "measured on this device"
        source += f", {percent(share)} of it in products of the step's own sizes" if share > 0 else ""
        ratio, fixed_ns = took / takes, (1.0 - share) * FIXED_NS
    else:
        peaks = {"fp32": 1.0, **PEAK_RATIO.get(capability or "", {})}
        if of not in peaks or to not in peaks or len(peaks) == 1:
            return None
        ratio, source, fixed_ns = peaks[to] / peaks[of], "published peak rates", FIXED_NS
    return SpeedUp(ratio=max(1.0, ratio), fixed_ns=fixed_ns, told=f"{ratio:.1f}x by {source}")
