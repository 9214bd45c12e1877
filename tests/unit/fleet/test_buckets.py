"""The step with gradient buckets of another size, on backward passes small enough to reckon by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from recorded.diagnosed import diagnosis_of
from unit.fleet.jobs import collectives, summary
from unit.timeline.traces import TraceWriter

from torch_bottleneck.fleet.buckets import best_cap_mb, bucket_answer, bucket_sizes, of_one_rank
from torch_bottleneck.fleet.collectives import collectives_of, pack
from torch_bottleneck.fleet.gradients import Gradients, gradients_of, pack_gradients, unpack_gradients
from torch_bottleneck.fleet.joint import Join, JointEdit, JointProgram
from torch_bottleneck.fleet.link import fit_sizes
from torch_bottleneck.fleet.summary import RankSummary
from torch_bottleneck.model.diagnosis import BucketSizes
from torch_bottleneck.timeline.lanes.alone import Alone
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.gradients import bucket_call_ms
from torch_bottleneck.timeline.trace.table import Trace

MIB = 1 << 20
STEPS, STEP_MS, END_MS = 3, 10.0, 8.0
"""Of own work: the step, and its backward, at the end of which all gradients are needed."""


def transfer_ms(mib: float, latency_ms: float = 0.1) -> float:
    return latency_ms + mib


def program(
    ready_ms: Sequence[float], mib: Sequence[int], latency_ms: float = 0.1, ranks: int = 2
) -> JointProgram:
    """Ranks without a device: buckets that are ready after so much own work."""
    edges = np.repeat(np.arange(STEPS + 1)[None, :, None] * STEP_MS, ranks, axis=0).repeat(2, axis=2)
    joins = [
        Join(
            group=0,
            step=step,
            members=np.arange(ranks),
            places_ms=np.tile([ready, ready, END_MS, ready, ready], (ranks, 1)) + step * STEP_MS,
            transfer_ms=transfer_ms(size, latency_ms),
            collective="allreduce",
            size=size * MIB,
            backward=step,
        )
        for step in range(STEPS)
        for ready, size in zip(ready_ms, mib, strict=True)
    ]
    return JointProgram(edges_ms=edges, joins=tuple(joins), slowed=np.zeros(len(edges)))


def ranks(gradients: Gradients | None = None, *, call_ms: float = 0.0, count: int = 2) -> list[RankSummary]:
    """Their summaries."""
    more: dict[str, object] = {"gradients": pack_gradients(gradients)} if gradients is not None else {}
    return [summary(rank, [0.0], kind="cpu", bucket_call_ms=call_ms, **more) for rank in range(count)]


ONE_BY_ONE = Gradients(
    size=np.full(5, MIB),
    bucket=np.asarray([0, 1, 2, 2, 3]),
    # The first gradient of the third bucket is there 1 ms of work before it is sent.
    before_ns=np.asarray([[0, 0], [0, 0], [1_000_000] * 2, [0, 0], [0, 0]]),
)
"""Those of buckets of 1, 1, 2 and 1 MiB."""
READY, SIZES, NOW_MS = (2.0, 4.0, 6.0, 8.0), (1, 1, 2, 1), 11.2


def steps_by_cap(found: BucketSizes | None) -> dict[int | None, float]:
    assert found is not None
    return {row.cap_bytes and row.cap_bytes // MIB: row.step_ms for row in found.rows}


def test_the_step_with_merged_and_divided_buckets_is_that_of_the_arithmetic() -> None:
    found = bucket_sizes(program(READY, SIZES), ranks(ONE_BY_ONE), step_ms=NOW_MS)
    assert found is not None
    assert (found.buckets, found.bytes, found.unknown) == (4, 5 * MIB, "")
    assert found.replay_error == pytest.approx(0.0, abs=1e-9)
    assert found.latency_ms == pytest.approx(0.1)
    assert found.gbytes_per_s == pytest.approx(MIB / 1e6)
    assert steps_by_cap(found) == pytest.approx(
        {
            # At 2, 4, 5, 6 and 8 ms, 1.1 ms each: the last one begins at 8, ends at 9.1, and 2 ms follow.
            1: 11.1,
            # [1, 1] at 4 to 6.1, [2] to 8.2, [1] to 9.3.
            2: 11.3,
            # All of them at 8, 5.1 ms.
            None: 15.1,
        }
    )
    assert [row.buckets for row in found.rows] == [5, 3, 1]


def test_fewer_buckets_are_fewer_calls_of_the_host() -> None:
    found = bucket_sizes(program(READY, SIZES), ranks(ONE_BY_ONE, call_ms=0.05), step_ms=NOW_MS)
    assert steps_by_cap(found)[None] == pytest.approx(15.1 - 3 * 0.05)
    assert steps_by_cap(found)[1] == pytest.approx(11.1 + 0.05)


def test_without_the_sizes_of_gradients_buckets_are_only_merged() -> None:
    found = bucket_sizes(program(READY, SIZES), ranks(), step_ms=NOW_MS)
    assert steps_by_cap(found) == pytest.approx({2: 11.3, None: 15.1})
    assert found is not None
    assert found.unknown.startswith("smaller buckets")


def test_nothing_is_guessed_from_one_size() -> None:
    found = bucket_sizes(program(READY, (1, 1, 1, 1)), ranks(), step_ms=NOW_MS)
    assert found is not None
    assert found.rows == ()
    assert "one size only" in found.unknown
    assert bucket_answer(found, step_ms=NOW_MS, basis="replay") is None


def test_nothing_is_said_where_the_replay_misses_the_step() -> None:
    found = bucket_sizes(program(READY, SIZES), ranks(ONE_BY_ONE), step_ms=2 * NOW_MS)
    assert found is not None
    assert found.rows == ()
    assert "misses the step" in found.unknown


def test_only_a_gain_beyond_the_accuracy_of_the_replay_is_an_answer() -> None:
    """Latencies of 1 ms that follow each other: 4 x 2 ms from 5 ms on, or 1 + 4 ms from 8 ms on."""
    late = program((5.0, 6.0, 7.0, 8.0), (1, 1, 1, 1), latency_ms=1.0)
    late = replace(
        late,
        # Another sum, of a loss, tells what a small one takes.
        joins=(
            *late.joins,
            Join(
                group=0, step=STEPS - 1, members=np.arange(2), places_ms=late.joins[-1].places_ms,
                transfer_ms=1.0, collective="allreduce", size=0,
            ),
        ),
    )  # fmt: skip
    now = late.lengths_ms([JointEdit()])[0].mean()
    found = bucket_sizes(late, ranks(), step_ms=now)
    assert found is not None
    best = min(found.rows, key=lambda row: row.step_ms)
    assert best.buckets == 2
    answer = bucket_answer(found, step_ms=now, basis="replay")
    assert answer is not None
    assert answer.step_ms == best.step_ms
    assert answer.basis == "replay, gradients in 2 buckets of up to 2 MiB instead of 4"
    assert best_cap_mb(found, answer) == 2
    missed = msgspec.structs.replace(found, replay_error=1.01 * answer.saves_ms / now)
    assert bucket_answer(missed, step_ms=now, basis="replay") is None
    assert best_cap_mb(found, None) is None


def test_latency_and_bandwidth_come_out_of_times_that_scatter() -> None:
    rng = np.random.default_rng(2)
    size = np.repeat([1e4, 1e6, 3e7], 40)
    ms = (0.02 + size / 2e8) * rng.normal(1.0, 0.05, len(size))
    fit = fit_sizes(size, ms)
    assert fit is not None
    assert fit.latency_ms == pytest.approx(0.02, rel=0.05)
    assert fit.gbytes_per_s == pytest.approx(200.0, rel=0.05)
    assert abs(fit.ms(3e7) - 0.17) < 3 * fit.error_ms(3e7)
    assert fit.steeper(2.0).ms(1e9) > fit.ms(1e9) > fit.steeper(-2.0).ms(1e9)


def test_a_latency_below_zero_is_none_and_as_uncertain_as_it_was() -> None:
    rng = np.random.default_rng(4)
    size = np.repeat([4e6, 24e6, 28e6], 8)
    fit = fit_sizes(size, np.where(size < 1e7, 0.9, 1.0) * size / 5e5 * rng.normal(1.0, 0.1, len(size)))
    assert fit is not None
    assert (fit.latency_ms, fit.shown_latency_ms) == (0.0, None)
    assert fit.steeper(-2.0).latency_ms > 0.1


@pytest.mark.parametrize(
    ("size", "ms"),
    [([8.0] * 4, [1.0] * 4), ([1.0, 2.0], [2.0, 1.0]), ([], []), ([1.0, 2.0], [0.0, 1.0])],
)
def test_no_fit_is_made_of_what_shows_none(size: list[float], ms: list[float]) -> None:
    assert fit_sizes(np.asarray(size), np.asarray(ms)) is None


def traced() -> Trace:
    """One step: a forward, three gradients, of which the second and the third send a bucket; then a loss."""
    writer = TraceWriter()
    writer.steps([0, 100])
    writer.row("DistributedDataParallel.forward", "user_annotation", 1, 20)
    for at in (30, 50, 70):
        writer.row("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "cpu_op", at, 8)
    for at in (52, 72, 90):
        writer.row("c10d::allreduce_", "cpu_op", at, 4)
    for at, length in ((53, 20), (73, 10), (91, 2)):
        writer.row("gloo:all_reduce", "user_annotation", at, length, tid="gloo")
    return writer.build()


def test_buckets_are_what_gradients_send_and_ddp_tells_their_sizes() -> None:
    trace = traced()
    steps = find_steps(trace)
    assert steps is not None
    rows = np.flatnonzero(trace.named("gloo:all_reduce", np.arange(len(trace))))
    alone = Alone(
        rows=rows,
        places=np.asarray([[50.0] * 5, [60.0] * 5, [80.0] * 5]),
        edges=np.asarray([[0.0, 0.0], [100.0, 100.0]]),
        gradients=np.asarray([[28.0, 28.0], [48.0, 48.0], [58.0, 58.0]]),
    )
    buckets = [[100, 200], [50]]
    found = collectives_of(trace, steps, alone, np.zeros((0, 2), dtype=np.int64), buckets)
    assert found.backward.tolist() == [1, 1, -1]
    assert [found.kinds[k][1] for k in found.kind.tolist()] == [300, 50, -1]
    gradients = gradients_of(alone, found, buckets)
    assert gradients.size.tolist() == [100, 200, 50]
    # The last gradient of a bucket sends it, whatever the moments say.
    assert gradients.before_ns.tolist() == [[22, 22], [0, 0], [0, 0]]
    assert bucket_call_ms(trace) == pytest.approx(0.004)
    again = unpack_gradients(pack_gradients(gradients))
    assert all(
        np.array_equal(getattr(again, n), getattr(gradients, n)) for n in ("size", "bucket", "before_ns")
    )
    assert len(gradients_of(alone, found, [[100, 200], [50], [1]])) == 0, "not the buckets that were sent"


def test_collectives_that_no_gradient_sends_are_no_buckets() -> None:
    nothing = JointProgram(edges_ms=np.zeros((2, 2, 2)), joins=(), slowed=np.zeros(2))
    assert bucket_sizes(nothing, ranks(), step_ms=1.0) is None
    assert collectives([1.0], [0.5], steps=[0]).backward.tolist() == [-1]


def test_a_recorded_job_tells_its_buckets() -> None:
    diagnosis = diagnosis_of("ddp-h200")
    found = diagnosis.buckets
    assert found is not None
    assert (found.buckets, found.bytes) == (26, 881696768)
    assert found.latency_ms is not None
    assert found.gbytes_per_s is not None
    assert 200 < found.gbytes_per_s < 450, "NVLink of an H200"
    assert diagnosis_of("fsdp-h200").buckets is None


def test_one_rank_by_itself_is_replayed_too() -> None:
    (lane,) = ranks(count=1)
    alone = STEP_MS * np.arange(STEPS + 1)
    sizes = [MIB, 2 * MIB] * STEPS
    columns = collectives(
        [step * 13.2 + end for step in range(STEPS) for end in (5.1, 12.2)],
        [1.1, 2.1] * STEPS,
        steps=np.repeat(range(STEPS), 2).tolist(),
        sizes=sizes,
        backward=np.repeat(range(STEPS), 2).tolist(),
    )
    places = [[at, at, END_MS, at, at] for _ in range(STEPS) for at in (4.0, END_MS)]
    begin = np.repeat(np.arange(STEPS) * STEP_MS, 2)[:, None]
    columns = replace(columns, alone=((np.asarray(places) + begin) * 1e6).astype(np.int64))
    lane = msgspec.structs.replace(
        lane,
        collectives=pack(columns),
        steps=STEPS,
        step_numbers=tuple(range(STEPS)),
        recorded_ms=(12.1,) * STEPS,
        true_ms=12.1,
        alone_edges_ms=tuple((ms, ms) for ms in alone.tolist()),
    )
    found = of_one_rank(lane)
    # 4 to 5.1, 8 to 10.1, and 2 ms behind it; in one bucket 8 to 11.1.
    assert steps_by_cap(found) == {2: pytest.approx(13.1)}
    assert found is not None
    assert found.replay_error == pytest.approx(0.0, abs=1e-6)
