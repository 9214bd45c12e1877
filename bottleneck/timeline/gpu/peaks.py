"""Published peaks of common accelerators: dense math by type, memory bandwidth.

In: a device's name as torch gives it. Out: its `Peak`, or None for a device that is not in the table:
never another device's figures.

Figures are without structured sparsity, TFLOP/s (1e12) at boost clock and GB/s (1e9); where a data sheet
gives sparse rates only, half of them. fp32 is the rate of the ordinary cores. fp64 is that of the ordinary
cores on NVIDIA's parts, that of the matrix cores on AMD's.

Each row names the vendor's document that the figures belong to, and the pages (`seen`, looked up in November
2026) on which they were found again. A figure that was found on no page stands in `unconfirmed`, and whoever
uses it says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

BANDWIDTH = "bandwidth"
"""Stands for the memory bandwidth in `Peak.unconfirmed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One part."""

    pattern: str
    """Regular expression over the name that torch reports; the first row that matches counts."""
    tflops: dict[str, float]
    """By type as kernels are classified: fp32, tf32, bf16, fp16, fp8, fp64."""
    bandwidth_gbps: float
    source: str
    """The vendor's document."""
    seen: tuple[str, ...]
    """Pages on which the figures were found; none where all are unconfirmed."""
    unconfirmed: frozenset[str] = frozenset()
    """Types (or `BANDWIDTH`) whose figure was found on none of them."""

    def of(self, dtype: str) -> float | None:
        """Return the peak in a type; "half" is either 16-bit type."""
        return self.tflops.get(_key(dtype))

    def source_of(self, dtypes: Iterable[str]) -> str:
        """Return where the figures of these types come from, doubts included."""
        doubtful = any(_key(dtype) in self.unconfirmed for dtype in dtypes)
        return f"{self.source}, not confirmed" if doubtful else self.source


def _key(dtype: str) -> str:
    return "fp16" if dtype == "half" else dtype


_BLACKWELL = "https://zdszero.github.io/Computer/Artificial_Intelligence/Hardware.html"
_H100 = "https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html"
_H100_NOTES = "https://glennklockwood.com/garden/processors/h100"
_H200 = "https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html"
_TITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py"
_NANOCHAT = "https://github.com/karpathy/nanochat/blob/master/nanochat/common.py"
_LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/throughput.py"
_L40 = "https://www.mullet.se/product.html?product_id=355414"
_L4 = "https://grokipedia.com/page/NVIDIA_L4_vs_L40S"
_CARDS = "https://calwoo.github.io/notes/concepts/deep-learning-engineering/nvidia-gpu-hardware/index.html"
_4090 = "https://waredb.com/processor/nvidia-geforce-rtx-4090"
_3090 = "https://cuttingedgegamer.com/2022/12/"
_A100 = "https://glennklockwood.com/garden/processors/A100"
_A100_MEMORY = "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide"
_A40 = "https://hmc-tech.com/gpu/nvidia-a40-vs-nvidia-grid-a100b"
_A40_MEMORY = "https://www.ecer.com/corp/details-uuuedqa-p1bsay9-multi-display-setups-supported-by-48gb-gddr6-ecc-memory-nvidia-a40-gpu-and-vga-outputs.html"
_A10_MEMORY = "https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/"
_T4_MEMORY = "https://sysrqmts.com/gpus/compare/nvidia-a100-sxm4-40-gb-vs-nvidia-tesla-t4"
_V100 = "https://maosong.website/p/nvidia-gpu-specs"
_V100_MEMORY = "https://sysrqmts.com/gpus/compare/nvidia-a100-pcie-vs-nvidia-tesla-v100-pcie-16-gb"
_MI325X = "https://www.nextplatform.com/2024/10/10/amd-gives-nvidia-some-serious-heat-in-gpu-compute/"
_MI325X_MEMORY = "https://www.svethardware.cz/amd-predstavilo-instinct-mi325x-s-256gb-pameti-hbm3e-slibuje-i-vykonnejsi-mi355x/61224"
_MI300X_MEMORY = "https://www.codesota.com/hardware/mi300x"
_MI250X = "https://zexron.com/amd-mi250-x-aldebaran-as-mcm-with-up-to-479-teraflop-s-and-560-watt-tdp"
_MI250_MEMORY = "https://rocm.docs.amd.com/en/latest/conceptual/gpu-arch/mi250.html"


def _row(
    pattern: str, source: str, gbps: float, seen: Iterable[str], unconfirmed: str = "", **tflops: float
) -> Peak:
    return Peak(
        pattern=pattern,
        source=source,
        bandwidth_gbps=gbps,
        tflops=tflops,
        seen=tuple(seen),
        unconfirmed=frozenset(unconfirmed.split()),
    )


PEAKS: tuple[Peak, ...] = (
    # NVIDIA Blackwell
    _row(r"\bGB200\b", "NVIDIA Blackwell data sheet (GB200 NVL72)", 8000, [_BLACKWELL],
         fp64=40, fp32=80, tf32=1250, bf16=2500, fp16=2500, fp8=5000),
    _row(r"\bB200\b", "NVIDIA Blackwell data sheet (HGX B200)", 7700, [_BLACKWELL],
         fp64=37, fp32=75, tf32=1100, bf16=2250, fp16=2250, fp8=4500),
    # NVIDIA Hopper
    _row(r"H200 NVL", "NVIDIA H200 data sheet", 4800, [_NANOCHAT], "fp64 fp32 tf32 fp8 bandwidth",
         fp64=30, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5),
    # The same die as the H100 (SXM), other memory.
    _row(r"\bH200\b", "NVIDIA H200 data sheet", 4800, [_H200, _H100_NOTES],
         fp64=34, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    _row(r"GH200", "NVIDIA GH200 data sheet", 4000, [], "fp64 fp32 tf32 bf16 fp16 fp8 bandwidth",
         fp64=34, fp32=67, tf32=494, bf16=990, fp16=990, fp8=1979),
    _row(r"H100 NVL", "NVIDIA H100 data sheet", 3900, [_TITAN], "fp64 fp32 tf32 fp8 bandwidth",
         fp64=30, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5),
    _row(r"H100 PCIe", "NVIDIA H100 PCIe product brief", 2000, [_H100, _TITAN],
         fp64=26, fp32=51, tf32=378, bf16=756, fp16=756, fp8=1513),
    _row(r"\bH100\b", "NVIDIA H100 data sheet", 3350, [_H100, _H100_NOTES],
         fp64=34, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    # NVIDIA Ada
    _row(r"\bL40S\b", "NVIDIA L40S data sheet", 864, [_L40], fp32=91.6, tf32=183, bf16=362, fp16=362, fp8=733),
    _row(r"\bL40\b", "NVIDIA L40 data sheet", 864, [_L40], fp32=90.5, tf32=90.5, bf16=181, fp16=181, fp8=362),
    _row(r"\bL4\b", "NVIDIA L4 data sheet", 300, [_L4, _CARDS, _NANOCHAT], "tf32",
         fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5),
    _row(r"RTX 4090(?! (D|Laptop))", "NVIDIA Ada GPU architecture white paper", 1008, [_4090],
         fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3),
    # NVIDIA Ampere
    _row(r"A100.*80GB PCIe|A100 80GB PCIe", "NVIDIA A100 data sheet", 1935, [_A100, _A100_MEMORY],
         fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"A100.*80GB", "NVIDIA A100 data sheet", 2039, [_A100, _A100_MEMORY],
         fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"\bA100\b", "NVIDIA A100 data sheet", 1555, [_A100, _A100_MEMORY],
         fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"\bA30\b", "NVIDIA A30 data sheet", 933, [_NANOCHAT], "fp64 fp32 tf32 bandwidth",
         fp64=5.2, fp32=10.3, tf32=82, bf16=165, fp16=165),
    _row(r"\bA40\b", "NVIDIA A40 data sheet", 696, [_A40, _A40_MEMORY],
         fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7),
    _row(r"\bA10\b", "NVIDIA A10 data sheet", 600, [_LIGHTNING, _A10_MEMORY], "tf32",
         fp32=31.2, tf32=62.5, bf16=125, fp16=125),
    _row(r"RTX A6000", "NVIDIA RTX A6000 data sheet", 768, [_CARDS], "tf32 bf16 fp16 bandwidth",
         fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8),
    _row(r"RTX 3090(?! (Ti|Laptop))", "NVIDIA Ampere GA102 GPU architecture white paper", 936,
         [_3090, _NANOCHAT], "tf32", fp32=35.6, tf32=35.6, bf16=71, fp16=71),
    # NVIDIA Turing and Volta
    _row(r"\bT4\b", "NVIDIA T4 data sheet", 320, [_LIGHTNING, _T4_MEMORY], fp32=8.1, fp16=65),
    _row(r"V100S", "NVIDIA V100 data sheet", 1134, [_LIGHTNING], "bandwidth", fp64=8.2, fp32=16.4, fp16=130),
    _row(r"V100-PCI|V100.*PCIe", "NVIDIA V100 data sheet", 900, [_LIGHTNING, _V100_MEMORY],
         fp64=7, fp32=14, fp16=112),
    _row(r"\bV100\b|V100-SXM", "NVIDIA V100 data sheet", 900, [_LIGHTNING, _V100, _V100_MEMORY],
         fp64=7.8, fp32=15.7, fp16=125),
    # AMD: fp32 of the matrix cores, which rocBLAS uses for it
    _row(r"MI325X", "AMD Instinct MI325X data sheet", 6000, [_MI325X, _MI325X_MEMORY], "fp64 fp32 tf32",
         fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9),
    # The same dies and clock as the MI325X, other memory.
    _row(r"MI300X", "AMD Instinct MI300X data sheet", 5300, [_NANOCHAT, _MI325X_MEMORY, _MI300X_MEMORY],
         "fp64 fp32 tf32", fp64=163.4, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9),
    # One device of torch is one of the two dies of the card: half of the card's figures.
    _row(r"MI250X", "AMD Instinct MI250X data sheet, per die", 1638, [_MI250X, _MI250_MEMORY],
         fp64=47.9, fp32=47.9, bf16=191.5, fp16=191.5),
    # The die of an MI250, of which the page gives two: half of the card's figures.
    _row(r"MI210", "AMD Instinct MI210 data sheet", 1638, [_MI250X, _MI250_MEMORY],
         fp64=45.3, fp32=45.3, bf16=181, fp16=181),
)  # fmt: skip


def peak_of(device_name: str) -> Peak | None:
    """Return the peaks of a device, None when it is not in the table."""
    return next((peak for peak in PEAKS if device_name and re.search(peak.pattern, device_name)), None)
