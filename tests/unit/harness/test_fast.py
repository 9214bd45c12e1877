"""What the fast wrappers note is what the wide ones would have handed over."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optim_module
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness.events.buffer import EventBuffer
from torch_bottleneck.harness.events.hooks import Hooks
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper
from torch_bottleneck.harness.windows.lengths import STEPS_HELD
from torch_bottleneck.harness.windows.tracker import Tracker
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch_bottleneck.harness.events.buffer import Entry
    from torch_bottleneck.harness.events.table import Event
    from torch_bottleneck.harness.windows.table import Row

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STEPS = 60


def loader(batches: int = STEPS) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(4 * batches, 4)), batch_size=4)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def plain() -> None:
    model, loss = nn.Linear(4, 4), nn.MSELoss()
    optimizer = optimizer_of(model)
    for (x,) in loader():
        optimizer.zero_grad()
        loss(model(x), x).backward()
        optimizer.step()


class Noisy(nn.Module):
    """A transform as those of torchvision are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sum(range(50_000))
        return x + 1


class Transformed(TensorDataset):
    transform = Noisy()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return (self.transform(super().__getitem__(index)[0]),)


def with_transforms() -> None:
    model, loss = nn.Linear(4, 4), nn.MSELoss()
    optimizer = optimizer_of(model)
    for (x,) in DataLoader(Transformed(torch.randn(4 * STEPS, 4)), batch_size=4):
        optimizer.zero_grad()
        loss(model(x), x).backward()
        optimizer.step()


def without_a_loader() -> None:
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)
    for _ in range(STEPS):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def accumulating() -> None:
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)
    for i, (x,) in enumerate(loader(4 * STEPS)):
        model(x).sum().backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def two_players() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = optimizer_of(first), optimizer_of(second)
    for (x,) in loader():
        for optimizer in optimizers:
            optimizer.zero_grad()
            second(first(x)).sum().backward()
            optimizer.step()


def evaluating() -> None:
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)
    for i, (x,) in enumerate(loader()):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 7 == 6:
            with torch.no_grad():
                for (y,) in loader(3):
                    model(y)


def epochs() -> None:
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)
    few = loader(9)
    for _ in range(8):
        for (x,) in few:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def cycling() -> None:
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)
    batches = itertools.cycle(loader(40))
    for _ in range(180):
        model(next(batches)[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def with_a_closure() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
    for (x,) in loader():

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]


class Penalised(nn.Module):
    """Asks the engine for gradients, and calls a root of its own kind, inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        out = self.inner(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out + slope


def with_a_gradient_inside() -> None:
    model = Penalised()
    optimizer = optimizer_of(model)
    model.inner(torch.zeros(1, 4))
    for (x,) in loader():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class Failing(nn.Linear):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 11 == 0:
            message = "a batch that is too large"
            raise RuntimeError(message)
        return super().forward(x)


def failing_at_times() -> None:
    model = Failing(4, 4)
    optimizer = optimizer_of(model)
    for (x,) in loader():
        optimizer.zero_grad()
        try:
            model(x).sum().backward()
        except RuntimeError:
            continue
        optimizer.step()


def updating_in_backward() -> None:
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)

    def update(parameter: torch.Tensor) -> None:
        del parameter
        optimizer.step()

    model.weight.register_post_accumulate_grad_hook(update)
    for (x,) in loader():
        model(x).sum().backward()


def updating_in_backward_and_at_times_after_it() -> None:
    model = nn.Linear(4, 4)
    optimizer, other = (torch.optim.SGD([part], lr=1e-3) for part in (model.weight, model.bias))

    def update(parameter: torch.Tensor) -> None:
        del parameter
        optimizer.step()

    model.weight.register_post_accumulate_grad_hook(update)
    for i, (x,) in enumerate(loader()):
        model(x).sum().backward()
        if i < 8 or i % 16 == 0:
            other.step()


def solving_at_last() -> None:
    """Usual steps, and then the rest of the training in one."""
    plain()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1e-4, max_iter=90, tolerance_grad=0, tolerance_change=0
    )
    x = torch.randn(16, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


PROGRAMS = (
    plain, with_transforms, without_a_loader, accumulating, two_players, evaluating, epochs, cycling,
    with_a_closure, with_a_gradient_inside, failing_at_times, updating_in_backward,
    updating_in_backward_and_at_times_after_it, solving_at_last,
)  # fmt: skip


def make_agent(folder: Path) -> Agent:
    torch.set_num_threads(1)
    plan = Plan(script="train.py", quiet=True, out=str(folder), baseline_steps=10**6, warmup=4, memory=False)
    agent = Agent(plan, Store(folder / "run"), Stopper(), Progress(quiet=True))
    agent.install()
    return agent


def account(program: Callable[[], None], folder: Path) -> tuple[list[tuple[Any, ...]], Agent]:
    """Return what is known of each step, and the agent."""
    torch.manual_seed(0)
    agent = make_agent(folder)
    try:
        program()
        agent.buffer.release()
    finally:
        agent.uninstall()
    assert agent.clock.depth == 0
    return [plain_row(row) for row in agent.capture._book.rows], agent


def plain_row(row: Row) -> tuple[Any, ...]:
    assert sum(row.phases_ns.values()) <= row.wall_ms * 1e6 + 1
    assert min(row.phases_ns.values(), default=0) >= 0
    phases = sorted(name for name, ns in row.phases_ns.items() if ns)
    return row.index, phases, row.micro_steps, row.validation


@pytest.mark.parametrize("named", [True, False])
def test_what_a_step_s_closure_does_is_no_part_of_the_update(named: bool, tmp_path: Path) -> None:
    losses: list[Any] = []

    def program() -> None:
        model = nn.Linear(4, 4)
        optimizer = optimizer_of(model)
        for (x,) in loader():

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                sum(range(200_000))  # the metrics of a training_step
                return loss

            out = optimizer.step(closure=closure) if named else optimizer.step(closure)  # type: ignore[arg-type]
            losses.append(out)

    agent = account(program, tmp_path)[1]
    rows = agent.capture._book.rows
    update = sum(row.phases_ns.get("optimizer", 0) for row in rows)
    assert 0 < update < 0.5 * sum(row.wall_ms * 1e6 for row in rows)
    assert all("" not in row.phases_ns for row in rows)
    assert all(isinstance(out, torch.Tensor) and out.ndim == 0 for out in losses)


def test_modules_that_a_dataset_calls_are_input_and_no_model(tmp_path: Path) -> None:
    """`transforms.Normalize` took the time of the MNIST example's input for its model's forward."""
    agent = account(with_transforms, tmp_path)[1]
    spent = {
        phase: sum(row.phases_ns.get(phase, 0) for row in agent.capture._book.rows)
        for phase in ("data", "forward")
    }
    assert spent["data"] > 3 * spent["forward"]
    assert {type(root) for root in agent._learned._seen.roots} == {nn.Linear, nn.MSELoss}


@pytest.mark.parametrize("way", ["held by the wide wrappers", "at once"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_account_is_the_same(
    program: Callable[[], None], way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, agent = account(program, tmp_path / "fast")
    entered = agent.clock.entered
    if way == "at once":
        monkeypatch.setattr(Agent, "_hold", lambda *_args, **_how: False)
    else:
        monkeypatch.setattr(Hooks, "narrow", lambda *_args: False)
    other, slow = account(program, tmp_path / "other")
    # That fetches have ended for good is noticed later while events are held: the warm-up begins anew later.
    assert len(fast) == len(other) or (way, program) == ("at once", cycling)
    assert fast == other[-len(fast) :]
    assert len(fast) > 20
    assert entered == slow.clock.entered
    one, two = (who._loaders.facts() for who in (agent, slow))
    assert [(facts.fetches, len(facts.wait_ms), facts.role) for facts in one] == [
        (facts.fetches, len(facts.wait_ms), facts.role) for facts in two
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_more_steps_are_held_than_may_be(
    program: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over: list[int] = []
    whole = Tracker.take

    def take(self: Tracker, entries: Iterable[Entry], *, held: bool) -> None:
        before = self.steps
        whole(self, entries, held=held)
        handed_over.append(self.steps - before)

    monkeypatch.setattr(Tracker, "take", take)
    account(program, tmp_path)
    # Fetches that have ended for good, as those of a cycled loader, are waited for.
    assert max(handed_over) < STEPS_HELD or program is cycling


class Raising(torch.optim.SGD):
    """Raises at one of its steps."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == STEPS // 2:
            message = "not this time"
            raise RuntimeError(message)
        return super().step(closure)


@pytest.mark.parametrize("with_loader", [True, False])
def test_an_exception_out_of_an_optimizer_does_not_end_the_cuts(with_loader: bool, tmp_path: Path) -> None:
    agent = make_agent(tmp_path)
    model = nn.Linear(4, 4)
    optimizer = Raising(model.parameters(), lr=1e-3)
    try:
        for (x,) in loader() if with_loader else [(torch.randn(4, 4),)] * STEPS:
            optimizer.zero_grad()
            model(x).sum().backward()
            if optimizer.steps == STEPS // 2 - 1:
                assert agent.buffer.holding
                cuts = agent._tracker.steps
            with contextlib.suppress(RuntimeError):
                optimizer.step()
        agent.buffer.release()
    finally:
        agent.uninstall()
    assert optimizer.steps == STEPS
    assert agent._tracker.steps >= cuts + STEPS // 2 - 1
    assert agent.buffer.in_optimizer == 0
    assert agent.clock.depth == 0


def test_a_usual_step_calls_no_function_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = EventBuffer.begin

    def begin(self: EventBuffer, event: Event, subject: Any = None) -> Event | None:
        asked.append(event.name)
        return whole(self, event, subject)

    monkeypatch.setattr(EventBuffer, "begin", begin)
    rows, agent = account(plain, tmp_path)
    first = agent.capture._book.rows[0].index
    assert first > 2
    # The warm-up's steps are taken at once. Then, once in ten steps, a fetch looks at what was held; the
    # first step after a change asks for more.
    assert len(asked) <= 6 * (first + 1) + len(rows) / 4
    assert asked.count("optimizer") <= first + 1


class Building(nn.Linear):
    """Its forward builds an optimizer, or is interrupted, when it is told to."""

    do: Callable[[], None] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        do, self.do = self.do, None
        if do is not None:
            do()
        return super().forward(x)


@pytest.mark.parametrize("where", ["forward", "backward", "data", "optimizer"])
def test_what_is_open_when_events_are_released_is_closed(where: str, tmp_path: Path) -> None:
    agent = make_agent(tmp_path)
    model = Building(4, 4)
    optimizer = optimizer_of(model)
    spare = nn.Linear(1, 1)
    others: list[torch.optim.Optimizer] = []

    def surprise() -> None:
        assert agent.buffer.holding
        assert agent._whereabouts()[0] == where
        others.append(optimizer_of(spare))
        assert not agent.buffer.holding
        assert agent.clock.innermost == where

    class Surprising(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            if index == 4 * 30 and where == "data":
                surprise()
            return super().__getitem__(index)

    data = Surprising(torch.randn(4 * STEPS, 4))

    class Surprised(torch.optim.SGD):
        armed = False

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            if self.armed:
                self.armed = False
                surprise()
            return super().step(closure)

    if where == "optimizer":
        optimizer = Surprised(model.parameters(), lr=1e-3)
    try:
        for i, (x,) in enumerate(DataLoader(data, batch_size=4)):
            if i == 30 and where == "forward":
                model.do = surprise
            optimizer.zero_grad()
            loss = model(x).sum()
            if i == 30 and where == "backward":
                loss.register_hook(lambda _grad: surprise())
            loss.backward()
            if i == 30 and where == "optimizer":
                optimizer.armed = True  # type: ignore[attr-defined]
            optimizer.step()
        agent.buffer.release()
    finally:
        agent.uninstall()
    assert others
    assert agent.clock.depth == 0
    indices = [row.index for row in agent.capture._book.rows]
    assert indices == list(range(indices[0], indices[0] + len(indices)))


def test_epochs_shorter_than_the_holding_do_not_put_off_the_next_look(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    plan = Plan(
        script="train.py", quiet=True, out=str(tmp_path), baseline_steps=25, warmup=4, memory=False,
        run_to_end=True,
    )  # fmt: skip
    store = Store(tmp_path / "run")
    agent = Agent(plan, store, Stopper(), Progress(quiet=True))
    agent.install()
    try:
        epochs()
    finally:
        agent.uninstall()
    baseline = next(window for window in store.run.windows if window.name == "baseline")
    assert len(baseline.steps.wall_ms) == 25


def test_every_hook_is_put_back(tmp_path: Path) -> None:
    tables = optim_module._global_optimizer_pre_hooks, optim_module._global_optimizer_post_hooks
    before = [dict(table) for table in tables]
    places = [
        (nn.Module, "__call__"), (nn.Linear, "__call__"), (torch.autograd, "_engine_run_backward"),
        (torch.optim.Optimizer, "zero_grad"),
    ]  # fmt: skip
    originals = [getattr(owner, name) for owner, name in places]
    agent = make_agent(tmp_path)
    wide = [dict(table) for table in tables]
    observed = [getattr(owner, name) for owner, name in places]
    seen = False
    model = nn.Linear(4, 4)
    optimizer = optimizer_of(model)
    for (x,) in loader():
        model(x).sum().backward()
        optimizer.step()
        if agent.buffer.holding:
            seen = True
            assert [dict(table) for table in tables] != wide
            assert all(
                getattr(owner, name) is not was for (owner, name), was in zip(places, observed, strict=True)
            )
    assert seen
    agent.buffer.release()
    assert [dict(table) for table in tables] == wide
    assert [getattr(owner, name) for owner, name in places] == observed
    agent.uninstall()
    assert [dict(table) for table in tables] == before
    assert [getattr(owner, name) for owner, name in places] == originals


def test_a_forked_child_notes_nothing(tmp_path: Path) -> None:
    agent = make_agent(tmp_path)
    try:
        model = nn.Linear(4, 4)
        optimizer = optimizer_of(model)
        for i, (x,) in enumerate(loader()):
            model(x).sum().backward()
            optimizer.step()
            if i == 40:
                assert agent.buffer.holding
                agent.forked()  # what os.register_at_fork calls in the child
                steps = agent._tracker.steps
                for _ in range(3):
                    model(x).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                assert agent.buffer.innermost(["nothing is held"]) == "nothing is held"
                assert agent._tracker.steps == steps
                assert not agent.buffer.holding
                assert agent._meter.garbage.sink is None, "a worker that lives long keeps no collections"
                break
    finally:
        agent.uninstall()
