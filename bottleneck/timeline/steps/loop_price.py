"""What one Python loop inside the step costs at most.

In: the loops that were sampled in the warm-up, and the time of each phase. Out: the most expensive loop, and
the host time that goes with it and with its share of the backward.

One operator that does the work of all rounds still has that work to do: of a part of the step, a loop takes
no more away than all that is dispatched there. The answer is a bound all the same. A loop whose rounds work
rather than dispatch gains next to nothing by that and is not named at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ...model.run import SAMPLED, LoopTime
from .baseline import Baseline
from .loop_lines import LoopShares, loop_shares

_MOSTLY_DISPATCH = 1 / 3
"""Share of dispatch and Python in the loop's time below which its operators are large enough as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Time of the step by where it stands, ms; on a GPU the host's."""

    forward: float
    outside: float
    """Outside every phase: between forward and update and after the update; nothing of the batch's."""
    backward: float
    update: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPrice:
    """The loop that takes most of the step."""

    loop: LoopTime
    spent_ms: float
    """Host time per step in the loop and in its share of the backward."""
    stacks: int = 0
    """Samples of untraced steps that the time is from; 0: it is from those of the warm-up."""

    @property
    def samples(self) -> str:
        """Say what the time was estimated from."""
        if self.stacks:
            return f"{self.stacks} samples of the stack"
        ran, taken = sum(self.loop.seen.values()), sum(self.loop.of.values())
        return f"{ran} of {taken} samples of the warm-up"


def dearest_loop(
    loops: Sequence[LoopTime], *, whole: HostTimes, dispatch: HostTimes, true_ms: float
) -> LoopPrice | None:
    """Return the loop that takes most of the step; None if none matters."""
    mostly = [
        loop
        for loop in loops
        if (shares := loop_shares(loop))
        and _price(loop, shares, dispatch) >= _MOSTLY_DISPATCH * _price(loop, shares, whole)
    ]
    return _dearest(mostly, whole, true_ms=true_ms, most=dispatch)


def loop_of_dispatch(
    loops: Sequence[LoopTime],
    *,
    baseline: Baseline,
    true_ms: float,
    backward_share: Callable[[LoopTime], float | None] = lambda _: None,
) -> LoopPrice | None:
    """Return the loop that takes most of the host's time (GPU runs).

    What stands behind the update is dispatched aside there and priced as host work: not here.
    `backward_share`: what a loop's lines ask for of the backward, where that is known.
    """
    before, between, after = (
        max((loop.of.get(part, 0) for loop in loops), default=0) for part in SAMPLED[:3]
    )
    whole = HostTimes(
        forward=baseline.phases_ms.get("forward", 0.0),
        outside=baseline.outside_ms * between / max(1, before + between + after),
        backward=baseline.phases_ms.get("backward", 0.0),
        update=baseline.phases_ms.get("optimizer", 0.0),
    )
    loops = [msgspec.structs.replace(loop, seen=_ahead(loop.seen), of=_ahead(loop.of)) for loop in loops]
    return _dearest(loops, whole, true_ms=true_ms, backward_share=backward_share)


def _ahead(counts: dict[str, int]) -> dict[str, int]:
    return {part: count for part, count in counts.items() if part != "sampled after"}


def _dearest(
    loops: Sequence[LoopTime],
    whole: HostTimes,
    *,
    true_ms: float,
    most: HostTimes | None = None,
    backward_share: Callable[[LoopTime], float | None] = lambda _: None,
) -> LoopPrice | None:
    priced = [
        (_price(loop, shares, whole, most, recorded=backward_share(loop)), loop)
        for loop in loops
        if (shares := loop_shares(loop))
    ]
    spent_ms, loop = max(priced, key=lambda pair: pair[0], default=(0.0, None))
    if loop is None or spent_ms <= 0:
        return None
    return LoopPrice(loop=loop, spent_ms=min(spent_ms, true_ms))


def _price(
    loop: LoopTime,
    shares: LoopShares,
    times: HostTimes,
    most: HostTimes | None = None,
    *,
    recorded: float | None = None,
) -> float:
    """Return the loop's part of these times, of each no more than the most that it can be.

    `recorded`: the share of the backward that goes through what it has recorded; None: as of the forward.
    """
    between, after = (loop.of.get(f"sampled {part}", 0) for part in ("between", "after"))
    outside = (shares.between * between + shares.after * after) / max(1, between + after)
    graph = loop.of.get("sampled forward", 0) + between
    if recorded is None:
        recorded = (shares.forward * (graph - between) + shares.between * between) / max(1, graph)
    most = most or times
    return (
        min(shares.forward * times.forward, most.forward)
        + min(outside * times.outside, most.outside)
        + min((shares.backward + (1.0 - shares.backward) * recorded) * times.backward, most.backward)
        + min(shares.update * times.update, most.update)
    )
