"""Window lengths from step times, exclusive phases, and columns: the arithmetic of a capture."""

from __future__ import annotations

import random

import pytest

from torch_bottleneck.harness.windows.lengths import (
    AWAITED_MS,
    AWAITED_STEPS,
    awaits_evaluation,
    baseline_is_enough,
    has_settled,
    make_schedule,
    warmup_is_over,
)
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.harness.windows.table import Row, as_table, counted_ms, join_tables, plain_ms
from torch_bottleneck.model.verify import Trial
from torch_bottleneck.runs.plan import Plan

PLAN = Plan(script="train.py")


def rows(times_ms: list[float], **fields: object) -> list[Row]:
    return [
        Row(index=i, start_ns=i * 10**9, wall_ms=ms, **fields)  # type: ignore[arg-type]
        for i, ms in enumerate(times_ms)
    ]


@pytest.mark.parametrize(
    ("times_ms", "settled"),
    [
        ([50, 20, 12, 11], False),
        ([11, 10, 10, 10], True),
        ([10, 10.5, 10.2], True),
        ([10, 14, 10], False),
        ([10, 10], False),
        ([9000, 9300], True),
        ([9000, 14000], False),
        ([], False),
    ],
)
def test_settled_means_that_the_last_steps_are_like_those_before(
    times_ms: list[float], settled: bool
) -> None:
    assert has_settled(times_ms) is settled


def test_noise_is_not_waited_out() -> None:
    generator = random.Random(1)
    times = [generator.uniform(5, 50) for _ in range(12)]
    assert has_settled(times)


def test_warmup_ends_at_its_cap_unsettled() -> None:
    falling = rows([1000 / (i + 1) for i in range(12)])
    assert warmup_is_over(falling[:8], plan=PLAN, left=None) == (False, False)
    assert warmup_is_over(falling, plan=PLAN, left=None) == (True, False)
    assert warmup_is_over(falling, plan=PLAN, left=1000) == (False, False)


def test_warmup_waits_for_compilation_but_not_for_ever() -> None:
    assert not warmup_is_over(rows([10.0] * 10, compiled=True), plan=PLAN, left=None)[0]
    assert warmup_is_over(rows([10.0] * 15, compiled=True), plan=PLAN, left=None) == (True, False)


def test_a_fixed_warmup_is_kept_to() -> None:
    plan = Plan(script="train.py", warmup=2)
    assert not warmup_is_over(rows([10.0]), plan=plan, left=None)[0]
    assert warmup_is_over(rows([10.0, 99.0]), plan=plan, left=None)[0]


@pytest.mark.parametrize("step_ms", [0.2, 5.0, 80.0, 1000.0, 10_000.0, 50_000.0])
@pytest.mark.parametrize("gpu", [False, True])
def test_every_schedule_measures_and_traces_within_the_limit(step_ms: float, gpu: bool) -> None:
    plan = Plan(script="train.py", max_seconds=60)
    schedule = make_schedule(step_ms, plan=plan, left=None, gpu=gpu)
    assert schedule.baseline_min >= 1
    assert 1 <= schedule.traced <= plan.steps
    assert schedule.after >= 1
    steps = schedule.baseline_max + 2 * (schedule.traced + schedule.trace_warmup) + schedule.after
    # The least that can be done is a step or two of each window; beyond it the limit holds.
    least = 2 + 2 * (1 + schedule.trace_warmup) + 1
    assert steps * step_ms <= max(plan.max_seconds * 1000, least * step_ms)


def test_a_script_of_twenty_steps_has_room_for_a_whole_trace() -> None:
    schedule = make_schedule(50.0, plan=PLAN, left=None, gpu=False)
    warmup = 4
    assert warmup + schedule.baseline_max + schedule.trace_warmup + schedule.traced <= 20
    assert schedule.resume


def test_plenty_of_steps_gives_a_longer_baseline_in_one_stretch() -> None:
    schedule = make_schedule(50.0, plan=PLAN, left=500, gpu=False)
    assert schedule.baseline_max == 40
    assert not schedule.resume


def test_workers_deliver_in_bursts_and_the_baseline_sees_several() -> None:
    schedule = make_schedule(50.0, plan=PLAN, left=500, gpu=False, workers=8)
    assert schedule.baseline_min == 24


def test_ranks_count_and_never_look_at_a_clock() -> None:
    schedule = make_schedule(50.0, plan=PLAN, left=500, gpu=False, ranks=2)
    assert schedule.baseline_min == schedule.baseline_max
    assert schedule.baseline_ms > 1e9


def test_wishes_are_kept_to() -> None:
    plan = Plan(script="train.py", steps=1, baseline_steps=33)
    schedule = make_schedule(5.0, plan=plan, left=None, gpu=False)
    assert (schedule.baseline_min, schedule.baseline_max, schedule.traced) == (33, 33, 1)


def test_baseline_ends_once_the_mean_is_known() -> None:
    schedule = make_schedule(50.0, plan=PLAN, left=500, gpu=False)
    steady = rows([50.0 + 0.1 * (i % 3) for i in range(10)])
    bursts = rows([10.0, 10.0, 10.0, 170.0] * 5)
    assert not baseline_is_enough(steady[:9], schedule)
    assert baseline_is_enough(steady, schedule)
    assert not baseline_is_enough(bursts, schedule)
    assert baseline_is_enough(bursts * 2, schedule)


def test_validation_and_compilation_do_not_count() -> None:
    steps = [*rows([1.0, 2.0]), *rows([9.0], validation=True), *rows([8.0], compiled=True)]
    assert counted_ms(steps) == plain_ms(as_table(steps)) == [1.0, 2.0]


def test_phases_are_exclusive_and_split_at_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def tick() -> int:
        return now

    monkeypatch.setattr("torch_bottleneck.harness.windows.phases.perf_counter_ns", tick)
    clock = PhaseClock()
    clock.enter("optimizer")
    now = 10
    clock.enter("forward")
    now = 40
    assert clock.leave() == 30
    now = 50
    assert clock.take(50) == {"optimizer": 20, "forward": 30}
    now = 57
    clock.enter("backward")
    now = 60
    assert clock.take(60) == {"optimizer": 7, "backward": 3}
    now = 61
    clock.leave()
    clock.leave()
    clock.leave()
    assert clock.take(61) == {"backward": 1, "optimizer": 0}
    assert clock.depth == 0


def test_tables_join_with_zero_where_a_phase_did_not_occur() -> None:
    first = as_table(rows([1.0], phases_ns={"data": 2_000_000}))
    second = as_table(rows([2.0, 3.0], phases_ns={"forward": 1_000_000}))
    joined = join_tables(first, second)
    assert joined.wall_ms == [1.0, 2.0, 3.0]
    assert joined.phases_ms == {"data": [2.0, 0.0, 0.0], "forward": [0.0, 1.0, 1.0]}


@pytest.mark.parametrize(("step_ms", "steps"), [(10.0, 5), (900.0, 5), (1_500.0, 3), (30_000.0, 2)])
def test_the_memory_window_has_steps_enough_to_tell_a_leak_unless_they_are_slow(
    step_ms: float, steps: int
) -> None:
    schedule = make_schedule(step_ms, plan=Plan(script="t.py"), left=None, gpu=True)
    assert schedule.memory == steps
    assert make_schedule(step_ms, plan=Plan(script="t.py"), left=None, gpu=False).memory == 0


def running(times_ms: list[float]) -> list[Row]:
    """Rows whose clock is that of their times."""
    found, clock = [], 0.0
    for i, ms in enumerate(times_ms):
        found.append(Row(index=i, start_ns=int(clock * 1e6), wall_ms=ms))
        clock += ms
    return found


def steps_timed(times_ms: list[float], guess_ms: float, plan: Plan) -> int:
    schedule = make_schedule(guess_ms, plan=plan, left=None, gpu=True)
    return next(n for n in range(1, 1000) if baseline_is_enough(running(times_ms[:n]), schedule))


def test_an_experiment_on_a_device_that_lags_behind_is_not_timed_by_the_host_of_its_warm_up() -> None:
    # 5 ms on the host while it runs ahead; once its queue is full, 100 ms, which the device takes.
    plan = Plan(script="train.py", trial=Trial())
    taken = steps_timed([5.0] * 20 + [100.0] * 500, 5.0, plan)
    assert 40 <= taken <= 60
    # A step that was known from the start is timed as ever.
    assert steps_timed([100.0] * 500, 100.0, plan) <= 40
    assert steps_timed([5.0] * 500, 5.0, plan) >= 150


@pytest.mark.parametrize(
    ("at", "took_ms", "steps", "waited_ms", "awaited"),
    [
        ([19], 300.0, 20, 100.0, True),
        ([], 300.0, 20, 100.0, False),
        ([19, 39], 300.0, 20, 100.0, False),
        ([0], 300.0, 20, 100.0, False),
        ([19], 300.0, AWAITED_STEPS, 100.0, False),
        ([19], 300.0, 20, AWAITED_MS, False),
        ([19], 12.0, 20, 100.0, False),
    ],
    ids=["one", "none", "two", "the first step", "steps are over", "time is over", "too short to matter"],
)
def test_after_one_evaluation_the_next_is_waited_for(
    at: list[int], took_ms: float, steps: int, waited_ms: float, awaited: bool
) -> None:
    seen = [Row(index=index, start_ns=0, wall_ms=took_ms, validation=True) for index in at]
    assert awaits_evaluation(seen, steps=steps, waited_ms=waited_ms, step_ms=5.0) is awaited
