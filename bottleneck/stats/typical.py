"""The step time that a window of steps stands for, and what was left out of it.

In: step times of one window with their flags. Out: `TypicalStep`.

Why a mean and not a median: the step that is paid for is elapsed time over steps. A queue that
runs dry every fourth step, a recompilation every tenth or a checkpoint every twentieth are exactly
what a median hides. Why not a plain mean: one step that the machine gave to another process is not
the program's. So a mean over the steps that belong, where a lone, unexplained straggler does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .interval import mean_interval
from .spread import MAD_TO_SIGMA, as_times

_FAR = 6.0
"""Sigmas from the median beyond which a step is a straggler; 6 keeps ordinary skew in."""
_FAR_SHARE = 0.5
"""...and at least this share of the median away, since a quiet window has a tiny sigma."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalStep:
    """What a window says about one step; times in the unit of the input (ms)."""

    mean_ms: float
    interval_ms: tuple[float, float] | None
    """95 % interval of the mean."""
    spread_ms: float | None
    """MAD times 1.4826 of the kept steps."""
    median_ms: float
    kept: NDArray[np.bool_]
    """Which steps of the input the figures stand for."""
    validation: int
    """Steps left out because they contain an evaluation."""
    stragglers: tuple[float, ...]
    """Times of the steps left out as lone and unexplained."""
    one_off_compiles: int
    """Steps left out because a single late compilation fell into them."""

    @property
    def count(self) -> int:
        """Number of steps behind the figures."""
        return int(self.kept.sum())

    @property
    def varies(self) -> bool:
        """The steps differ from each other by more than a tenth."""
        return self.spread_ms is not None and self.spread_ms > 0.1 * self.median_ms


def _flags(values: Sequence[bool] | None, n: int) -> NDArray[np.bool_]:
    if values is None or len(values) != n:
        return np.zeros(n, dtype=np.bool_)
    return np.asarray(values, dtype=np.bool_)


def typical_step(
    times_ms: Sequence[float | None],
    *,
    validation: Sequence[bool] | None = None,
    compiled: Sequence[bool] | None = None,
    collecting_ms: Sequence[float] = (),
) -> TypicalStep | None:
    """Summarise a window of steps.

    Args:
        times_ms: one entry per step; None where the step could not be timed.
        validation: steps that contain an evaluation; they are another kind of step.
        compiled: steps that contain a compilation. Two or more are steady state and stay; a single
            one is a late first compilation and goes.
        collecting_ms: of each step, what Python's garbage collector took: no straggler for that.

    Returns:
        The summary, or None when no step is left.
    """
    x = np.asarray([np.nan if t is None else t for t in times_ms], dtype=np.float64)
    n = len(x)
    measured = np.isfinite(x)
    is_validation = _flags(validation, n)
    kept = measured & ~is_validation
    if not kept.any():
        is_validation = np.zeros(n, dtype=np.bool_)  # evaluation is all there is: take it as it is
        kept = measured.copy()
    if not kept.any():
        return None

    was_compiled = _flags(compiled, n) & kept
    one_off = 0
    if was_compiled.sum() == 1 and kept.sum() > 1:
        one_off = 1
        kept &= ~was_compiled

    stragglers: tuple[float, ...] = ()
    if kept.sum() >= 5:
        centre = float(np.median(x[kept]))
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(x[kept] - centre)))
        excess = x - centre - (collecting_ms if len(collecting_ms) == n else 0.0)
        far = kept & (excess > max(_FAR * sigma, _FAR_SHARE * centre)) & ~was_compiled
        most, all_far = float(excess[far].max(initial=0.0)), float(excess[far].sum())
        # Two of a kind are a rhythm of the program, and belong to the step. One that takes twice what all
        # others together take is alone.
        if most > 2 * (all_far - most):
            alone = far & (excess == most)
            stragglers = tuple(float(t) for t in x[alone])
            kept &= ~alone

    chosen = as_times(x[kept])
    centre = float(np.median(chosen))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(chosen - centre))) if len(chosen) > 1 else None
    return TypicalStep(
        mean_ms=float(chosen.mean()),
        interval_ms=mean_interval(chosen),
        spread_ms=spread,
        median_ms=centre,
        kept=kept,
        validation=int(is_validation.sum()),
        stragglers=stragglers,
        one_off_compiles=one_off,
    )
