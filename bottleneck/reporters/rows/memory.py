"""The memory section of a report: the peak, its composition, the lines that hold it, and the findings.

In: a diagnosis. Out: one `MemorySection` of short clean strings per device, and for reports of plain text
(indent, text) rows made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...model.codes import entry_of
from ...model.diagnosis import Diagnosis
from ...model.memory import Churn, MemoryHolder, MemoryShare, MemorySummary, OutOfMemory
from ...model.words import byte_size, clean, percent, place, sentence
from .diagnosis import root_of
from .pairs import Pairs, known_pairs, place_or

Row: TypeAlias = "tuple[int, str]"

_HOLDERS = 3
_WORTH = 0.01
"""Share of the peak below which a category is not listed."""
_LINE, _PAGE = 60, 100
"""Columns for a place, in a row of text and in a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A category, or a line of the program, with what it holds."""

    name: str
    category: str
    bytes: int
    size: str
    share: str
    worth: bool
    """Large enough for a report of one screen."""
    how: str = ""
    """How a category is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySection:
    """Memory of one device."""

    device: int
    drawn: bool
    """What was live over time is known."""
    head: tuple[str, ...]
    """The peak, and what was held when memory ran out."""
    at: str
    """The moment that composition and holders describe."""
    facts: Pairs
    composition: tuple[_Held, ...]
    holders: tuple[_Held, ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]
    problems: tuple[str, ...]


def memory_sections(diagnosis: Diagnosis, *, width: int = _PAGE) -> tuple[MemorySection, ...]:
    """Return one section per device; `width` is that of a place."""
    root = root_of(diagnosis)
    return tuple(_section(summary, root, width) for summary in diagnosis.memory)


def memory_rows(diagnosis: Diagnosis, *, whole: bool = False) -> list[Row]:
    """Return the section's rows; empty without memory data and findings."""
    rows: list[Row] = []
    sections = memory_sections(diagnosis, width=_LINE)
    several = len(sections) > 1
    for section in sections if whole else sections[:1]:
        rows += _lines(section, several=several, most=20 if whole else _HOLDERS)
    shown = {"always", "composition", *(("untimed",) if diagnosis.step.true_ms is None else ())}
    for finding in diagnosis.findings:
        how = entry_of(finding.code).memory
        said = how == "composition" and bool(diagnosis.memory)
        if how in shown and (whole or not (finding.note or said)):
            at = f" at {place(finding.sites[0], root=root_of(diagnosis))}" if finding.sites else ""
            rows.append((0, f"{clean(finding.code)} {sentence(finding.title)}{at}"))
    if several and not whole:
        rows.append((0, f"{len(sections) - 1} more with --verbose"))
    return rows


def _lines(section: MemorySection, *, several: bool, most: int) -> list[Row]:
    name = f"device {section.device}: " if several else ""
    rows: list[Row] = [(0, f"{name}{text}") for text in section.head]
    parts = [f"{row.category} {row.size} ({row.share})" for row in section.composition if row.worth]
    if parts:
        rows.append((1, ", ".join(parts)))
    # Without a place, the composition already shows it.
    held = [row for row in section.holders[:most] if row.worth and row.name]
    rows += [(1, f"{row.size} {row.category}: {row.name}") for row in held]
    rows += [(1, sentence(problem)) for problem in section.problems]
    return rows


def _section(summary: MemorySummary, root: str, width: int) -> MemorySection:
    failure = summary.out_of_memory
    failed = failure is not None and bool(failure.composition)
    composition = failure.composition if failure is not None and failed else summary.composition
    holders = failure.holders if failure is not None and failure.holders else summary.holders
    lists = [("Never freed", _leaks(summary, root, width))]
    spike = summary.spike
    if spike is not None:
        above = tuple(_in_a_line(_holder(row, root, width)) for row in spike.holders)
        lists.append((f"Spike of {byte_size(spike.above_bytes)} from", above))
    return MemorySection(
        device=summary.device,
        drawn=bool(summary.curve.at),
        head=_head(summary),
        at="when memory ran out" if failed else "at the peak",
        facts=_facts(summary, root, width),
        composition=tuple(_held(row, how=clean(row.how)) for row in composition),
        holders=tuple(_holder(row, root, width) for row in holders),
        lists=tuple((title, rows) for title, rows in lists if rows),
        problems=tuple(clean(text) for text in summary.problems),
    )


def _head(summary: MemorySummary) -> tuple[str, ...]:
    of = ""
    if summary.capacity_bytes:
        share = percent(summary.peak_bytes / summary.capacity_bytes)
        of = f" of {byte_size(summary.capacity_bytes)} ({share})"
    when = f", in {clean(summary.peak_when)}" if summary.peak_when else ""
    taken = summary.reserved_peak_bytes
    reserved = f"; reserved {byte_size(taken)}" if taken is not None else ""
    failure = summary.out_of_memory
    held = failure.live_bytes if failure is not None else None
    rows = []
    if summary.events:
        rows.append(f"peak {byte_size(summary.peak_bytes)}{of}{when}{reserved}")
    elif held is None:
        rows.append(f"live {byte_size(summary.peak_bytes)}{of}{reserved}")
    if held is not None:
        rows.append(f"held when memory ran out: {byte_size(held)}{'' if summary.events else of}")
    return tuple(rows)


def _facts(summary: MemorySummary, root: str, width: int) -> Pairs:
    churn, spare, fragments = summary.churn, summary.headroom, summary.fragmentation
    gradients = summary.gradients_in_forward_bytes
    return known_pairs(
        ("Stays between steps", byte_size(summary.floor_bytes) if summary.floor_bytes is not None else None),
        ("Not identified", percent(summary.unknown_share) if summary.unknown_share else None),
        ("Requests to the driver", _churn(churn) if churn is not None else None),
        (
            "Fragmentation",
            f"{byte_size(fragments.inactive_split_bytes)} free in {fragments.unfreeable_segments} segments "
            "that are partly used"
            if fragments is not None
            else None,
        ),
        ("Gradients alive in forward", byte_size(gradients) if gradients else None),
        (
            "Room for the batch",
            f"{_times(spare.factor)}× the present one ({clean(spare.basis)})" if spare else None,
        ),
        (
            "Out of memory",
            _failed(summary.out_of_memory, root, width) if summary.out_of_memory is not None else None,
        ),
        ("Stacks", clean(summary.stacks)),
    )


def _held(row: MemoryShare | MemoryHolder, *, name: str = "", how: str = "") -> _Held:
    return _Held(
        name=name,
        category=clean(row.category.value),
        bytes=row.bytes,
        size=byte_size(row.bytes),
        share=percent(row.share),
        worth=row.share >= _WORTH,
        how=how,
    )


def _holder(row: MemoryHolder, root: str, width: int) -> _Held:
    return _held(row, name=place_or(row.site, root, row.where, width=width))


def _in_a_line(row: _Held) -> str:
    return f"{row.name or 'no stack'}: {row.size}, {row.category}"


def _leaks(summary: MemorySummary, root: str, width: int) -> tuple[str, ...]:
    return tuple(
        f"{place_or(leak.site, root, leak.where, width=width) or 'no stack'}: "
        f"{byte_size(leak.bytes_per_step)} a step, {leak.blocks_per_step:.3g} blocks"
        + (f"; full in {leak.steps_left} steps" if leak.steps_left is not None else "")
        for leak in summary.leaks
    )


def _times(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"


def _churn(churn: Churn) -> str:
    asked, returned = churn.allocs + churn.maps, churn.frees + churn.unmaps
    if asked == returned == 0:
        return "none: all from its own cache"
    return f"{asked:.3g} times a step, {byte_size(churn.bytes)}; returned {returned:.3g} times"


def _failed(failed: OutOfMemory, root: str, width: int) -> str:
    parts = [
        f"{byte_size(failed.requested_bytes)} requested" if failed.requested_bytes is not None else "",
        f"{byte_size(failed.device_free_bytes)} free" if failed.device_free_bytes is not None else "",
        place_or(failed.site, root, width=width),
        clean(failed.when),
        "caught by the script" if failed.caught else "",
    ]
    return ", ".join(filter(None, parts)) or "an allocation failed"
