"""How often a late rank is found among its peers, its cause named, and a healthy job left alone.

    python tests/benchmarks/fleet_stragglers.py                     # 64 and 1,024 ranks, 100 cases of each
    kind python tests/benchmarks/fleet_stragglers.py --ranks 64 --cases 20

Summaries are made from those of the recorded two-rank runs (`ddp-h200`, whose hosts set the pace, and
`fsdp-h200`, whose devices do): their collectives, their work by cause, their pace. What differs from rank
to rank and from step to step is drawn: a rank is faster or slower by 0.7 % for good (the two recorded ranks
differ by 1.4 %), a step by 0.5 % with the long tail of Student's t of four degrees of freedom; work by
cause is uncertain by 2 %, the replayed pace by 0.3 %. Collectives end within 2 us of each other on clocks
that differ by 5 ms and 20 parts per million. The last rank sets the end of the first collective of each
step.

    one         one rank late in each step, by 5 to 25 % of the step, for a cause drawn at random
    group       eight neighbours late by as much
    wandering   in each step another rank late, by 10 to 30 %
    clean       nobody late: whatever is told is a false alarm
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recorded.cases import CASES

from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.fleet.collectives import BINS, Collectives, PackedCollectives, pack, unpack
from torch_bottleneck.fleet.columns import packed
from torch_bottleneck.fleet.compare import compare_ranks
from torch_bottleneck.fleet.summary import RankSummary
from torch_bottleneck.ingest.bundle import load
from torch_bottleneck.model.codes import Part
from torch_bottleneck.timeline.lanes.alone import PLACES

KINDS = ("one", "group", "wandering", "clean")
CAUSES = (
    "input", "host", "launch", "allocator", "compiling", "garbage collection", "compute", "slower device",
)  # fmt: skip
STEPS, PER_STEP, GROUP = 5, 8, 8
RANK_SPREAD, STEP_SPREAD, WORK_SPREAD, PACE_SPREAD = 0.007, 0.005, 0.02, 0.003
END_JITTER_NS, SKEW_NS, DRIFT = 2000.0, 5e6, 20e-6


@dataclass(frozen=True)
class Base:
    """A recorded rank: its pace, and one step of its collectives."""

    summary: RankSummary
    step: Collectives
    pace_ms: float
    transfer_ms: float


def bases() -> list[Base]:
    """Return the recorded ranks."""
    found = []
    for name in ("ddp-h200", "fsdp-h200"):
        for summary in read_job(load(CASES[name].folder).ranks).summaries:
            columns = unpack(summary.collectives)
            rows = np.flatnonzero(columns.step == columns.step.max())[:PER_STEP]
            arrays = ("kind", "sequence", "step", "ready", "start", "end", "alone", "exposed")
            step = replace(columns, **{each: getattr(columns, each)[rows] for each in arrays})
            found.append(
                Base(
                    summary=summary,
                    step=step,
                    pace_ms=float(np.mean(summary.alone_ms)),
                    transfer_ms=float(np.median(step.end - step.start)) / 1e6,
                )
            )
    return found


@dataclass(frozen=True)
class Plan:
    """What is planted: (ranks, steps) in ms, and for what."""

    late_ms: NDArray[np.float64]
    cause: str
    ranks: tuple[int, ...]


def plan(kind: str, ranks: int, step_ms: float, rng: np.random.Generator) -> Plan:
    """Draw what is planted."""
    late = np.zeros((ranks, STEPS))
    cause = str(rng.choice(CAUSES))
    if kind == "one":
        chosen = (int(rng.integers(ranks)),)
        late[chosen, :] = rng.uniform(0.05, 0.25) * step_ms
    elif kind == "group":
        first = GROUP * int(rng.integers(ranks // GROUP))
        chosen = tuple(range(first, first + GROUP))
        late[list(chosen)] = rng.uniform(0.05, 0.25) * step_ms
    elif kind == "wandering":
        chosen = tuple(sorted(rng.choice(ranks, min(STEPS, ranks), replace=False).tolist()))
        for step, rank in enumerate(rng.permutation(chosen)):
            late[rank, step] = rng.uniform(0.1, 0.3) * step_ms
    else:
        chosen = ()
    return Plan(late, cause, chosen)


def make(pair: list[Base], planned: Plan, rng: np.random.Generator) -> list[RankSummary]:
    """Return the summaries of a job."""
    ranks = len(planned.late_ms)
    pace = float(np.median([base.pace_ms for base in pair]))
    transfer = min(base.transfer_ms for base in pair)
    usual = 1.0 + rng.normal(0.0, RANK_SPREAD, (ranks, 1))
    usual = usual + STEP_SPREAD * rng.standard_t(4, (ranks, STEPS)) / np.sqrt(2.0)
    work = pace * usual + planned.late_ms
    ends_ms = np.cumsum(work.max(axis=0) + PER_STEP * transfer)
    jitter = rng.normal(0.0, END_JITTER_NS, (ranks, STEPS * PER_STEP))
    out: list[RankSummary] = []
    alike: PackedCollectives | None = None
    for rank in range(ranks):
        base = pair[rank % 2]
        waits = work.max(axis=0) - work[rank]
        lengths = np.full((STEPS, PER_STEP), transfer)
        lengths[:, 0] += waits
        after = transfer * np.arange(PER_STEP - 1, -1, -1)
        end = (ends_ms[:, None] - after).ravel() * 1e6 + jitter[rank]
        # The clock of this rank.
        end = end * (1.0 + rng.uniform(-DRIFT, DRIFT)) + rng.uniform(-SKEW_NS, SKEW_NS)
        length = (lengths.ravel() * 1e6).astype(np.int64)
        end = end.astype(np.int64)
        share = base.step.exposed / np.maximum(base.step.end - base.step.start, 1)[:, None] * BINS
        exposed = np.tile(np.clip(share, 0.0, 1.0), (STEPS, 1)) * length[:, None] / BINS
        exposed[::PER_STEP] = length[::PER_STEP, None] / BINS  # while it waits, nothing else runs
        begin, exposed = end - length, exposed.astype(np.int64)
        if alike is None:
            alike = pack(
                Collectives(
                    kinds=pair[0].step.kinds,
                    kind=np.tile(pair[0].step.kind, STEPS),
                    sequence=np.full(STEPS * PER_STEP, -1),
                    step=np.repeat(np.arange(STEPS), PER_STEP),
                    backward=np.full(STEPS * PER_STEP, -1),
                    phase=np.full(STEPS * PER_STEP, -1),
                    ready=begin - 20_000,
                    start=begin,
                    end=end,
                    alone=np.zeros((STEPS * PER_STEP, PLACES), dtype=np.int64),
                    exposed=exposed,
                )
            )
        # The other columns are the same on all ranks.
        alone = work[rank] * (1 + rng.normal(0.0, PACE_SPREAD, STEPS))
        until = np.cumsum(alone)
        places = np.zeros((STEPS * PER_STEP, PLACES))
        places[:, :3] = np.repeat(until * 1e6, PER_STEP)[:, None]
        moved = {"start": packed(begin), "end": packed(length), "exposed": packed(exposed.T)}
        moved["alone"] = packed(places.astype(np.int64).T)
        packed_rank = msgspec.structs.replace(alike, columns={**alike.columns, **moved})
        step_ms = np.diff(ends_ms, prepend=0.0)
        out.append(
            msgspec.structs.replace(
                base.summary,
                rank=rank,
                world_size=ranks,
                steps=STEPS,
                step_numbers=tuple(range(STEPS)),
                true_ms=float(step_ms.mean()),
                recorded_ms=tuple(step_ms.tolist()),
                alone_ms=tuple(alone.tolist()),
                alone_edges_ms=tuple((float(ms), float(ms)) for ms in [0.0, *until]),
                own_work_ms=_own_work(base, planned, rank, rng),
                budget=_budget(base, planned, rank),
                runs_ahead=False,
                collectives=packed_rank,
            )
        )
    return out


_PARTS = {
    "input": Part.INPUT,
    "host": Part.HOST,
    "launch": Part.DISPATCH,
    "allocator": Part.ALLOCATOR,
    "compiling": Part.COMPILE,
    "garbage collection": Part.HOST,
    "compute": Part.TENSOR_CORE,
    "slower device": Part.TENSOR_CORE,
}


def _budget(base: Base, planned: Plan, rank: int) -> dict[str, float]:
    part = _PARTS[planned.cause].value
    budget = dict(base.summary.budget)
    return {**budget, part: budget.get(part, 0.0) + float(planned.late_ms[rank].mean())}


def _own_work(base: Base, planned: Plan, rank: int, rng: np.random.Generator) -> dict[str, tuple[float, ...]]:
    recorded = {cause: float(np.mean(each)) for cause, each in base.summary.own_work_ms.items()}
    late = planned.late_ms[rank]
    work = {cause: np.full(STEPS, ms) for cause, ms in recorded.items()}
    if planned.cause == "slower device":
        device = sum(recorded[each] for each in ("compute", "optimizer"))
        for each in ("compute", "optimizer"):
            work[each] = work[each] * (1.0 + late / device)
    elif late.any():
        work[planned.cause] = work.get(planned.cause, np.zeros(STEPS)) + late
    return {
        cause: tuple((each * (1.0 + rng.normal(0.0, WORK_SPREAD, STEPS))).tolist())
        for cause, each in work.items()
    }


def judge(kind: str, planned: Plan, summaries: list[RankSummary]) -> Counter[str]:
    """Return what came of one case."""
    told = compare_ranks(summaries).fleet
    want = "persistent" if kind == "one" else kind
    out: Counter[str] = Counter(cases=1)
    right = [s for s in told.stragglers if s.kind == want and set(s.ranks) <= set(planned.ranks)]
    named = {rank for s in right for rank in s.ranks}
    # Of those that wander the small ones may be within what counts.
    enough = len(named) == len(planned.ranks) if kind != "wandering" else len(named) * 2 > len(planned.ranks)
    out["found"] = int(bool(right) and enough)
    out["cause"] = int(bool(right) and right[0].cause == planned.cause)
    out["false"] = int(any(not set(s.ranks) & set(planned.ranks) for s in told.stragglers))
    out["error_us"] = int(told.clock_error_us or 0.0)
    return out


def main() -> None:
    """Print a row per size and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    wanted = parser.parse_args()
    recorded = bases()
    print("| ranks | planted | cases | found | cause right | false alarms | seconds of a comparison |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for ranks in wanted.ranks:
        for kind in wanted.kinds:
            total: Counter[str] = Counter()
            spent = 0.0
            for case in range(wanted.cases):
                rng = np.random.default_rng([ranks, KINDS.index(kind), case])
                pair = recorded[:2] if case % 2 else recorded[2:]
                planned = plan(kind, ranks, float(np.median([b.pace_ms for b in pair])), rng)
                summaries = make(pair, planned, rng)
                began = time.process_time()
                total += judge(kind, planned, summaries)
                spent += time.process_time() - began
            planted = (str(total["found"]), str(total["cause"])) if kind != "clean" else ("", "")
            print(
                f"| {ranks} | {kind} | {total['cases']} | {planted[0]} | {planted[1]} | {total['false']} "
                f"| {spent / total['cases']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
