"""The memory section of a report: the peak, what it is made of, who holds it, and what is wrong with it.

In: a diagnosis. Out: (indent, text) rows, the same for terminal and Markdown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ...model.codes import entry_of
from ...model.words import byte_size, clean, percent, place, sentence
from .diagnosis import root_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model.diagnosis import Diagnosis
    from ...model.memory import MemoryHolder, MemorySummary

__all__ = ["memory_rows"]

Row: TypeAlias = "tuple[int, str]"

_HOLDERS = 3
_WORTH = 0.01
"""Share of the peak below which a category is not worth its words."""


def memory_rows(diagnosis: Diagnosis, *, whole: bool = False) -> list[Row]:
    """Return the section's rows; empty when nothing was read of memory and nothing found.

    Args:
        diagnosis: what to show.
        whole: every device, holder and note.
    """
    rows: list[Row] = []
    root = root_of(diagnosis)
    several = len(diagnosis.memory) > 1
    for summary in diagnosis.memory if whole else diagnosis.memory[:1]:
        rows += _device(summary, root=root, several=several, most=20 if whole else _HOLDERS)
    shown = {"always", "composition", *(("untimed",) if diagnosis.step.true_ms is None else ())}
    for finding in diagnosis.findings:
        how = entry_of(finding.code).memory
        said = how == "composition" and bool(diagnosis.memory)
        if how in shown and (whole or not (finding.note or said)):
            at = f" at {place(finding.sites[0], root=root)}" if finding.sites else ""
            rows.append((0, f"{clean(finding.code)} {sentence(finding.title)}{at}"))
    if several and not whole:
        rows.append((0, f"{len(diagnosis.memory) - 1} more with --verbose"))
    return rows


def _device(summary: MemorySummary, *, root: str, several: bool, most: int) -> list[Row]:
    name = f"device {summary.device}: " if several else ""
    of = ""
    if summary.capacity_bytes:
        share = percent(summary.peak_bytes / summary.capacity_bytes)
        of = f" of {byte_size(summary.capacity_bytes)} ({share})"
    when = f", in {clean(summary.peak_when)}" if summary.peak_when else ""
    taken = summary.reserved_peak_bytes
    reserved = f"; reserved {byte_size(taken)}" if taken is not None else ""
    failure = summary.out_of_memory
    held = failure.live_bytes if failure is not None else None
    rows: list[Row] = []
    if summary.events:
        rows.append((0, f"{name}peak {byte_size(summary.peak_bytes)}{of}{when}{reserved}"))
    elif held is None:
        rows.append((0, f"{name}live {byte_size(summary.peak_bytes)}{of}{reserved}"))
    composition = failure.composition if failure is not None and failure.composition else summary.composition
    holders: Sequence[MemoryHolder] = summary.holders
    if failure is not None and failure.holders:
        holders = failure.holders
    if held is not None:
        rows.append((0, f"{name}held when memory ran out: {byte_size(held)}{'' if summary.events else of}"))
    shown = [row for row in composition if row.share >= _WORTH]
    if shown:
        rows.append(
            (1, ", ".join(f"{r.category.value} {byte_size(r.bytes)} ({percent(r.share)})" for r in shown))
        )
    for holder in holders[:most]:
        if holder.share < _WORTH:
            break
        where = place(holder.site, root=root) if holder.site is not None else clean(holder.where)
        if where:  # without a place the composition has said it
            rows.append((1, f"{byte_size(holder.bytes)} {holder.category.value}: {where}"))
    rows += [(1, sentence(problem)) for problem in summary.problems]
    return rows
