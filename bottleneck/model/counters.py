"""What one training step does, counted: numbers without noise, which a shared CI machine can gate on.

In: nothing. Out: `StepCounters`, carried as `Diagnosis.counters`, and the table of counters. A
counter that could not be taken is absent with its reason, never zero.

Without a device two counters stand in for what a device would show: every read of a tensor's value
by Python (`aten::_local_scalar_dense`: `.item()`, `float(loss)`, `if tensor:`) is a synchronisation
on a GPU, and every operator is at least one kernel there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .run import SourceSite


class CounterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of counters."""

    title: str
    scope: Literal["step", "run"]
    """step: the median over whole traced steps. run: a total, or a level reached in the run."""
    unit: Literal["", "bytes", "FLOP"] = ""
    tolerance: float = 0.02
    """Growth that passes by default, relative to the base; 0: any growth fails."""
    slack: float = 0.0
    """Growth that passes by default in absolute terms, in the counter's unit."""
    meaning: str = ""


COUNTERS: dict[str, CounterSpec] = {
    "syncs": CounterSpec(
        title="synchronisations",
        scope="step",
        tolerance=0.0,
        meaning="Calls that make the host wait for the device (cudaStreamSynchronize and its kin). "
        "CPU: reads of a tensor's value by Python, those inside torch's own optimizers left out.",
    ),
    "graph_breaks": CounterSpec(
        title="graph breaks",
        scope="run",
        tolerance=0.0,
        meaning="Places where dynamo broke a graph.",
    ),
    "recompiles": CounterSpec(
        title="recompiles",
        scope="run",
        tolerance=0.0,
        meaning="Frames compiled again, within as many steps as both sides have run.",
    ),
    "copies": CounterSpec(
        title="host-device copies",
        scope="step",
        tolerance=0.0,
        meaning="Copies from host to device and back.",
    ),
    "copied_bytes": CounterSpec(
        title="bytes copied between host and device",
        scope="step",
        unit="bytes",
        tolerance=0.02,
        meaning="Size of those copies.",
    ),
    "kernels": CounterSpec(
        title="kernels", scope="step", meaning="Kernels that ran on the device, graphs' nodes included."
    ),
    "launches": CounterSpec(
        title="launches",
        scope="step",
        meaning="Calls that launch kernels; a CUDA graph is one.",
    ),
    "operators": CounterSpec(
        title="operators",
        scope="step",
        meaning="ATen and custom operators on all threads of the process, and calls of compiled code.",
    ),
    "graphs": CounterSpec(
        title="compiled graphs",
        scope="run",
        tolerance=0.1,
        meaning="Distinct graphs that dynamo handed to the compiler.",
    ),
    "collectives": CounterSpec(
        title="collectives",
        scope="step",
        meaning="Collective kernels (NCCL, RCCL); CPU: c10d operators.",
    ),
    "collective_bytes": CounterSpec(
        title="bytes sent into collectives",
        scope="step",
        unit="bytes",
        meaning="Input messages of those collectives.",
    ),
    "allocations": CounterSpec(
        title="allocations",
        scope="step",
        tolerance=0.05,
        slack=2.0,
        meaning="Blocks taken from the caching allocator, mean over the baseline window.",
    ),
    "segments": CounterSpec(
        title="segment churn",
        scope="step",
        tolerance=0.1,
        slack=0.5,
        meaning="Segments that the caching allocator took from the driver or gave back, mean over the "
        "baseline window.",
    ),
    "peak_allocated_bytes": CounterSpec(
        title="peak allocated",
        scope="run",
        unit="bytes",
        tolerance=0.02,
        slack=2.0**20,
        meaning="Most bytes that tensors held at once, since the start of the program.",
    ),
    "flops": CounterSpec(
        title="FLOPs",
        scope="step",
        unit="FLOP",
        tolerance=0.01,
        meaning="Floating-point operations of matrix products, convolutions and attention, from the "
        "shapes of their operators in one step of its own (two per multiply-add).",
    ),
}
"""Name -> what it is, in the order of reports. Names are append-only: baselines hold them."""


class Counter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One counter's value; `low` and `high` where the steps (or repeats) do not all agree."""

    value: float
    low: float | None = None
    high: float | None = None


class SyncSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Synchronisations of one kind from one place, per step."""

    what: str
    """API call or operator: "cudaStreamSynchronize", "aten::_local_scalar_dense"."""
    count: float
    phase: str = ""
    """Innermost label around it: "forward", "backward", "optimizer", ... or ""."""
    site: SourceSite | None = None
    """The user's line; None unless lines were recorded."""
    code: str = ""
    """The text of that line, by which it is found again after it has moved."""


class BreakSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One graph break or recompiled frame, without its counts."""

    reason: str
    site: SourceSite | None = None
    code: str = ""


class StepCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one rank, the lowest one where there are several."""

    device: Literal["gpu", "cpu"]
    traced_steps: int = 0
    """Whole traced steps behind the values of scope "step"."""
    run_steps: int | None = None
    """Steps that the program had run when the last window closed."""
    values: dict[str, Counter] = {}
    """Keys of `COUNTERS`."""
    absent: dict[str, str] = {}
    """Keys of `COUNTERS` that were not measured -> why."""
    names: dict[str, float] = {}
    """Kernels (CPU: operators) by name -> count per step, the most frequent ones."""
    other_names: int = 0
    """Further names that `names` leaves out."""
    syncs: tuple[SyncSite, ...] = ()
    """Where the synchronisations of `values["syncs"]` come from, most frequent first."""
    breaks: tuple[BreakSite, ...] = ()
    recompile_steps: tuple[int, ...] = ()
    """Step index of each recompilation, in order."""
    recompiles: tuple[BreakSite, ...] = ()
    """What was compiled again; `reason` is the guard that failed."""
    flops_step: int | None = None
    """Step index of the first step that FLOPs were counted in."""
    flops_steps: int = 1
    """In how many steps FLOPs were counted; the value is their mean."""
    first_step: int | None = None
    """Step index of the first traced step: two runs that traced the same steps can be compared in
    their ranges too."""

    def value(self, name: str) -> float | None:
        """Return a counter's value, None when it was not measured."""
        counter = self.values.get(name)
        return None if counter is None else counter.value
