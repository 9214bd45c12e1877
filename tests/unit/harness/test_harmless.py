"""A fault of ours ends the observation, never the user's program."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch
from unit.harness.samplers import NAMES, wait_for_samplers

from torch_bottleneck.harness.lines.loop_lines import PATIENCE_SECONDS
from torch_bottleneck.harness.lines.sites import line_of
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper, StopRun
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store


def train(steps: int) -> int:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        done += 1
    return done


@pytest.mark.parametrize("where", ["cut", "take", "enter"])
def test_a_fault_at_an_event_leaves_the_script_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store = Store(tmp_path / "run")
    agent = Agent(Plan(), store, Stopper(), Progress(quiet=True))

    def fails(*_: Any, **__: Any) -> None:
        raise TypeError("ours")

    agent.install()
    try:
        train(1)
        monkeypatch.setattr(agent._tracker, where, fails)
        assert train(5) == 5
    finally:
        agent.uninstall()
    failed = store.run.artefacts["harness"]
    assert failed.status == "failed"
    assert "TypeError: ours" in str(failed.reason)


def test_a_stop_passes(tmp_path: Any) -> None:
    stopper = Stopper()
    agent = Agent(Plan(), Store(tmp_path / "run"), stopper, Progress(quiet=True))
    agent.install()
    try:
        train(1)
        stopper.request()
        with pytest.raises(StopRun):
            train(3)
    finally:
        agent.uninstall()
        stopper.stand_down()


def test_a_run_that_ends_while_it_warms_up_leaves_no_sampler(tmp_path: Any) -> None:
    wait_for_samplers()
    agent = Agent(Plan(warmup=1000), Store(tmp_path / "run"), Stopper(), Progress(quiet=True))
    agent.install()
    try:
        train(5)
        (sampler,) = (thread for thread in threading.enumerate() if thread.name in NAMES)
    finally:
        agent.uninstall()
    sampler.join(timeout=PATIENCE_SECONDS / 2)
    assert not sampler.is_alive()


def test_a_frame_between_lines_is_at_its_first() -> None:
    code = types.SimpleNamespace(co_firstlineno=7)
    assert line_of(types.SimpleNamespace(f_lineno=None, f_code=code)) == 7  # type: ignore[arg-type]
    assert line_of(types.SimpleNamespace(f_lineno=9, f_code=code)) == 9  # type: ignore[arg-type]
