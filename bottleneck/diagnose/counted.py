"""What a step does, counted, with each place quoted by its line of source.

In: a reading. Out: `StepCounters`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..ingest.source_text import line_text
from ..model.counters import BreakSite, StepCounters, SyncSite
from ..model.run import Run
from ..timeline.counts.counters import count_steps
from .reading import Reading

_Placed = TypeVar("_Placed", SyncSite, BreakSite)


def counters_of(reading: Reading) -> StepCounters:
    """Count what one step does."""
    rank, timeline = reading.rank, reading.timeline
    counters = count_steps(
        rank.trace,
        reading.steps,
        run=rank.run,
        compile_facts=rank.compile,
        missing=timeline.missing_activities or 0,
    )
    return counters if rank.run is None else _quoted(counters, rank.run)


def _quoted(counters: StepCounters, run: Run) -> StepCounters:
    """Quote the lines: by its text a line is found again after it has moved."""

    def quote(item: _Placed) -> _Placed:
        if item.site is None:
            return item
        return msgspec.structs.replace(item, code=line_text(item.site, run))

    return msgspec.structs.replace(
        counters,
        syncs=tuple(map(quote, counters.syncs)),
        breaks=tuple(map(quote, counters.breaks)),
        recompiles=tuple(map(quote, counters.recompiles)),
    )
