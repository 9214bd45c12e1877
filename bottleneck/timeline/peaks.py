"""Published peaks of common accelerators: dense math by type, memory bandwidth.

In: a device's name as torch gives it. Out: its `Peak`, or None for a device that is not in the table:
never another device's figures.

Figures are without structured sparsity, TFLOP/s (1e12) at boost clock and GB/s (1e9); where a data sheet
gives sparse rates only, half of them. fp32 is the rate of the ordinary cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PEAKS", "Peak", "peak_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One part."""

    pattern: str
    """Regular expression over the name that torch reports; the first row that matches counts."""
    tflops: dict[str, float]
    """By type as kernels are classified: fp32, tf32, bf16, fp16, fp8, fp64."""
    bandwidth_gbps: float
    source: str

    def of(self, dtype: str) -> float | None:
        """Return the peak in a type; "half" is either 16-bit type."""
        return self.tflops.get("fp16" if dtype == "half" else dtype)


def _row(pattern: str, source: str, gbps: float, **tflops: float) -> Peak:
    return Peak(pattern=pattern, source=source, bandwidth_gbps=gbps, tflops=tflops)


PEAKS: tuple[Peak, ...] = (
    # NVIDIA Blackwell
    _row(r"\bGB200\b", "NVIDIA GB200 NVL72 data sheet", 8000, fp32=80, tf32=1250, bf16=2500, fp16=2500, fp8=5000),
    _row(r"\bB200\b", "NVIDIA HGX B200 data sheet", 7700, fp32=75, tf32=1125, bf16=2250, fp16=2250, fp8=4500),
    # NVIDIA Hopper
    _row(
        r"H200 NVL", "NVIDIA H200 data sheet", 4800, fp64=30, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5
    ),
    _row(r"\bH200\b", "NVIDIA H200 data sheet", 4800, fp64=34, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    _row(r"GH200", "NVIDIA GH200 data sheet", 4000, fp64=34, fp32=67, tf32=494, bf16=990, fp16=990, fp8=1979),
    _row(r"H100 NVL", "NVIDIA H100 data sheet", 3900, fp64=30, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5),
    _row(r"H100 PCIe", "NVIDIA H100 PCIe product brief", 2000, fp64=26, fp32=51, tf32=378, bf16=756, fp16=756, fp8=1513),
    _row(r"\bH100\b", "NVIDIA H100 data sheet", 3350, fp64=34, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    # NVIDIA Ada
    _row(r"\bL40S\b", "NVIDIA L40S data sheet", 864, fp32=91.6, tf32=183, bf16=362, fp16=362, fp8=733),
    _row(r"\bL40\b", "NVIDIA L40 data sheet", 864, fp32=90.5, tf32=90.5, bf16=181, fp16=181, fp8=362),
    _row(r"\bL4\b", "NVIDIA L4 data sheet", 300, fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5),
    _row(
        r"RTX 4090(?! (D|Laptop))",
        "NVIDIA Ada GPU architecture white paper",
        1008,
        fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3,
    ),
    # NVIDIA Ampere
    _row(r"A100.*80GB PCIe|A100 80GB PCIe", "NVIDIA A100 data sheet", 1935, fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"A100.*80GB", "NVIDIA A100 data sheet", 2039, fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"\bA100\b", "NVIDIA A100 data sheet", 1555, fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"\bA30\b", "NVIDIA A30 data sheet", 933, fp64=5.2, fp32=10.3, tf32=82, bf16=165, fp16=165),
    _row(r"\bA40\b", "NVIDIA A40 data sheet", 696, fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7),
    _row(r"\bA10\b", "NVIDIA A10 data sheet", 600, fp32=31.2, tf32=62.5, bf16=125, fp16=125),
    _row(r"RTX A6000", "NVIDIA RTX A6000 data sheet", 768, fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8),
    _row(
        r"RTX 3090(?! (Ti|Laptop))",
        "NVIDIA Ampere GA102 GPU architecture white paper",
        936,
        fp32=35.6, tf32=35.6, bf16=71, fp16=71,
    ),
    # NVIDIA Turing and Volta
    _row(r"\bT4\b", "NVIDIA T4 data sheet", 300, fp32=8.1, fp16=65),
    _row(r"V100S", "NVIDIA V100 data sheet", 1134, fp64=8.2, fp32=16.4, fp16=130),
    _row(r"V100-PCI|V100.*PCIe", "NVIDIA V100 data sheet", 900, fp64=7, fp32=14, fp16=112),
    _row(r"\bV100\b|V100-SXM", "NVIDIA V100 data sheet", 900, fp64=7.8, fp32=15.7, fp16=125),
    # AMD: fp32 of the matrix cores, which rocBLAS uses for it
    _row(r"MI325X", "AMD Instinct MI325X data sheet", 6000, fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9),
    _row(r"MI300X", "AMD Instinct MI300X data sheet", 5300, fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9),
    # One device of torch is one of the two dies of the card: half of the card's figures.
    _row(r"MI250X", "AMD Instinct MI250X data sheet, per die", 1638, fp64=47.9, fp32=47.9, bf16=191.5, fp16=191.5),
    _row(r"MI210", "AMD Instinct MI210 data sheet", 1638, fp64=45.3, fp32=45.3, bf16=181, fp16=181),
)  # fmt: skip


def peak_of(device_name: str) -> Peak | None:
    """Return the peaks of a device, None when it is not in the table."""
    return next((peak for peak in PEAKS if device_name and re.search(peak.pattern, device_name)), None)
