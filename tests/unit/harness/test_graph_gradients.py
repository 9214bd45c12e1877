"""Gradients in a CUDA graph's memory are gone with its next replay; what the script adds up is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from torch_bottleneck.harness.trials.patches.graph_gradients import GraphGradients


@pytest.fixture
def gradients() -> Iterator[GraphGradients]:
    patch = GraphGradients({})
    patch.install()
    yield patch
    patch.uninstall()


def train(
    patch: GraphGradients, model: nn.Module, *, passes: int = 1, updates: int = 2, **zero: bool
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates):
        for number in range(passes):
            assert patch.first_pass(model) is (number == 0)
            before = model.weight.grad
            if number and before is not None:
                before_value = before.clone()
            model(torch.ones(1, 2)).sum().backward()
            if number:
                assert torch.equal(model.weight.grad, before_value + torch.ones(2, 2))
        optimizer.step()
        optimizer.zero_grad(**zero)


def test_gradients_filled_with_zeros_are_dropped_instead(gradients: GraphGradients) -> None:
    model = nn.Linear(2, 2)
    train(gradients, model, set_to_none=False)
    assert model.weight.grad is None
    assert gradients.evidence() == "gradients set to None in 2 calls of zero_grad"


def test_gradients_of_several_passes_are_moved_once_an_update(gradients: GraphGradients) -> None:
    model = nn.Linear(2, 2)
    train(gradients, model, passes=3, updates=2)
    assert gradients.evidence() == "gradients copied between the backward passes of 2 updates"


def test_a_plain_loop_is_left_alone(gradients: GraphGradients) -> None:
    train(gradients, nn.Linear(2, 2))
    assert gradients.evidence() == ""


def test_evaluation_between_is_no_pass(gradients: GraphGradients) -> None:
    model = nn.Linear(2, 2)
    assert gradients.first_pass(model)
    with torch.no_grad():
        assert not gradients.first_pass(model)
    assert gradients._passes == 1


def test_gradients_that_are_lost_already_are_no_error(gradients: GraphGradients) -> None:
    class Lost(torch.Tensor):
        def detach(self) -> torch.Tensor:
            raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten")

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    gradients.first_pass(model)
    other.weight.grad = torch.ones(2, 2).as_subclass(Lost)
    assert not gradients.first_pass(other)
    assert gradients.evidence() == ""
