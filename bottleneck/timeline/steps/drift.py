"""Whether steps took as long after the captures as before them, and whether they grow.

In: the stretches in which the baseline was timed, each with its typical step. Out: doubts, where two of them
differ by more than their noise. All steps count alike then, and the step time lies in between; unless the
harness has set a stretch aside, because the profiler may have changed it. And a note where steps grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...model.doubt import Doubt, DoubtCode
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.run import Stretch
from ...model.words import ms, percent
from ...stats import TypicalStep

_BLOCKS = 6
"""Of steps in their order, each of which takes longer than the one before where steps grow: by chance one of
720 windows shows that."""
_FEWEST_IN_BLOCK = 8
_LEAST_GROWTH = 0.05
"""From the first block to the last: less is what a machine that warms up does."""

_WHERE = {"between": "after the trace", "after": "after the captures"}


def find_drift(stretches: Sequence[tuple[Stretch, TypicalStep]]) -> tuple[Doubt, ...]:
    """Compare the later stretches with the first; of those that differ, the one that differs most is told."""
    if len(stretches) < 2:
        return ()
    (_, before), *later = stretches
    changed = [pair for pair in later if pair[0].counted and _differ(before, pair[1])]
    aside = [pair for pair in later if not pair[0].counted]
    out = []
    if aside:
        stretch, after = aside[-1]
        slower = after.mean_ms > before.mean_ms
        why = (
            "the profiler may still have slowed them"
            if slower
            else "what it left in the heap spares them page faults"
        )
        out.append(
            Doubt(
                code=DoubtCode.LATER_STEPS_SLOWER if slower else DoubtCode.LATER_STEPS_FASTER,
                text=f"The {after.count} steps timed {_WHERE[stretch.window]} took {ms(after.mean_ms)} each, "
                f"those before {ms(before.mean_ms)}: {why}, so that only the {before.count} before it count",
            )
        )
    if changed:
        stretch, after = max(changed, key=lambda pair: abs(pair[1].mean_ms - before.mean_ms))
        more = after.mean_ms / before.mean_ms - 1
        out.append(
            Doubt(
                code=DoubtCode.STEPS_DRIFT,
                text=f"Steps {_WHERE[stretch.window]} took {percent(abs(more))} "
                f"{'longer' if more > 0 else 'less'} than before ({ms(after.mean_ms)} and "
                f"{ms(before.mean_ms)}): the step time is the mean of all",
                remedy="Run again on a quiet machine. If it is the same there, the script's steps change.",
            )
        )
    return tuple(out)


def _differ(before: TypicalStep, after: TypicalStep) -> bool:
    if before.interval_ms is None or after.interval_ms is None:
        return False
    noise = math.hypot(*((high - low) / 2 for low, high in (before.interval_ms, after.interval_ms)))
    return abs(after.mean_ms - before.mean_ms) > max(noise, NEGLIGIBLE_SHARE * before.mean_ms)


def rising_blocks(times: NDArray[np.float64]) -> list[float]:
    """Return the medians of blocks of steps, where each is longer than the one before; else nothing."""
    if len(times) < _BLOCKS * _FEWEST_IN_BLOCK:
        return []
    blocks = [float(np.median(block)) for block in np.array_split(times, _BLOCKS)]
    return blocks if blocks == sorted(set(blocks)) else []


def growth_notes(times_ms: NDArray[np.float64]) -> tuple[str, ...]:
    """Say by how much steps grow; nothing where they do not.

    Args:
        times_ms: of the steps that count, in their order.
    """
    blocks = rising_blocks(times_ms)
    if not blocks or blocks[-1] < (1 + _LEAST_GROWTH) * blocks[0]:
        return ()
    return (
        f"Steps grow: the first of those that were timed took {ms(blocks[0])}, the last {ms(blocks[-1])}, and"
        " they became longer all the way. `bottleneck watch` runs the script to its end, and tells whether"
        " that goes on, and what grows with it.",
    )
