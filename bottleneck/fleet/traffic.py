"""The collectives of a job by kind and size: how many, how fast, and how much waiting is in them.

In: matched collectives. Out: rows of a table, those that take most time first; what they show of the link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..model.diagnosis import CollectiveRow, LinkRow
from ..timeline.trace.table import NONE
from .link import fit_sizes
from .match import Lane, Matched
from .summary import RankSummary

__all__ = ["bus_factor", "collective_rows"]

_MOST_ROWS = 24

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """Of groups of one size that lie alike among the ranks."""

    collective: str
    ranks: int
    apart: int
    """From one member to the next: groups that lie differently divide the job along other lines."""


@dataclass(slots=True, kw_only=True)
class _Sent:
    """The collectives of one kind and size."""

    transfers_ms: list[Floats] = field(default_factory=list)
    """Per group."""
    waits_ms: list[Floats] = field(default_factory=list)


def bus_factor(collective: str, ranks: int) -> float | None:
    """Return the bytes that each rank's slowest link carries in one direction, per byte that a rank puts in.

    nccl-tests, doc/PERFORMANCE.md; here the bytes of an all-gather are one rank's part. None: other kinds.
    """
    name = collective.lower().partition(":")[2] or collective.lower()
    name = name.replace("_", "").removesuffix("base").removesuffix("single").removesuffix("intotensor")
    factors = {
        "allreduce": 2.0 * (ranks - 1) / ranks,
        "reducescatter": (ranks - 1) / ranks,
        "reducescattertensor": (ranks - 1) / ranks,
        "allgather": float(ranks - 1),
        "alltoall": (ranks - 1) / ranks,
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    return factors.get(name)


def collective_rows(
    lanes: Sequence[Lane], matched: Matched, scale: Floats, summaries: Sequence[RankSummary]
) -> tuple[tuple[CollectiveRow, ...], tuple[LinkRow, ...]]:
    """Return a row per kind and size, and one per kind.

    Args:
        lanes: the ranks.
        matched: their collectives.
        scale: (n,) from the traced to the true step.
        summaries: what the ranks say of their links.
    """
    found: dict[_Key, dict[int, _Sent]] = defaultdict(lambda: defaultdict(_Sent))
    examples: dict[_Key, str] = {}
    members: dict[_Key, list[RankSummary]] = defaultdict(list)
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
            apart = int(group.members[1] - group.members[0])
            key = _Key(collective=message.collective, ranks=len(group.members), apart=apart)
            examples.setdefault(key, group.ranks)
            found[key][size].transfers_ms.append(transfer)
            found[key][size].waits_ms.append((mine - transfer[:, None]).sum(axis=0))
            members[key] += [summaries[k] for k in group.members.tolist()]
    out: list[CollectiveRow] = []
    links: list[LinkRow] = []
    for key, sizes in found.items():
        of_kind = [_row(key, size, sent, examples[key], matched.steps) for size, sent in sizes.items()]
        link = _link(key, sizes, of_kind, members[key])
        if link is not None and link.latency_ms is not None:
            of_kind = [
                msgspec.structs.replace(row, latency_ms=min(link.latency_ms, row.transfer_ms))
                if row.bytes is not None
                else row
                for row in of_kind
            ]
        out += of_kind
        links += [link] if link is not None else []
    out.sort(key=lambda row: -row.per_step * row.transfer_ms - row.waits_ms)
    order = [(row.collective, row.ranks, row.example) for row in out]
    links.sort(key=lambda link: order.index((link.collective, link.ranks, link.example)))
    return tuple(out[:_MOST_ROWS]), tuple(links)


def _row(key: _Key, size: int, sent: _Sent, example: str, steps: int) -> CollectiveRow:
    transfer = np.concatenate(sent.transfers_ms)
    each_ms, groups = float(np.median(transfer)), len(sent.transfers_ms)
    rate = size / each_ms / 1e6 if size != NONE and each_ms > 0 else None
    factor = bus_factor(key.collective, key.ranks)
    return CollectiveRow(
        collective=key.collective,
        ranks=key.ranks,
        groups=groups,
        example=example,
        bytes=size if size != NONE else None,
        per_step=len(transfer) / groups / steps,
        transfer_ms=each_ms,
        gbytes_per_s=rate,
        bus_gbytes_per_s=rate * factor if rate is not None and factor is not None else None,
        waits_ms=float(np.concatenate(sent.waits_ms).mean()) / steps,
    )


def _link(
    key: _Key, sizes: dict[int, _Sent], rows: Sequence[CollectiveRow], members: Sequence[RankSummary]
) -> LinkRow | None:
    """Return what the collectives of one kind show of the link; None where nothing tells their bytes."""
    rated = [(row.bus_gbytes_per_s, row) for row in rows if row.bus_gbytes_per_s]
    if not rated:
        return None
    rate, best = max(rated, key=lambda each: each[0])
    each = [
        (size, ms) for size, sent in sizes.items() if size != NONE for ms in np.concatenate(sent.transfers_ms)
    ]
    fit = fit_sizes(*np.asarray(each, dtype=np.float64).T)
    stated = [s.link_gbytes_per_s for s in members if s.link_gbytes_per_s is not None]
    together = len({s.node for s in members}) == 1 and members[0].node is not None
    return LinkRow(
        collective=key.collective,
        ranks=key.ranks,
        groups=best.groups,
        example=best.example,
        best_bus_gbytes_per_s=rate,
        best_bytes=best.bytes or 0,
        latency_ms=fit.shown_latency_ms if fit is not None else None,
        link_gbytes_per_s=min(stated) if together and len(stated) == len(members) else None,
    )
