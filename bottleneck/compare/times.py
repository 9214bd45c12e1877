"""Compares step times, from repeated runs.

In: two baselines and the settings. Out: `TimeRow`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from ..model.baseline import Baseline, RunTime
from ..model.compare import TimeRow
from ..model.gate import GateSettings
from ..stats.gate import FEWEST_RUNS, TimeDecision, decide_times
from .comparable import same_machine

_SUSPICIOUS = 3.0
"""Standard errors, as told from the steps of single runs, from which a slower run is suspicious."""


def median_of(runs: Sequence[RunTime]) -> float | None:
    """Return the median of the runs' step times, ms; each is the mean over its run."""
    return statistics.median(run.step_ms for run in runs) if runs else None


def spread_of(runs: Sequence[RunTime]) -> float | None:
    """Return the standard deviation of the runs' step times, relative; None with one run."""
    if len(runs) < 2:
        return None
    return statistics.stdev(math.log(run.step_ms) for run in runs)


def _within(base: Sequence[RunTime], head: Sequence[RunTime]) -> float | None:
    errors = [run.error for run in (*base, *head) if run.error is not None]
    return max(errors) if errors else None


def compare_times(base: Baseline, head: Baseline, *, settings: GateSettings, interleaved: bool) -> TimeRow:
    """Compare the step times of two sides."""
    return compare_runs(
        [run.step_ms for run in base.runs],
        [run.step_ms for run in head.runs],
        settings=settings,
        interleaved=interleaved,
        within=_within(base.runs, head.runs),
        same_machine=same_machine(base, head),
        absent="no unprofiled step time was measured on both sides",
    )


def compare_runs(
    base_ms: Sequence[float],
    head_ms: Sequence[float],
    *,
    settings: GateSettings,
    interleaved: bool,
    same_machine: bool,
    within: float | None = None,
    absent: str = "one side has no such time",
) -> TimeRow:
    """Compare times of the runs of two sides.

    One positive time per run. `interleaved`: run k of head was made right beside run k of base; `within`:
    relative noise of a run's time, as told from the run alone; `absent`: why a side may have none.
    """
    common = TimeRow(
        decision="not compared",
        gated=False,
        base_ms=statistics.median(base_ms) if base_ms else None,
        head_ms=statistics.median(head_ms) if head_ms else None,
        tolerance=settings.time_tolerance,
        base_runs=len(base_ms),
        head_runs=len(head_ms),
        interleaved=interleaved and len(base_ms) == len(head_ms),
    )
    if settings.times == "off":
        return _with(common, note="times are turned off")
    if not base_ms or not head_ms:
        return _with(common, note=absent)
    if not same_machine:
        return _with(common, note="the machines differ, so their times say nothing about the program")
    found = decide_times(
        base_ms, head_ms, tolerance=settings.time_tolerance, paired=common.interleaved, within=within
    )
    fewest = min(len(base_ms), len(head_ms))
    if settings.times == "gate":
        gated = True
    elif settings.times == "report":
        gated = False
    else:
        enough = fewest >= FEWEST_RUNS
        gated = common.interleaved if enough else _suspicious(found, within, settings.time_tolerance)
    return _with(
        common,
        decision=found.decision,
        gated=gated,
        ratio=found.ratio,
        interval=found.interval,
        noise=found.noise,
        needed=found.needed,
        note=_note(found, fewest=fewest, interleaved=common.interleaved),
    )


def _with(row: TimeRow, **changes: object) -> TimeRow:
    return msgspec.structs.replace(row, **changes)


def _suspicious(found: TimeDecision, within: float | None, tolerance: float) -> bool:
    """Whether too few runs to tell show more than their own steps' noise and the tolerance explain."""
    if found.ratio is None:
        return False
    noise = max(within or 0.0, found.noise or 0.0)
    return math.log(max(found.ratio, 1e-9)) > max(math.log1p(tolerance), _SUSPICIOUS * math.sqrt(2) * noise)


def _note(found: TimeDecision, *, fewest: int, interleaved: bool) -> str:
    notes = []
    if fewest < FEWEST_RUNS:
        runs = "one run" if fewest == 1 else f"{fewest} runs"
        notes.append(f"{runs} per side cannot tell a change from noise")
        if fewest == 1 and found.noise is not None:
            notes.append("the noise is from the steps of one run; between runs it is larger")
    elif not interleaved:
        notes.append("the sides were not run in turns, so a change of the machine between them counts too")
    return "; ".join(notes)
