"""The device's time between marks, and from a mark to the backward pass after it, by fake events."""

from __future__ import annotations

import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.events.buffer import EventBuffer
from torch_bottleneck.harness.windows.device_clock import DeviceClock


class FakeEvent:
    now_ms = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_ms = FakeEvent.now_ms

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at_ms - self.at_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> DeviceClock:
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    FakeEvent.now_ms = 0.0
    return DeviceClock()


def test_the_first_backward_pass_of_each_step_counts(clock: DeviceClock) -> None:
    clock.start()
    clock.mark()
    for forward_ms in (4.0, 5.0, 9.0):
        FakeEvent.now_ms += forward_ms
        clock.before_backward()
        FakeEvent.now_ms += 3.0
        clock.before_backward()
        FakeEvent.now_ms += 10.0
        clock.mark()
    assert clock.before_backward_ms() == 5.0
    assert clock.stop() == [17.0, 18.0, 22.0]


def test_where_nobody_asks_there_is_nothing_to_tell(clock: DeviceClock) -> None:
    clock.before_backward()
    clock.start()
    clock.mark()
    clock.mark()
    assert clock.before_backward_ms() is None
    clock.before_backward()
    clock.stop()
    clock.start()
    assert clock.before_backward_ms() is None, "a new window begins anew"


@pytest.mark.parametrize("narrow", [False, True])
def test_backward_passes_are_announced_before_they_begin(narrow: bool) -> None:
    from torch_bottleneck.harness.events.hooks import Hooks

    class Observer:
        """Takes all, and ends no step."""

        def __getattr__(self, name: str) -> object:
            return lambda *_args, **_kwargs: 1

    class Stop:
        reason = None

    buffer = EventBuffer(Observer(), Stop())  # type: ignore[arg-type]
    hooks = Hooks(buffer)
    model = torch.nn.Linear(2, 1)
    seen: list[bool] = []
    buffer.before_backward = lambda: seen.append(buffer.in_backward == 0)
    hooks.install()
    try:
        model(torch.ones(1, 2)).sum().backward()
        if narrow:
            buffer.hold(100, at_fetch=True, armed=False, mark=None)
            hooks.narrow([torch.nn.Linear])
            buffer.ask = False
        model(torch.ones(1, 2)).sum().backward()
    finally:
        hooks.uninstall()
    assert seen == [True, True]
