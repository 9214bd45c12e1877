"""What a run worked on, what the device computed, and what was compiled.

In: nothing. Out: frozen structs of diagnosis.json. A figure that could not be measured is None,
never zero; some structs also give the reason.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .run import SourceSite


class BreakRow(msgspec.Struct, frozen=True, kw_only=True):
    """One graph break with its price."""

    reason: str
    """Dynamo's words, first line."""
    kind: str = ""
    """"item", "print", "branch", "disabled", "unsupported" (a call) or "other": decides the rewrite."""
    site: SourceSite | None = None
    hint: str = ""
    """Dynamo's own explanation and hint."""
    frames: int = 1
    """Compiled functions that it splits: a break in an inlined function splits every caller."""
    seams_per_step: float | None = None
    """How often it is crossed per step, forward and backward; None where the trace cannot tell."""
    host_ms: float | None = None
    """Host time in its seams per step, at the speed of the true step."""
    cost_ms: float | None = None
    """What the step would save without it: its part of the price of all seams, by replay."""
    share: float | None = None
    """cost_ms over the true step time."""
    shared: bool = False
    """True: its seams could not be separated from those of other breaks, so the price is split evenly."""


class ChangedSize(msgspec.Struct, frozen=True, kw_only=True):
    """A size that made a guard fail."""

    tensor: str
    """As the guard names it, like "x" or "L['x']"."""
    dim: int | None = None
    values: tuple[int, ...] = ()
    """Sizes seen, in ascending order."""


class RecompileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A function that was compiled again."""

    function: str
    site: SourceSite | None = None
    guard: str = ""
    count: int = 1
    steady: int = 0
    """Of `count`: in the baseline window or later."""
    seconds: float | None = None
    """Compile time that these recompilations took, together."""
    steps: tuple[int, ...] = ()
    sizes: tuple[ChangedSize, ...] = ()
    advice: str = ""
    """Which dimension to mark dynamic, or which sizes to pad to; empty if sizes do not matter."""


class CompileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What torch.compile did; absent from a diagnosis of a run that compiled nothing."""

    mode: str = ""
    modules: tuple[str, ...] = ()
    graphs: int | None = None
    compile_seconds: float | None = None
    """All compilations together."""
    before_steady_seconds: float | None = None
    """Of these, before the baseline window began."""
    last_compile_step: int | None = None
    breaks: tuple[BreakRow, ...] = ()
    """The most expensive first."""
    seams_ms: float | None = None
    """What the step would save with all seams gone."""
    recompiles: tuple[RecompileRow, ...] = ()
    recompile_ms_per_step: float | None = None
    """What compiling in steady state costs per step."""
    limit_hit: tuple[str, ...] = ()
    """Functions that dynamo gave up; they always run eagerly."""
    cudagraph_skips: tuple[str, ...] = ()
    cudagraph_skip_causes: tuple[str, ...] = ()
    """Per skip: the cause and what to do, in words."""
    graph_launches_per_step: float | None = None
    compiled_kernel_share: float | None = None
    """Kernels launched by compiled code, over those of forward and backward."""
    compiled_time_share: float | None = None
    """The same by device time (CPU: by operator time)."""
    eager_in_seams: float | None = None
    """Eager launches (CPU: operators) per step between compiled regions: what fell back to eager."""


class MathRow(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix products, convolutions and attention of one arithmetic type."""

    dtype: str
    """"bf16", "fp16", "half" (either), "tf32", "fp32", "fp64", "fp8", or "unknown"."""
    tensor_cores: bool
    ms: float
    share: float
    """Of all such math, 0..1."""
    peak_tflops: float | None = None
    """Dense peak of the device in that type."""


class ComputeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How well the device is used while it is busy."""

    math: tuple[MathRow, ...] = ()
    tensor_core_share: float | None = None
    """Of the math's device time."""
    math_share: float | None = None
    """Math over the true step time."""
    memory_bound_share: float | None = None
    """Memory-bound kernels over the true step time."""
    fusable_ms: float | None = None
    """Device time that fusing neighbouring element-wise kernels would save."""
    tflop_per_step: float | None = None
    flops_from: str = ""
    """"shapes in the trace", "flop-counter step", or why there is no count."""
    flops_cover: float | None = None
    """Share of the math's kernel time whose operators were counted."""
    achieved_tflops: float | None = None
    """Counted FLOPs over the true step time."""
    math_tflops: float | None = None
    """Counted FLOPs over the device time of the math: how good the kernels are."""
    peak_tflops: float | None = None
    """Dense peak of the type that most of the math ran in."""
    peak_dtype: str = ""
    peak_source: str = ""
    """Where the peak comes from: "measured on this device", or a data sheet by name."""
    utilisation: float | None = None
    """achieved_tflops over peak_tflops (MFU)."""
    bandwidth_gbps: float | None = None
    """Peak memory bandwidth of the device."""
    padding_share: float | None = None
    attention: Literal["fused", "scores in memory", "both", "none seen", "unknown"] = "unknown"
    attention_backends: tuple[str, ...] = ()
    """Fused backends whose kernels ran: "flash", "cudnn", "efficient"."""
    optimizer_kernels: float | None = None
    """Per step."""
    optimizer_launches: float | None = None
    optimizer_share: float | None = None


class LoaderArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One DataLoader as constructed."""

    cls: str = ""
    site: SourceSite | None = None
    role: str = "unknown"
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    shuffle: bool | None = None
    start_method: str | None = None


class OptimizerArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One optimizer as constructed."""

    cls: str
    flavour: str = "unknown"
    parameters: int = 0
    site: SourceSite | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one rank: its batches, its loaders, its step times."""

    world_size: int = 1
    step_signal: str = ""
    micro_steps: float | None = None
    """Backward passes per step, mean."""
    batch: tuple[str, ...] = ()
    """Tensors of a typical training batch, like "float32[64, 3, 224, 224]"; empty where no loader
    was seen."""
    batch_elements: int | None = None
    """Elements of the tensors fetched in a typical step; None where none were seen."""
    distinct_shapes: int | None = None
    """Different shapes of training batches seen; 1: all steps do the same work."""
    loaders: tuple[LoaderArguments, ...] = ()
    optimizers: tuple[OptimizerArguments, ...] = ()
    step_ms: tuple[float, ...] = ()
    """Unprofiled step times of the baseline window, in order, at most 200."""
