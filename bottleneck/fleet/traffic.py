"""The collectives of a job by kind and size: how many, how fast, and how much waiting is in them.

In: matched collectives. Out: rows of a table, those that take most time first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..model.diagnosis import CollectiveRow
from ..timeline.trace.table import NONE
from .match import Lane, Matched

__all__ = ["collective_rows"]

_MOST_ROWS = 24

Floats = NDArray[np.float64]


def collective_rows(lanes: Sequence[Lane], matched: Matched, scale: Floats) -> tuple[CollectiveRow, ...]:
    """Return a row per kind and size.

    Args:
        lanes: the ranks.
        matched: their collectives.
        scale: (n,) from the traced to the true step.
    """
    found: dict[tuple[str, int, int, int], list[tuple[Floats, Floats]]] = defaultdict(list)
    examples: dict[tuple[str, int, int, int], str] = {}
    for group in matched.groups:
        inside = group.inside(matched.steps)
        rows = group.rows[inside]
        if not len(rows):
            continue
        length = group.lengths_ns(lanes)[inside] / 1e6 * scale[group.members]
        columns = lanes[int(group.members[0])].collectives
        kind = columns.kind[rows[:, 0]]
        for each in np.unique(kind).tolist():
            message, size = columns.kinds[each]
            mine = length[kind == each]
            transfer = mine.min(axis=1)
            # Groups of one size that lie differently among the ranks divide the job along other lines.
            apart = int(group.members[1] - group.members[0])
            key = (message.collective, len(group.members), apart, size)
            examples.setdefault(key, group.ranks)
            found[key].append((transfer, (mine - transfer[:, None]).sum(axis=0)))
    out = []
    for key, groups in found.items():
        collective, ranks, _, size = key
        transfer = np.concatenate([each for each, _ in groups])
        each_ms = float(np.median(transfer))
        out.append(
            CollectiveRow(
                collective=collective,
                ranks=ranks,
                groups=len(groups),
                example=examples[key],
                bytes=size if size != NONE else None,
                per_step=len(transfer) / len(groups) / matched.steps,
                transfer_ms=each_ms,
                gbytes_per_s=size / each_ms / 1e6 if size != NONE and each_ms > 0 else None,
                waits_ms=float(np.concatenate([waits for _, waits in groups]).mean()) / matched.steps,
            )
        )
    out.sort(key=lambda row: -row.per_step * row.transfer_ms - row.waits_ms)
    return tuple(out[:_MOST_ROWS])
