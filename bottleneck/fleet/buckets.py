"""The step with gradient buckets of another size, by replaying the ranks with other collectives.

In: a `JointProgram`, when gradients come. Out: `BucketSizes`: the step by size of the buckets of
DistributedDataParallel.

DDP fills buckets with gradients in the order in which they come, and closes one when it holds bucket_cap_mb.
A merged bucket is sent when its last part is ready. Its transfer takes what the run's own collectives of
several sizes show. The host sends fewer or more of them. All else is the replay as it is.

    DDP's rule: compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..model.codes import WhatIf
from ..model.diagnosis import BucketRow, BucketSizes, WhatIfResult
from ..model.finding import NEGLIGIBLE_SHARE
from ..model.words import byte_size, percent
from ..timeline.trace.table import NONE
from .clock import align
from .gradients import Gradients, unpack_gradients
from .joint import At, Join, JointEdit, JointProgram, joint_program
from .link import SURE, SizeFit, fit_sizes
from .match import match
from .summary import RankSummary, lane_of
from .what_if import MAX_JOINT_ERROR

__all__ = ["best_cap_mb", "bucket_answer", "bucket_sizes", "of_one_rank"]

_MIB = 1 << 20
CAPS = tuple(mib * _MIB for mib in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000))
"""Sizes that are asked for, beside a single bucket."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backward:
    """The buckets of one backward pass of one group, in the order in which they are sent."""

    at: tuple[int, ...]
    """Positions in the program's collectives."""
    size: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A bucket of another size."""

    size: int
    first: int
    last: int
    """Buckets of the run that its first and its last gradient are from: positions in the backward."""
    gradient: int
    """Position of that last one in `Gradients`; -1 where buckets are only merged."""
    whole: bool
    """It ends with a whole bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is replayed with other buckets."""

    program: JointProgram
    backwards: tuple[_Backward, ...]
    gradients: tuple[Gradients, ...] | None
    """Of each rank; None where nothing tells them."""
    summaries: Sequence[RankSummary]


def of_one_rank(summary: RankSummary) -> BucketSizes | None:
    """Return the same for one rank by itself: what it waits for others in a collective stays as it is."""
    lanes = [lane_of(summary)]
    matched = match(lanes, least=1)
    traced = np.asarray(summary.recorded_ms)[-matched.steps :] if matched.steps else np.zeros(0)
    if not matched.groups or not len(traced) or not summary.alone_edges_ms:
        return None
    scale = np.asarray([summary.true_ms / float(traced.mean())])
    program = joint_program(lanes, matched, align(lanes, matched), scale, [summary])
    return bucket_sizes(program, [summary], step_ms=summary.true_ms) if program is not None else None


def bucket_sizes(
    program: JointProgram, summaries: Sequence[RankSummary], *, step_ms: float
) -> BucketSizes | None:
    """Return the step by size of the buckets; None where no gradients are sent in buckets.

    The answers are ratios of two replays, applied to `step_ms`, as those of `what_if.answer`.
    """
    backwards = _backwards(program)
    if not backwards or step_ms <= 0:
        return None
    count = max(len(each.at) for each in backwards)
    if any(NONE in each.size for each in backwards):
        return BucketSizes(buckets=count, unknown="nothing tells how many bytes a bucket has")
    total = max(sum(each.size) for each in backwards)
    now = program.lengths_ms([JointEdit()])[0]
    error = float(abs(now.mean() - step_ms)) / step_ms
    known = BucketSizes(
        buckets=count,
        bytes=total,
        largest_bytes=max(max(each.size) for each in backwards),
        replay_error=error,
    )
    if error > MAX_JOINT_ERROR:
        return msgspec.structs.replace(known, unknown=f"the replay misses the step by {percent(error)}")
    fit = _fit(program, backwards)
    if fit is None:
        return msgspec.structs.replace(
            known,
            unknown="the collectives of the run do not show how their time grows with their size:"
            " they have one size only, or larger ones do not take longer",
        )
    gradients = _in_common(backwards, [unpack_gradients(s.gradients) for s in summaries])
    job = _Job(program=program, backwards=tuple(backwards), gradients=gradients, summaries=summaries)
    rows: list[BucketRow] = []
    seen: set[tuple[tuple[_Sent, ...], ...]] = set()
    for cap in [*(cap for cap in CAPS if cap < total), None]:
        divided = [_assigned(each, cap, gradients) for each in backwards]
        sent = tuple(each for each in divided if each is not None)
        if len(sent) < len(divided) or sent in seen:
            continue
        seen.add(sent)
        steps = [
            step_ms * _length_ms(job, sent, used) / float(now.mean())
            for used in (fit, fit.steeper(SURE), fit.steeper(-SURE))
        ]
        rows.append(
            BucketRow(
                cap_bytes=cap,
                buckets=max(len(each) for each in sent),
                step_ms=steps[0],
                step_at_most_ms=max(steps),
            )
        )
    return msgspec.structs.replace(
        known,
        rows=tuple(rows),
        latency_ms=fit.latency_ms,
        gbytes_per_s=fit.gbytes_per_s,
        unknown=""
        if gradients is not None
        else "smaller buckets, since nothing tells the sizes of single gradients",
    )


def bucket_answer(found: BucketSizes | None, *, step_ms: float, basis: str) -> WhatIfResult | None:
    """Return the step with buckets of the best size; None where no size gains more than the replay may miss.

    Of sizes that are as good, the one nearest to that of the run.
    """
    if found is None or found.replay_error is None:
        return None
    surely = max(found.replay_error, NEGLIGIBLE_SHARE) * step_ms
    better = [row for row in found.rows if step_ms - row.step_at_most_ms > surely]
    if not better:
        return None
    least = min(row.step_ms for row in better)
    as_good = [row for row in better if row.step_ms <= least + NEGLIGIBLE_SHARE * step_ms]
    best = min(as_good, key=lambda row: abs(np.log(row.buckets / found.buckets)))
    size = f"of up to {byte_size(best.cap_bytes)} " if best.cap_bytes is not None else ""
    buckets = "1 bucket" if best.buckets == 1 else f"{best.buckets} buckets"
    return WhatIfResult(
        question=WhatIf.BUCKET_SIZE,
        step_ms=best.step_ms,
        saves_ms=step_ms - best.step_ms,
        basis=f"{basis}, gradients in {buckets} {size}instead of {found.buckets}",
        bound=False,
    )


def best_cap_mb(found: BucketSizes | None, answer: WhatIfResult | None) -> int | None:
    """Return bucket_cap_mb of an answer; None without one."""
    row = next((r for r in found.rows if answer and r.step_ms == answer.step_ms), None) if found else None
    if row is None or found is None:
        return None
    return -(-(row.cap_bytes if row.cap_bytes is not None else found.bytes or 0) // _MIB)


def _backwards(program: JointProgram) -> list[_Backward]:
    found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for i, join in enumerate(program.joins):
        if join.backward != NONE:
            found[join.group, join.step, join.backward].append(i)
    return [_Backward(at=tuple(at), size=tuple(program.joins[i].size for i in at)) for at in found.values()]


def _fit(program: JointProgram, backwards: Sequence[_Backward]) -> SizeFit | None:
    """Fit the time of collectives like the buckets, in their group, to their bytes."""
    first = program.joins[backwards[0].at[0]]
    alike = [
        join
        for join in program.joins
        if (join.group, join.collective) == (first.group, first.collective) and join.size != NONE
    ]
    size = np.asarray([join.size for join in alike], dtype=np.float64)
    ms = np.asarray([join.transfer_ms for join in alike])
    if len(first.members) == 1:
        # One rank does not tell waiting from transfer: the shortest of each size has least of it.
        sizes, which = np.unique(size, return_inverse=True)
        size, ms = sizes, np.asarray([ms[which == i].min() for i in range(len(sizes))])
    return fit_sizes(size, ms)


def _in_common(backwards: Sequence[_Backward], found: Sequence[Gradients]) -> tuple[Gradients, ...] | None:
    """Return the gradients of each rank if all tell them, and they are those of the buckets."""
    sizes = {each.size for each in backwards}
    if len(sizes) != 1 or not all(len(each) for each in found):
        return None
    (buckets,) = sizes
    for each in found:
        if tuple(np.bincount(each.bucket, each.size, len(buckets)).astype(int).tolist()) != buckets:
            return None
    return tuple(found)


def _assigned(
    backward: _Backward, cap: int | None, gradients: Sequence[Gradients] | None
) -> tuple[_Sent, ...] | None:
    """Return how DDP would divide a backward pass; None where what it would divide is not known."""
    if gradients is not None:
        sizes, of = gradients[0].size.tolist(), gradients[0].bucket.tolist()
    else:
        sizes, of = list(backward.size), list(range(len(backward.size)))
    out: list[_Sent] = []
    first, filled = 0, 0
    for i, size in enumerate(sizes):
        filled += size
        if i == len(sizes) - 1 or (cap is not None and filled >= cap):
            whole = i == len(sizes) - 1 or of[i + 1] != of[i]
            out.append(
                _Sent(
                    size=filled,
                    first=of[first],
                    last=of[i],
                    gradient=i if gradients is not None else -1,
                    whole=whole,
                )
            )
            first, filled = i + 1, 0
    # Without the sizes of gradients a bucket larger than that might have been divided.
    return None if gradients is None and cap is not None and max(backward.size) >= 2 * cap else tuple(out)


def _length_ms(job: _Job, sent: Sequence[Sequence[_Sent]], fit: SizeFit) -> float:
    """Return the mean step with other buckets."""
    program = job.program
    in_place: dict[int, list[Join]] = {}
    calls: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for backward, parts in zip(job.backwards, sent, strict=True):
        by_last: dict[int, list[_Sent]] = defaultdict(list)
        for part in parts:
            by_last[part.last].append(part)
        for k, i in enumerate(backward.at):
            join = program.joins[i]
            here = by_last.get(k, [])
            in_place[i] = [_joined(job, backward, part, fit) for part in here]
            for m, lane in enumerate(join.members.tolist()):
                calls[lane].append((float(join.places_ms[m, At.LAUNCH]), len(here) - 1))
    joins = tuple(each for i, join in enumerate(program.joins) for each in in_place.get(i, [join]))
    moved = _with_calls(replace(program, joins=joins), calls, job.summaries)
    return float(moved.lengths_ms([JointEdit()])[0].mean())


def _joined(job: _Job, backward: _Backward, part: _Sent, fit: SizeFit) -> Join:
    """Return the collective of a bucket of another size."""
    last = job.program.joins[backward.at[part.last]]
    of = [job.program.joins[backward.at[k]] for k in range(part.first, part.last + 1)]
    places = last.places_ms.copy()
    # Of a merged one, the first result that somebody needs.
    places[:, At.NEEDED] = np.min([join.places_ms[:, At.NEEDED] for join in of], axis=0)
    residual = last.transfer_ms - fit.ms(last.size)
    if not part.whole and job.gradients is not None:
        before = (
            np.stack([job.gradients[lane].before_ns[part.gradient] for lane in last.members.tolist()]) / 1e6
        )
        earlier = np.maximum(places[:, [At.LAUNCH, At.DONE]] - before, 0.0)
        places[:, [At.LAUNCH, At.DONE]] = earlier
        # It is sent before the host waits for what it waits for behind it.
        places[:, [At.SYNCED, At.SYNCED_DONE]] = np.minimum(places[:, [At.SYNCED, At.SYNCED_DONE]], earlier)
        residual = 0.0
    places[:, At.NEEDED] = np.maximum(places[:, At.NEEDED], places[:, At.DONE])
    # What this one took longer or shorter than its size tells stays with it.
    return replace(last, places_ms=places, transfer_ms=max(0.0, fit.ms(part.size) + residual), size=part.size)


def _with_calls(
    program: JointProgram, calls: dict[int, list[tuple[float, int]]], summaries: Sequence[RankSummary]
) -> JointProgram:
    """Return the program in which hosts send fewer buckets, or more, behind these moments."""
    moments, shifts = {}, {}
    for lane, each in calls.items():
        ordered = sorted(each)
        moments[lane] = np.asarray([moment for moment, _ in ordered])
        more = np.cumsum([0, *(count for _, count in ordered)]) * summaries[lane].bucket_call_ms
        shifts[lane] = more * _share(summaries[lane], program, lane, float(more[-1]) / program.steps)

    def moved(lane: int, places: Floats, columns: Sequence[int]) -> None:
        if lane in moments:
            for column in columns if summaries[lane].kind == "gpu" else range(places.shape[-1]):
                places[..., column] += shifts[lane][np.searchsorted(moments[lane], places[..., column])]

    edges = program.edges_ms.copy()
    for lane in range(len(edges)):
        moved(lane, edges[lane], [0])
    joins = []
    for join in program.joins:
        places = join.places_ms.copy()
        for m, lane in enumerate(join.members.tolist()):
            moved(lane, places[m], [At.LAUNCH, At.SYNCED])
        joins.append(replace(join, places_ms=places))
    return replace(program, edges_ms=edges, joins=tuple(joins))


def _share(summary: RankSummary, program: JointProgram, lane: int, more_ms: float) -> float:
    """Return how much of more work of the host a step without communication is longer by, as a share.

    It takes as long as the longer one of host and device, and what they wait for each other.
    """
    if summary.kind != "gpu" or not more_ms:
        return 1.0
    device = float(program.edges_ms[lane, -1, 1] - program.edges_ms[lane, 0, 1]) / program.steps
    host = float(np.mean(summary.alone_host_ms)) if summary.alone_host_ms else 0.0
    return (max(device, host + more_ms) - max(device, host)) / more_ms
