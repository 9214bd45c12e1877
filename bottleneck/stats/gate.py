"""Has the step become slower? Decided from repeated runs, or left undecided.

In: one typical step time per run of either side. Out: `TimeDecision`.

The unit is the run, not the step: what differs between two runs (a neighbour on the machine, memory
layout, clock rate) holds for all the steps of one, so a thousand steps of one run are one sample.
Ratios of times multiply, so everything is done on logarithms, with Student's t: on the differences
of pairs where the runs were interleaved, which takes out whatever both of a pair had in common, and
in Welch's form where they were not.

The order of questions is asv's and pyperf's: enough samples to tell? significant? large enough to
matter? Else undecided, and how many repeats would decide.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

FEWEST_RUNS = 3
"""Runs per side below which no difference is distinguished from noise: with two pairs Student's t
needs 12.7 standard errors."""
_CONFIDENCE = 0.95
_POWER = 0.8
_MOST_REPEATS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDecision:
    """What repeated runs say about head against base."""

    decision: Literal["slower", "faster", "no change", "undecided"]
    """no change: an increase as large as the tolerance is ruled out."""
    ratio: float | None
    """Head over base; above 1, head is slower."""
    interval: tuple[float, float] | None
    """95 % interval of the ratio."""
    noise: float | None
    """Standard deviation of one run's time, relative."""
    needed: int | None
    """Runs per side that would distinguish an increase of the tolerance from noise, four times in
    five. None if more than 500, or if the noise is unknown."""


def decide_times(
    base_ms: Sequence[float],
    head_ms: Sequence[float],
    *,
    tolerance: float,
    paired: bool,
    within: float | None = None,
) -> TimeDecision:
    """Compare the runs of two sides.

    `tolerance` is the relative increase that matters. `paired`: run k of head was made beside run k of base.
    `within` is the relative noise of a run's time as told from its own steps, where there are too few runs to
    see the noise between them.

    Raises:
        ValueError: a time is not positive, or pairs are incomplete.
    """
    if any(time <= 0 or not math.isfinite(time) for time in (*base_ms, *head_ms)):
        raise ValueError("times must be positive")
    if paired and len(base_ms) != len(head_ms):
        raise ValueError(f"{len(base_ms)} runs of base cannot be paired with {len(head_ms)} of head")
    if not len(base_ms) or not len(head_ms):
        return TimeDecision(decision="undecided", ratio=None, interval=None, noise=within, needed=None)
    base, head = np.log(np.asarray(base_ms)), np.log(np.asarray(head_ms))
    ratio = math.exp(float(np.median(head - base) if paired else np.median(head) - np.median(base)))
    fewest = min(len(base), len(head))
    noise = _noise(base, head, paired=paired) if fewest >= 2 else within
    needed = repeats_needed(noise, tolerance, paired=paired) if noise is not None else None
    if fewest < FEWEST_RUNS:
        return TimeDecision(decision="undecided", ratio=ratio, interval=None, noise=noise, needed=needed)
    centre, low, high = _interval(base, head, paired=paired)
    limit = math.log1p(tolerance)
    decision: Literal["slower", "faster", "no change", "undecided"]
    if low > 0 and centre >= limit:
        decision = "slower"
    elif high < 0 and centre <= -limit:
        decision = "faster"
    elif high < limit:
        decision = "no change"
    else:
        decision = "undecided"
    return TimeDecision(
        decision=decision,
        ratio=math.exp(centre),
        interval=(math.exp(low), math.exp(high)),
        noise=noise,
        needed=needed,
    )


def _noise(base: np.ndarray, head: np.ndarray, *, paired: bool) -> float:
    """Return the standard deviation of the logarithm of one run's time."""
    if paired:
        return float(np.std(head - base, ddof=1)) / math.sqrt(2.0)
    squares = float(np.sum((base - base.mean()) ** 2) + np.sum((head - head.mean()) ** 2))
    return math.sqrt(squares / max(1, len(base) + len(head) - 2))


def _interval(base: np.ndarray, head: np.ndarray, *, paired: bool) -> tuple[float, float, float]:
    """Return (centre, low, high) of the difference of logarithms."""
    from scipy.special import stdtrit

    samples = [head - base] if paired else [head, base]
    centre = float(samples[0].mean() - sum(sample.mean() for sample in samples[1:]))
    if all(float(np.ptp(sample)) < 1e-12 for sample in samples):
        return centre, centre, centre
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in samples]
    # Welch and Satterthwaite; of one sample it is its size less one.
    freedom = sum(parts) ** 2 / sum(v**2 / (len(s) - 1) for v, s in zip(parts, samples, strict=True))
    half = float(stdtrit(freedom, 0.5 + _CONFIDENCE / 2)) * math.sqrt(sum(parts))
    return centre, centre - half, centre + half


def repeats_needed(noise: float, tolerance: float, *, paired: bool = True) -> int | None:
    """Return the runs per side that tell an increase of `tolerance` from noise, four times in five.

    From the noncentral t distribution, two-sided at 95 %; None where more than 500 are needed.

    `noise` is the standard deviation of the logarithm of one run's time. Pairs have one degree of freedom
    each, two separate sides two.
    """
    from scipy.special import nctdtr, stdtrit

    if noise <= 0:
        return FEWEST_RUNS

    def power(n: int) -> float:
        freedom = n - 1 if paired else 2 * n - 2
        shift = math.log1p(tolerance) / (noise * math.sqrt(2.0 / n))
        found = 1.0 - float(nctdtr(freedom, shift, stdtrit(freedom, 0.5 + _CONFIDENCE / 2)))
        # Far out the distribution function loses its digits; there the power is 1.
        return found if math.isfinite(found) and shift < 30 else 1.0

    counts = range(FEWEST_RUNS, _MOST_REPEATS + 1)
    enough = bisect.bisect_left(counts, _POWER, key=power)
    return counts[enough] if enough < len(counts) else None
