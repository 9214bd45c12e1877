"""Keeps the summary of a rank at a fixed size, whatever its trace holds: by fewer of its last steps.

In: a summary, its collectives. Out: the same summary of so many of the last steps as there is room for, and
how many are left out.

What a rank says of a step does not depend on the steps before it, so that those that are kept say the same.
"""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import numpy as np

from ..timeline.trace.table import NONE
from .collectives import MOST, Collectives, PackedCollectives, pack
from .gradients import PackedGradients
from .summary import RankSummary

__all__ = ["MOST_BYTES", "bounded", "last_collectives", "last_steps"]

MOST_BYTES = 100_000
"""Of a summary: a thousand ranks are 100 MB."""
_STEPS = 128
"""Kept at most: more tell no more of how ranks differ."""
_MARGIN = 0.95
"""Of the room, where it is guessed how many steps fit."""
_PER_STEP = ("recorded_ms", "alone_ms", "alone_host_ms", "messages_ms", "step_numbers")
_GIVEN_UP = {
    "gradients": PackedGradients(),
    "collectives": PackedCollectives(),
    "sites": {},
    "groups": (),
    "kernels": (),
}
"""In this order, where not even one step has room: only names of unusual length need as much."""


def bounded(summary: RankSummary, found: Collectives | None) -> RankSummary:
    """Return a summary with its collectives that takes at most `MOST_BYTES`.

    Args:
        summary: without collectives.
        found: those of all of its steps; None for none.
    """
    steps = summary.steps
    kept = _of_last(summary, found, min(steps, _STEPS))
    while (over := _over(kept)) > 1.0 and kept.steps > 1:
        kept = _of_last(summary, found, max(1, min(kept.steps - 1, int(kept.steps * _MARGIN / over))))
    while (over := _over(kept)) > 1.0 and kept.collectives.count > 1 and found is not None:
        # One step has more: its first ones.
        count = max(1, int(kept.collectives.count * _MARGIN / over))
        first = _among(last_collectives(found, steps, 1), slice(count))
        kept = msgspec.structs.replace(kept, collectives=pack(first))
    for name, nothing in _GIVEN_UP.items():
        if _over(kept) > 1.0:
            kept = msgspec.structs.replace(kept, **{name: nothing})
    return kept


def _over(summary: RankSummary) -> float:
    """Return how many times the room a summary takes."""
    return max(len(msgspec.msgpack.encode(summary)) / MOST_BYTES, summary.collectives.count / MOST)


def _of_last(summary: RankSummary, found: Collectives | None, steps: int) -> RankSummary:
    kept = last_steps(summary, steps)
    if found is None:
        return kept
    return msgspec.structs.replace(kept, collectives=pack(last_collectives(found, summary.steps, steps)))


def last_steps(summary: RankSummary, steps: int) -> RankSummary:
    """Return what a summary says of its last steps beside its collectives, which stay as they are."""
    if steps >= summary.steps or not steps:
        return summary
    return msgspec.structs.replace(
        summary,
        **{name: getattr(summary, name)[-steps:] for name in _PER_STEP},
        alone_edges_ms=summary.alone_edges_ms[-steps - 1 :],
        alone_without=tuple(
            msgspec.structs.replace(each, saves_ms=each.saves_ms[-steps:]) for each in summary.alone_without
        ),
        own_work_ms={cause: each[-steps:] for cause, each in summary.own_work_ms.items()},
        steps=steps,
        steps_left_out=summary.steps_left_out + summary.steps - steps,
    )


def last_collectives(found: Collectives, steps: int, kept: int) -> Collectives:
    """Return the collectives of the last `kept` of so many steps, which are numbered anew."""
    before = steps - kept
    if before <= 0:
        return found
    inside = np.flatnonzero((found.step != NONE) & (found.step >= before))
    chosen = _among(found, slice(int(inside[0]) if len(inside) else len(found), None))
    # Some that were launched in an earlier step begin later.
    return replace(chosen, step=np.where(chosen.step >= before, chosen.step - before, NONE))


def _among(found: Collectives, rows: slice) -> Collectives:
    columns = {each.name: getattr(found, each.name)[rows] for each in fields(found) if each.name != "kinds"}
    used, kind = np.unique(columns["kind"], return_inverse=True)
    return Collectives(kinds=tuple(found.kinds[i] for i in used.tolist()), **(columns | {"kind": kind}))
