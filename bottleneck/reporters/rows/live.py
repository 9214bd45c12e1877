"""What is said of a job while it runs.

In: its record of now, and the one of a minute ago. Out: rows and sentences, without widths and colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...model.watch import PARTS, JobRecord, in_one_line
from ...model.words import clean, duration, milliseconds, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """One part of the job so far."""

    part: str
    time: str
    share: str
    lately: str
    """Its share of the last minute; empty where that is nothing."""
    lately_share: float


def live_lines(record: JobRecord, before: JobRecord | None) -> Iterator[str]:
    """Yield where the job is, and how its steps change."""
    yield in_one_line(record)
    if before is not None and before.usual_ms is not None and record.usual_ms is not None:
        ago = duration((record.at_ns - before.at_ns) / 1e9)
        yield (
            f"a usual step: {milliseconds(record.usual_ms)} ms now,"
            f" {milliseconds(before.usual_ms)} ms {ago} ago"
        )
    for growth in record.growth:
        if growth.objects_per_step is not None:
            yield f"{clean(growth.what)} gains {growth.objects_per_step:.3g} a step ({growth.kind})"
    for change in record.changes:
        yield f"{change.ratio:.2f} times the time before from step {change.step} on or so"
    for memory in record.memory:
        yield f"the {memory.where}'s memory is full in {duration(memory.full_in_s)} at this pace"
    for taken in record.captures:
        yield f"captured at step {taken.step}: {clean(taken.folder)}"
    yield from map(clean, record.notes)
    if record.problem:
        yield f"the watching has ended: {clean(record.problem)}"


def live_rows(record: JobRecord, before: JobRecord | None) -> list[LiveRow]:
    """Return the parts that there are so far, in the order of the job."""
    whole = sum(part.s for part in record.parts.values())
    gained = {name: part.s for name, part in record.parts.items()}
    if before is not None:
        for name, part in before.parts.items():
            gained[name] = gained.get(name, 0.0) - part.s
    minute = sum(max(0.0, s) for s in gained.values())
    rows = []
    for name in PARTS:
        if name in record.parts and whole > 0:
            share = max(0.0, gained[name]) / minute if minute > 0 else 0.0
            rows.append(
                LiveRow(
                    part=name,
                    time=duration(record.parts[name].s),
                    share=percent(record.parts[name].s / whole),
                    lately=percent(share) if share > 0 else "",
                    lately_share=share,
                )
            )
    return rows
