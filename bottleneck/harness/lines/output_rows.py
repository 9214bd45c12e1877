"""Rows that a model computes for nothing.

In: the graph of a backward that is about to begin. Out: for each node between the loss and the matrix
products nearest to it, these included, the share of its numbers that belong to rows of the product whose
gradient is zero: labels that are ignored, positions that a mask takes out, steps of which only the last
counts. For the products behind these, and what follows them, the share beyond: rows that the model itself
multiplies by zero, as branches that are left out for some samples, or experts of other tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ...model.flops import ROW_PRODUCTS
from .. import torch_private
from ..events.replacing import Replacements
from .backward_graph import GraphNode

_ROUNDING: Final = 1e-6


@dataclass(slots=True)
class _Pass:
    graph: list[GraphNode]
    """Each after all that it leads to."""
    between: set[int]
    """From the loss to the nearest products, by key."""
    nearest: set[int]
    """These products."""
    measured: dict[int, torch.Tensor] = field(default_factory=dict)
    """By key of a product: the share of its rows, on the device."""


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
        products = {
            node.key for node, of in zip(graph, nodes, strict=True) if of.name().startswith(ROW_PRODUCTS)
        }
        between = _until(graph, products)
        found = _Pass(graph, between, between & products)
        for node, of in zip(graph, nodes, strict=True):
            if node.key in products:
                self._replaced.hook(of.register_prehook(_measure(found.measured, node.key)))
        self._passes.append(found)

    def shares(self) -> Iterator[tuple[int, float]]:
        """Yield, by number of a node, the share of its numbers that it worked on for nothing."""
        for one in self._passes:
            # The numbers that count, of the product that a node leads to; of the largest, if of several.
            counted: dict[int, float] = {}
            numbers = {node.key: node.numbers for node in one.graph}
            idle = {key: float(share) for key, share in one.measured.items()}
            # What the loss leaves out, it leaves out of all layers; they may need it for other rows.
            left_out = max((idle.get(key, 0.0) for key in one.nearest), default=0.0)
            for node in one.graph:
                edges = [key for key, _ in node.edges if key >= 0 or node.key in one.between]
                below = [key for key in edges if key in counted]
                if node.key in idle:
                    # A product may lead to another that the loss reaches on another way, too.
                    below = []
                    share = idle[node.key] if node.key in one.nearest else idle[node.key] - left_out
                    counted[node.key] = (1.0 - max(0.0, share)) * node.numbers
                elif below and (len(below) == len(edges) or node.key in one.between):
                    # What makes more numbers of them (a broadcast, an upsampling) makes more of both kinds.
                    counted[node.key] = max(
                        counted[key] * max(1.0, node.numbers / max(numbers[key], 1)) for key in below
                    )
                else:
                    continue
                # What follows a selection has fewer numbers, and all of them may count; it makes all, though.
                worked_on = max([node.numbers, *(numbers[key] for key in below)])
                if counted[node.key] < worked_on * (1.0 - _ROUNDING):
                    yield node.key, 1.0 - counted[node.key] / worked_on

    def forget(self) -> None:
        """Let go of what was seen."""
        self._passes.clear()


def _until(graph: list[GraphNode], ends: set[int]) -> set[int]:
    """Return the nodes that are reached from the loss without passing one of `ends`, these included."""
    reached = {node.key for node in graph} - {key for node in graph for key, _ in node.edges}
    for node in reversed(graph):
        if node.key in reached and node.key not in ends:
            reached.update(key for key, _ in node.edges)
    return reached


def _measure(measured: dict[int, torch.Tensor], key: int) -> Callable[[Any], None]:
    def measure(gradients: Any) -> None:
        with contextlib.suppress(Exception), torch.no_grad():
            rows = gradients[0]
            if rows is not None and rows.dim() == 2 and rows.numel():
                # Two reductions: a tensor of truth values would be as large as the outputs.
                idle = (rows.amax(1) == 0) & (rows.amin(1) == 0)
                measured[key] = idle.double().mean()

    return measure
