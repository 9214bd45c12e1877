"""Gradients that nobody reads: who they are, what of the backward makes them, and a training without them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torch_bottleneck.harness.lines.backward_graph import described, nodes_of
from torch_bottleneck.harness.lines.graph_lines import GraphWatch
from torch_bottleneck.harness.trials.fewer_gradients import PASSES_SEEN
from torch_bottleneck.harness.trials.patches import make_patches
from torch_bottleneck.harness.trials.patches.base import Patch, Program
from torch_bottleneck.model.run import GraphLines
from torch_bottleneck.model.verify import Wish

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class Pair:
    """A generator and a discriminator, each with the other's gradients in its way."""

    def __init__(self, *, set_to_none: bool = True) -> None:
        torch.manual_seed(1)
        self.made = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.judge = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
        self.by_made = torch.optim.SGD(self.made.parameters(), lr=0.1)
        self.by_judge = torch.optim.SGD(self.judge.parameters(), lr=0.1)
        self.set_to_none = set_to_none
        self.looks: Callable[[], object] = lambda: None

    def step(self) -> None:
        self.by_judge.zero_grad(self.set_to_none)
        loss = self.judge(self.made(torch.randn(3, 4))).mean()
        loss.backward()
        self.looks()
        self.by_judge.step()
        self.by_made.zero_grad(self.set_to_none)
        loss = -self.judge(self.made(torch.randn(3, 4))).mean()
        loss.backward()
        self.by_made.step()

    @property
    def weights(self) -> list[torch.Tensor]:
        return [*self.made.parameters(), *self.judge.parameters()]

    @property
    def program(self) -> Program:
        return Program(roots=(self.made, self.judge), optimizers=(self.by_made, self.by_judge))


@pytest.mark.parametrize("turned", [False, True])
def test_nodes_come_once_each_and_after_all_that_they_lead_to(*, turned: bool) -> None:
    first = torch.ones(2, requires_grad=True) * 2
    left, right = first.split(1)
    outputs = [first, left + 1, left, right]
    found = described(nodes_of(outputs[::-1] if turned else outputs))
    keys = [node.key for node in found]
    assert len(keys) == len(set(keys)) == 4
    assert all(keys.index(key) < at for at, node in enumerate(found) for key, _ in node.edges)


class Mode(TorchFunctionMode):
    """Calls what is called, as one of ours does in the same step."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def watched(
    step: Callable[[], object], *optimizers: torch.optim.Optimizer, mode: bool = False
) -> GraphLines | None:
    """Return what is known of one step's graph."""
    step()
    watch = GraphWatch(lambda: optimizers)
    watch.begin()
    with Mode() if mode else contextlib.nullcontext():
        step()
    assert "grad" in vars(torch.Tensor)
    graph = watch.end()
    assert "grad" not in vars(torch.Tensor)
    return graph


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_another_loss_leaves_is_cleared_before_anybody_reads_it(
    *, set_to_none: bool, mode: bool
) -> None:
    graph = watched(Pair(set_to_none=set_to_none).step, mode=mode)
    assert graph is not None
    assert [(each.tensors, each.unread) for each in graph.unread_by] == [(8, 4), (8, 4)]
    assert mode or [each.site.function for each in graph.unread_by] == ["step", "step"]
    shares = list(zip((graph.names[name] for name in graph.node), graph.unread, strict=True))
    # Of the judge's loss all of the other model's nodes, and what the first product makes for them.
    first = [name for name, share in shares if share == 1.0]
    assert sorted(first) == sorted(["AddmmBackward0"] * 2 + ["ReluBackward0"] + ["TBackward0"] * 4)
    # The judge's own products in the other's loss: half is for its weights.
    assert [name for name, share in shares if share == 0.5] == ["AddmmBackward0"] * 3


def test_who_reads_a_gradient_by_hand_needs_it() -> None:
    pair, kept = Pair(), []
    pair.looks = lambda: kept.append([p.grad for p in pair.made.parameters()])
    graph = watched(pair.step)
    assert graph is not None
    # The judge's gradients of the other loss stay unread.
    assert [(each.tensors, each.unread) for each in graph.unread_by] == [(8, 4)]


def test_a_hook_is_a_reader() -> None:
    pair = Pair()
    for parameter in pair.weights:
        parameter.register_hook(lambda grad: grad)
    assert watched(pair.step) is None


def test_gradients_that_are_added_up_are_read_at_the_end() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    assert watched(step, optimizer) is None


@pytest.mark.parametrize("mode", [False, True])
def test_a_second_backward_whose_gradients_are_cleared_is_all_in_vain(*, mode: bool) -> None:
    """pymor/pymor#2535: the loss is asked of the closure again, after the step that was given it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).pow(2).mean()
        loss.backward()
        return loss

    def step() -> None:
        optimizer.step(closure)
        closure()

    graph = watched(step, optimizer, mode=mode)
    assert graph is not None
    assert [(each.tensors, each.unread) for each in graph.unread_by] == [(4, 4)]
    (call,) = [each.site for each in graph.unread_by]
    lines, first = inspect.getsourcelines(step)
    assert (call.function, lines[call.line - first].strip()) == ("step", "closure()"), "not the line of both"
    half = len(graph.unread) // 2
    assert set(graph.unread[:half]) == {0.0}
    assert set(graph.unread[half:]) == {1.0}


def test_where_all_are_unread_somebody_has_a_way_that_was_not_seen() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        model.zero_grad()
        model(torch.randn(2, 4)).sum().backward()

    assert watched(step) is None


def test_what_no_optimizer_has_is_unread_and_what_one_has_may_be_read_later() -> None:
    body, head = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    late = torch.optim.SGD(body.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        head(body(torch.randn(2, 4))).sum().backward()
        optimizer.step()

    graph = watched(step, optimizer)
    assert graph is not None
    assert [(each.tensors, each.unread) for each in graph.unread_by] == [(4, 2)]
    # Both factors of the body's product: its input needs none. And of the head's the one for its input.
    assert sorted(share for share in graph.unread if share) == [0.5, 1.0, 1.0]
    assert watched(step, optimizer, late) is None


@pytest.fixture
def patch() -> Iterator[Patch]:
    (found,) = make_patches([Wish(fix="FX325")])
    yield found
    if found.is_on:
        found.switch_off()
    found.close()


def train(pair: Pair, steps: int, *, seed: int = 2) -> None:
    torch.manual_seed(seed)
    for _ in range(steps):
        pair.step()


def test_without_them_the_training_is_the_same(patch: Patch) -> None:
    plain, narrowed = Pair(), Pair()
    train(plain, PASSES_SEEN + 4)
    patch.switch_on(narrowed.program)
    train(narrowed, PASSES_SEEN + 4)
    patch.switch_off()
    assert all(torch.equal(a, b) for a, b in zip(plain.weights, narrowed.weights, strict=True))
    assert patch.found().evidence == "7 backwards asked only for gradients that are read"
    # What it knows by now it does not look for again.
    assert patch.settle_steps(narrowed.program) < 3 + PASSES_SEEN
    patch.switch_on(narrowed.program)
    train(narrowed, 1)
    patch.switch_off()
    assert patch.found().count == 2


def test_one_that_is_read_after_all_is_zeros_and_all_are_made_again(patch: Patch) -> None:
    pair, seen = Pair(), []
    patch.switch_on(pair.program)
    train(pair, PASSES_SEEN + 2)
    pair.by_made.zero_grad()
    pair.looks = lambda: seen.append(pair.made[0].weight.grad)
    train(pair, 2)
    patch.switch_off()
    assert not seen[0].any()
    assert seen[1].any()
    assert patch.found().state == "not applied"
    assert "had read before" in patch.found().reason
    assert "grad" not in vars(torch.Tensor)
