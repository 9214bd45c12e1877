"""Facts of memory under the keys of the context.

In: a run's counters and its memory summaries. Out: entries of `model/context.py`; a figure that was not
measured is absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.memory import MemoryCategory, MemorySummary
from ..model.run import JsonValue, Run

__all__ = ["category_share", "memory_context", "resident_growth"]

_FEWEST_STEPS = 10
"""Resident memory moves by pages and arenas: over fewer steps its growth says nothing."""


def category_share(summary: MemorySummary, *categories: MemoryCategory) -> float:
    """Return the share of the peak that some categories make up."""
    return sum(row.share for row in summary.composition if row.category in categories)


def resident_growth(run: Run | None) -> float | None:
    """Return the bytes per step by which the process grew over the baseline; None if not measured."""
    window = run.window("baseline") if run is not None else None
    if window is None or window.before is None or window.after is None:
        return None
    before, after, steps = window.before.rss_bytes, window.after.rss_bytes, len(window.steps.wall_ms)
    # With a gap in the window the captures in between have grown the process too.
    index = window.steps.index
    whole = bool(index) and index[-1] - index[0] == steps - 1
    if before is None or after is None or steps < _FEWEST_STEPS or not whole:
        return None
    return (after - before) / steps


def memory_context(run: Run | None, memory: Sequence[MemorySummary]) -> dict[str, JsonValue]:
    """Return the entries; those of the snapshot are of the fullest device."""
    out: dict[str, JsonValue] = {"memory.resident_growth": resident_growth(run)}
    if run is not None and "allocator.backend" in run.settings:
        # Written only where a variable sets it; without one nothing is set.
        conf = str(run.settings.get("allocator.conf", "")).lower()
        out["allocator.max_split"] = "max_split_size_mb" in conf
    if not memory:
        return out
    summary = memory[0]
    # The allocator's own word, also where settings were made from Python.
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
        most = max(peak, summary.reserved_peak_bytes or 0)
        out["memory.peak_share"] = most / summary.capacity_bytes
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
