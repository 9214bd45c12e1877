"""The curve of live bytes, thinned to a bounded number of points, and the stretches to draw under it.

In: a `Reading`. Out: `MemoryCurve` and marks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model.memory import MAX_POINTS, MemoryCurve, MemoryMark
from .clock import MemoryClock
from .reading import Reading
from .roles import CATEGORIES

MAX_MARKS = 120
_MARKED = ("forward", "backward", "optimizer", "zero_grad", "data", "h2d", "evaluation")


def draw_curve(reading: Reading, reserved: NDArray[np.int64]) -> MemoryCurve:
    """Return the fullest moment of each slot of time; empty without a history."""
    if not reading.lives.events:
        return MemoryCurve(unit="event")
    clock, live = reading.clock, reading.live
    chosen = thin(clock.at, live)
    by_category: dict[str, list[int]] = {}
    for code, category in enumerate(CATEGORIES):
        rows = reading.roles.category == code
        if rows.any():
            by_category[category.value] = reading.lives.live_after(rows)[chosen].tolist()
    return MemoryCurve(
        unit=clock.unit,
        at=np.round(clock.at[chosen], 3).tolist(),
        live_bytes=live[chosen].tolist(),
        reserved_bytes=reserved[chosen].tolist() if len(reading.memory.segment_size) else [],
        by_category=by_category,
    )


def thin(at: NDArray[np.float64], live: NDArray[np.int64], *, most: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return the first event, the last, and of each slot the one with most live: at most `most`."""
    count = len(at)
    if count <= most:
        return np.arange(count)
    slots = most - 2
    span = float(at[-1] - at[0])
    place = (at - at[0]) / span if span > 0 else np.arange(count) / count
    slot = np.minimum(place * slots, slots - 1).astype(np.int64)
    order = np.lexsort((-live, slot))
    first_of_slot = np.concatenate(([True], np.diff(slot[order]) > 0))
    chosen: NDArray[np.int64] = np.unique(np.concatenate(([0], order[first_of_slot], [count - 1])))
    return chosen


def draw_marks(clock: MemoryClock) -> tuple[MemoryMark, ...]:
    """Return steps, and the longest phases as far as they are not too many to draw."""
    last = len(clock.at) - 1

    def mark(name: str, begin: int, end: int, step: int) -> MemoryMark:
        return MemoryMark(
            name=name,
            begin=round(float(clock.at[begin]), 3),
            end=round(float(clock.at[min(end, last)]), 3),
            step=step if step >= 0 else None,
        )

    steps = [mark("step", s.begin, s.end, number) for number, s in enumerate(clock.steps)][:MAX_MARKS]
    phases = [
        mark(s.name, s.begin, s.end, int(clock.step_of[s.begin])) for s in clock.phases if s.name in _MARKED
    ]
    phases.sort(key=lambda m: m.begin - m.end)
    return (*steps, *sorted(phases[: MAX_MARKS - len(steps)], key=lambda m: m.begin))
