"""What a report says of several ranks: who is late, what that costs, who is worth a look, who is missing.

In: a diagnosis. Out: short, clean sentences, and rows of a table.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ...model.codes import WhatIf
from ...model.diagnosis import CollectiveRow, Diagnosis, Fleet, LinkRow, RankRow, Straggler
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.words import byte_size, clean, milliseconds, percent, place
from .diagnosis import answer_lines, root_of

_NAMED = 4
"""Ranks in a list, before "and n more"."""
_LATE_FOR = {
    "host": "other host work",
    "launch": "dispatching operators",
    "synchronisation": "waiting for its device",
    "compute": "more work for its device",
    "slower device": "its device is slower",
    "unknown": "no part of its step stands out",
    "input": "waiting for input",
    "copies": "copies",
    "optimizer": "its optimizer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """One rank worth a look; its own work, waiting, transfer and bubble add up to its step."""

    rank: str
    step: str
    own: str
    waits: str
    transfer: str
    bubble: str
    """Empty where it is no stage of a pipeline."""
    late: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """Collectives of one kind and size."""

    kind: str
    ranks: str
    size: str
    per_step: str
    transfer: str
    rate: str
    waits: str
    of_best: str
    """Its bus bandwidth beside the best that one of its kind reached in the run."""
    latency: str
    """What the fitted latency is of its time."""


def together_lines(diagnosis: Diagnosis) -> list[str]:
    """Say what the replay of all ranks together answers."""
    fleet = diagnosis.fleet
    return answer_lines(fleet.what_ifs, like=fleet.step_ms) if fleet is not None else []


def bucket_lines(diagnosis: Diagnosis) -> list[str]:
    """Say how long the step is with gradient buckets of other sizes, where one of them gains, or why not."""
    found, fleet = diagnosis.buckets, diagnosis.fleet
    if found is None:
        return []
    what = "Not known" if found.rows else "Gradient buckets of other sizes: not known"
    unknown = [f"{what}: {clean(found.unknown)}"] if found.unknown else []
    answers = (*diagnosis.what_ifs, *(fleet.what_ifs if fleet is not None else ()))
    if not any(each.question is WhatIf.BUCKET_SIZE for each in answers):
        return unknown if not found.rows else []
    like = max(row.step_ms for row in found.rows)
    told = [
        f"{byte_size(row.cap_bytes) if row.cap_bytes is not None else 'all in one'}"
        f" {milliseconds(row.step_ms, like=like)} ms"
        for row in found.rows
    ]
    return [f"The step by size of gradient buckets ({found.buckets} now): {', '.join(told)}", *unknown]


def path_line(diagnosis: Diagnosis) -> str:
    """Say what a step consists of, following the ranks that the others wait for."""
    fleet = diagnosis.fleet
    if fleet is None or not fleet.path:
        return ""
    parts = [part for part in fleet.path if part.ms >= NEGLIGIBLE_SHARE * (fleet.step_ms or 0.0)]
    causes = {row.rank: row.cause for row in diagnosis.ranks if row.cause}
    told = []
    for part in parts[:_NAMED]:
        ms = milliseconds(part.ms, like=fleet.step_ms)
        why = f" (late for {causes[part.rank]})" if part.rank in causes else ""
        told.append(f"{ms} ms {'transfer' if part.rank is None else f'work of rank {part.rank}{why}'}")
    rest = (fleet.step_ms or 0.0) - sum(part.ms for part in parts[:_NAMED])
    if rest >= NEGLIGIBLE_SHARE * (fleet.step_ms or 0.0):
        told.append(f"{milliseconds(rest, like=fleet.step_ms)} ms work of other ranks")
    return f"Critical path of the step: {', '.join(told)}" if told else ""


def bubble_line(diagnosis: Diagnosis) -> str:
    """Say what the schedule of a pipeline leaves empty."""
    rows = [row for row in diagnosis.ranks if row.bubble_ms is not None]
    bubble = max((row.bubble_ms or 0.0 for row in rows), default=0.0)
    step = max((row.step_ms or 0.0 for row in rows), default=0.0)
    if bubble < NEGLIGIBLE_SHARE * step or not step:
        return ""
    told = f"{milliseconds(bubble, like=step)} ms of {milliseconds(step)} ({percent(bubble / step)})"
    return f"Bubble of the pipeline: {told}; more micro-batches make it smaller"


def traffic_rows(diagnosis: Diagnosis) -> list[TrafficRow]:
    """Return the collectives by kind and size, those that take most time first."""
    fleet = diagnosis.fleet
    best = {_kind_of(link): link.best_bus_gbytes_per_s for link in (fleet.links if fleet is not None else ())}
    return [
        TrafficRow(
            kind=clean(f"{row.collective} {row.example}" if row.groups > 1 else row.collective),
            ranks=f"{row.ranks}" if row.groups == 1 else f"{row.ranks} in {row.groups} groups",
            size=byte_size(row.bytes) if row.bytes is not None else "",
            per_step=f"{row.per_step:.3g}",
            transfer=milliseconds(row.transfer_ms),
            rate=f"{row.gbytes_per_s:.3g}" if row.gbytes_per_s is not None else "",
            waits=milliseconds(row.waits_ms),
            of_best=percent(row.bus_gbytes_per_s / best[_kind_of(row)])
            if row.bus_gbytes_per_s is not None and _kind_of(row) in best
            else "",
            latency=percent(row.latency_ms / row.transfer_ms)
            if row.latency_ms is not None and row.transfer_ms > 0
            else "",
        )
        for row in (fleet.collective_rows if fleet is not None else ())
    ]


def _kind_of(row: CollectiveRow | LinkRow) -> tuple[str, int, str]:
    return row.collective, row.ranks, row.example


def link_lines(diagnosis: Diagnosis) -> list[str]:
    """Say what the collectives of each kind reached of the link, and what the link could give."""
    fleet = diagnosis.fleet
    lines = []
    for link in fleet.links if fleet is not None else ():
        name = clean(f"{link.collective} {link.example}" if link.groups > 1 else link.collective)
        best, could = link.best_bus_gbytes_per_s, link.link_gbytes_per_s
        line = f"{name}: at best {best:.3g} GB/s on the bus, at {byte_size(link.best_bytes)}"
        if could is not None:
            line += f", {percent(best / could)} of the {could:.3g} GB/s that the NVLinks of a device carry"
        else:
            line += "; what the link could give was not measured"
        if link.latency_ms is not None:
            line += f"; each has a latency of {1e3 * link.latency_ms:.3g} µs"
        lines.append(line)
    return lines


def late_lines(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """Return (who is late, why, the step without it), the most expensive first."""
    fleet = diagnosis.fleet
    if fleet is None or fleet.step_ms is None:
        return []
    if not fleet.stragglers:
        return [(f"No rank is late beyond chance: {fleet.compared} were compared", "", "")]
    lines = []
    for late in fleet.stragglers:
        without = milliseconds(fleet.step_ms - late.costs_ms, like=fleet.step_ms)
        why = _cause(late, root_of(diagnosis)) + _on_node(late, diagnosis)
        lines.append((_who(late, fleet.step_ms), why, f"{without} ms"))
    return lines


def first_words(fleet: Fleet) -> str:
    """Say what the ranks say that were read first: who of them is late, and why."""
    if not fleet.stragglers or fleet.step_ms is None:
        return f"of the first {fleet.compared} ranks compared, none is late"
    late = fleet.stragglers[0]
    return f"of the first {fleet.compared} ranks, {_who(late, fleet.step_ms)} ({_cause(late, '')})"


def _on_node(late: Straggler, diagnosis: Diagnosis) -> str:
    """Say where a single rank runs; nothing where there is one node."""
    nodes = {row.rank: row.node for row in diagnosis.ranks if row.node is not None}
    firsts, rank = sorted(set(nodes.values())), late.ranks[0]
    if len(firsts) < 2 or len(late.ranks) > 1 or rank not in nodes:
        return ""
    return f"; node {firsts.index(nodes[rank])}, place {rank - nodes[rank]} there"


def _who(late: Straggler, step_ms: float) -> str:
    by = milliseconds(late.late_ms, like=step_ms)
    who = clean(late.group) or listed(late.ranks)
    if late.kind == "wandering":
        return f"{who}: late by {by} ms in some steps, costs all {_costs(late, step_ms)} ms a step"
    return f"{who}: late by {by} ms in each step, costs all {_costs(late, step_ms)} ms"


def _costs(late: Straggler, step_ms: float) -> str:
    return milliseconds(late.costs_ms, like=step_ms)


def _cause(late: Straggler, root: str) -> str:
    why = _LATE_FOR.get(late.cause, late.cause)
    whole = f"; {listed(late.ranks)}" if late.group and late.group != listed(late.ranks) else ""
    at = f" at {place(late.site, root=root)}" if late.site is not None else ""
    return f"{why}{at}{whole}"


def listed(ranks: Sequence[int]) -> str:
    """Name ranks, as in "rank 3" or "ranks 3, 7, 9, 12 and 5 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]} to {ordered[-1]}"
    shown = ", ".join(map(str, ordered[:_NAMED]))
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"ranks {shown}{more}"


def account_rows(diagnosis: Diagnosis, *, most: int | None = None) -> list[AccountRow]:
    """Return the ranks worth a look: those that are late, the rank shown, and a typical one."""
    rows = [row for row in diagnosis.ranks if row.own_ms is not None]
    if len(rows) < 2:
        return []
    if most is not None:
        rows = worth_a_look(diagnosis)[:most]
    like = max((row.step_ms or 0.0 for row in rows), default=None)
    ranks = {row.rank: row for row in diagnosis.ranks}
    return [
        AccountRow(
            rank=str(row.rank),
            step=milliseconds(row.step_ms, like=like),
            own=milliseconds(row.own_ms, like=like),
            waits=milliseconds(row.waits_for_others_ms, like=like),
            transfer=milliseconds(row.transfer_ms, like=like),
            bubble=milliseconds(row.bubble_ms, like=like) if row.bubble_ms is not None else "",
            late=milliseconds(row.late_ms, like=like) if row.cause else "",
            why=_why(row, ranks),
        )
        for row in rows
    ]


def _why(row: RankRow, ranks: Mapping[int, RankRow]) -> str:
    if row.cause:
        return _LATE_FOR.get(row.cause, row.cause)
    if (last := _waited_for(row)) is None:
        return ""
    # Whom one waits for may wait for another rank itself, in another group.
    seen = {row.rank}
    while last in ranks and last not in seen and not ranks[last].cause:
        seen.add(last)
        if (following := _waited_for(ranks[last])) is None or following in seen:
            break
        last = following
    cause = ranks[last].cause if last in ranks else ""
    return f"waits for rank {last}" + (f": {cause}" if cause else "")


def _waited_for(row: RankRow) -> int | None:
    waits = (row.waits_for_others_ms or 0.0) >= NEGLIGIBLE_SHARE * (row.step_ms or 0.0)
    return row.waits_for if waits else None


def worth_a_look(diagnosis: Diagnosis) -> list[RankRow]:
    """Return the ranks worth a look, the latest first; none where fewer than two were compared."""
    rows = [row for row in diagnosis.ranks if row.own_ms is not None]
    if len(rows) < 2:
        return []
    late = sorted((row for row in rows if row.cause), key=lambda row: -(row.late_ms or 0.0))
    rest = sorted((row for row in rows if not row.cause), key=lambda row: row.own_ms or 0.0)
    chosen = [*late, *(row for row in rest if row.rank == diagnosis.rank)]
    if rest:
        # A typical rank, and the one that waits longest.
        chosen += [rest[len(rest) // 2], rest[0]]
    return list({row.rank: row for row in chosen}.values())


def own_report(row: RankRow) -> str:
    """Return the link to a rank's own report; empty where there is none.

    A diagnosis may come from anywhere: what it names is a path below the report, and no address.
    """
    parts = row.report.replace("\\", "/").split("/")
    return quote(row.report) if row.report and all(part.strip(".") for part in parts) else ""


def own_lines(diagnosis: Diagnosis) -> list[str]:
    """Say where ranks worth a look have reports of their own, or which command shows the first of them."""
    rows = worth_a_look(diagnosis)
    written = [f"rank {row.rank} in {clean(row.report)}" for row in rows if own_report(row)]
    if written:
        return [f"Own reports: {', '.join(written)}"]
    source = next((row for row in rows if row.source), None)
    if source is None:
        return []
    return [f"Rank {source.rank} by itself: bottleneck analyze {shlex.quote(clean(source.source))}"]


def clock_line(diagnosis: Diagnosis) -> str:
    """Say how well the clocks of the ranks agree."""
    fleet = diagnosis.fleet
    if fleet is None or fleet.clock_error_us is None:
        return ""
    text = (
        f"{fleet.compared} ranks on one clock by {fleet.collectives} collectives, "
        f"which end within {max(fleet.clock_error_us, 0.1):.2g} µs of each other"
    )
    if fleet.unmatched:
        text += f"; up to {fleet.unmatched} of a rank could not be matched"
    if fleet.steps_left_out:
        text += f"; without the first {fleet.steps_left_out} traced steps, of which nothing is kept"
    return text


def unread_lines(diagnosis: Diagnosis) -> list[str]:
    """Say which ranks are missing from the comparison; those with one reason share a line."""
    fleet = diagnosis.fleet
    reasons: dict[str, list[str]] = {}
    ranks: dict[str, list[int]] = {}
    for each in fleet.unread if fleet is not None else ():
        reason = clean(each.reason)
        if each.path or each.rank is None:
            name = f"rank {each.rank}" if each.rank is not None else "a rank"
            reasons.setdefault(reason, []).append(f"{name} ({clean(each.path)})")
        else:
            ranks.setdefault(reason, []).append(each.rank)
    lines = [f"{listed(numbers)}: {reason}" for reason, numbers in ranks.items()]
    for reason, names in reasons.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"{', '.join(names[:_NAMED])}{more}: {reason}")
    return [line[:1].upper() + line[1:] for line in lines]
