"""What the page says of memory: facts, the peak's composition, the lines that hold it.

In: a diagnosis. Out: one `MemorySection` per device, clean text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.words import clean, percent
from ..rows.diagnosis import root_of
from .facts import Facts, facts, place_or, size

if TYPE_CHECKING:
    from ...model.diagnosis import Diagnosis
    from ...model.memory import Churn, MemoryHolder, MemorySummary

__all__ = ["MemorySection", "memory_sections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySection:
    """Memory of one device."""

    device: int
    drawn: bool
    facts: Facts
    composition: tuple[tuple[str, str, str, float, str], ...]
    """Category, bytes as shown, share as shown, bytes, how it is known."""
    holders: tuple[tuple[str, str, str, str], ...]
    """Place, category, bytes, share."""
    lists: tuple[tuple[str, tuple[str, ...]], ...]
    problems: tuple[str, ...]


def memory_sections(diagnosis: Diagnosis) -> tuple[MemorySection, ...]:
    """Return one section per device."""
    root = root_of(diagnosis)
    return tuple(_memory(summary, root) for summary in diagnosis.memory)


def _memory(summary: MemorySummary, root: str) -> MemorySection:
    churn, spare = summary.churn, summary.headroom
    fragments = summary.fragmentation
    pairs = facts(
        (
            "Peak",
            f"{size(summary.peak_bytes)}{f', in {clean(summary.peak_when)}' if summary.peak_when else ''}",
        ),
        ("Stays between steps", size(summary.floor_bytes) if summary.floor_bytes is not None else None),
        ("Reserved", size(summary.reserved_bytes) if summary.reserved_bytes is not None else None),
        ("Device", size(summary.capacity_bytes) if summary.capacity_bytes is not None else None),
        ("Not told apart", percent(summary.unknown_share) if summary.unknown_share else None),
        (
            "Asked of the driver",
            _churn(churn) if churn is not None else None,
        ),
        (
            "Fragmentation",
            f"{size(fragments.inactive_split_bytes)} free in {fragments.unfreeable_segments} segments that "
            "are partly used"
            if fragments is not None
            else None,
        ),
        (
            "Gradients alive in forward",
            size(summary.gradients_in_forward_bytes) if summary.gradients_in_forward_bytes else None,
        ),
        (
            "Room for the batch",
            f"{_times(spare.factor)}× the present one ({clean(spare.basis)})" if spare else None,
        ),
        ("Out of memory", _failed(summary, root) if summary.out_of_memory is not None else None),
        ("Stacks", clean(summary.stacks)),
    )
    leaks = tuple(
        f"{place_or(leak.site, root, leak.where) or 'no stack'}: {size(leak.bytes_per_step)} a step, "
        f"{leak.blocks_per_step:.3g} blocks"
        + (f"; full in {leak.steps_left} steps" if leak.steps_left is not None else "")
        for leak in summary.leaks
    )
    spike = summary.spike
    spiked = tuple(_holder(holder, root) for holder in spike.holders) if spike is not None else ()
    lists = (
        ("Never freed", leaks),
        (f"Spike of {size(spike.above_bytes)} from" if spike is not None else "", spiked),
    )
    return MemorySection(
        device=summary.device,
        drawn=bool(summary.curve.at),
        facts=pairs,
        composition=tuple(
            (clean(row.category.value), size(row.bytes), percent(row.share), row.bytes, clean(row.how))
            for row in summary.composition
        ),
        holders=tuple(
            (
                place_or(row.site, root, row.where) or "no stack",
                clean(row.category.value),
                size(row.bytes),
                percent(row.share),
            )
            for row in summary.holders
        ),
        lists=tuple((title, rows) for title, rows in lists if rows),
        problems=tuple(clean(text) for text in summary.problems),
    )


def _times(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"


def _churn(churn: Churn) -> str:
    asked, returned = churn.allocs + churn.maps, churn.frees + churn.unmaps
    if asked == returned == 0:
        return "nothing: all from its own cache"
    return f"{asked:.3g} times a step, {size(churn.bytes)}; given back {returned:.3g} times"


def _holder(holder: MemoryHolder, root: str) -> str:
    where = place_or(holder.site, root, holder.where) or "no stack"
    return f"{where}: {size(holder.bytes)}, {clean(holder.category.value)}"


def _failed(summary: MemorySummary, root: str) -> str:
    failed = summary.out_of_memory
    if failed is None:
        return ""
    parts = [
        f"{size(failed.requested_bytes)} asked for" if failed.requested_bytes is not None else "",
        f"{size(failed.device_free_bytes)} free" if failed.device_free_bytes is not None else "",
        place_or(failed.site, root),
        clean(failed.when),
        "caught by the script" if failed.caught else "",
    ]
    return ", ".join(filter(None, parts)) or "an allocation failed"
