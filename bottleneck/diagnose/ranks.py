"""Several ranks of one run: which of them decides the step, and how they compare.

In: readings. Out: the critical one, and a row per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model.codes import Part
from ..model.diagnosis import RankRow
from ..model.finding import NEGLIGIBLE_SHARE
from ..timeline.steps.clock import step_times
from ..timeline.trace.collectives import Skew, collective_ns, rank_skew
from .reading import Reading

__all__ = ["critical", "rank_rows", "skew_of"]

_AHEAD = 0.05
"""Share of the step by which a host must be faster than its device to be called ahead of it."""
_AS_LONG = 0.005
"""Step times of ranks within this share are the same: they make their steps together."""
NOTICED_ON_HOSTS = 0.05
"""Of the step: ranks on the cores of one machine take turns in being late by less than that."""


def skew_of(readings: Sequence[Reading]) -> Skew | None:
    """Return how the ranks wait for each other, when all their traces are there."""
    if len(readings) < 2:
        return None
    if all(reading.timeline.kind == "cpu" for reading in readings):
        return _skew_on_hosts(readings)
    traces = [reading.rank.trace for reading in readings]
    durations = [collective_ns(trace) for trace in traces if trace is not None]
    if len(durations) < len(readings):
        return None
    skew = rank_skew(durations, min(reading.timeline.steps for reading in readings))
    return None if skew is None or _of_the_profiler(readings, skew) else skew


def _of_the_profiler(readings: Sequence[Reading], skew: Skew) -> bool:
    """Tell whether the late rank is late in the trace alone, where each rank pays the profiler differently.

    In the baseline its host ran ahead of its device, so that nothing waited for that host, and its device
    has no more work of its own than that of the rank which waits longest.
    """
    late, patient = readings[skew.critical], readings[int(skew.waits_ms.argmax())]
    return _runs_ahead(late) and _own_work_ms(late) - _own_work_ms(patient) < 0.5 * skew.skew_ms


def _runs_ahead(reading: Reading) -> bool:
    """Return whether the host was faster than the device in the unprofiled steps."""
    window = reading.basis.run.window("baseline") if reading.basis.run is not None else None
    if window is None or reading.basis.kept is None:
        return False
    times, clock = step_times(window.steps)
    pairs = [
        (host, device)
        for host, device, kept in zip(window.steps.wall_ms, times, reading.basis.kept, strict=False)
        if kept and device is not None
    ]
    if clock != "device" or not pairs:
        return False
    # Medians: once in a while a host that is ahead waits for room.
    host, device = (float(np.median(column)) for column in zip(*pairs, strict=True))
    return host < (1.0 - _AHEAD) * device


def _own_work_ms(reading: Reading) -> float:
    """Return the time of a rank's kernels without its collectives, in ms per step."""
    return sum(row.ms for row in reading.timeline.kernels if row.part is not Part.COMMUNICATION)


def _skew_on_hosts(readings: Sequence[Reading]) -> Skew | None:
    """Compare the ranks by their budgets, since a collective on the CPU has no kernel to time.

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
    if skew is not None and skew.skew_ms >= NEGLIGIBLE_SHARE * slowest.timeline.true_ms:
        return readings[skew.critical]
    # Of ranks that take as long, the one with the most work of its own.
    as_slow = [r for r in readings if r.timeline.true_ms > (1.0 - _AS_LONG) * slowest.timeline.true_ms]
    return max(as_slow, key=_own_work_ms) if _own_work_ms(slowest) > 0 else slowest


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
                path=reading.rank.name,
            )
        )
    return tuple(rows)
