"""Which nodes of the backward's graph convert what another one has converted before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_bottleneck.harness.lines.graph_lines import GraphWatch

pytestmark = pytest.mark.usefixtures("nothing_compiled")


def converted(loss: torch.Tensor, *others: torch.Tensor) -> tuple[int, int]:
    """Return how many conversions are repeated, and how many of them are of a weight."""
    watch = GraphWatch()
    watch.begin()
    try:
        for each in (loss, *others):
            each.backward()
    finally:
        graph = watch.end()
    return (round(sum(graph.again)), graph.weights_again) if graph is not None else (0, 0)


@pytest.fixture
def layer() -> nn.Linear:
    return nn.Linear(8, 8)


@pytest.mark.parametrize(("cached", "again"), [(True, (0, 0)), (False, (4, 4))])
def test_without_autocasts_cache_each_call_converts_the_weights(
    layer: nn.Linear, cached: bool, again: tuple[int, int]
) -> None:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        loss = sum((layer(torch.randn(4, 8)).square().mean() for _ in range(3)), torch.zeros(()))
    assert converted(loss) == again


def test_what_several_layers_take_is_converted_for_each(layer: nn.Linear) -> None:
    norm, others = nn.LayerNorm(8), [nn.Linear(8, 8) for _ in range(3)]
    x = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        h = norm(layer(x).float())
        h = h.float() * 1.0
        loss = sum((each(h).square().mean() for each in others), torch.zeros(()))
    assert converted(loss) == (2, 0)


def test_passes_of_one_step_count_together(layer: nn.Linear) -> None:
    passes = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            passes.append(layer(torch.randn(4, 8)).square().mean())
    assert converted(*passes) == (2, 2)


def test_a_graph_that_two_passes_go_through_counts_once(layer: nn.Linear) -> None:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss = layer(layer(torch.randn(4, 8))).square().mean()
    watch = GraphWatch()
    watch.begin()
    loss.backward(retain_graph=True)
    loss.backward()
    graph = watch.end()
    assert graph is not None
    assert graph.weights_again == round(sum(graph.again)) == 2


def test_a_weight_that_was_updated_in_between_is_another_one(layer: nn.Linear) -> None:
    watch = GraphWatch()
    watch.begin()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    graph = watch.end()
    assert graph is None or not any(graph.again)


def test_other_types_copies_and_inputs_are_no_weights_converted_again() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    h = x * 2.0
    loss = (h.to(torch.bfloat16).float() + h.to(torch.float64).float()).sum()
    loss = loss + sum(h.to(torch.float32, copy=True).sum() for _ in range(2))
    assert converted(loss) == (0, 0)
    twice = x.to(torch.bfloat16).sum() + x.to(torch.bfloat16).square().sum()
    assert converted(twice.float()) == (1, 0)


def test_leaves_that_come_and_go_are_not_taken_for_one_another() -> None:
    watch = GraphWatch()
    watch.begin()
    for _ in range(6):
        mixed = torch.rand(4, 8, requires_grad=True)
        out = mixed.to(torch.bfloat16).square().sum()
        torch.autograd.grad(out, mixed, create_graph=True)
        del mixed, out
    graph = watch.end()
    assert graph is None or not any(graph.again)
