"""A summary has a fixed size, whatever the trace holds: fewer of its last steps, which say what they said."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.fleet_make import Job, make
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fleet.jobs import STEP_MS, TRANSFER_MS, collectives, summary

from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.fleet.collectives import MOST, Collectives, PackedCollectives, unpack
from torch_bottleneck.fleet.compare import Comparison, compare_ranks
from torch_bottleneck.fleet.gradients import Gradients, pack_gradients
from torch_bottleneck.fleet.summary import AloneWithout, KernelSketch, RankSummary
from torch_bottleneck.fleet.window import MOST_BYTES, bounded, last_collectives, last_steps
from torch_bottleneck.ingest.bundle import load
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.timeline.trace.table import Message

GROUP = Message("1", str(list(range(30))), "allreduce", "mesh_data")


def size(made: RankSummary) -> int:
    return len(msgspec.msgpack.encode(made))


def noisy(steps: int, per_step: int, *, sizes: int = 20, seed: int = 1) -> Collectives:
    """Collectives of which nothing can be compressed but what is the same in each."""
    rng = np.random.default_rng(seed)
    count = steps * per_step
    found = collectives(
        np.cumsum(rng.uniform(0.1, 3.0, count)).tolist(),
        rng.uniform(0.01, 0.1, count).tolist(),
        steps=np.repeat(np.arange(steps), per_step).tolist(),
        message=GROUP,
        sizes=rng.integers(1, sizes, count).tolist(),
        sequence=range(count),
    )
    length = found.end - found.start
    return replace(
        found,
        alone=rng.integers(0, 10**9, found.alone.shape),
        exposed=(rng.uniform(0, 1, found.exposed.shape) * length[:, None] / 8).astype(np.int64),
    )


def of_steps(steps: int, seed: int = 1) -> RankSummary:
    """A summary without collectives, in which each step has its own numbers."""
    rng = np.random.default_rng(seed)

    def column() -> tuple[float, ...]:
        return tuple(rng.uniform(1.0, 99.0, steps).tolist())

    return RankSummary(
        rank=3,
        steps=steps,
        recorded_ms=column(),
        alone_ms=column(),
        alone_host_ms=column(),
        alone_edges_ms=tuple(zip((0.0, *column()), (0.0, *column()), strict=True)),
        alone_without=tuple(AloneWithout(question, column(), False) for question in WhatIf),
        own_work_ms={cause: column() for cause in ("input", "host", "compute", "copies")},
        messages_ms=tuple((ms, 0.1, 4) for ms in column()),
        step_numbers=tuple(range(100, 100 + steps)),
        timed_ms=column()[:256],
        kernels=tuple(KernelSketch(f"kernel {i:0150}", 3.0, 1.0) for i in range(40)),
    )


@pytest.mark.parametrize(
    ("steps", "per_step", "sizes"),
    [(400, 8, 20), (60, 400, 20), (5000, 20, 20), (40, 500, 10**9), (3, 900, 20)],
)
def test_many_steps_and_collectives_have_room_and_those_that_are_kept_are_as_they_were(
    steps: int, per_step: int, sizes: int
) -> None:
    made, found = of_steps(steps), noisy(steps, per_step, sizes=sizes)
    kept = bounded(made, found)
    assert size(kept) <= MOST_BYTES
    assert kept.collectives.count <= MOST
    assert 1 <= kept.steps < steps
    assert kept.steps + kept.steps_left_out == steps
    assert kept.collectives.count == kept.steps * per_step, "whole steps"
    columns, first = unpack(kept.collectives), -kept.collectives.count
    for each in fields(Collectives):
        if each.name not in ("kinds", "kind", "step"):
            assert np.array_equal(getattr(columns, each.name), getattr(found, each.name)[first:]), each.name
    assert [columns.kinds[i] for i in columns.kind] == [found.kinds[i] for i in found.kind[first:]]
    assert np.array_equal(columns.step, found.step[first:] - kept.steps_left_out)
    for name in ("recorded_ms", "alone_ms", "alone_host_ms", "messages_ms", "step_numbers"):
        assert getattr(kept, name) == getattr(made, name)[-kept.steps :]
    assert kept.alone_edges_ms == made.alone_edges_ms[-kept.steps - 1 :]
    assert all(each == made.own_work_ms[cause][-kept.steps :] for cause, each in kept.own_work_ms.items())
    assert (kept.timed_ms, kept.kernels) == (made.timed_ms, made.kernels)


def test_the_room_is_used() -> None:
    kept = bounded(of_steps(200), noisy(200, 100))
    assert size(kept) > 0.8 * MOST_BYTES


def test_what_has_room_stays_whole() -> None:
    made, found = of_steps(20), noisy(20, 8)
    kept = bounded(made, found)
    assert msgspec.structs.replace(kept, collectives=PackedCollectives()) == made
    assert len(unpack(kept.collectives)) == len(found)


def test_of_one_step_with_more_the_first_collectives_are_kept() -> None:
    found = noisy(2, 9000)
    kept = bounded(of_steps(2), found)
    assert size(kept) <= MOST_BYTES
    columns = unpack(kept.collectives)
    assert len(columns) > 1000
    assert np.array_equal(columns.start, found.start[9000 : 9000 + len(columns)])


def test_names_of_any_length_do_not_break_the_limit() -> None:
    rng = np.random.default_rng(1)
    many = Gradients(
        size=rng.integers(1, 2**40, 4096),
        bucket=np.arange(4096),
        before_ns=rng.integers(0, 2**40, (4096, 2)),
    )
    long = "x" * 4096
    made = msgspec.structs.replace(
        of_steps(3),
        gradients=pack_gradients(many),
        sites={f"{i}": SourceSite(file=f"/{i}{long}", line=1, function=long) for i in range(20)},
        groups=tuple((f"{i}", tuple(range(20_000))) for i in range(5)),
    )
    kept = bounded(made, noisy(3, 50))
    assert size(kept) <= MOST_BYTES
    assert kept.recorded_ms == made.recorded_ms[-kept.steps :]


@given(
    steps=st.integers(0, 300), per_step=st.integers(0, 60), seed=st.integers(0, 99), kept=st.integers(1, 300)
)
@settings(max_examples=30, deadline=None)
def test_fewer_of_fewer_steps_are_fewer_steps(steps: int, per_step: int, seed: int, kept: int) -> None:
    made, found = of_steps(steps, seed), noisy(steps, per_step, seed=seed)
    assert size(bounded(made, found)) <= MOST_BYTES
    half = (steps + 1) // 2
    twice = last_steps(last_steps(made, half), min(kept, half))
    assert twice == last_steps(made, min(kept, half))
    once = last_collectives(found, steps, min(kept, half))
    again = last_collectives(last_collectives(found, steps, half), half, min(kept, half))
    assert np.array_equal(once.start, again.start)
    assert np.array_equal(once.step, again.step)


def test_a_collective_of_an_earlier_step_that_begins_later_is_of_no_step() -> None:
    found = collectives([1, 2, 3, 4, 5], [0.5] * 5, steps=[0, 1, 0, 1, -1])
    assert last_collectives(found, 2, 1).step.tolist() == [0, -1, 0, -1]
    assert len(last_collectives(found, 3, 1)) == 0, "a step without any"


def late(steps: int, ranks: int = 6) -> list[RankSummary]:
    """Rank 2 is late by 3 to 5 ms, by other amounts in each step."""
    waits = np.random.default_rng(1).uniform(3.0, 5.0, steps)
    return [summary(rank, (waits if rank != 2 else 0.0 * waits).tolist()) for rank in range(ranks)]


def cut(made: RankSummary, steps: int) -> RankSummary:
    return bounded(
        last_steps(msgspec.structs.replace(made, collectives=PackedCollectives()), steps),
        last_collectives(unpack(made.collectives), made.steps, steps),
    )


def told(comparison: Comparison) -> list[object]:
    """What is said of each rank and of who is late."""
    rows = [
        (
            row.rank,
            row.cause,
            *np.round([row.own_ms, row.waits_for_others_ms, row.transfer_ms, row.late_ms], 3),
        )
        for row in comparison.rows
    ]
    return [*rows, *((s.ranks, s.kind, s.cause, round(s.costs_ms, 3)) for s in comparison.fleet.stragglers)]


def test_steps_that_are_kept_are_judged_as_if_there_had_been_no_others() -> None:
    whole = late(60)
    kept = [cut(made, 24) for made in whole]
    alone = [msgspec.structs.replace(made, steps_left_out=0) for made in kept]
    found = compare_ranks(kept)
    assert told(found) == told(compare_ranks(alone))
    assert found.fleet.steps_left_out == 36
    assert found.fleet.stragglers[0].ranks == (2,)
    # Lateness step by step does not depend on the steps before.
    for row, before in zip(found.rows, compare_ranks(whole).rows, strict=True):
        assert row.late_steps_ms == pytest.approx(before.late_steps_ms, abs=1e-3)


def test_ranks_with_room_for_more_steps_are_compared_by_those_that_all_have() -> None:
    whole = late(60)
    same = told(compare_ranks([cut(made, 24) for made in whole]))
    mixed = [cut(made, 24 if rank == 4 else 48) for rank, made in enumerate(whole)]
    assert told(compare_ranks(mixed)) == same
    assert STEP_MS > TRANSFER_MS


@pytest.mark.slow
def test_a_rank_of_many_recorded_steps_has_room_and_the_late_one_is_found(tmp_path: Path) -> None:
    make(tmp_path, Job(ranks=2, steps=140, late=(1,), cause="input"))
    read = read_job(load(tmp_path).ranks, jobs=2)
    assert all(size(each) <= MOST_BYTES for each in read.summaries)
    assert all(each.steps_left_out >= 10 for each in read.summaries)
    fleet = compare_ranks(read.summaries).fleet
    assert [each.ranks for each in fleet.stragglers] == [(1,)]
    assert fleet.stragglers[0].cause == "input"
