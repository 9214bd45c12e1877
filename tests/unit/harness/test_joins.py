"""Which nodes of the backward's graph join what another one joins again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.lines.graph_lines import GraphWatch

ROUNDS = 6


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests of this process have compiled."""
    monkeypatch.setattr(torch_private, "dynamo_looks", lambda: False)


def joined(loss: torch.Tensor) -> dict[str, int]:
    """Return how many nodes of each name do so, or read an entry of what they join."""
    watch = GraphWatch()
    watch.begin()
    try:
        loss.backward()
    finally:
        graph = watch.end()
    found: dict[str, int] = {}
    for name, is_one in zip(graph.node, graph.joined, strict=False) if graph is not None else ():
        key = graph.names[name]
        found[key] = found.get(key, 0) + round(is_one)
    found.pop("SliceBackward0", 0)  # what `x[:, i]` records beside it in torch 2.6
    return {name: count for name, count in found.items() if count}


def rollout(read: Callable[[torch.Tensor], torch.Tensor], *, dim: int = 1) -> torch.Tensor:
    """Return the sum of what grows by an entry per round, made from what `read` takes of it."""
    shape = [3, 4, 5]
    shape[dim] = 2
    data = torch.randn(shape, requires_grad=True) * 1.0
    for _ in range(ROUNDS):
        part = read(data).unsqueeze(dim).tanh()
        data = torch.cat([data, part], dim=dim)
    return data.square().sum()


@pytest.mark.parametrize("dim", [1, -2])
def test_each_join_but_the_last_and_what_reads_an_entry_of_it(dim: int) -> None:
    last = (lambda x: x[:, -1]) if dim == 1 else (lambda x: x.select(1, 0))
    # The first entry is read of what was not joined yet, the last join is the whole.
    found = joined(rollout(last, dim=dim))
    assert found == {"CatBackward0": ROUNDS - 1, "SelectBackward0": ROUNDS - 1}


def test_the_last_dimension_counts_from_either_end() -> None:
    assert joined(rollout(lambda x: x[..., 0], dim=-1))["CatBackward0"] == ROUNDS - 1


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.mean(1),
        lambda x: x[:, :2].sum(1),
        lambda x: x[:, 0] + x.select(2, 0).mean(1, keepdim=True),
    ],
    ids=["the whole", "a part of it", "along another dimension"],
)
def test_a_join_is_needed_for(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert joined(rollout(read)) == {}


def test_where_most_is_new_little_is_copied_again() -> None:
    def joined_with(new: int) -> torch.Tensor:
        few = torch.cat([torch.randn(3, 2, requires_grad=True) * 1.0, torch.ones(3, 1)], dim=1)
        return torch.cat([few, torch.ones(3, new)], dim=1).sum()

    assert joined(joined_with(4)) == {}
    assert joined(joined_with(2)) == {"CatBackward0": 1}


def test_features_that_are_joined_for_each_layer_are_needed() -> None:
    layers = [torch.nn.Linear(8 + 2 * k, 2) for k in range(4)]
    x = torch.randn(3, 8)
    for layer in layers:
        x = torch.cat([x, layer(x)], dim=-1)
    assert joined(x.square().sum()) == {}


def test_joins_along_different_dimensions_are_another_matter() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    rows = torch.cat([x * 2.0, x[:1]], dim=0)
    assert joined(torch.cat([rows, rows[:, :1]], dim=1).sum()) == {}
