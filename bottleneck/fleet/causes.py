"""Why a rank is late: what it does longer than its peers.

In: summaries. Out: a cause, and where it stands in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from ..model.codes import BUDGET_PARTS, LateCause
from ..model.run import SourceSite
from .summary import RankSummary

__all__ = ["cause_of"]

_EXPLAINS = 0.25
"""Of the lateness: the largest excess must be as much to be the cause."""
_AS_SLOW = 0.5
"""The update has the same size on all ranks. If it, too, is slower by half of what the other kernels are,
it is the device that is slow, and not the batch that is large."""


def cause_of(
    late: Sequence[RankSummary],
    peers: Sequence[RankSummary],
    late_ms: float,
    *,
    steps: Sequence[int] = (),
) -> tuple[LateCause, SourceSite | None]:
    """Return what late ranks do longer than their peers, and where.

    Args:
        late: these ranks.
        peers: the others.
        late_ms: by how much they are late.
        steps: in which steps, counted from the end; all of them, if empty.
    """
    causes: tuple[LateCause, ...] = get_args(LateCause)
    excess = {
        cause: _most(late, cause, steps) - _typical(peers, cause, steps)
        for cause in causes
        if any(cause in s.own_work_ms for s in late)
    }
    if not excess or max(excess.values()) < _EXPLAINS * late_ms:
        return "unknown", None
    cause = max(excess, key=lambda each: excess[each])
    if cause in ("compute", "optimizer") and _whole_device_is_slow(late, peers, steps):
        return "slower device", None
    parts = [part.value for part, entry in BUDGET_PARTS.items() if entry.late_for == cause]
    sites = [s.sites[part] for s in late for part in parts if part in s.sites]
    return cause, sites[0] if sites else None


def _typical(ranks: Sequence[RankSummary], cause: LateCause, steps: Sequence[int]) -> float:
    return float(np.median([np.median(_in_steps(s, cause, steps)) for s in ranks]))


def _most(late: Sequence[RankSummary], cause: LateCause, steps: Sequence[int]) -> float:
    """Return the time of late ranks; of those that are late in single steps, in the worst of these."""
    if not steps:
        return _typical(late, cause, ())
    return float(np.max([np.max(_in_steps(s, cause, steps)) for s in late]))


def _in_steps(summary: RankSummary, cause: LateCause, steps: Sequence[int]) -> list[float]:
    each = summary.own_work_ms.get(cause, ())
    return [each[k] for k in steps if -len(each) <= k] if steps and each else list(each) or [0.0]


def _whole_device_is_slow(
    late: Sequence[RankSummary], peers: Sequence[RankSummary], steps: Sequence[int]
) -> bool:
    usual, update = (_typical(peers, cause, steps) for cause in ("compute", "optimizer"))
    if usual <= 0 or update <= 0:
        return False
    slower = _typical(late, "compute", steps) / usual - 1.0
    return _typical(late, "optimizer", steps) / update - 1.0 >= _AS_SLOW * slower > 0
