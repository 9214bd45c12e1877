"""Rows of a model's outputs that the loss does not look at.

In: the graph of a backward that is about to begin. Out: for each node between the loss and the matrix
products nearest to it, these included, the share of its numbers that belong to rows of the product whose
gradient is zero: labels that are ignored, positions that a mask takes out, steps of which only the last
counts. These rows have been computed, forward and backward, for nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from .. import torch_private
from ..events.replacing import Replacements
from .backward_graph import GraphNode

_ROUNDING: Final = 1e-6
_PRODUCT: Final = re.compile(r"(Addmm|Mm)Backward")
"""Their gradients have a row for each output; what is batched takes the inner products of attention."""


@dataclass(slots=True)
class _Pass:
    graph: list[GraphNode]
    """Each after all that it leads to."""
    starts: set[int]
    products: dict[int, torch.Tensor | None]
    """By key of a node: the share of rows, on the device; None until its gradient has come."""


class OutputRows:
    """On for a step."""

    def __init__(self, replaced: Replacements) -> None:
        """`replaced` takes the hooks back."""
        self._replaced = replaced
        self._passes: list[_Pass] = []

    def backward(self, nodes: list[Any], graph: list[GraphNode]) -> None:
        """Look at a backward that is about to begin; `graph` describes these nodes, in this order."""
        # What is launched while the script captures a CUDA graph would stay a part of it.
        if not graph or torch_private.is_capturing():
            return
        led_to = {key for node in graph for key, _ in node.edges}
        starts = {node.key for node in graph} - led_to
        found = _Pass(graph, starts, {})
        nearest = _nearest(
            graph, starts, {node.key for node, of in zip(graph, nodes, strict=True) if _is_product(of)}
        )
        for node, of in zip(graph, nodes, strict=True):
            if node.key in nearest:
                found.products[node.key] = None
                self._replaced.hook(of.register_prehook(_measure(found.products, node.key)))
        self._passes.append(found)

    def shares(self) -> Iterator[tuple[int, float]]:
        """Yield, by number of a node, the share of its numbers that it worked on for nothing."""
        for one in self._passes:
            measured = {key: float(share) for key, share in one.products.items() if share is not None}
            between = set(_until(one.graph, one.starts, set(one.products)))
            # The numbers that count, of the product that a node leads to; of the largest, if of several.
            counted: dict[int, float] = {}
            numbers = {node.key: node.numbers for node in one.graph}
            for node in one.graph:
                below = [key for key, _ in node.edges if key in counted and node.key in between]
                if node.key in measured:
                    counted[node.key] = (1.0 - measured[node.key]) * node.numbers
                elif below:
                    counted[node.key] = max(counted[key] for key in below)
                else:
                    continue
                # What follows a selection has fewer numbers, and all of them may count; it makes all, though.
                worked_on = max([node.numbers, *(numbers[key] for key in below)])
                if counted[node.key] < worked_on * (1.0 - _ROUNDING):
                    yield node.key, 1.0 - counted[node.key] / worked_on

    def forget(self) -> None:
        """Let go of what was seen."""
        self._passes.clear()


def _is_product(node: Any) -> bool:
    return _PRODUCT.match(node.name()) is not None


def _until(graph: list[GraphNode], starts: set[int], ends: set[int]) -> Iterator[int]:
    """Yield the nodes that are reached from `starts` without passing one of `ends`, these included."""
    reached = set(starts)
    for node in reversed(graph):
        if node.key in reached:
            yield node.key
            if node.key not in ends:
                reached.update(key for key, _ in node.edges)


def _nearest(graph: list[GraphNode], starts: set[int], products: set[int]) -> set[int]:
    return products & set(_until(graph, starts, products))


def _measure(products: dict[int, torch.Tensor | None], key: int) -> Callable[[Any], None]:
    def measure(gradients: Any) -> None:
        with contextlib.suppress(Exception), torch.no_grad():
            rows = gradients[0]
            if rows is not None and rows.dim() == 2 and rows.numel():
                # Two reductions: a tensor of truth values would be as large as the outputs.
                idle = (rows.amax(1) == 0) & (rows.amin(1) == 0)
                products[key] = idle.double().mean()

    return measure
