"""The ranks of a job beside each other.

In: a summary per rank. Out: `Comparison`: who waits for whom, who is late and why, what cannot be compared.

Summaries, traces and figures of ranks that were only profiled late are not told apart by their size: a rank
whose host ran ahead of its device without a profiler is late in its trace alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..model.codes import LateCause, Part, WhatIf
from ..model.diagnosis import (
    BucketSizes,
    Fleet,
    GroupRow,
    PathPart,
    RankRow,
    Straggler,
    UnreadRank,
    WhatIfResult,
)
from ..model.finding import NEGLIGIBLE_SHARE
from ..stats.interval import mean_interval
from ..timeline.steps.kinds import as_timed
from .account import Account, account_of
from .buckets import bucket_answer, bucket_sizes
from .causes import (
    among_peers,
    cause_of,
    device_taken_ms,
    disturbed_ms,
    excess_ms,
    in_single_steps,
    parts_ms,
    site_of,
)
from .clock import Clock, align
from .joint import JointProgram, host_program, joint_program
from .match import Lane, Matched, match
from .roles import process_groups
from .stragglers import Found, Late, find_late, uneven_ms
from .summary import RankSummary, lane_of
from .traffic import collective_rows
from .unnamed import told_apart
from .what_if import TOGETHER
from .what_if import answer as answer_together
from .window import last_collectives, last_steps

__all__ = ["NOTICED_ON_HOSTS", "Comparison", "Skew", "compare_ranks"]

NOTICED_ON_HOSTS = 0.05
"""Of the step: ranks on the cores of one machine take turns in being late by less than that."""
_STEPS = 16
"""Of which the lateness of a rank is kept one by one."""
_PATH = 64
"""Ranks on the critical path that are told."""
_FOREIGN_CLOCK = 0.05
"""Of a step: ends of collectives that lie further apart than this, whatever the offset, are not of one
job."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """How the ranks wait for each other inside collectives, exposed or not, in ms per traced step."""

    waits_ms: Floats
    """(n,), in the order of the summaries; NaN for a rank that is not compared."""
    critical: int
    """The rank that the others wait for: it waits least."""
    exposed_ms: float
    """How much longer the most patient rank waits beyond its own work than the critical one."""

    @property
    def skew_ms(self) -> float:
        """How much longer the most patient rank waits than the critical one."""
        return float(np.nanmax(self.waits_ms) - self.waits_ms[self.critical])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the ranks say together."""

    fleet: Fleet
    skew: Skew | None
    rows: tuple[RankRow, ...]
    """In the order of the summaries."""
    buckets: BucketSizes | None = None


def compare_ranks(summaries: Sequence[RankSummary], unread: Sequence[UnreadRank] = ()) -> Comparison:
    """Compare ranks; `unread` are those that have no summary."""
    left_out = [*unread, *_not_whole(summaries)]
    able = [i for i, s in enumerate(summaries) if s.whole and s.has_step and s.traced]
    lanes = {i: lane_of(summaries[i]) for i in able}
    summaries, lanes = _same_steps(summaries, lanes)
    hosts = any(summaries[i].kind == "cpu" for i in able)
    if any(summaries[i].groups and len(lanes[i].collectives) for i in able):
        named = told_apart(list(lanes.values()), [summaries[i].groups for i in able])
        if named is None:
            return _on_hosts(summaries, able, left_out)
        lanes = dict(zip(able, named, strict=True))
    groups = process_groups([lanes[i] for i in able], [summaries[i] for i in able])
    if len({summaries[i].kind for i in able}) > 1 or (
        hosts and not all(len(lanes[i].collectives) or _only_messages(summaries[i]) for i in able)
    ):
        together = _on_hosts(summaries, able, left_out)
    else:
        able = [i for i in able if len(lanes[i].collectives) or summaries[i].messages_ms]
        together = _by_collectives(summaries, able, lanes, left_out, groups)
    return replace(together, fleet=msgspec.structs.replace(together.fleet, groups=groups))


def _same_steps(
    summaries: Sequence[RankSummary], lanes: dict[int, Lane]
) -> tuple[Sequence[RankSummary], dict[int, Lane]]:
    """Return all ranks with as many of their last steps as there was room for on each of them."""
    kept = [summaries[i].steps for i in lanes if summaries[i].steps_left_out]
    if not kept:
        return summaries, lanes
    steps = min(kept)
    cut = {i: last_steps(summaries[i], steps) for i in lanes}
    for i, lane in lanes.items():
        if lane.steps > steps:
            columns = last_collectives(lane.collectives, lane.steps, steps)
            lanes[i] = replace(lane, collectives=columns, steps=steps, numbers=lane.numbers[-steps:])
    return [cut.get(i, summary) for i, summary in enumerate(summaries)], lanes


def _by_collectives(
    summaries: Sequence[RankSummary],
    able: list[int],
    lanes: Mapping[int, Lane],
    left_out: list[UnreadRank],
    roles: Sequence[GroupRow],
) -> Comparison:
    """Compare ranks on one clock, by the ends of the collectives that they have in common."""
    while True:
        at = [lanes[i] for i in able]
        matched = match(at)
        clock = align(at, matched)
        strangers = _strangers([summaries[i] for i in able], matched, clock)
        if not strangers:
            break
        left_out += [
            UnreadRank(rank=summaries[able[k]].rank, path=summaries[able[k]].path, reason=why)
            for k, why in strangers.items()
        ]
        able = [i for k, i in enumerate(able) if k not in strangers]
    mine = [summaries[i] for i in able]
    account = account_of(
        at,
        matched,
        unprofiled_ms=[s.unprofiled_ms for s in mine],
        timed_ms=[s.timed_ms for s in mine],
        recorded_ms=[s.recorded_ms for s in mine],
        alone_ms=[s.alone_ms for s in mine],
        messages_ms=[s.messages_ms for s in mine],
    )
    fleet = Fleet(compared=len(able) if account else 0, unread=tuple(left_out), world_size=_world(summaries))
    if account is None:
        return Comparison(fleet=fleet, skew=None, rows=tuple(map(_row, summaries)))
    called = {row.name: " and ".join(row.roles) or "process" for row in roles}
    groups = [
        (f"{called.get(group.name, 'process')} group {group.name}", group.members.tolist())
        for group in matched.groups
        if len(group.members) < len(able)
    ]
    groups += _places(mine)
    # A stage that exchanges nothing with others has no peers.
    sent = [_sent(lane, k, matched) or k for k, lane in enumerate(at)]
    worth = NOTICED_ON_HOSTS if mine[0].kind == "cpu" else NEGLIGIBLE_SHARE
    found, step_ms = _late(account, mine, sent, groups, worth=worth)
    errors = clock.error_ns[np.isfinite(clock.error_ns)]
    traffic, links = collective_rows(at, matched, account.scale, mine)
    fleet = msgspec.structs.replace(
        fleet,
        clock_error_us=float(errors.max()) / 1e3 if len(errors) else None,
        collectives=sum(len(group.rows) for group in matched.groups),
        steps_left_out=max((s.steps_left_out for s in mine), default=0),
        unmatched=int(matched.unmatched.max()) if len(matched.unmatched) else 0,
        collective_rows=traffic,
        links=links,
    )
    program = joint_program(at, matched, clock, account.scale, mine) if matched.groups else None
    fleet = _fleet(fleet, found, account, mine, program, step_ms=step_ms)
    rows = _rows(account, able, summaries, fleet, found)
    buckets = bucket_sizes(program, mine, step_ms=step_ms) if program is not None else None
    answers = (
        bucket_answer(buckets, step_ms=step_ms, basis=TOGETHER),
        _dealt_answer(account, found, mine, step_ms=step_ms),
    )
    fleet = msgspec.structs.replace(
        fleet, what_ifs=(*fleet.what_ifs, *(answer for answer in answers if answer is not None))
    )
    return Comparison(fleet=fleet, skew=_skew(account, able, summaries), rows=rows, buckets=buckets)


def _dealt_answer(
    account: Account, found: Found, summaries: Sequence[RankSummary], *, step_ms: float
) -> WhatIfResult | None:
    """Return the step with its work dealt out evenly to the ranks; None where that is not sure to matter.

    None, too, where a rank is late that is told by itself: its own cause is what to look at first. What a
    rank has more in all steps is not counted. Where hosts do the work themselves, the forward of the steps
    before the trace tells how uneven it is, as there are many more of them; no more than the traced ones may
    have by chance.
    """
    traced = uneven_ms(account.work_ms - np.median(account.work_ms, axis=1, keepdims=True), found.sent)
    more, within = traced, mean_interval(traced)
    forwards = [summary.forwards_ms for summary in summaries]
    if len(forwards[0]) > len(traced) and len(set(map(len, forwards))) == 1:
        each = np.asarray(forwards)
        scale = account.work_ms.mean() / max(float(each.mean()), 1e-9)
        more = scale * uneven_ms(each - np.median(each, axis=1, keepdims=True), found.sent)
    interval = mean_interval(more)
    if found.late or interval is None or within is None:
        return None
    saves_ms = min(float(more.mean()), within[1], step_ms)
    if min(interval[0], saves_ms) < NOTICED_ON_HOSTS * step_ms:
        return None
    return WhatIfResult(
        question=WhatIf.WORK_DEALT,
        step_ms=step_ms - saves_ms,
        saves_ms=saves_ms,
        basis=f"what the rank with most work has more than the mean of all, in {len(more)} steps, gone",
        bound=False,
    )


def _places(summaries: Sequence[RankSummary]) -> Iterator[tuple[str, list[int]]]:
    """Yield the ranks of each node, and those in the same place of all nodes; of one node nothing."""
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    slots: defaultdict[int, list[int]] = defaultdict(list)
    for k, summary in enumerate(summaries):
        if summary.node is not None:
            nodes[summary.node].append(k)
            slots[summary.rank - summary.node].append(k)
    if len(nodes) > 1:
        yield from ((f"node {i}", nodes[first]) for i, first in enumerate(sorted(nodes)))
        kind = "GPU" if summaries[0].kind == "gpu" else "process"
        yield from ((f"{kind} {slot} of each node", members) for slot, members in sorted(slots.items()))


def _only_messages(summary: RankSummary) -> bool:
    """Tell a stage of a pipeline that exchanges nothing with all others together."""
    return bool(summary.messages_ms) and not summary.counters.get("collectives")


def _sent(lane: Lane, k: int, matched: Matched) -> frozenset[tuple[str, int]]:
    """Return what a rank sends in its groups: a kernel of a launch before the window is not told apart."""
    columns = lane.collectives
    rows = [group.rows[:, i] for group in matched.groups for i in np.flatnonzero(group.members == k)]
    used = np.unique(columns.kind[np.concatenate(rows)]) if rows else ()
    return frozenset((columns.kinds[i][0].collective, columns.kinds[i][1]) for i in used)


def _not_whole(summaries: Sequence[RankSummary]) -> list[UnreadRank]:
    return [
        UnreadRank(
            rank=s.rank,
            path=s.path,
            reason="its trace was cut off, so it is not compared" if not s.whole else "it has no step",
        )
        for s in summaries
        if not s.whole or not s.has_step
    ]


def _world(summaries: Sequence[RankSummary]) -> int | None:
    return max((s.world_size for s in summaries if s.world_size is not None), default=None)


def _strangers(summaries: Sequence[RankSummary], matched: Matched, clock: Clock) -> dict[int, str]:
    """Return the ranks that do not belong to the others, each with the reason."""
    out = dict.fromkeys(
        matched.strangers, "its collectives are not those of the other ranks: of another job?"
    )
    captured = {summary.place for summary in summaries}
    if len(captured) == 1 and 0 not in captured:  # one capture: only a busy machine moves their ends
        return out
    for k, error in enumerate(clock.error_ns.tolist()):
        # Of two ranks nobody can tell which is the stranger.
        if error > _FOREIGN_CLOCK * summaries[k].true_ms * 1e6:
            out[k] = "its collectives end when those of the other ranks do not: of another job?"
    return out


def _late(
    account: Account,
    summaries: Sequence[RankSummary],
    sent: Sequence[object],
    groups: Sequence[tuple[str, Sequence[int]]],
    *,
    worth: float,
) -> tuple[Found, float]:
    """Find the late ranks; return them with the step of the job."""
    step_ms = float(np.median([s.true_ms for s in summaries]))
    found = find_late(
        account.work_ms,
        step_ms=step_ms,
        worth=worth,
        sent=sent,
        groups=groups,
        numbers=[s.rank for s in summaries],
        whole=min(len(s.recorded_ms) for s in summaries),
        parts_ms=parts_ms(summaries, sent),
    )
    real = tuple(late for late in found.late if not _of_the_profiler(late, summaries))
    if real == found.late:
        return found, step_ms
    return replace(found, late=real, costs_ms=sum(late.costs_ms for late in real)), step_ms


def _of_the_profiler(late: Late, summaries: Sequence[RankSummary]) -> bool:
    """Tell whether ranks are late in their traces alone: in ordinary steps, or in single ones."""
    mine = [summaries[k] for k in late.lanes]
    if late.kind == "wandering":
        timed = [np.asarray(s.timed_ms) for s in mine if s.timed_ms]
        return bool(timed) and all(float((t - np.median(t)).max()) < 0.5 * late.late_ms for t in timed)
    others = [s for k, s in enumerate(summaries) if k not in late.lanes]
    return bool(others) and all(late_by_profiler(s, others, late.late_ms) for s in mine)


def late_by_profiler(late: RankSummary, others: Sequence[RankSummary], late_ms: float) -> bool:
    """Tell whether a rank is late in its trace alone, where each rank pays the profiler differently.

    In the baseline its host ran ahead of its device, so that nothing waited for that host, and its device
    has no more work of its own than those of the others.
    """
    usual = float(np.median([s.own_kernels_ms for s in others]))
    return late.runs_ahead and late.own_kernels_ms - usual < 0.5 * late_ms


def _skew(account: Account, able: Sequence[int], summaries: Sequence[RankSummary]) -> Skew | None:
    if len(able) < 2:
        return None
    waits = np.full(len(summaries), np.nan)
    waits[list(able)] = account.kernel_waits_ms
    critical = int(account.kernel_waits_ms.argmin())
    exposed = account.waits_ms.mean(axis=1)
    skew = Skew(waits_ms=waits, critical=able[critical], exposed_ms=float(exposed.max() - exposed[critical]))
    patient = summaries[int(np.nanargmax(waits))]
    return None if late_by_profiler(summaries[skew.critical], [patient], skew.skew_ms) else skew


def _fleet(
    fleet: Fleet,
    found: Found,
    account: Account,
    summaries: Sequence[RankSummary],
    program: JointProgram | None,
    *,
    step_ms: float,
) -> Fleet:
    """Add what the ranks say together: who is late and why, and the step without a cause."""
    disturbed = disturbed_ms(summaries, found.sent, account.kernel_waits_ms * account.scale)
    late_lanes = {lane for late in found.late for lane in late.lanes}
    peers = [s for k, s in enumerate(summaries) if k not in late_lanes]
    late_for = [_cause(late, summaries, peers) for late in found.late]
    answered = (
        answer_together(program, found, late_for, account, summaries, step_ms=step_ms, disturbed=disturbed)
        if program is not None
        else None
    )
    stragglers = []
    for i, (late, cause) in enumerate(zip(found.late, late_for, strict=True)):
        mine = [summaries[k] for k in late.lanes]
        stragglers.append(
            Straggler(
                ranks=tuple(s.rank for s in mine),
                kind=late.kind,
                cause=cause,
                costs_ms=answered.costs_ms[i]
                if answered is not None and i < len(answered.costs_ms)
                else late.costs_ms,
                late_ms=late.late_ms,
                group=late.group,
                site=site_of(mine, cause),
            )
        )
    fleet = msgspec.structs.replace(
        fleet,
        stragglers=tuple(stragglers),
        step_ms=step_ms,
        step_without_late_ranks_ms=step_ms - found.costs_ms - _relieved(account, disturbed, late_lanes),
    )
    if program is None or answered is None:
        return fleet
    path = program.path()
    scale = step_ms / sum(part.ms for part in path)
    return msgspec.structs.replace(
        fleet,
        step_without_late_ranks_ms=answered.without_late_ms,
        what_ifs=answered.what_ifs,
        replay_error=answered.error,
        path=tuple(
            PathPart(rank=summaries[part.lane].rank if part.lane >= 0 else None, ms=part.ms * scale)
            for part in path[:_PATH]
        ),
    )


def _cause(late: Late, summaries: Sequence[RankSummary], peers: Sequence[RankSummary]) -> LateCause:
    mine = [summaries[k] for k in late.lanes]
    if late.kind == "wandering":
        amounts = in_single_steps([(summaries[lane], step) for lane, step in late.cells])
    else:
        amounts = among_peers(mine, peers or summaries)
    return cause_of(amounts, late.late_ms, taken_ms=device_taken_ms(mine, peers))


def _relieved(account: Account, disturbed: Floats, late_lanes: set[int]) -> float:
    """Return how much sooner the last of the other ranks is there if its kernels are not disturbed."""
    others = [k for k in range(len(disturbed)) if k not in late_lanes]
    if not late_lanes or not others:
        return 0.0
    work = account.work_ms[others]
    return float((work.max(axis=0) - (work - disturbed[others, None]).max(axis=0)).mean())


def _row(summary: RankSummary) -> RankRow:
    """Return what is said of a rank by itself."""
    return RankRow(
        rank=summary.rank,
        step_ms=summary.true_ms if summary.has_step else None,
        busy_share=1.0 - summary.idle_share if summary.idle_share is not None else None,
        node=summary.node,
        path=summary.path,
    )


def _rows(
    account: Account,
    able: Sequence[int],
    summaries: Sequence[RankSummary],
    fleet: Fleet,
    found: Found,
) -> tuple[RankRow, ...]:
    excess = excess_ms([summaries[i] for i in able], found.sent)
    causes: dict[int, LateCause] = {rank: s.cause for s in fleet.stragglers for rank in s.ranks}
    out = [_row(summary) for summary in summaries]
    for k, i in enumerate(able):
        longest = int(account.waited_for[k])
        parts = (account.own_ms[k], account.bubble_ms[k], account.transfer_ms[k], account.waits_ms[k])
        ends = np.cumsum(parts, axis=0)
        means = as_timed(ends[-1], summaries[i].timed_ms).mean_ms(ends)
        own, bubble, transfer, waits = np.diff(means, prepend=0.0).tolist()
        out[i] = msgspec.structs.replace(
            out[i],
            own_ms=own,
            waits_for_others_ms=waits,
            transfer_ms=transfer,
            bubble_ms=bubble if summaries[i].messages_ms else None,
            late_ms=float(found.late_ms[k]),
            late_steps_ms=tuple(np.round(found.lateness_ms[k, -_STEPS:], 3).tolist()),
            excess_ms=excess[k],
            cause=causes.get(summaries[i].rank, ""),
            waits_for=summaries[able[longest]].rank if longest >= 0 else None,
        )
    return tuple(out)


# -- without a GPU -----------------------------------------------------------------------------------------


def _on_hosts(
    summaries: Sequence[RankSummary], able: Sequence[int], left_out: Sequence[UnreadRank]
) -> Comparison:
    """Compare the ranks by their budgets, since a collective on the CPU has no kernel to time.

    Ranks that exchange gradients make their steps together, so what one of them spends in
    communication beyond the least that any spends is waiting for a rank that comes later.
    """
    nothing = Comparison(
        fleet=Fleet(compared=0, unread=tuple(left_out), world_size=_world(summaries)),
        skew=None,
        rows=tuple(map(_row, summaries)),
    )
    mine = [summaries[i] for i in able]
    # Stages of a pipeline do not wait for each other together: their messages are from one to the next.
    if len(mine) < 2 or any(s.kind != "cpu" or s.counters.get("collectives") == 0 for s in mine):
        return nothing
    exchanged = np.array([s.budget.get(Part.COMMUNICATION.value, 0.0) for s in mine])
    wire = float(exchanged.min())
    if wire <= 0:
        return nothing
    true = np.array([s.true_ms for s in mine])
    own = (true - exchanged)[:, None]
    account = Account(
        own_ms=own,
        waits_ms=(exchanged - wire)[:, None],
        transfer_ms=np.full((len(mine), 1), wire),
        bubble_ms=np.zeros((len(mine), 1)),
        work_ms=own + (np.median(true) - true)[:, None],
        kernel_waits_ms=exchanged - wire,
        length_ms=np.median(true, keepdims=True),
        scale=np.ones(len(mine)),
        waited_for=np.where(exchanged > wire, exchanged.argmin(), -1),
    )
    sent = [""] * len(mine)
    found, step_ms = _late(account, mine, sent, [], worth=NOTICED_ON_HOSTS)
    fleet = Fleet(compared=len(mine), unread=tuple(left_out), world_size=_world(summaries))
    fleet = _fleet(fleet, found, account, mine, host_program(account.work_ms, wire), step_ms=step_ms)
    waits = np.full(len(summaries), np.nan)
    waits[list(able)] = exchanged - wire
    skew = Skew(
        waits_ms=waits, critical=able[int(exchanged.argmin())], exposed_ms=float(exchanged.max()) - wire
    )
    return Comparison(
        fleet=fleet,
        skew=skew if skew.skew_ms >= NOTICED_ON_HOSTS * float(true.max()) else None,
        rows=_rows(account, able, summaries, fleet, found),
    )
