"""What one Python loop inside the step costs at most.

In: the loops that were sampled in the warm-up, and the time of each phase. Out: the most expensive loop
and the answer to `LOOP_GONE`: the step without the loop and without its share of the backward.

One operator that does the work of all rounds still has work to do, so the answer is a bound. A loop
whose rounds work rather than dispatch gains nothing by that and is not named at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...model.codes import WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.run import SAMPLED, LoopTime
from .baseline import Baseline
from .loop_lines import LoopShares, loop_shares

__all__ = ["HostTimes", "dearest_loop", "loop_of_dispatch"]

_LEAST_SHARE = 0.05
"""Of the step: a smaller loop is not what it waits on."""
_MOSTLY_DISPATCH = 1 / 3
"""Share of dispatch and Python in the loop's time below which its operators are large enough as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Time of the step by where it stands, ms; on a GPU the host's."""

    forward: float
    outside: float
    """Outside every phase: between forward and update and after the update; nothing of the batch's."""
    backward: float


def dearest_loop(
    loops: Sequence[LoopTime], *, whole: HostTimes, dispatch: HostTimes, true_ms: float
) -> tuple[LoopTime, WhatIfResult] | None:
    """Return the loop that takes most of the step, with its price; None if none matters.

    Args:
        loops: as sampled.
        whole: what the shares are of.
        dispatch: what of it is dispatch and Python.
        true_ms: the step.
    """
    priced = [
        (_price(loop, shares, whole), loop)
        for loop in loops
        if (shares := loop_shares(loop))
        and _price(loop, shares, dispatch) >= _MOSTLY_DISPATCH * _price(loop, shares, whole)
    ]
    if not priced:
        return None
    saves, loop = max(priced, key=lambda pair: pair[0])
    return _answer(loop, min(saves, true_ms), "without the loop and its backward", true_ms=true_ms)


def loop_of_dispatch(
    loops: Sequence[LoopTime], *, baseline: Baseline, dispatch: WhatIfResult | None, true_ms: float
) -> tuple[LoopTime, WhatIfResult] | None:
    """Return the loop that takes most of the host's time, with its part of what dispatch costs (GPU runs).

    What stands behind the update is dispatched aside there and priced as host work: not here.

    Args:
        loops: as sampled.
        baseline: whose phases the shares are of.
        dispatch: the step with all dispatch free.
        true_ms: the step.
    """
    if not loops or dispatch is None or dispatch.saves_ms < _MOSTLY_DISPATCH * true_ms:
        return None
    before, between, after = (max(loop.of.get(part, 0) for loop in loops) for part in SAMPLED[:3])
    whole = HostTimes(
        forward=baseline.phases_ms.get("forward", 0.0),
        outside=baseline.outside_ms * between / max(1, before + between + after),
        backward=baseline.phases_ms.get("backward", 0.0),
    )
    loops = [msgspec.structs.replace(loop, seen=_ahead(loop.seen), of=_ahead(loop.of)) for loop in loops]
    priced = [(_price(loop, shares, whole), loop) for loop in loops if (shares := loop_shares(loop))]
    if not priced:
        return None
    spent, loop = max(priced, key=lambda pair: pair[0])
    saves = dispatch.saves_ms * min(1.0, spent / true_ms)
    return _answer(loop, saves, "its share of the host's time, of what all dispatch costs", true_ms=true_ms)


def _ahead(counts: dict[str, int]) -> dict[str, int]:
    return {part: count for part, count in counts.items() if part != "sampled after"}


def _answer(
    loop: LoopTime, saves_ms: float, basis: str, *, true_ms: float
) -> tuple[LoopTime, WhatIfResult] | None:
    if saves_ms < _LEAST_SHARE * true_ms:
        return None
    ran, taken = sum(loop.seen.values()), sum(loop.of.values())
    return loop, WhatIfResult(
        question=WhatIf.LOOP_GONE,
        step_ms=true_ms - saves_ms,
        saves_ms=saves_ms,
        basis=f"{basis} ({ran} of {taken} samples of the warm-up); one operator for all iterations "
        "takes time too",
        bound=True,
    )


def _price(loop: LoopTime, shares: LoopShares, times: HostTimes) -> float:
    between, after = (loop.of.get(f"sampled {part}", 0) for part in ("between", "after"))
    outside = (shares.between * between + shares.after * after) / max(1, between + after)
    graph = loop.of.get("sampled forward", 0) + between
    recorded = (shares.forward * (graph - between) + shares.between * between) / max(1, graph)
    return shares.forward * times.forward + outside * times.outside + recorded * times.backward
