"""What the ranks of a process group divide among them: data, layers, parts of layers, experts.

In: the collectives of each rank, and what the program calls its groups. Out: a `GroupRow` per group.

A description that means one role tells it. Else the collectives do, by where the host launches them:

    data parallel           gradients are summed inside the backward or behind it
    sharded data parallel   they are summed in parts, and whole parameters are gathered
    tensor parallel         activations are summed in the forward, and their gradients in the backward
    pipeline                messages go from one rank to another between the passes
    expert parallel         each rank sends all others parts of different sizes, in both directions

Shoeybi et al., "Megatron-LM" (2019), section 3; Rajbhandari et al., "ZeRO" (2020), section 5; Huang et al.,
"GPipe" (2019); Gale et al., "MegaBlocks" (2023). Equal parts between all ranks may belong to experts of a
fixed capacity, or to a sequence that is divided: they tell no role.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..model.codes import GroupRole
from ..model.diagnosis import GroupRow
from ..timeline.trace.kernels import CollectiveSort, sort_of_collective
from ..timeline.trace.table import NONE, Message
from .match import Lane
from .phases import BACKWARD, BEHIND, FORWARD
from .summary import RankSummary

__all__ = ["Use", "process_groups", "roles_of"]

_ONE_NUMBER = 8
"""Bytes: a loss or a norm, no gradients of a model."""
_ASIDE = 8.0
"""Sums of a forward are no activations if those of the backward are so many times as much. A forward that is
repeated in the backward makes these three times as much; a metric, or the statistics of a normalisation,
are a small part of the gradients."""

_WORDS: dict[str, GroupRole] = {
    **dict.fromkeys(("dp", "ddp", "data", "replicate"), "data parallel"),
    **dict.fromkeys(("fsdp", "shard", "sharded"), "sharded data parallel"),
    **dict.fromkeys(("tp", "tensor"), "tensor parallel"),
    **dict.fromkeys(("pp", "pipe", "pipeline"), "pipeline"),
    **dict.fromkeys(("ep", "expert", "experts"), "expert parallel"),
    **dict.fromkeys(("cp", "context"), "context parallel"),
}
"""As DeviceMesh dimensions are called in torchtitan and PyTorch's tutorials, and groups in Megatron-LM."""


@dataclass(slots=True)
class Use:
    """What a process group is used for, over all of its ranks that were read."""

    bytes: dict[tuple[CollectiveSort, int], float] = field(default_factory=lambda: defaultdict(float))
    """By sort and phase; without what is one number."""
    count: dict[tuple[CollectiveSort, int], int] = field(default_factory=lambda: defaultdict(int))
    sized: bool = True
    """The bytes of all are known."""
    buckets: bool = False
    """DistributedDataParallel sends gradients."""
    uneven: bool = False
    messages: int = 0
    """Outside of all backward passes."""
    messages_in_backward: int = 0

    def add(self, message: Message, size: int, phase: int, times: int) -> None:
        """Count so many collectives of a kind."""
        sort = sort_of_collective(message.collective)
        if sort is None or (size != NONE and size <= _ONE_NUMBER):
            return
        self.count[sort, phase] += times
        self.sized &= size != NONE
        self.bytes[sort, phase] += max(size, 0) * times
        self.uneven |= sort == "exchange" and message.uneven

    def much(self, sort: CollectiveSort, *of: int) -> float:
        """Return the bytes in these phases; the number of collectives where the bytes are not known."""
        known = self.bytes if self.sized else self.count
        return float(sum(known.get((sort, phase), 0) for phase in of))


def roles_of(description: str, use: Use) -> tuple[tuple[GroupRole, ...], Literal["name", "collectives", ""]]:
    """Return the roles of a process group, and by what they are told."""
    shown = tuple(_shown(use))
    meant = {_WORDS[word] for word in re.findall(r"[a-z]+", description.lower()) if word in _WORDS}
    if meant == {"data parallel", "sharded data parallel"}:
        meant = {"sharded data parallel"}
    if len(meant) == 1:
        # "Data" does not say whether the parameters are divided, too.
        if meant == {"data parallel"} and "sharded data parallel" in shown:
            meant = {"sharded data parallel"}
        return tuple(meant), "name"
    return shown, "collectives" if shown else ""


def _shown(use: Use) -> Iterable[GroupRole]:
    """Yield the roles that the collectives show."""
    if use.messages and not use.messages_in_backward:
        yield "pipeline"
    if use.uneven and use.much("exchange", FORWARD) and use.much("exchange", BACKWARD):
        yield "expert parallel"
    forward, backward, behind = (use.much("sum", phase) for phase in (FORWARD, BACKWARD, BEHIND))
    gathered = use.much("gather", FORWARD, BACKWARD, BEHIND)
    if use.buckets:
        yield "data parallel"
    elif use.much("scatter", FORWARD):
        yield "tensor parallel"
    elif use.much("scatter", BACKWARD, BEHIND) and gathered:
        yield "sharded data parallel"
    elif forward and backward and forward * _ASIDE >= backward + behind:
        yield "tensor parallel"
    elif (backward or (behind and use.sized)) and backward + behind > forward:
        yield "data parallel"


def process_groups(lanes: Sequence[Lane], summaries: Sequence[RankSummary]) -> tuple[GroupRow, ...]:
    """Return the process groups of several ranks, with their roles."""
    uses: dict[tuple[str, str], Use] = defaultdict(Use)
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    called: dict[tuple[str, str], str] = {}
    for lane, summary in zip(lanes, summaries, strict=True):
        columns = lane.collectives
        kinds = columns.kinds
        cells, times = np.unique(
            np.stack([columns.kind, columns.phase, columns.backward != NONE]), axis=1, return_counts=True
        )
        for (kind, phase, bucket), count in zip(cells.T.tolist(), times.tolist(), strict=True):
            message, size = kinds[kind]
            key = message.group, message.ranks
            called.setdefault(key, message.description)
            ranks[key].add(summary.rank)
            uses[key].add(message, size, phase, count)
            uses[key].buckets |= bool(bucket)
        for each in summary.message_groups:
            key = each.group, each.ranks
            called.setdefault(key, each.description)
            ranks[key].add(summary.rank)
            uses[key].messages += each.outside
            uses[key].messages_in_backward += each.in_backward
    rows = []
    for (name, listed), use in uses.items():
        roles, told_by = roles_of(called[name, listed], use)
        members = sorted(ranks[name, listed] | _listed(listed))
        rows.append(
            GroupRow(
                name=name,
                description=called[name, listed],
                ranks=tuple(members),
                roles=roles,
                told_by=told_by,
            )
        )
    # Without a launch, a collective's group is not told where others' are.
    named = [row for row in rows if row.name or len(rows) == 1]
    return tuple(sorted((row for row in named if len(row.ranks) > 1), key=lambda row: (row.ranks, row.name)))


def _listed(ranks: str) -> set[int]:
    """Return the ranks that a trace lists; none where it leaves some out."""
    return set() if "..." in ranks else set(map(int, re.findall(r"\d+", ranks)))
