"""How much faster full-precision math gets in a smaller type: measured, or by published peaks.

In: measured dense matmul rates, the device's compute capability. Out: a speed-up and its source; None
for a device that is not known, never another device's figure.
"""

from __future__ import annotations

__all__ = ["PEAK_RATIO", "math_speed_up"]

PEAK_RATIO: dict[str, dict[str, float]] = {
    # Dense peak rate over plain fp32, from NVIDIA's architecture white papers (V100 to B200).
    "7.0": {"fp16": 8.0},
    "7.5": {"fp16": 8.0},
    "8.0": {"tf32": 8.0, "bf16": 16.0, "fp16": 16.0},
    "8.6": {"tf32": 1.0, "bf16": 2.0, "fp16": 2.0},
    "8.9": {"tf32": 1.0, "bf16": 2.0, "fp16": 2.0},
    "9.0": {"tf32": 7.4, "bf16": 14.8, "fp16": 14.8},
    "10.0": {"tf32": 14.0, "bf16": 28.0, "fp16": 28.0},
}

_REAL_SHARE = 0.72
"""Exponent on the peak ratio: a step's matmuls are smaller than a benchmark's and read their operands
from memory. On an H200 a GPT's fp32 matmuls gained 4.2x from TF32 where the peak ratio is 7.4."""


def math_speed_up(
    target: str, measured: dict[str, float], capability: str | None
) -> tuple[float, str] | None:
    """Return the speed-up of fp32 math in a smaller type, and where it comes from.

    Args:
        target: "tf32", "bf16" or "fp16".
        measured: dense matmul rates by dtype, TFLOP/s; may be empty.
        capability: compute capability, like "9.0".

    Returns:
        (factor, source in words), or None when neither is known.
    """
    if measured.get("fp32") and measured.get(target):
        ratio, source = measured[target] / measured["fp32"], "measured on this device"
    else:
        peak = PEAK_RATIO.get(capability or "", {}).get(target)
        if peak is None:
            return None
        ratio, source = peak, "published peak rates"
    gain = max(1.0, ratio**_REAL_SHARE)
    return gain, f"{ratio:.1f}x by {source}, discounted to {gain:.1f}x"
