"""How much faster full-precision math gets in a smaller type: measured, or by published peaks.

In: measured dense matmul rates, the device's compute capability. Out: a speed-up and its source; None
for a device that is not known, never another device's figure.
"""

from __future__ import annotations

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


def math_speed_up(
    target: str, measured: dict[str, float], capability: str | None
) -> tuple[float, str] | None:
    """Return (speed-up of fp32 math in "tf32", "bf16" or "fp16", source in words); None if neither is known.

    `measured`: dense matmul rates by dtype, TFLOP/s; `capability`: compute capability, like "9.0".
    """
    if measured.get("fp32") and measured.get(target):
        ratio, source = measured[target] / measured["fp32"], "measured on this device"
    else:
        peak = PEAK_RATIO.get(capability or "", {}).get(target)
        if peak is None:
            return None
        ratio, source = peak, "published peak rates"
    return max(1.0, ratio), f"{ratio:.1f}x by {source}"
