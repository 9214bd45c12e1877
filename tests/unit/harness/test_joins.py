"""Which nodes of the backward's graph join what another one joins again."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

from torch_bottleneck.harness.facts.repeats import RepeatWatch
from torch_bottleneck.harness.lines.graph_lines import GraphWatch

ROUNDS = 6


pytestmark = pytest.mark.usefixtures("nothing_compiled")


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


def chain(*parts: int) -> torch.Tensor:
    """Return the sum of two entries to which so many others are joined, one after the other."""
    whole = torch.randn(3, 2, requires_grad=True) * 1.0
    for part in parts:
        whole = torch.cat([whole, torch.ones(3, part)], dim=1)
    return whole.sum()


@pytest.mark.parametrize(
    ("parts", "count"),
    [((1, 1, 1), 2), ((1, 1), 0), ((1, 8, 1, 1), 2), ((8, 8, 8), 1 + 1)],
    ids=["a chain", "two joins are no loop", "most is new in one of them", "several entries each"],
)
def test_a_chain_of_joins(parts: tuple[int, ...], count: int) -> None:
    assert joined(chain(*parts)) == ({"CatBackward0": count} if count else {})


def test_of_parts_with_several_entries_one_still_has_to_be_read() -> None:
    whole = torch.randn(3, 2, requires_grad=True) * 1.0
    for _ in range(ROUNDS):
        whole = torch.cat([whole, whole[:, -1:].expand(3, 2) * whole[:, 0, None]], dim=1)
    assert "SelectBackward0" not in joined(whole.sum())
    part = torch.randn(3, 2, requires_grad=True) * 1.0
    whole = part
    for _ in range(ROUNDS):
        whole = torch.cat([whole, part * whole[:, 0, None]], dim=1)
    assert joined(whole.sum()) == {"CatBackward0": ROUNDS - 1}


def test_what_another_pass_needs_whole_is_kept() -> None:
    def passes(*, first: bool) -> list[torch.Tensor]:
        whole, kept = torch.randn(3, 2, requires_grad=True) * 1.0, []
        for _ in range(ROUNDS):
            whole = torch.cat([whole, whole[:, -1, None].tanh()], dim=1)
            kept.append(whole.mean(1))
        losses = [whole.square().sum(), sum(each.sum() for each in kept)]
        return losses if first else losses[::-1]

    for first in (True, False):
        watch = GraphWatch()
        watch.begin()
        one, other = passes(first=first)
        one.backward(retain_graph=True)
        other.backward()
        graph = watch.end()
        assert graph is None or not any(graph.joined)


def test_what_a_backward_begins_at_is_needed() -> None:
    wholes = [torch.randn(3, 2, requires_grad=True) * 1.0]
    for _ in range(ROUNDS):
        wholes.append(torch.cat([wholes[-1], wholes[-1][:, -1, None].tanh()], dim=1))
    watch = GraphWatch()
    watch.begin()
    torch.autograd.backward(wholes[1:], [torch.ones_like(each) for each in wholes[1:]])
    graph = watch.end()
    assert graph is None or not any(graph.joined)


def test_without_a_device_the_lines_are_those_that_the_calls_were_seen_on() -> None:
    net, repeats, watch = torch.nn.Linear(5, 5), RepeatWatch(), GraphWatch()
    assert not watch.begin()
    repeats.begin()
    try:
        data = net(torch.randn(3, 2, 5))
        for _ in range(ROUNDS):
            data = torch.cat([data, data[:, -1:].tanh()[:, 0][:, None]], dim=1)
        for _ in range(ROUNDS):
            other = torch.cat([data, net(data)], dim=1)
        (data.sum() + other.sum()).backward()
        graph = watch.end(repeats.join_at)
    finally:
        repeats.end()
    assert graph is None
    repeats.begin()
    watch.begin()
    try:
        data = net(torch.randn(3, 2, 5))
        for _ in range(ROUNDS):
            data = torch.cat([data, data[:, -1].tanh()[:, None]], dim=1)
        data.sum().backward()
        graph = watch.end(repeats.join_at)
    finally:
        repeats.end()
    assert graph is not None
    (site,) = graph.sites_of(graph.joins())
    lines, first = inspect.getsourcelines(
        test_without_a_device_the_lines_are_those_that_the_calls_were_seen_on
    )
    assert "data[:, -1].tanh()" in lines[site.line - first]


def test_features_that_are_joined_for_each_layer_are_needed() -> None:
    layers = [torch.nn.Linear(8 + 2 * k, 2) for k in range(4)]
    x = torch.randn(3, 8)
    for layer in layers:
        x = torch.cat([x, layer(x)], dim=-1)
    assert joined(x.square().sum()) == {}


def test_joins_along_different_dimensions_are_another_matter() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    rows = torch.cat([x * 2.0, x[:1]], dim=0)
    for _ in range(ROUNDS):
        rows = torch.cat([rows, torch.ones(len(rows), 1)], dim=1)
        rows = torch.cat([rows, torch.ones(1, rows.shape[1])], dim=0)
    assert joined(rows.sum()) == {}
