"""Is training unharmed? The losses of runs with a fix against those of runs without.

In: losses in order of backward passes, None where not finite; a tolerance. Out: `Parity`, and a
sentence on how the script compares with itself.

The first steps are compared one by one: differences have not grown yet, so they tell what the fix
changes. Later a rounding difference may have grown into another, equally good trajectory: there the
mean over the last third is compared, with what the curve itself scatters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..catalog.tolerances import Tolerance
from ..model.verify import Parity
from ..model.words import percent

Losses = Sequence["float | None"]

EARLY = 5
LEAST = 3
"""Fewer losses in common say nothing."""
HOPELESS = 0.1
"""A script that differs from itself by this much at its first steps cannot show what a fix does."""
ROUNDING = 1e-5
"""Relative differences of a loss in 32-bit arithmetic, after some sums in another order."""
_TAIL_ERRORS = 3.0
"""Standard errors of the curve's own scatter that the last third may move."""
_FALL_ERRORS = 4.0
_WIDEN = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The script against itself."""

    early: float
    """Largest relative difference at the first steps."""
    tail: float
    """Largest relative difference of the means over the last third."""
    runs: int
    text: str

    @property
    def comparable(self) -> bool:
        """The script repeats itself well enough to judge a fix by its losses."""
        return self.early <= HOPELESS


def reproduction(runs: Sequence[Losses]) -> Reproduction | None:
    """Compare runs without a fix with each other; None with fewer than two that have losses."""
    usable = [losses for losses in runs if len(losses) >= LEAST]
    if len(usable) < 2:
        return None
    first = usable[0]
    pairs = [(first, other) for other in usable[1:]]
    early = max(_early(a, b) for a, b in pairs)
    tail = max(abs(_tail(a, b) or 0.0) for a, b in pairs)
    if early == 0 and tail == 0:
        text = f"The script repeats itself exactly ({len(usable)} runs with the same seed)."
    elif early <= ROUNDING and tail <= 10 * ROUNDING:
        text = f"The script repeats itself to rounding ({len(usable)} runs with the same seed)."
    elif early <= HOPELESS:
        text = (
            f"The script does not repeat itself exactly with the same seed: its loss differs by {early:.2g}"
            f" at the first steps and {tail:.2g} at the last. The tolerances are widened by these amounts."
        )
    else:
        text = (
            f"The script does not repeat itself with the same seed: its loss differs by {percent(early)} at"
            " the first steps, so losses with and without a fix cannot be compared."
        )
    return Reproduction(early=early, tail=tail, runs=len(usable), text=text)


def compare(
    without: Losses,
    with_fix: Losses,
    *,
    tolerance: Tolerance,
    against_itself: Reproduction | None,
    norms: tuple[Losses, Losses] = ((), ()),
) -> Parity:
    """Judge the losses of a run with a fix.

    `against_itself` is the script's own scatter, if it ran twice. `norms`, of gradients at the first steps,
    are judged only where not finite.
    """
    count = min(len(without), len(with_fix))
    if count < LEAST:
        return Parity(verdict="not measured", text="Too few losses were seen to compare.", compared=count)
    a, b = without[:count], with_fix[:count]
    broken = next((i for i in range(count) if b[i] is None and a[i] is not None), None)
    if broken is not None:
        return Parity(
            verdict="harmful",
            text=f"The loss is not finite from backward {broken + 1} on.",
            compared=count,
        )
    lost = next(
        (i for i, (x, y) in enumerate(zip(*norms, strict=False)) if y is None and x is not None), None
    )
    if lost is not None:
        return Parity(
            verdict="harmful",
            text=f"The gradients are not finite at update {lost + 1}.",
            compared=count,
        )
    if against_itself is not None and not against_itself.comparable:
        return Parity(verdict="not comparable", text=against_itself.text, compared=count)
    early, tail = _early(a, b), _tail(a, b)
    own_early = against_itself.early if against_itself is not None else 0.0
    own_tail = against_itself.tail if against_itself is not None else 0.0
    may_early = max(tolerance.early, _WIDEN * own_early)
    scatter = _tail_scatter(a)
    may_tail = max(tolerance.tail, _WIDEN * own_tail, _TAIL_ERRORS * scatter)
    found = Parity(
        verdict="same",
        compared=count,
        early=early,
        tail=tail,
        gradient_norm=_early(*norms) if min(map(len, norms)) >= 1 else None,
        steps_to_loss=steps_to_loss(a, b),
    )
    if early > may_early:
        return _with(
            found,
            "harmful",
            f"The loss differs by {early:.2g} at the first steps;"
            f" {tolerance.arithmetic.value} allows {may_early:.2g}.",
        )
    if tail is not None and tail > may_tail:
        return _with(
            found,
            "harmful",
            f"The loss drifts: {percent(tail)} higher over the last third of {count} losses.",
        )
    if early <= ROUNDING and (tail is None or abs(tail) <= 10 * ROUNDING):
        exactly = early == 0 and not tail
        return _with(found, "same", "The losses are equal." if exactly else "The losses agree to rounding.")
    return _with(found, "close", f"The losses stay within {max(early, abs(tail or 0.0)):.2g}.")


def steps_to_loss(without: Losses, with_fix: Losses) -> tuple[int, int | None] | None:
    """Return after how many losses each run reaches the level that the first one ends at.

    Both curves are smoothed by a running mean. None where the curve does not fall by several times
    its own scatter: then the level says nothing.
    """
    a, b = _finite(without), _finite(with_fix)
    window = max(3, len(a) // 10)
    if len(a) < 3 * window or len(b) < window:
        return None
    smooth_a, smooth_b = _smooth(a, window), _smooth(b, window)
    scatter = float(np.std(a[window - 1 :] - smooth_a))
    fall = float(smooth_a[0] - smooth_a[-1])
    if fall <= _FALL_ERRORS * scatter / math.sqrt(window) or fall <= 0:
        return None
    # A little above the end, so that a curve that ends level with it still counts.
    level = float(smooth_a[-1]) + 0.02 * fall
    reached = [np.flatnonzero(curve <= level) for curve in (smooth_a, smooth_b)]
    first = [int(found[0]) + window if len(found) else None for found in reached]
    assert first[0] is not None
    return first[0], first[1]


def _smooth(x: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    return np.convolve(x, np.full(window, 1.0 / window), mode="valid")


def _with(parity: Parity, verdict: str, text: str) -> Parity:
    import msgspec

    return msgspec.structs.replace(parity, verdict=verdict, text=text)


def _finite(losses: Losses) -> NDArray[np.float64]:
    values = np.asarray([np.nan if loss is None else loss for loss in losses], dtype=np.float64)
    return values[np.isfinite(values)]


def _paired(a: Losses, b: Losses) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    count = min(len(a), len(b))
    x, y = (
        np.asarray([np.nan if v is None else v for v in side[:count]], dtype=np.float64) for side in (a, b)
    )
    both = np.isfinite(x) & np.isfinite(y)
    return x[both], y[both]


def _scale(x: NDArray[np.float64]) -> float:
    """Return what differences are measured by: a loss may pass through zero or be negative."""
    return max(float(np.median(np.abs(x))), float(np.ptp(x)), 1e-12) if len(x) else 1.0


def _early(a: Losses, b: Losses) -> float:
    x, y = _paired(a[:EARLY], b[:EARLY])
    return float(np.max(np.abs(x - y)) / _scale(x)) if len(x) else 0.0


def _tail(a: Losses, b: Losses) -> float | None:
    x, y = _paired(a, b)
    size = len(x) // 3
    if size < LEAST:
        return None
    return float((y[-size:].mean() - x[-size:].mean()) / _scale(x))


def _tail_scatter(a: Losses) -> float:
    """Return the standard error of the mean over the last third, as a share of the scale."""
    x = _finite(a)
    size = len(x) // 3
    if size < LEAST:
        return 0.0
    last = x[-size:]
    # Steps of the curve, not its level: a falling curve scatters less than it spreads.
    return float(np.std(np.diff(last)) / math.sqrt(2 * size) / _scale(x))
