"""Window lengths from step times, exclusive phases, and columns: the arithmetic of a capture."""

from __future__ import annotations

import random

import msgspec
import pytest

from torch_bottleneck.harness.windows import meeting
from torch_bottleneck.harness.windows.enough import Watch
from torch_bottleneck.harness.windows.lengths import (
    AWAITED_MS,
    AWAITED_STEPS,
    FOREVER_MS,
    LEAST_STEPS,
    MOST_STEPS,
    Enough,
    Schedule,
    awaits_evaluation,
    has_settled,
    make_schedule,
    warmup_is_over,
)
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.harness.windows.table import Row, as_table, counted_ms, join_tables
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
    assert schedule.before.least >= 1
    assert 1 <= schedule.traced <= plan.steps
    assert schedule.after >= 1
    timed = max(schedule.before.most, min(schedule.whole.soft_least, int(schedule.whole.most_ms / step_ms)))
    steps = timed + 2 * (schedule.traced + schedule.trace_warmup) + schedule.after
    # The least that can be done is a step or two of each window; beyond it the limit holds.
    least = 2 + 2 * (1 + schedule.trace_warmup) + 1
    assert steps * step_ms <= max(plan.max_seconds * 1000, least * step_ms)


def test_a_script_of_twenty_steps_has_room_for_a_whole_trace() -> None:
    schedule = make_schedule(50.0, plan=PLAN, left=None, gpu=False)
    warmup = 4
    assert warmup + schedule.before.most + schedule.trace_warmup + schedule.traced <= 20
    assert schedule.between is None, "the memory window would come too late"
    assert schedule.joins


def test_where_steps_are_plenty_those_before_the_captures_decide_and_some_behind_them_tell_of_drift() -> None:
    schedule = make_schedule(5.0, plan=PLAN, left=5000, gpu=True)
    assert (schedule.before.least, schedule.before.soft_ms) == (LEAST_STEPS, 3000.0)
    assert schedule.whole.least == 1.5 * LEAST_STEPS
    assert schedule.between is not None
    assert (schedule.between.least, schedule.between.soft_ms) == (38, 562.5)
    slow = make_schedule(100.0, plan=PLAN, left=5000, gpu=False)
    assert slow.before.most_ms <= 3000.0, "a script may break off long before its loader does"
    short = make_schedule(5.0, plan=PLAN, left=160, gpu=True)
    assert short.before.most <= 160 // 3, "the rest is for the trace"


@pytest.mark.parametrize(
    ("step_ms", "left", "steps"), [(5, 30, 10), (5, 10, 5), (5, 120, 40), (100, 120, 30)]
)
def test_of_few_steps_that_are_left_a_third_comes_before_the_captures(
    step_ms: float, left: int, steps: int
) -> None:
    before = make_schedule(step_ms, plan=PLAN, left=left, gpu=False).before
    assert before.least == before.most == steps, "no longer than three seconds either"


def test_short_steps_are_timed_for_a_second_and_no_more_of_them_are_kept_than_help() -> None:
    assert make_schedule(1.0, plan=PLAN, left=5000, gpu=False).before.least == 1000
    assert make_schedule(0.01, plan=PLAN, left=None, gpu=False).whole.least == MOST_STEPS


def test_workers_deliver_in_bursts_and_the_baseline_sees_several() -> None:
    schedule = make_schedule(400.0, plan=PLAN, left=500, gpu=False, workers=8)
    assert schedule.whole.soft_least == 24
    assert schedule.before.soft_least == 16


def test_batches_made_while_we_paused_are_used_up_before_steps_are_timed() -> None:
    assert make_schedule(5.0, plan=PLAN, left=5000, gpu=False, workers=4, queued=8).settle == 16
    assert make_schedule(5.0, plan=PLAN, left=30, gpu=False, workers=4, queued=8).settle == 10
    assert make_schedule(5.0, plan=PLAN, left=5000, gpu=False).settle == 0
    settled = rows([10.0] * 12)
    assert warmup_is_over(settled, plan=PLAN, left=5000, queued=4)[0]
    assert not warmup_is_over(settled, plan=PLAN, left=5000, queued=8)[0]
    assert warmup_is_over(settled, plan=PLAN, left=None, queued=8)[0], "the script may end at any moment"


@pytest.mark.parametrize("left", [None, 5000])
@pytest.mark.parametrize("step_ms", [0.5, 50.0, 3000.0])
def test_ranks_count_and_never_look_at_a_clock(left: int | None, step_ms: float) -> None:
    schedule = make_schedule(step_ms, plan=PLAN, left=left, gpu=True, ranks=2)
    for enough in (schedule.before, schedule.between, schedule.whole):
        if enough is None:
            continue
        assert enough.least == enough.most
        # Whatever the steps hold and how long they take, it ends after so many.
        for times in ([1.0] * enough.most, [1e6] * enough.most):
            watch = Watch()
            watch.take(rows(times[:-1], compiled=True))
            assert not watch.is_enough(enough)
            watch.take(rows(times[-1:]))
            assert watch.is_enough(enough)
    assert schedule.whole.most <= schedule.before.most + schedule.after + (
        schedule.between.most if schedule.between is not None else 0
    )


@pytest.mark.parametrize("trial", [None, Trial()])
def test_a_schedule_arrives_at_the_other_ranks_as_it_was_sent(trial: Trial | None) -> None:
    plan = Plan(script="train.py", trial=trial)
    schedule = make_schedule(50.0, plan=plan, left=500, gpu=True, ranks=2)
    for sent in (schedule, meeting.FIXED):
        assert msgspec.json.decode(msgspec.json.encode(sent), type=Schedule) == sent


def test_wishes_are_kept_to() -> None:
    plan = Plan(script="train.py", steps=1, baseline_steps=33)
    schedule = make_schedule(5.0, plan=plan, left=None, gpu=False)
    assert (schedule.before.least, schedule.before.most, schedule.traced) == (33, 33, 1)
    assert not schedule.joins


def needed(times_ms: list[float], enough: Enough) -> int:
    """Return after how many steps the watch has enough."""
    watch = Watch()
    for count, row in enumerate(rows(times_ms), start=1):
        watch.take([row])
        if watch.is_enough(enough):
            return count
    raise AssertionError("never")


def test_the_baseline_lasts_until_the_mean_is_known() -> None:
    whole = make_schedule(50.0, plan=PLAN, left=500, gpu=False).whole
    generator = random.Random(1)
    steady = [50.0 + 0.1 * (i % 3) for i in range(500)]
    sizes = [generator.choice([10.0, 30.0, 60.0, 100.0]) for _ in range(500)]
    assert 4500 <= 50 * needed(steady, whole) <= 4600, "three seconds, and half as long behind the captures"
    assert 3 * needed(steady, whole) < needed(sizes, whole) < 500
    # A rhythm is known after some rounds of it: were these steps independent, it would take 18 000.
    assert needed([10.0, 10.0, 10.0, 170.0] * 200, whole) <= 400
    # What nothing helps against ends with the time.
    wild = [generator.choice([5.0, 5.0, 5.0, 900.0]) for _ in range(2000)]
    assert 20_000 <= sum(wild[: needed(wild, whole)]) <= 21_000


def test_very_short_steps_are_not_counted_without_end() -> None:
    generator = random.Random(1)
    whole = make_schedule(0.1, plan=PLAN, left=None, gpu=False).whole
    assert needed([generator.choice([0.01, 0.01, 1.0]) for _ in range(3000)], whole) == MOST_STEPS


def test_the_next_look_is_never_later_than_what_it_may_find() -> None:
    whole = make_schedule(50.0, plan=PLAN, left=500, gpu=False).whole
    watch, count = Watch(), 0
    while not watch.is_enough(whole):
        rest = watch.rest(whole, step_ms=50.0)
        assert rest >= 1
        watch.take(rows([50.0] * rest))
        count += rest
    assert count == needed([50.0] * 500, whole)
    unlimited = Enough(least=7, most=7, most_ms=FOREVER_MS)
    assert Watch().rest(unlimited, step_ms=50.0) == 7


def test_validation_and_compilation_do_not_count() -> None:
    steps = [*rows([1.0, 2.0]), *rows([9.0], validation=True), *rows([8.0], compiled=True)]
    assert counted_ms(steps) == [1.0, 2.0]


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


def steps_timed(times_ms: list[float], guess_ms: float, plan: Plan) -> int:
    return needed(times_ms, make_schedule(guess_ms, plan=plan, left=None, gpu=True).before)


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
