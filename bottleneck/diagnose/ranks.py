"""Several ranks of one run: which of them decides the step, and how they compare.

In: readings. Out: the critical one, and a row per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ingest import bundle as ingest
from ..model.codes import Part
from ..model.diagnosis import RankRow
from ..timeline.collectives import Skew, collective_ns, rank_skew
from ..timeline.dialect import kinds
from .reading import Reading

__all__ = ["critical", "rank_rows", "skew_of"]

NOTICED_ON_HOSTS = 0.05
"""Of the step: ranks on the cores of one machine take turns in being late by less than that."""


def skew_of(readings: Sequence[Reading]) -> Skew | None:
    """Return how the ranks wait for each other, when all their traces are there."""
    if len(readings) < 2:
        return None
    if all(reading.timeline.kind == "cpu" for reading in readings):
        return _skew_on_hosts(readings)
    traces = [reading.rank.trace for reading in readings]
    durations = [collective_ns(trace, kinds(trace)) for trace in traces if trace is not None]
    if len(durations) < len(readings):
        return None
    return rank_skew(durations, min(reading.timeline.steps for reading in readings))


def _skew_on_hosts(readings: Sequence[Reading]) -> Skew | None:
    """Compare the ranks by their budgets: a collective on the CPU has no kernel whose length tells.

    Ranks that exchange gradients make their steps together, so what one of them spends in
    communication beyond the least that any spends is waiting for a rank that comes later.
    """
    exchanged_ms = np.array([reading.timeline.part_ms(Part.COMMUNICATION) for reading in readings])
    wire_ms = float(exchanged_ms.min())
    if wire_ms <= 0:
        return None
    skew = Skew(waits_ms=exchanged_ms - wire_ms, critical=int(exchanged_ms.argmin()))
    longest_ms = max(reading.timeline.true_ms for reading in readings)
    return skew if skew.skew_ms >= NOTICED_ON_HOSTS * longest_ms else None


def critical(readings: Sequence[Reading], skew: Skew | None) -> Reading:
    """The rank that the others wait for in their collectives; without any, the slowest one."""
    # Of snapshots without a step time, the fullest.
    slowest = max(
        readings,
        key=lambda r: (r.timeline.true_ms, max((m.peak_bytes for m in r.memory), default=0)),
    )
    if skew is None or skew.skew_ms < 0.02 * slowest.timeline.true_ms:
        return slowest
    return readings[skew.critical]


def rank_rows(readings: Sequence[Reading], skew: Skew | None) -> tuple[RankRow, ...]:
    """Return a row per rank; none for a single one."""
    if len(readings) < 2:
        return ()
    rows = []
    for i, reading in enumerate(readings):
        idle = reading.timeline.context.get("step.idle_share")
        rows.append(
            RankRow(
                rank=reading.rank.rank,
                step_ms=reading.basis.summary.true_ms,
                busy_share=1.0 - float(idle) if isinstance(idle, (int, float)) else None,
                waits_for_others_ms=float(skew.waits_ms[i]) if skew is not None else None,
                path=_name(reading.rank),
            )
        )
    return tuple(rows)


def _name(rank: ingest.Rank) -> str:
    path = rank.folder or rank.trace_path or rank.snapshot_path
    return path.name if path is not None else ""
