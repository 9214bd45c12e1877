"""Steps of two kinds: some are far longer than the others, as those with a collection or a checkpoint.

In: lengths of steps. Out: `Kinds`; and `AsTimed`, which brings traced steps to what steps take without a
profiler.

Of a few traced steps more, or fewer, are long than of all steps, and what makes them so may be slower beside
a profiler than other work is, or faster. How many there are, and how long both kinds take, the steps tell
that were timed without a profiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_TIMES = 1.0
"""At least one ordinary step longer: what is rarer and shorter is below what matters."""
_TOLD = 0.8
"""Share of the variance that is between the kinds, from which there are two: in one bell-shaped kind the
best division leaves 2 / pi of it between its halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """Steps of two kinds."""

    long: NDArray[np.bool_]
    """(steps,)"""
    usual_ms: float
    """Mean of the others."""
    long_ms: float
    """Mean of the long ones."""

    @property
    def share(self) -> float:
        """How many are long, of one."""
        return float(self.long.mean())


def two_kinds(lengths_ms: Sequence[float] | Floats, *, fewest: int = 2) -> Kinds | None:
    """Divide steps where that leaves least variance within both parts (Otsu 1979); None for one kind.

    Args:
        lengths_ms: of single steps.
        fewest: steps of each kind; a single one is an outlier, except beside others that show the same.
    """
    ms = np.asarray(lengths_ms, dtype=np.float64)
    if len(ms) < 2 * fewest or not ms.var():
        return None
    order = np.sort(ms)
    first = np.arange(fewest, len(ms) - fewest + 1)
    sums = np.cumsum(order)
    usual = sums[first - 1] / first
    long = (sums[-1] - sums[first - 1]) / (len(ms) - first)
    share = first / len(ms)
    between = share * (1.0 - share) * (long - usual) ** 2
    best = int(between.argmax())
    if between[best] < _TOLD * ms.var() or long[best] - usual[best] < LEAST_TIMES * usual[best]:
        return None
    return Kinds(long=ms >= order[first[best]], usual_ms=float(usual[best]), long_ms=float(long[best]))


def as_traced_ms(traced_ms: Floats, timed_ms: Sequence[float]) -> float | None:
    """Return what the traced steps take on average without a profiler; None where all are of one kind."""
    timed = two_kinds(timed_ms)
    if timed is None or not len(traced_ms):
        return None
    traced = two_kinds(traced_ms, fewest=1)
    if traced is not None:
        share = traced.share
    else:
        share = float(traced_ms.mean() > math.sqrt(timed.usual_ms * timed.long_ms))
    return (1.0 - share) * timed.usual_ms + share * timed.long_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class AsTimed:
    """What times within traced steps are without a profiler."""

    long: NDArray[np.bool_]
    """(steps,) of the traced steps; none of them if they are of one kind."""
    share: float = 0.0
    """How many of the timed steps are long, of one."""
    usual_ms: float = math.inf
    """Mean of the other traced steps."""
    pace: float = 1.0
    """Of timed to traced time, up to what an ordinary step takes."""
    pace_beyond: float = 1.0
    """The same of what long steps take longer."""

    @property
    def paces(self) -> Floats:
        """(steps,): of timed to traced time at the end of each step."""
        return np.where(self.long, self.pace_beyond, self.pace)

    def each_ms(self, traced_ms: Floats) -> Floats:
        """Return times in traced steps, each from the begin of its step, without the profiler.

        Of shape (..., steps), as what is returned.
        """
        within = np.where(self.long, np.minimum(traced_ms, self.usual_ms), traced_ms)
        return np.asarray(self.pace * within + self.pace_beyond * (traced_ms - within))

    def mean_ms(self, traced_ms: Floats) -> Floats:
        """Return the mean over the last axis of the same, each kind as often as it was timed."""
        each = self.each_ms(traced_ms)
        if not self.long.any():
            return np.asarray(each.mean(axis=-1))
        usual_ms, long_ms = each[..., ~self.long].mean(axis=-1), each[..., self.long].mean(axis=-1)
        return np.asarray((1.0 - self.share) * usual_ms + self.share * long_ms)


def as_timed(traced_ms: Floats, timed_ms: Sequence[float], *, pace: float = 1.0) -> AsTimed:
    """Compare traced with timed steps; `pace` holds where either are of one kind."""
    traced, timed = two_kinds(traced_ms, fewest=1), two_kinds(timed_ms)
    if traced is None or timed is None:
        return AsTimed(long=np.zeros(len(traced_ms), dtype=bool), pace=pace)
    return AsTimed(
        long=traced.long,
        share=timed.share,
        usual_ms=traced.usual_ms,
        pace=timed.usual_ms / traced.usual_ms,
        pace_beyond=(timed.long_ms - timed.usual_ms) / (traced.long_ms - traced.usual_ms),
    )
