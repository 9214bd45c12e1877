"""Whether steps took as long after the captures as before them, and whether they grow.

In: the stretches in which the baseline was timed, each with its typical step. Out: doubts, where two of them
differ by more than their noise. All steps count alike then, and the step time lies in between; unless the
harness has set a stretch aside, because the profiler may have changed it. And a note where steps grow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...model.finding import NEGLIGIBLE_SHARE, Doubt, DoubtCode
from ...model.run import Stretch
from ...model.stacks import StackFrame, Stacks
from ...model.words import ms, percent
from ...stats import TypicalStep
from .loop_lines import MAIN_SHARE

_BLOCKS = 6
"""Of steps in their order, each of which takes longer than the one before where steps grow: by chance one of
720 windows shows that."""
_FEWEST_IN_BLOCK = 8
_LEAST_GROWTH = 0.05
"""From the first block to the last: less is what a machine that warms up does."""
_LEAST_SEEN = 0.5
"""Of what steps have grown, in the steps whose stacks were sampled."""

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


def growth(times_ms: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return how long the first and the last steps took where steps grow, ms; None where they do not.

    Args:
        times_ms: of the steps that count, in their order.
    """
    blocks = rising_blocks(times_ms)
    return (blocks[0], blocks[-1]) if blocks and blocks[-1] >= (1 + _LEAST_GROWTH) * blocks[0] else None


def growth_note(grown: tuple[float, float], stacks: Stacks | None) -> str:
    """Say by how much steps grow, and which line does most of that, if samples of the stack tell."""
    most = _grown_most(stacks, grown[1] - grown[0]) if stacks is not None else None
    line = ""
    if most is not None:
        frame, early_ms, late_ms = most
        where = f"{Path(frame.file).name}:{frame.line}"
        line = (
            f" In samples of the stack `{frame.call or frame.function}` at {where} grew most, from"
            f" {ms(early_ms)} to {ms(late_ms)} a step."
        )
    return (
        f"Steps grow, from {ms(grown[0])} in the first that were timed to {ms(grown[1])} in the last.{line}"
        " `bottleneck watch` tells whether that goes on, and what grows."
    )


def _grown_most(stacks: Stacks, grown_ms: float) -> tuple[StackFrame, float, float] | None:
    """Return the line that takes most more in the later steps, ms per step in the earlier ones and in them.

    None where none has a good part of what they all take more, or that is little of what steps have grown.
    """
    if len(stacks.step_ms) < 2:
        return None
    begins = _later_begin(np.asarray(stacks.step_ms))
    spent: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    steps = begins, len(stacks.step_ms) - begins
    for step, stack, us in zip(stacks.step, stacks.stack, stacks.us, strict=True):
        if stacks.stacks[stack]:
            late = step >= begins
            spent[stacks.stacks[stack][-1]][late] += us / 1e3 / steps[late]
    more_ms = {frame: late - early for frame, (early, late) in spent.items()}
    total_ms, frame = sum(more_ms.values()), max(more_ms, key=lambda each: more_ms[each], default=None)
    if frame is None or more_ms[frame] < MAIN_SHARE * total_ms or total_ms < _LEAST_SEEN * grown_ms:
        return None
    early_ms, late_ms = spent[frame]
    return stacks.frames[frame], early_ms, late_ms


def _later_begin(times_ms: NDArray[np.float64]) -> int:
    """Return from which step on they differ most from those before: with the greatest variance between them.

    As N. Otsu, "A threshold selection method from gray-level histograms", 1979, splits a histogram.
    """
    before = np.arange(1, len(times_ms))
    sums = np.cumsum(times_ms)
    early, late = sums[:-1] / before, (sums[-1] - sums[:-1]) / (len(times_ms) - before)
    return int(before[np.argmax(before * (len(times_ms) - before) * (late - early) ** 2)])
