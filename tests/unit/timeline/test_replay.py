"""The vectorised replay against the recurrence it stands for, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_bottleneck.timeline.lanes.budget import step_budget
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import NO_WAIT, QUEUE_DEPTH, WAIT_ALL, EventKind, Program
from torch_bottleneck.timeline.lanes.replay import Edit, Replay

from .programs import make_program

MS = 1e6


def one_by_one(p: Program, edit: Edit | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence of the module docstring, literally."""
    edit = edit or Edit()
    factors = edit.factors()
    duration = p.duration * edit.duration
    work = p.work if edit.gone is None else p.work - edit.gone
    host = np.zeros(len(p.kind))
    end = np.zeros(len(p.event))
    lane_end = np.full(len(p.lanes), -np.inf)
    clock = 0.0
    for e in range(len(p.kind)):
        clock += float(work[e] @ factors)
        a0, a1 = int(p.first_activity[e]), int(p.first_activity[e + 1])
        if a1 > a0 and a1 - QUEUE_DEPTH > 0:
            clock = max(clock, end[a1 - QUEUE_DEPTH - 1])
        for k in range(a0, a1):
            launched = edit.duration if np.isscalar(edit.duration) else edit.duration[k]  # type: ignore[index]
            ready = clock + (p.latency + p.delay[k]) * bool(launched)
            if p.depends[k] >= 0:
                ready = max(ready, end[p.depends[k]])
            begin = max(ready, lane_end[p.lane[k]]) + p.held[k] * bool(launched)
            pause = edit.spacing if np.isscalar(edit.spacing) else edit.spacing[k]  # type: ignore[index]
            room = p.spacing * pause if launched else 0.0  # what is not launched takes none
            end[k] = begin + room + duration[k] - room
            lane_end[p.lane[k]] = begin + duration[k] + room
        dropped = EventKind(p.kind[e]) in edit.drop_waits
        dropped = dropped or (edit.drop_at is not None and bool(edit.drop_at[e]))
        if not dropped:
            if p.wait[e] == WAIT_ALL:
                clock = max(clock, float(lane_end.max()))
            elif p.wait[e] >= 0:
                clock = max(clock, end[p.wait[e]])
            clock += p.after[e] * factors[p.after_work[e]]
        host[e] = clock
    return host, end


@st.composite
def programs(draw: st.DrawFn) -> Program:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([3, 30, 300, 2500]))
    lanes = draw(st.sampled_from([1, 2, 3]))
    waiting = draw(st.sampled_from([0.0, 0.02, 0.3]))
    slow_device = draw(st.booleans())
    # A window without any device work has no program (see test_program.py).
    events: list[dict] = [
        {"kind": EventKind.MARK},
        {"kind": EventKind.LAUNCH, "work": {}, "acts": [(0, 5.0, 0, -1)]},
    ]
    count = 1
    last_on: dict[int, int] = {0: 0}
    for _ in range(size):
        roll = rng.random()
        event: dict = {"work": {int(rng.integers(0, len(Work))): float(rng.integers(0, 50))}}
        if roll < waiting:
            kind = rng.choice([EventKind.SYNC, EventKind.ALLOCATOR])
            event |= {"kind": int(kind), "after": float(rng.integers(0, 5))}
            event["wait"] = WAIT_ALL if rng.random() < 0.5 or not count else int(rng.integers(0, count))
            event["after_work"] = int(rng.choice([Work.SYNC, Work.ALLOCATOR]))
        elif rng.random() < 0.02:
            event |= {"kind": EventKind.MARK}
        else:
            lane = int(rng.integers(0, lanes))
            others = [i for other, i in last_on.items() if other != lane]
            depends = int(rng.choice(others)) if others and rng.random() < 0.2 else -1
            length = float(rng.integers(1, 200 if slow_device else 40))
            event |= {"kind": EventKind.LAUNCH, "acts": [(lane, length, int(rng.integers(0, 6)), depends)]}
            last_on[lane] = count
            count += 1
        events.append(event)
    events.append({"kind": EventKind.MARK})
    program = make_program(events, latency=float(rng.integers(0, 5)), spacing=float(rng.integers(0, 3)))
    for late in (program.delay, program.held):
        late[:] = rng.integers(0, 60, len(late)) * (rng.random(len(late)) < 0.2)
    program.observed_start[:] = program.origin_ns + 10_000  # none of it is from before the window
    return program


EDITS = [
    Edit(),
    Edit(work={Work.DISPATCH: 0.0, Work.INPUT: 0.5}),
    Edit(drop_waits=frozenset([EventKind.SYNC]), work={Work.SYNC: 0.0}),
    Edit(duration=0.5, drop_waits=frozenset([EventKind.ALLOCATOR])),
]


@given(programs(), st.sampled_from(EDITS))
@settings(max_examples=120, deadline=None)
def test_the_vectorised_replay_is_the_recurrence(program: Program, edit: Edit) -> None:
    host, end = one_by_one(program, edit)
    schedule = Replay(program).run(edit)
    np.testing.assert_allclose(schedule.host, host, rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(schedule.end, end, rtol=1e-12, atol=1e-6)


@given(programs(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_what_is_gone_is_neither_done_nor_launched(program: Program, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gone = np.where(rng.random(program.work.shape) < 0.3, program.work, 0.0)
    m = len(program.event)
    edit = Edit(
        gone=gone,
        duration=(rng.random(m) < 0.7).astype(float),
        spacing=rng.random(m),
        drop_at=rng.random(len(program.kind)) < 0.2,
    )
    host, end = one_by_one(program, edit)
    schedule = Replay(program).run(edit)
    np.testing.assert_allclose(schedule.host, host, rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(schedule.end, end, rtol=1e-12, atol=1e-6)
    assert schedule.step_end[-1] <= Replay(program).run().step_end[-1] + 1e-6


def test_what_two_edits_take_away_is_taken_once() -> None:
    program = make_program(steps_of(launches(10, host=10, device=3), 2))
    half, rest = np.zeros_like(program.work), np.zeros_like(program.work)
    half[: len(half) // 2] = program.work[: len(half) // 2]
    rest[len(rest) // 4 :] = program.work[len(rest) // 4 :]
    both = Edit(gone=half).and_also(Edit(gone=rest))
    assert both.gone is not None
    np.testing.assert_array_equal(both.gone, program.work)


@given(programs())
@settings(max_examples=60, deadline=None)
def test_the_budget_adds_up_to_the_step(program: Program) -> None:
    schedule = Replay(program).run()
    budget = step_budget(program, schedule, Edit().factors())
    assert sum(budget.parts.values()) == pytest.approx(schedule.step_ns, rel=1e-9, abs=1e-6)
    assert all(ns >= -1e-6 * max(1.0, schedule.step_ns) for ns in budget.parts.values())


@given(programs())
@settings(max_examples=60, deadline=None)
def test_removing_anything_never_makes_the_step_longer(program: Program) -> None:
    replay = Replay(program)
    plain = replay.run().step_end[-1]
    for edit in EDITS[1:]:
        assert replay.run(edit).step_end[-1] <= plain + 1e-6


def launches(count: int, *, host: float, device: float) -> list[dict]:
    return [
        {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: host}, "acts": [(0, device, 0, -1)]}
        for _ in range(count)
    ]


def steps_of(step: list[dict], times: int) -> list[dict]:
    return [{"kind": EventKind.MARK}, *(e for _ in range(times) for e in [*step, {"kind": EventKind.MARK}])]


def test_a_host_bound_step_lasts_as_long_as_the_host() -> None:
    schedule = Replay(make_program(steps_of(launches(100, host=10, device=3), 5))).run()
    assert schedule.step_ns == pytest.approx(1000)


def test_a_device_bound_step_lasts_as_long_as_the_device_although_the_host_is_done_early() -> None:
    schedule = Replay(make_program(steps_of(launches(100, host=1, device=30), 5))).run()
    assert schedule.step_ns == pytest.approx(3000)


def test_a_wait_costs_nothing_when_the_host_is_behind_anyway() -> None:
    step = [*launches(50, host=10, device=2), {"kind": EventKind.SYNC, "wait": WAIT_ALL, "after": 0.0}]
    replay = Replay(make_program(steps_of(step, 5)))
    with_wait = replay.run().step_ns
    without = replay.run(Edit(drop_waits=frozenset([EventKind.SYNC]))).step_ns
    assert with_wait - without < 0.01 * with_wait


def test_a_wait_costs_what_the_host_could_have_run_ahead() -> None:
    step = [
        *launches(50, host=10, device=12),
        {"kind": EventKind.SYNC, "wait": WAIT_ALL, "after": 0.0},
        {"kind": EventKind.LAUNCH, "work": {Work.HOST: 300.0}, "acts": [(0, 12.0, 0, -1)]},
    ]
    replay = Replay(make_program(steps_of(step, 6)))
    with_wait = replay.run().step_ns
    without = replay.run(Edit(drop_waits=frozenset([EventKind.SYNC]))).step_ns
    assert with_wait == pytest.approx(50 * 12 + 10 + 300 + 12, rel=0.05)
    assert without == pytest.approx(50 * 10 + 300, rel=0.35)
    assert with_wait - without > 50


def test_the_queue_stops_a_host_that_is_a_thousand_launches_ahead() -> None:
    events = steps_of(launches(3 * QUEUE_DEPTH, host=1, device=10), 1)
    schedule = Replay(make_program(events)).run()
    launched_last = schedule.host[-2]
    assert schedule.end[-1] - launched_last == pytest.approx(10 * QUEUE_DEPTH, rel=0.01)


def test_no_wait_is_spelt_as_such() -> None:
    program = make_program(steps_of(launches(3, host=1, device=1), 1))
    assert (program.wait == NO_WAIT).all()


@pytest.mark.parametrize(("share", "step_ms"), [(1.0, 10.0), (0.5, 5.0), (0.1, 2.0)])
def test_work_from_before_the_window_shrinks_with_that_of_each_step(share: float, step_ms: float) -> None:
    """The device begins the window 25 ms behind; a host of 2 ms a step decides where it has less to do."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(6):
        work = {Work.DISPATCH: 2 * MS}
        events.append({"kind": EventKind.LAUNCH, "work": work, "acts": [(0, 10 * MS, 2, -1)]})
        events.append({"kind": EventKind.MARK})
    program = make_program(events)
    program.delay[0], program.observed_start[0] = 23 * MS, 25 * MS
    found = Replay(program).run(Edit(duration=np.full(6, share)))
    assert found.step_ns / MS == pytest.approx(step_ms, rel=0.06)
