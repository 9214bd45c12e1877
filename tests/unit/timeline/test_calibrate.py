"""From the profiled step to the true one: what is scaled, and what is as it was measured."""

from __future__ import annotations

import pytest

from torch_bottleneck.model.finding import DoubtCode
from torch_bottleneck.timeline.lanes.calibrate import TYPICAL_SCALE, calibrate
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import WAIT_ALL, EventKind, Program
from torch_bottleneck.timeline.lanes.replay import Edit, Replay, Schedule

from .programs import make_program

MS = 1e6


def compiling(steps: int = 4) -> Program:
    """Steps of 100 ms that compile for 90 of them and dispatch for 10."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(steps):
        work = {Work.COMPILE: 90 * MS, Work.DISPATCH: 10 * MS}
        events.append({"kind": EventKind.LAUNCH, "work": work, "acts": [(0, 0.1 * MS, 2, -1)]})
        events.append({"kind": EventKind.MARK})
    return make_program(events, latency=0.0, spacing=0.0)


@pytest.mark.parametrize("true_ms", [60.0, 100.0, 140.0])
def test_the_compiler_takes_up_what_the_true_step_differs_by(true_ms: float) -> None:
    replay = Replay(compiling())
    found = calibrate(replay, true_ms, host_scale=1.0)
    assert found.replayed_true_ms == pytest.approx(true_ms, rel=1e-3)
    assert found.dispatch_scale == TYPICAL_SCALE
    assert not found.doubts
    without = replay.run(found.base.and_also(Edit(work={Work.COMPILE: 0.0})))
    assert without.step_ns / MS == pytest.approx(10 * TYPICAL_SCALE, rel=0.05)


@pytest.mark.parametrize(("host_scale", "scale"), [(0.5, 0.5), (0.9, 0.9), (1.03, TYPICAL_SCALE)])
def test_without_compilation_the_phases_tell_the_speed_of_dispatching_unless_they_wait(
    host_scale: float, scale: float
) -> None:
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        busy = {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 1 * MS}, "acts": [(0, 10 * MS, 2, -1)]}
        events += [busy, {"kind": EventKind.MARK}]
    replay = Replay(make_program(events, latency=0.0, spacing=0.0))
    assert calibrate(replay, 10.0, host_scale=host_scale).dispatch_scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("walls_ms", "scale"),
    [([0.4, 0.3, 0.5, 10.0, 10.0], 0.4), ([0.4, 0.3, 10.0], 0.9), ([9.8, 9.9, 9.9], 0.9), ([], 0.9)],
)
def test_steps_after_a_pause_tell_the_speed_of_a_host_that_else_waits_for_the_device(
    walls_ms: list[float], scale: float
) -> None:
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        busy = {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 1 * MS}, "acts": [(0, 10 * MS, 2, -1)]}
        events += [busy, {"kind": EventKind.MARK}]
    replay = Replay(make_program(events, latency=0.0, spacing=0.0))
    found = calibrate(replay, 10.0, host_scale=0.9, walls_ms=walls_ms)
    assert found.dispatch_scale == pytest.approx(scale)


def test_a_host_that_waits_in_each_step_is_not_timed_by_its_short_steps() -> None:
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        busy = {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 1 * MS}, "acts": [(0, 10 * MS, 2, -1)]}
        events += [busy, {"kind": EventKind.SYNC, "wait": WAIT_ALL}, {"kind": EventKind.MARK}]
    replay = Replay(make_program(events, latency=0.0, spacing=0.0))
    found = calibrate(replay, 10.6, host_scale=0.6, walls_ms=[4.5] * 4 + [10.6] * 9)
    assert found.dispatch_scale == pytest.approx(0.6)


@pytest.mark.parametrize(("device_ms", "scale", "device"), [(10.0, 0.5, 1.06), (0.1, 0.53, 1.0)])
def test_what_the_timed_steps_took_longer_is_put_on_what_decides_the_step(
    device_ms: float, scale: float, device: float
) -> None:
    """A host whose speed is known is no slower because the device decided a step that took longer."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        work = {Work.DISPATCH: 4 * MS}
        busy = {"kind": EventKind.LAUNCH, "work": work, "acts": [(0, device_ms * MS, 2, -1)]}
        events += [busy, {"kind": EventKind.MARK}]
    true_ms = 1.06 * max(device_ms, 2.0)
    found = calibrate(Replay(make_program(events, latency=0.0, spacing=0.0)), true_ms, host_scale=0.5)
    assert found.replayed_true_ms == pytest.approx(true_ms, rel=1e-3)
    assert found.dispatch_scale == pytest.approx(scale, rel=0.01)
    assert found.device_scale == pytest.approx(device, rel=0.01)


def test_where_host_and_device_alone_take_longer_than_the_timed_steps_both_were_faster() -> None:
    """And not the device at half its time, with a host that then decides the step."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(6):
        for _ in range(10):
            work = {Work.DISPATCH: 2 * MS}
            events.append({"kind": EventKind.LAUNCH, "work": work, "acts": [(0, 1 * MS, 2, -1)]})
        events.append({"kind": EventKind.MARK})
    found = calibrate(Replay(make_program(events, latency=0.0, spacing=0.0)), 9.7, host_scale=0.5)
    assert found.replayed_true_ms == pytest.approx(9.7, rel=0.01)
    assert found.dispatch_scale == pytest.approx(0.485, rel=0.02)
    assert found.device_scale == pytest.approx(0.97, rel=0.02)


@pytest.mark.parametrize("true_ms", [7.0, 9.0, 11.0])
def test_the_wait_for_input_is_as_measured_where_traced_steps_are_not_those_that_were_timed(
    true_ms: float,
) -> None:
    events: list[dict] = [{"kind": EventKind.MARK}]
    for step in range(6):
        work = {Work.INPUT: 2 * MS, Work.HOST: 2 * MS}
        launch = {"kind": EventKind.LAUNCH, "work": work, "acts": [(0, (1 + step % 2) * MS, 2, -1)]}
        events += [launch, {"kind": EventKind.SYNC}, {"kind": EventKind.MARK}]
    replay = Replay(make_program(events, latency=0.0, spacing=0.0))
    found = calibrate(replay, true_ms, input_ms=5.0, host_scale=0.5)
    assert found.varying
    waits = Edit(work={Work.INPUT: 0.0})
    saved = 1 - replay.run(found.base.and_also(waits)).step_ns / MS / found.replayed_true_ms
    assert saved * true_ms == pytest.approx(5.0, rel=1e-3)


def test_steps_that_differ_in_what_hardly_matters_are_those_that_were_timed() -> None:
    events: list[dict] = [{"kind": EventKind.MARK}]
    for step in range(6):
        work = {Work.INPUT: 5 * MS, Work.DISPATCH: 4 * MS}
        launch = {"kind": EventKind.LAUNCH, "work": work, "acts": [(0, (0.1 + step % 2 * 0.1) * MS, 2, -1)]}
        events += [launch, {"kind": EventKind.MARK}]
    found = calibrate(
        Replay(make_program(events, latency=0.0, spacing=0.0)), 8.0, input_ms=5.0, host_scale=0.35
    )
    assert found.varying
    assert found.replayed_true_ms == pytest.approx(8.0, rel=0.01)
    assert found.dispatch_scale == pytest.approx(0.75, rel=0.05)


def test_batches_made_while_the_profiler_started_do_not_lengthen_the_wait_of_the_steps_after_them() -> None:
    """The first traced step does not wait, and it is none of those that the mean is made of."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for step in range(4):
        work = {Work.INPUT: (2 if step else 0) * MS, Work.DISPATCH: 4 * MS}
        events.append({"kind": EventKind.LAUNCH, "work": work, "acts": [(0, 0.1 * MS, 2, -1)]})
        events.append({"kind": EventKind.MARK})
    replay = Replay(make_program(events, latency=0.0, spacing=0.0))
    found = calibrate(replay, 8.0, input_ms=5.0, host_scale=0.75)
    without = replay.run(found.base.and_also(Edit(work={Work.INPUT: 0.0})))
    assert without.step_ns / MS == pytest.approx(3.0, rel=0.02)
    assert found.dispatch_scale == pytest.approx(0.75, rel=0.02)


def test_a_host_of_known_speed_keeps_it_where_the_timed_steps_are_far_longer_than_the_traced_ones() -> None:
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        busy = {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 1 * MS}, "acts": [(0, 10 * MS, 2, -1)]}
        events += [busy, {"kind": EventKind.MARK}]
    found = calibrate(Replay(make_program(events, latency=0.0, spacing=0.0)), 25.0, host_scale=0.5)
    assert found.replayed_true_ms == pytest.approx(25.0, rel=1e-3)
    assert found.dispatch_scale == pytest.approx(0.5, rel=0.01)
    assert [doubt.code for doubt in found.doubts] == [DoubtCode.BASELINE_SLOWER]


@pytest.mark.parametrize("numpy_ms", [48.0, 60.0])
def test_where_python_took_longer_while_traced_dispatching_is_not_made_free_for_it(numpy_ms: float) -> None:
    """A step of NumPy, of which alone the trace has as much as the true step, or more, beside dispatching."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        work = {Work.HOST: numpy_ms * MS, Work.DISPATCH: 12 * MS}
        events += [{"kind": EventKind.LAUNCH, "work": work, "acts": [(0, 0.1 * MS, 2, -1)]}]
        events += [{"kind": EventKind.MARK}]
    replay = Replay(make_program(events, latency=0.0, spacing=0.0))
    found = calibrate(replay, 50.0, host_scale=0.5)
    assert found.replayed_true_ms == pytest.approx(50.0, rel=5e-3)
    assert found.dispatch_scale == pytest.approx(0.5, rel=0.05)
    without = replay.run(found.base.and_also(Edit(work={Work.HOST: 0.0})))
    assert without.step_ns / MS == pytest.approx(6.0, rel=0.05)
    assert not found.doubts


class Counted(Replay):
    """A replay that counts how often it runs."""

    runs = 0

    def run(self, edit: Edit | None = None) -> Schedule:
        self.runs += 1
        return super().run(edit) if edit is not None else super().run()


def in_turns(**work_ms: float) -> Counted:
    """Steps in which the host works, launches 30 ms for the device, and waits for it."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(4):
        work = {Work[name]: ms * MS for name, ms in work_ms.items()}
        events.append({"kind": EventKind.LAUNCH, "work": work, "acts": [(0, 30 * MS, 2, -1)]})
        events.append({"kind": EventKind.SYNC, "wait": WAIT_ALL})
        events.append({"kind": EventKind.MARK})
    return Counted(make_program(events, latency=0.0, spacing=0.0))


@pytest.mark.parametrize("true_ms", [51.0, 70.0])
def test_a_handful_of_replays_bring_it_to_a_shorter_step_as_to_a_longer_one(true_ms: float) -> None:
    replay = in_turns(HOST=20.0, DISPATCH=10.0)
    found = calibrate(replay, true_ms, host_scale=0.5)
    assert found.replayed_true_ms == pytest.approx(true_ms, rel=5e-3)
    assert replay.runs <= 20
    # Whether it is the host or, for a longer step, the device: none takes up all of it.
    factors = found.base.work
    assert 0.3 <= factors[Work.DISPATCH] <= 0.8 and 0.7 <= factors[Work.HOST] <= 1.4


def test_what_the_host_cannot_explain_is_a_device_that_was_slower_while_traced() -> None:
    replay = in_turns(HOST=2.0, DISPATCH=4.0)
    found = calibrate(replay, 24.0, host_scale=0.5)
    assert found.replayed_true_ms == pytest.approx(24.0, rel=2e-2)
    assert found.device_scale < 0.8
    assert [doubt.code for doubt in found.doubts] == [DoubtCode.DEVICE_SHARED]
    assert found.base.work.get(Work.HOST, 1.0) == 1.0, "Python as it was traced"
