"""Chooses the next run: A B A B ... until enough is known or the time is used up.

In: the records so far. Out: "without", "with", or that it is to stop. Pure functions; the session runs
what they say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..model.verify import EndedBy, Protocol, RunRecord
from ..stats.ratio_paired import Decision, PairedRatio, decide_ratio
from .measure import measure

_HOPELESS = 2
"""So many failures in a row without the fix under test, and there is nothing to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What to do."""

    run: Literal["without", "with", "as it is", "stop"]
    """The fixes in force on both sides, with those under test or without them; or none at all."""
    ended: EndedBy = EndedBy.DONE
    """What stops it."""


def next_run(
    runs: Sequence[RunRecord],
    *,
    base: tuple[str, ...],
    added: tuple[str, ...],
    protocol: Protocol,
    session: int,
    harmful: bool = False,
) -> Next:
    """Decide what to run next for one experiment.

    `base` fixes are in force on both sides, `added` ones under test. A run of an earlier `session` is no
    neighbour. `harmful`: the losses so far show that training suffers.
    """
    together = base + added
    tried = [run for run in runs if run.fixes == together and run.purpose == "timing"]
    failed = next((run for run in reversed(tried) if run.status == "failed"), None)
    if failed is not None:
        return Next(run="stop", ended=EndedBy.FAULT)
    ok = [run for run in tried if run.status == "ok"]
    if ok and _not_applied(ok[-1], added):
        return Next(run="stop")
    if len(runs) >= _HOPELESS and all(r.status == "failed" and r.fixes == base for r in runs[-_HOPELESS:]):
        return Next(run="stop", ended=EndedBy.NOTHING_TO_COMPARE)
    last = runs[-1] if runs else None
    fresh = last is not None and last.session == session and last.status == "ok" and last.purpose == "timing"
    # Beside other fixes, a run without any serves as well: the next question is what all bring together.
    after_base = fresh and last is not None and last.fixes in (base, ())
    if harmful and ok:
        # First see whether the script agrees with itself: a second run without any fix.
        alone = [r for r in runs if r.fixes == base and r.status == "ok" and r.purpose == "timing"]
        return Next(run="stop") if len(alone) > 1 else Next(run="without")
    _, ratio = measure(runs, base=base, added=added, looks=protocol.looks)
    pairs = ratio.pairs if ratio is not None else 0
    if pairs >= protocol.pairs:
        # The last run is closed in by another one without, which the next experiment needs anyway.
        if fresh and last is not None and last.fixes == together:
            return _other_side(runs, base=base, added=added)
        decision = decide_ratio(ratio, least_pairs=protocol.pairs, threshold=protocol.threshold)
        if pairs >= protocol.max_pairs or (decision != "undecided" and _is_precise(decision, ratio)):
            return Next(run="stop")
    return Next(run="with") if after_base else _other_side(runs, base=base, added=added)


def _other_side(runs: Sequence[RunRecord], *, base: tuple[str, ...], added: tuple[str, ...]) -> Next:
    """Say what a run with the fixes is to be compared with next.

    Beside other fixes in turns with those alone and with none: each such run then answers what these
    fixes add, and what all of them bring together.
    """
    if base:
        beside, _ = measure(runs, base=base, added=added)
        alone, _ = measure(runs, base=(), added=base + added)
        if beside is not None and (alone.pairs if alone is not None else 0) < beside.pairs:
            return Next(run="as it is")
    return Next(run="without")


def _is_precise(decision: Decision, ratio: PairedRatio | None) -> bool:
    """Return whether the interval is narrower than the gain: "1.8×, between 1.06 and 3.1" helps nobody."""
    if decision == "no gain" or ratio is None or ratio.low is None or ratio.high is None:
        return True
    return math.log(ratio.high / ratio.low) <= abs(math.log(ratio.ratio))


def _not_applied(run: RunRecord, added: tuple[str, ...]) -> bool:
    states = {applied.fix: applied.state for applied in run.applied}
    # Of several, each must have taken effect: otherwise the row would say what was not tried.
    return any(states.get(fix) != "applied" for fix in added)


def estimate_seconds(run_seconds: float, *, fixes: int, protocol: Protocol) -> tuple[float, float]:
    """Return (least, most) seconds for so many single fixes, from the time of one run."""
    return (
        run_seconds * (1 + fixes * 2 * protocol.pairs),
        run_seconds * (1 + fixes * 2 * protocol.max_pairs),
    )
