"""What one Python loop inside the step costs at most.

In: the loops that were sampled in the warm-up, and the time of each phase. Out: the dearest loop and the
answer to `LOOP_GONE`: the step with the loop gone, and the share of the backward that it leads to.

One operator that does the work of all rounds still has work to do, so the answer is a bound. A loop
whose rounds work rather than dispatch gains nothing by that and is not named at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.codes import WhatIf
from ..model.diagnosis import WhatIfResult
from ..model.run import LoopTime
from .loop_lines import LoopShares, loop_shares

__all__ = ["HostTimes", "dearest_loop"]

_LEAST_SHARE = 0.05
"""Of the step: a smaller loop is not what it waits on."""
_MOSTLY_DISPATCH = 1 / 3
"""Share of dispatch and Python in the loop's time below which its operators are large enough as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Time of the step by where it stands, ms."""

    forward: float
    outside: float
    """Outside every phase: between forward and update and after the update; nothing of the batch's."""
    backward: float


def dearest_loop(
    loops: Sequence[LoopTime], *, whole: HostTimes, dispatch: HostTimes, true_ms: float
) -> tuple[LoopTime, WhatIfResult] | None:
    """Return the loop that takes most of the step, with its price; None where none is worth a word.

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
    saves = min(saves, true_ms)
    if saves < _LEAST_SHARE * true_ms:
        return None
    ran, taken = sum(loop.seen.values()), sum(loop.of.values())
    return loop, WhatIfResult(
        question=WhatIf.LOOP_GONE,
        step_ms=true_ms - saves,
        saves_ms=saves,
        basis=f"the loop gone, and the backward of what it does ({ran} of {taken} samples of the warm-up "
        "were in it); one operator for all rounds still has its work to do",
        bound=True,
    )


def _price(loop: LoopTime, shares: LoopShares, times: HostTimes) -> float:
    between, after = (loop.of.get(f"sampled {part}", 0) for part in ("between", "after"))
    outside = (shares.between * between + shares.after * after) / max(1, between + after)
    graph = loop.of.get("sampled forward", 0) + between
    recorded = (shares.forward * (graph - between) + shares.between * between) / max(1, graph)
    return shares.forward * times.forward + outside * times.outside + recorded * times.backward
