"""A profile that begins while torch holds a range of another one open is the end of the program."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import torch
from torch import profiler

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.events.update_label import UpdateLabel, holds_range
from torch_bottleneck.harness.facts.flops import FlopStep
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper, StopRun
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def test_a_step_that_a_profile_has_seen_begin_keeps_others_away_until_it_ends(tmp_path: Path) -> None:
    label, steps, store = UpdateLabel(), FlopStep(), Store(tmp_path / "run")
    label.begin()
    assert not holds_range(), "no profile is on"
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]):
        label.go_on()
        assert not holds_range(), "it began before"
        label.close()
        label.end()
        label.begin()
        label.close()
    assert holds_range(), "a step of ours has ended inside it"
    with pytest.raises(RuntimeError, match="goes on"):
        steps.start()
    assert not steps.begin(store)
    assert "goes on" in (store.run.artefacts["flops"].reason or "")
    label.end()
    assert not holds_range()


def test_a_step_that_an_exception_has_left_keeps_nothing_away() -> None:
    label = UpdateLabel()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]):
        label.begin()
        # A range of our own that is left open is as bad as one of torch's.
        label.close()
    assert holds_range()
    label.left()
    assert not holds_range()


def test_no_step_of_an_optimizer_ends_under_another_profile_than_it_began_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LBFGS, each of whose steps may be longer than our windows: torch wrote into what it had freed."""
    profiles: list[object] = []
    original = profiler.profile.start

    def begins(self: profiler.profile) -> None:
        profiles.append(self)
        original(self)

    monkeypatch.setattr(profiler.profile, "start", begins)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1e-4, max_iter=40, tolerance_grad=0, tolerance_change=0
    )
    x = torch.randn(16, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    plan = Plan(script="train.py", quiet=True, out=str(tmp_path), warmup=4, baseline_steps=10, memory=False)
    stopper = Stopper()
    agent = Agent(plan, Store(tmp_path / "run"), stopper, Progress(quiet=True))
    agent.install()
    crossed = []
    try:
        with contextlib.suppress(StopRun):
            for _ in range(300):
                began, on = len(profiles), torch_private.profiler_running()
                optimizer.step(closure)  # type: ignore[arg-type]
                crossed.append(on and torch_private.profiler_running() and len(profiles) > began)
                optimizer.param_groups[0]["max_iter"] = 5
    finally:
        agent.uninstall()
        # Its watchdog would end this process, which goes on.
        stopper.stand_down()
    assert agent.store.run.artefacts["flops"].status == "ok"
    assert len(profiles) > 1 and len(crossed) > 4
    assert not any(crossed)


def test_a_clock_goes_on_with_what_is_open_in_another() -> None:
    one, other = PhaseClock(), PhaseClock()
    one.enter("optimizer", 10)
    other.take_over(one, 50)
    assert other.open_phases == ["optimizer"]
    assert other.take(60) == {"optimizer": 10}
    other.leave(60)
    one.take_over(other, 60)
    assert one.open_phases == [] and one.take(90) == {}
