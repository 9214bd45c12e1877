"""What a report says of process groups: what their ranks divide among them, and which ranks stand together.

In: a diagnosis. Out: short, clean sentences; the order of ranks in a picture, with its bands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...model.codes import GroupRole
from ...model.diagnosis import Diagnosis, GroupRow, RankRow
from ...model.words import clean
from .fleet import listed

NOT_TOLD = "role not told"
_INSIDE: tuple[GroupRole, ...] = (
    "tensor parallel",
    "context parallel",
    "expert parallel",
    "sharded data parallel",
)
"""Groups that usually lie inside a machine, those that exchange most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Ranks that stand side by side."""

    first: int
    """Position of the first one."""
    label: str


def role_of(row: GroupRow) -> str:
    """Say what the ranks of a group divide among them."""
    return " and ".join(row.roles) or NOT_TOLD


def group_lines(diagnosis: Diagnosis) -> list[str]:
    """Say what the process groups are for, those that are alike in one line."""
    alike: dict[tuple[str, str, int, str], list[GroupRow]] = {}
    for row in diagnosis.fleet.groups if diagnosis.fleet is not None else ():
        alike.setdefault((role_of(row), clean(row.description), len(row.ranks), row.told_by), []).append(row)
    lines = []
    for (purpose, description, size, told_by), rows in alike.items():
        what = f"{len(rows)} groups of {size} ranks" if len(rows) > 1 else listed(rows[0].ranks)
        name = f" ({description})" if description else ""
        example = f", the first of {listed(rows[0].ranks)}" if len(rows) > 1 else ""
        by = f"; told by {'their' if len(rows) > 1 else 'its'} {told_by}" if told_by else ""
        lines.append(f"{purpose[:1].upper()}{purpose[1:]}: {what}{name}{example}{by}")
    return lines


def in_bands(diagnosis: Diagnosis, rows: list[RankRow]) -> tuple[list[RankRow], list[Band], list[Band]]:
    """Order ranks by machine, then by pipeline stage and group.

    Returns:
        The ranks; the bands of machines; those of stages and groups. A kind of band that divides nothing, or
        that is not known for all ranks, is empty.
    """
    groups = diagnosis.fleet.groups if diagnosis.fleet is not None else ()
    nodes = sorted({row.node for row in rows if row.node is not None})
    by_node = len(nodes) > 1 and all(row.node is not None for row in rows)
    number = {node: i for i, node in enumerate(nodes)}
    node_of = {row.rank: number[row.node] if by_node and row.node is not None else 0 for row in rows}
    stage_of = _stages(groups, rows)
    inside = _inside(groups, rows, node_of)

    def place(row: RankRow) -> tuple[int, ...]:
        group = inside[row.rank].ranks if inside else ()
        return node_of[row.rank], stage_of.get(row.rank, 0), *group[:1], row.rank

    def part(row: RankRow) -> str:
        told = [f"stage {stage_of[row.rank]}"] if stage_of else []
        if inside:
            group = inside[row.rank]
            told.append(
                f"{group.roles[0].removesuffix(' parallel') if group.roles else 'group'} {_span(group)}"
            )
        return ", ".join(told)

    ordered = sorted(rows, key=place)
    machines = _bands(ordered, lambda row: f"node {node_of[row.rank]}") if by_node else []
    parts = _bands(ordered, lambda row: f"{node_of[row.rank]}:{part(row)}") if stage_of or inside else []
    return ordered, machines, [Band(first=b.first, label=b.label.partition(":")[2]) for b in parts]


def _bands(rows: Sequence[RankRow], label: Callable[[RankRow], str]) -> list[Band]:
    found, first = [], 0
    for text, members in groupby(rows, key=label):
        found.append(Band(first=first, label=text))
        first += len(list(members))
    return found if len(found) > 1 else []


def _stages(groups: Sequence[GroupRow], rows: Sequence[RankRow]) -> dict[int, int]:
    """Return the stage of each rank, which is its place in its pipeline; empty if it is not known of all."""
    pipelines = [group for group in groups if "pipeline" in group.roles]
    found = {rank: i for group in pipelines for i, rank in enumerate(group.ranks)}
    together = sum(len(group.ranks) for group in pipelines)
    known = len(found) == together and all(row.rank in found for row in rows)
    return found if known else {}


def _inside(
    groups: Sequence[GroupRow], rows: Sequence[RankRow], node_of: dict[int, int]
) -> dict[int, GroupRow]:
    """Return the group of each rank, of the first role that divides the ranks into groups inside machines."""
    for purpose in (*_INSIDE, None):
        chosen = [
            g for g in groups if (purpose in g.roles if purpose else not g.roles) and len(g.ranks) < len(rows)
        ]
        found = {rank: group for group in chosen for rank in group.ranks}
        each_once = len(found) == sum(len(group.ranks) for group in chosen)
        known = each_once and all(row.rank in found for row in rows)
        if known and all(len({node_of.get(rank) for rank in group.ranks}) == 1 for group in chosen):
            return found
    return {}


def _span(group: GroupRow) -> str:
    ranks = group.ranks
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:2])) + (", ..." if len(ranks) > 2 else "")
