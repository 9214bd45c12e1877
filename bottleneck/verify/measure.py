"""What the runs of an experiment say about speed, memory and start-up.

In: records of runs, in order. Out: `Measured`, `Noise`, and differences of peaks and start-up times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..catalog.registry import by_id
from ..model.verify import Measured, Noise, RunRecord
from ..stats.ratio_paired import PairedRatio, neighbour_freedom, neighbour_noise, paired_ratio

_COMMON = 10
"""Fewer steps in common are not a series."""
_ALIKE = 0.7
"""Correlation of two runs' steps from which on the steps themselves differ, not the runs."""
_BRACKETED = 0.75
"""Variance of one log-ratio with a run on either side, over that of neighbours of one kind."""


def timed(runs: Sequence[RunRecord], fixes: tuple[str, ...]) -> list[RunRecord]:
    """Return the runs with exactly these fixes whose times count."""
    return [
        run
        for run in runs
        if run.fixes == fixes and run.status == "ok" and run.purpose == "timing" and run.step_ms
    ]


def noise_of(runs: Sequence[RunRecord], base: tuple[str, ...] = ()) -> Noise | None:
    """Return how much runs without a change differ from each other."""
    sessions = _sessions(runs, base)
    pairs = [(1.0, step_ratio(b, a)[0]) for session in sessions for a, b in pairwise(session)]
    found = neighbour_noise(pairs)
    if found is None:
        return None
    return Noise(runs=sum(map(len, sessions)), share=found[0], worst=found[1])


def _sessions(runs: Sequence[RunRecord], fixes: tuple[str, ...]) -> list[list[RunRecord]]:
    """Return one kind of run, a list per unbroken session."""
    return [list(group) for _, group in groupby(timed(runs, fixes), key=lambda run: run.session)]


def _freedom(runs: Sequence[RunRecord], fixes: tuple[str, ...]) -> float:
    return neighbour_freedom([len(session) for session in _sessions(runs, fixes)])


def step_ratio(before: RunRecord, after: RunRecord) -> tuple[float, float]:
    """Return (step before over step after, the variance of that ratio within the two runs, relative).

    Where steps are of different size (lengths of sentences) and the same in both runs, only the steps
    that both have timed are compared: other batches would make another mean.
    """
    common = _common(before, after)
    if common is None:
        own = [(run.standard_error_ms or 0.0) / (run.step_ms or 1.0) for run in (before, after)]
        return (before.step_ms or 1.0) / (after.step_ms or 1.0), own[0] ** 2 + own[1] ** 2
    a, b = common
    difference = a / a.mean() - b / b.mean()
    return float(a.mean() / b.mean()), float(difference.var(ddof=1)) / len(a)


def _common(before: RunRecord, after: RunRecord) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the times of the steps that both runs have timed, if those are long and short alike."""
    first = max(before.first_step, after.first_step)
    sides = [np.asarray(run.times_ms[first - run.first_step :], dtype=np.float64) for run in (before, after)]
    length = min(map(len, sides))
    if length < _COMMON or 2 * length < min(len(before.times_ms), len(after.times_ms)):
        return None
    a, b = (side[:length] for side in sides)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if len(a) < _COMMON or not a.std() or not b.std() or np.corrcoef(a, b)[0, 1] < _ALIKE:
        return None
    return a, b


def measure(
    runs: Sequence[RunRecord], *, base: tuple[str, ...], added: tuple[str, ...], looks: int = 1
) -> tuple[Measured | None, PairedRatio | None]:
    """Pair each run with the added fixes with the runs without them right before and after it.

    `looks`: how often it is looked whether the pairs decide.

    Returns:
        The measurement, and the ratio that `decide_ratio` takes; (None, None) without a pair.
    """
    befores: list[float] = []
    afters: list[float] = []
    scatter: list[float] = []
    bracketed = True
    known = {run.number: run for run in timed(runs, base)}
    for run in timed(runs, base + added):
        sides = [known.get(run.number + step) for step in (-1, 1)]
        near = [side for side in sides if side is not None and side.session == run.session]
        if not near:
            continue
        bracketed = bracketed and len(near) == 2
        ratios = [step_ratio(side, run) for side in near]
        logs = [math.log(ratio) for ratio, _ in ratios]
        afters.append(run.step_ms or 0.0)
        befores.append(afters[-1] * math.exp(sum(logs) / len(logs)))
        # The run with the fix is in both ratios: its own scatter does not average out.
        scatter.append(max(variance for _, variance in ratios))
    if not befores:
        return None, None
    # The noise of the machine is best known from the runs without any fix, which are the most.
    steady = max(((), base), key=lambda fixes: _freedom(runs, fixes))
    machine = noise_of(runs, steady)
    floor = math.sqrt(sum(scatter) / len(scatter))
    if machine is not None:
        floor = max(floor, math.sqrt(_BRACKETED if bracketed else 1.0) * machine.share)
    ratio = paired_ratio(
        befores,
        afters,
        floor=floor,
        floor_freedom=_freedom(runs, steady),
        looks=looks,
    )
    assert ratio is not None
    found = Measured(
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        pairs=ratio.pairs,
        before_ms=median(befores),
        after_ms=median(afters),
    )
    return found, ratio


def memory_change(
    runs: Sequence[RunRecord], *, base: tuple[str, ...], added: tuple[str, ...]
) -> tuple[int | None, str]:
    """Return (change of the median peak in bytes, whose memory), or (None, "") if not measured."""
    without, with_it = timed(runs, base), timed(runs, base + added)
    kinds = {run.peak_is for run in (*without, *with_it)}
    peaks = [[run.peak_bytes for run in side if run.peak_bytes is not None] for side in (without, with_it)]
    if not all(peaks) or len(kinds) != 1:
        return None, ""
    return round(median(peaks[1]) - median(peaks[0])), next(iter(kinds))


def startup_change(
    runs: Sequence[RunRecord], *, base: tuple[str, ...], added: tuple[str, ...]
) -> float | None:
    """Return the seconds of start-up that the fixes add (compiling, starting workers)."""
    sides = [timed(runs, base), timed(runs, base + added)]
    known = [[run.startup_seconds for run in side if run.startup_seconds is not None] for side in sides]
    if not all(known):
        return None
    # Of several compilations all but the first may find a warm cache, and a user's first one does not.
    with_it = known[1][0] if any(by_id(fix).compiles for fix in added) else median(known[1])
    return with_it - median(known[0])


def pays_after(startup_seconds: float | None, measured: Measured | None) -> int | None:
    """Return after how many steps the added start-up is recovered; None if it never is."""
    if startup_seconds is None or measured is None or measured.after_ms >= measured.before_ms:
        return None
    if startup_seconds <= 0:
        return 0
    return math.ceil(startup_seconds * 1e3 / (measured.before_ms - measured.after_ms))
