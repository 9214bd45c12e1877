"""Compares jobs of several ranks: waiting for late ranks, transfer, and the own work of each rank.

In: diagnoses, then two baselines. Out: `RankTimes`, then `RankChange` rows. They explain the step of the
job, which alone counts for the outcome: a rank that does more work costs nothing where nobody waits for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from ..model.baseline import Baseline, RankTimes
from ..model.compare import RankChange
from ..model.diagnosis import Diagnosis
from ..model.finding import NEGLIGIBLE_SHARE
from ..model.gate import GateSettings
from .comparable import same_machine
from .times import compare_runs, median_of

_MOST = 8
"""Ranks that are shown."""
_LEAST_MS = 0.001
"""For ratios: ranks may not wait at all."""
What = Literal["own work", "waiting for late ranks", "transfer"]


def times_of_ranks(diagnosis: Diagnosis) -> RankTimes | None:
    """Return what a comparison needs of the ranks of a run; None where fewer than two were compared."""
    rows = [row for row in diagnosis.ranks if row.own_ms is not None]
    if len(rows) < 2 or diagnosis.fleet is None:
        return None
    return RankTimes(
        size=diagnosis.fleet.world_size or len(diagnosis.ranks),
        shown=diagnosis.rank,
        waits_ms=_rounded(statistics.fmean(row.waits_for_others_ms or 0.0 for row in rows)),
        transfer_ms=_rounded(statistics.fmean(row.transfer_ms or 0.0 for row in rows)),
        own_ms={str(row.rank): _rounded(row.own_ms or 0.0) for row in rows},
        late={str(row.rank): row.cause for row in rows if row.cause},
    )


def _rounded(ms: float) -> float:
    return round(ms, 3)


def compare_ranks(
    base: Baseline, head: Baseline, *, settings: GateSettings, interleaved: bool
) -> tuple[RankChange, ...]:
    """Return waiting and transfer, then the ranks whose own work changed by what matters to the step."""
    if not base.ranks or not head.ranks:
        return ()

    def change(what: What, of: Callable[[RankTimes], float | None], rank: int | None = None) -> RankChange:
        sides = [[ms for each in side.ranks if (ms := of(each)) is not None] for side in (base, head)]
        time = compare_runs(
            *([max(ms, _LEAST_MS) for ms in times] for times in sides),
            settings=settings,
            interleaved=interleaved,
            same_machine=same_machine(base, head),
        )
        late = head.ranks[-1].late.get(str(rank), "")
        return RankChange(what=what, rank=rank, time=msgspec.structs.replace(time, gated=False), late=late)

    least = NEGLIGIBLE_SHARE * max(median_of(base.runs) or 0.0, median_of(head.runs) or 0.0)
    both = sorted(map(int, set(base.ranks[0].own_ms) & set(head.ranks[0].own_ms)))
    own = [change("own work", partial(_own_ms, rank=rank), rank) for rank in both]
    changed = sorted((row for row in own if _grown_ms(row) >= least), key=lambda row: -_grown_ms(row))
    return (
        change("waiting for late ranks", lambda each: each.waits_ms),
        change("transfer", lambda each: each.transfer_ms),
        *changed[:_MOST],
    )


def _own_ms(ranks: RankTimes, rank: int) -> float | None:
    return ranks.own_ms.get(str(rank))


def _grown_ms(row: RankChange) -> float:
    return abs((row.time.head_ms or 0.0) - (row.time.base_ms or 0.0))


def notes_on_ranks(base: Baseline, head: Baseline) -> tuple[str, ...]:
    """Say what keeps the ranks of two sides from being compared, or their other figures."""
    if bool(base.ranks) != bool(head.ranks):
        return ("Only one side has the figures of several ranks, so the ranks are not compared.",)
    if not base.ranks:
        return ()
    one, other = base.ranks[0], head.ranks[0]
    notes = []
    if one.shown != other.shown:
        notes.append(
            f"Budget and findings are of the rank that decides the step: rank {one.shown} in base,"
            f" rank {other.shown} in head."
        )
    alone = sorted(map(int, set(one.own_ms) ^ set(other.own_ms)))
    if alone and one.own_ms and other.own_ms:
        more = f" and {len(alone) - _MOST} more" if len(alone) > _MOST else ""
        notes.append(f"Only one side has these ranks: {', '.join(map(str, alone[:_MOST]))}{more}.")
    return tuple(notes)
