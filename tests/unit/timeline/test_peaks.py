"""The table of published peaks: each name finds its own row, and rates are in proportion."""

from __future__ import annotations

import pytest

from torch_bottleneck.timeline.gpu.math_rates import PEAK_RATIO
from torch_bottleneck.timeline.gpu.peaks import BANDWIDTH, PEAKS, peak_of

NAMES = {
    "NVIDIA H200": ("NVIDIA H200 data sheet", 989.5, 4800),
    "NVIDIA H200 NVL": ("NVIDIA H200 data sheet", 835.5, 4800),
    "NVIDIA H100 80GB HBM3": ("NVIDIA H100 data sheet", 989.5, 3350),
    "NVIDIA H100 PCIe": ("NVIDIA H100 PCIe product brief", 756, 2000),
    "NVIDIA GH200 480GB": ("NVIDIA GH200 data sheet", 990, 4000),
    "NVIDIA GB200": ("NVIDIA Blackwell data sheet (GB200 NVL72)", 2500, 8000),
    "NVIDIA B200": ("NVIDIA Blackwell data sheet (HGX B200)", 2250, 7700),
    "NVIDIA A100-SXM4-40GB": ("NVIDIA A100 data sheet", 312, 1555),
    "NVIDIA A100-SXM4-80GB": ("NVIDIA A100 data sheet", 312, 2039),
    "NVIDIA A100 80GB PCIe": ("NVIDIA A100 data sheet", 312, 1935),
    "NVIDIA A10": ("NVIDIA A10 data sheet", 125, 600),
    "NVIDIA L4": ("NVIDIA L4 data sheet", 121, 300),
    "NVIDIA L40S": ("NVIDIA L40S data sheet", 362, 864),
    "Tesla V100-SXM2-16GB": ("NVIDIA V100 data sheet", 125, 900),
    "Tesla T4": ("NVIDIA T4 data sheet", 65, 320),
    "AMD Instinct MI300X": ("AMD Instinct MI300X data sheet", 1307.4, 5300),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_device_finds_its_own_row(name: str) -> None:
    source, half, bandwidth = NAMES[name]
    peak = peak_of(name)
    assert peak is not None
    assert (peak.source, peak.of("half"), peak.bandwidth_gbps) == (source, half, bandwidth)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A1000",
        "CPU",
    ],
)
def test_an_unknown_device_gets_no_figure_of_another(name: str) -> None:
    assert peak_of(name) is None


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.pattern)
def test_smaller_types_are_never_slower(peak) -> None:
    ladder = [peak.tflops[d] for d in ("fp32", "tf32", "fp16", "fp8") if d in peak.tflops]
    assert ladder == sorted(ladder)
    assert peak.tflops.get("bf16", peak.tflops["fp16"]) == peak.tflops["fp16"]
    assert peak.source
    assert peak.of("int8") is None


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.pattern)
def test_each_figure_has_a_page_or_is_marked_as_unconfirmed(peak) -> None:
    figures = {*peak.tflops, BANDWIDTH}
    assert peak.unconfirmed <= figures
    assert bool(peak.seen) == (peak.unconfirmed != figures)
    assert all(page.startswith("https://") for page in peak.seen)


def test_whoever_uses_an_unconfirmed_figure_says_so() -> None:
    nvl, sxm = peak_of("NVIDIA H200 NVL"), peak_of("NVIDIA H200")
    assert nvl is not None
    assert sxm is not None
    assert nvl.source_of(["half"]) == "NVIDIA H200 data sheet"
    assert nvl.source_of(["half", "tf32"]) == "NVIDIA H200 data sheet, not confirmed"
    assert sxm.source_of(["tf32", "half", "fp32"]) == "NVIDIA H200 data sheet"


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ("7.0", ["Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB", "Tesla V100S-PCIE-32GB"]),
        ("7.5", ["Tesla T4"]),
        ("8.0", ["NVIDIA A100-SXM4-80GB", "NVIDIA A30"]),
        ("8.6", ["NVIDIA GeForce RTX 3090", "NVIDIA A40", "NVIDIA A10"]),
        ("8.9", ["NVIDIA GeForce RTX 4090", "NVIDIA L40S", "NVIDIA L4"]),
        ("9.0", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]),
        ("10.0", ["NVIDIA B200"]),
    ],
)
def test_the_ratios_by_capability_are_those_of_the_part_that_gains_least(
    capability: str, names: list[str]
) -> None:
    parts = [peak_of(name) for name in names]
    for dtype, ratio in PEAK_RATIO[capability].items():
        least = min(part.tflops[dtype] / part.tflops["fp32"] for part in parts if part is not None)
        assert ratio == pytest.approx(least, rel=0.03)
