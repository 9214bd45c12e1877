"""Is one kind of run faster than another, from pairs of neighbouring processes?

In: mean step times of processes that ran in turns (A B A B ...). Out: the ratio with an interval,
the noise of the machine, and a decision.

The unit is a process, not a step: thousands of steps of one process share its memory layout, its
cores and its neighbours, and say nothing about the next process. Two processes in a row share the
machine's mood, so their ratio is what is averaged, on a log scale, where "2x" and "0.5x" are alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

TURNS = (3, 12)
"""Fewest and most pairs of blocks of one process in turns; it is looked after each pair."""
_LOOKS_EXPONENT = 0.7
"""Within 5 % of the levels of S. J. Pocock, "Group Sequential Methods in the Design and Analysis of Clinical
Trials", 1977: 0.0294 for 2 looks, 0.0221 for 3, 0.0158 for 5, 0.0106 for 10."""

Decision = Literal["faster", "slower", "no gain", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """Before over after: above 1, after is faster."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


def paired_ratio(
    before: Sequence[float],
    after: Sequence[float],
    *,
    floor: float = 0.0,
    floor_freedom: float = 0.0,
    looks: int = 1,
) -> PairedRatio | None:
    """Return the ratio of paired times with Student's 95 % interval of the mean log-ratio.

    Who looks after each pair for a gain, and ends as soon as there is one, is fooled more than twice as often
    as with one look. With `looks` the lower ends of all looks together hold as often as one (repeated
    confidence intervals, C. Jennison and B. W. Turnbull 1989). The upper end is that of one look: nobody
    waits for a loss.

    Where the pairs agree better than the floor allows, the floor takes the place of their own scatter,
    and with it comes how well it is known: two pairs then tell almost as much as three. Where they
    agree worse, the change may have brought its own noise, and only their own scatter counts. (By
    simulation the interval covers in 96 to 98 % of cases, and in 93 % with two pairs of which the
    changed side scatters twice as much.)

    Args:
        before: times of the script as it is, one per pair.
        after: times with the change, in the same order.
        floor: standard deviation of one log-ratio that is known from elsewhere (the noise of the
            machine, the scatter within runs): few pairs may agree by chance.
        floor_freedom: degrees of freedom behind the floor (`neighbour_freedom`).
        looks: how often at most it is looked whether the pairs decide.

    Returns:
        None without a pair; an interval needs two.

    Raises:
        ValueError: the lists differ in length, or hold times that are not positive.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} times before and {len(after)} after do not pair up")
    if not before:
        return None
    if min(*before, *after) <= 0:
        raise ValueError("times must be positive")
    logs = np.log(np.asarray(before, dtype=np.float64) / np.asarray(after, dtype=np.float64))
    centre, n = float(logs.mean()), len(logs)
    if n < 2:
        return PairedRatio(ratio=math.exp(centre), low=None, high=None, pairs=n)
    from scipy.special import stdtrit

    own = float(logs.std(ddof=1))
    freedom = n - 1 + (floor_freedom if own <= floor else 0.0)
    error = max(own, floor) / math.sqrt(n)
    below, above = (error * float(stdtrit(freedom, _beyond(each))) for each in (looks, 1))
    return PairedRatio(
        ratio=math.exp(centre), low=math.exp(centre - below), high=math.exp(centre + above), pairs=n
    )


def _beyond(looks: int) -> float:
    """Return the quantile whose interval is used at each look."""
    return 1.0 - 0.025 * math.pow(looks, -_LOOKS_EXPONENT)


def ratio_in_turns(
    before: Sequence[float], after: Sequence[float], unchanged: Sequence[Sequence[float]]
) -> PairedRatio | None:
    """Return the ratio of blocks of one process that were timed in turns, and looked at after each pair.

    `unchanged` times, a list per unbroken session, tell the machine's noise.
    """
    noise = neighbour_noise(unchanged)
    return paired_ratio(
        before,
        after,
        floor=noise[0] if noise is not None else 0.0,
        floor_freedom=neighbour_freedom([len(times) for times in unchanged]),
        looks=1 + TURNS[1] - TURNS[0],
    )


def neighbour_noise(runs: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return (typical, worst) relative difference of neighbouring runs of the same thing.

    The standard deviation of one log-ratio and the largest, as shares; None without two neighbours. `runs`
    has the times in order, one list per unbroken session.
    """
    steps = [abs(math.log(b / a)) for times in runs for a, b in itertools.pairwise(times)]
    if not steps:
        return None
    return math.sqrt(sum(step * step for step in steps) / len(steps)), math.expm1(max(steps))


def neighbour_freedom(lengths: Sequence[int]) -> float:
    """Return the degrees of freedom of the typical difference of `neighbour_noise`.

    n runs in a row have n-1 differences, which share runs: von Neumann's 2 (n-1)^2 / (3n - 4).
    """
    return sum(2 * (n - 1) ** 2 / (3 * n - 4) for n in lengths if n > 1)


def decide_ratio(found: PairedRatio | None, *, least_pairs: int, threshold: float) -> Decision:
    """Decide in pyperf's order: enough samples? significant? large enough? Else undecided.

    A change below `threshold`, as a share of the step, is none.
    """
    if found is None or found.low is None or found.high is None or found.pairs < least_pairs:
        return "undecided"
    if found.low > 1.0 and found.ratio >= 1.0 + threshold:
        return "faster"
    if found.high < 1.0 and found.ratio <= 1.0 - threshold:
        return "slower"
    # That there is none is nothing to be fooled by: both ends are those of one look.
    if found.ratio**2 / found.high >= 1.0 - threshold and found.high <= 1.0 + threshold:
        return "no gain"
    return "undecided"


def may_decide(found: PairedRatio | None, *, threshold: float) -> bool:
    """Return whether the most pairs of `TURNS` may decide, if the others scatter as those so far.

    Their mean may lie a standard error away from that of now.
    """
    least, pairs = TURNS
    if found is None or found.low is None or found.high is None:
        return True
    from scipy.special import stdtrit

    level = _beyond(1 + pairs - least)
    error = math.log(found.ratio / found.low) / float(stdtrit(found.pairs - 1, level))
    left = error * math.sqrt(found.pairs / pairs)
    gain, loss = (left * float(stdtrit(pairs - 1, quantile)) for quantile in (level, 0.975))
    centre, worth = math.log(found.ratio), math.log1p(threshold)
    return (
        centre + error > max(gain, worth)
        or error - centre > max(loss, worth)
        or max(0.0, abs(centre) - error) + loss < worth
    )
