"""Facts of memory under the keys of the context.

In: a run's counters and its memory summaries. Out: entries of `model/context.py`; a figure that was not
measured is absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.memory import MemoryCategory, MemorySummary
from ...model.run import JsonValue, Run, Window

_FEWEST_STEPS = 10
"""Resident memory changes by pages and arenas: over fewer steps its growth means nothing."""


def category_share(summary: MemorySummary, *categories: MemoryCategory) -> float:
    """Return the share of the peak that some categories make up."""
    return sum(row.share for row in summary.composition if row.category in categories)


def growth_window(run: Run | None) -> Window | None:
    """Return the longest stretch of unprofiled steps with resident memory known at both ends.

    Between the stretches of a baseline the captures also grew the process. Its later stretches are windows of
    their own.
    """
    found = []
    for name in ("baseline", "between", "after"):
        window = run.window(name) if run is not None else None
        if window is None or window.before is None or window.after is None:
            continue
        index = window.steps.index
        whole = len(index) >= _FEWEST_STEPS and index[-1] - index[0] == len(index) - 1
        if whole and window.before.rss_bytes is not None and window.after.rss_bytes is not None:
            found.append(window)
    return max(found, key=lambda window: len(window.steps.index), default=None)


def resident_growth(run: Run | None) -> float | None:
    """Return the bytes per step by which the process grew while unprofiled; None if not measured."""
    window = growth_window(run)
    before, after = (window.before, window.after) if window is not None else (None, None)
    if window is None or before is None or after is None:
        return None
    return ((after.rss_bytes or 0) - (before.rss_bytes or 0)) / len(window.steps.index)


def resident_share(run: Run | None) -> float | None:
    """Return the largest resident set as a share of the machine's memory; None if unknown."""
    window = run.window("baseline") if run is not None else None
    if run is None or window is None or window.after is None or not run.host.memory_bytes:
        return None
    peak = window.after.rusage.get("ru_maxrss")
    return peak * 1024 / run.host.memory_bytes if peak is not None else None


def _most_used(summary: MemorySummary) -> int:
    return max(summary.peak_bytes, summary.reserved_peak_bytes or 0)


def _replica_share(run: Run | None, memory: Sequence[MemorySummary]) -> float | None:
    """Return what would be used, over what may be, if each rank held all that FSDP divides among them."""
    missing = run.settings.get("distributed.replica_bytes") if run is not None else None
    if run is None or not isinstance(missing, int):
        return None
    if memory:
        capacity = memory[0].capacity_bytes
        return (_most_used(memory[0]) + missing) / capacity if capacity else None
    resident, total = resident_share(run), run.host.memory_bytes
    if resident is None or not total or any(device.kind != "cpu" for device in run.devices):
        return None
    # As if all ranks ran on this machine: each of them takes its part of the memory.
    return run.world_size * (resident + missing / total)


def memory_context(run: Run | None, memory: Sequence[MemorySummary]) -> dict[str, JsonValue]:
    """Return the entries; those of the snapshot are of the fullest device."""
    out: dict[str, JsonValue] = {
        "memory.resident_growth": resident_growth(run),
        "memory.replica_share": _replica_share(run, memory),
    }
    if run is not None and "allocator.backend" in run.settings:
        # Recorded only where an environment variable sets it; without one nothing is set.
        conf = str(run.settings.get("allocator.conf", "")).lower()
        out["allocator.max_split"] = "max_split_size_mb" in conf
    if not memory:
        return out
    summary = memory[0]
    # Reported by the allocator itself, so it includes settings made from Python.
    if summary.expandable_segments is not None:
        out["allocator.expandable_segments"] = summary.expandable_segments
    if summary.max_split_bytes is not None:
        out["allocator.max_split"] = summary.max_split_bytes > 0
    peak = summary.peak_bytes
    out["memory.failed"] = any(item.out_of_memory is not None for item in memory)
    out["memory.checkpointed"] = summary.checkpointed
    if summary.empty_cache_per_step is not None:
        out["allocator.empty_cache_per_step"] = summary.empty_cache_per_step
    if summary.varying_sizes is not None:
        out["step.varying_shapes"] = summary.varying_sizes
    if summary.capacity_bytes:
        out["memory.peak_share"] = _most_used(summary) / summary.capacity_bytes
    if summary.headroom is not None:
        out["memory.headroom"] = summary.headroom.factor
    if not peak or not summary.composition:
        return out
    known = {row.category: row.share for row in summary.composition}
    if (summary.unknown_share or 0.0) < 1.0:
        for key, category in (
            ("memory.parameters_share", MemoryCategory.PARAMETERS),
            ("memory.gradients_share", MemoryCategory.GRADIENTS),
            ("memory.optimizer_share", MemoryCategory.OPTIMIZER),
            ("memory.activations_share", MemoryCategory.ACTIVATIONS),
        ):
            out[key] = known.get(category, 0.0)
        out["memory.state_share"] = category_share(
            summary, MemoryCategory.PARAMETERS, MemoryCategory.GRADIENTS, MemoryCategory.OPTIMIZER
        )
    if summary.loss_bytes is not None:
        out["memory.loss_share"] = summary.loss_bytes / peak
    if summary.gradients_in_forward_bytes is not None:
        out["memory.gradients_in_forward_share"] = summary.gradients_in_forward_bytes / peak
    if summary.steps:
        out["memory.leak_bytes_per_step"] = sum(leak.bytes_per_step for leak in summary.leaks)
    return out
