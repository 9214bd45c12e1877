"""The graph that a backward is about to go through.

In: what `backward` is called for. Out: autograd's nodes, each after all that it leads to, and what is to be
known of them once they are gone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...model.run import JOINS
from .. import autograd_private

_MOST_NODES = 100_000
_CONVERTS = "ToCopyBackward0"
"""Autograd's node of `to`, and of what autocast converts."""
_READS_ONE, _SLICES = "SelectBackward0", "SliceBackward0"
"""Autograd's nodes of `x[i]` and of `x[a:b]`."""
_CHAIN = 2
"""Joins before the last one from which something grows: fewer are no loop."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One of them, of which nothing is kept but a leaf."""

    key: int
    """Its sequence number; below 0 for a leaf."""
    leaf: Any
    """The tensor whose gradient it adds up."""
    edges: tuple[tuple[int, bool], ...]
    """What it computes gradients for: the key of the next node, and whether it has two dimensions or more."""
    numbers: int
    """In the gradient that it takes, as many as its function returned; 0: not known."""
    is_python: bool
    """It is of a function that is written in Python."""


def roots_of(outputs: Iterable[Any]) -> list[Any]:
    """Return the nodes at which a backward for these tensors or edges begins."""
    starts = (getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs)
    return [node for node in starts if node is not None]


def nodes_of(outputs: Iterable[Any]) -> list[Any]:
    """Return the nodes behind these tensors or edges; none where there are more than can be looked at."""
    found: list[Any] = []
    seen: set[int] = set()
    open_nodes: list[tuple[Any, Iterator[tuple[Any, int]]]] = [
        (None, iter([(node, 0) for node in roots_of(outputs)]))
    ]
    # Autograd keeps no object for a node, only as long as somebody holds it: all are held until the end.
    while open_nodes:
        node, edges = open_nodes[-1]
        for after, _ in edges:
            if after is not None and id(after) not in seen:
                seen.add(id(after))
                open_nodes.append((after, iter(after.next_functions)))
                break
        else:
            open_nodes.pop()
            found += [node] if node is not None else []
        if len(seen) > _MOST_NODES:
            return []
    return found


def numbers_of(nodes: Iterable[Any]) -> frozenset[int]:
    """Return the sequence numbers of these nodes, but of those that add up gradients."""
    return frozenset(number for node in nodes if (number := sequence_number(node)) is not None)


def freed_by(outputs: Iterable[Any]) -> frozenset[int] | None:
    """Return the numbers of the nodes that a backward for these frees; None where nothing is known."""
    return numbers_of(nodes_of(outputs)) or None


def described(nodes: Iterable[Any]) -> list[GraphNode]:
    """Return what is to be known of nodes."""
    return [
        GraphNode(
            key=_key(node),
            leaf=getattr(node, "variable", None),
            edges=tuple(
                (_key(after), len(autograd_private.gradient_kind(after, number)[0]) >= 2)
                for after, number in node.next_functions
                if after is not None
            ),
            numbers=math.prod(autograd_private.gradient_kind(node, 0)[0] or (0,)),
            is_python=is_python(node),
        )
        for node in nodes
    ]


class Conversions:
    """Which nodes of a step convert to a number type what another one has converted to it before.

    A weight that was updated in between is another one.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int, int, int, Any], tuple[int, Any]] = {}
        """The first node by the key of what it converts, the number of that output, the version of a leaf and
        the type; and the leaf, whose key is no other's as long as it lives."""
        self.again: set[int] = set()
        """Their sequence numbers."""
        self.of_weights = 0

    def note(self, nodes: Iterable[Any]) -> None:
        """Look at the graph of a backward; a node that was looked at before counts once."""
        converting = [node for node in nodes if node.name() == _CONVERTS]
        for node in sorted(converting, key=lambda node: sequence_number(node) or 0):
            (source, output), number = node.next_functions[0], sequence_number(node)
            leaf, into = getattr(source, "variable", None), autograd_private.gradient_kind(node, 0)[1]
            if source is None or number is None or number in self.again or into is None:
                continue
            given = leaf.dtype if leaf is not None else autograd_private.gradient_kind(source, output)[1]
            if given == into:
                continue
            key = _key(source), output, leaf._version if leaf is not None else 0, into
            if self._first.setdefault(key, (number, leaf))[0] != number:
                self.again.add(number)
                self.of_weights += isinstance(leaf, torch.nn.Parameter)


class Joins:
    """Which nodes of a step join what is joined again with a little more, in a chain of three or more.

    Nothing else that the loss depends on reads them, but for single entries along the dimension they grow in:
    a list of the parts has these, too. The last of a chain is not among them: it makes the whole.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, ...]] = {}
        """By the number of a node that joins: its own, and those of what reads one entry."""
        self._needed: set[int] = set()
        """Numbers of those of which one pass or another needs the whole."""

    @property
    def again(self) -> set[int]:
        """Their sequence numbers, and those of the nodes that read an entry."""
        kept = [numbers for number, numbers in self._kept.items() if number not in self._needed]
        return {number for numbers in kept for number in numbers} if len(kept) >= _CHAIN else set()

    def note(self, nodes: Iterable[Any], roots: Iterable[Any]) -> None:
        """Look at the graph of a backward, whose gradients begin at `roots`."""
        readers: defaultdict[int, list[Any]] = defaultdict(list)
        for node in nodes:
            for source, _ in node.next_functions:
                if source is not None and source.name() in (JOINS, _SLICES):
                    readers[id(source)].append(node)
        given = {id(root) for root in roots}
        for node in nodes:
            number = sequence_number(node) if node.name() == JOINS else None
            if number is None:
                continue
            its = list(_read_by(node, readers))
            if id(node) in given or not all(_is_part_of(node, each) for each in its):
                self._needed.add(number)
            more = [_more(node, each) for each in its if _joins_more(node, each)]
            if more:
                # Of parts that hold several entries one still has to be read.
                gone = [each for each in its if each.name() != JOINS] if min(more) == 1 else []
                numbers = map(sequence_number, (node, *gone))
                self._kept[number] = tuple(each for each in numbers if each is not None)


def _read_by(node: Any, readers: dict[int, list[Any]]) -> Iterator[Any]:
    """Yield what reads a node's output, and of all of it as a slice, as `x[:, i]` makes in 2.6."""
    for reader in readers[id(node)]:
        yield reader
        if reader.name() == _SLICES and _shape(reader) == _shape(node):
            yield from _read_by(reader, readers)


def _joins_more(node: Any, reader: Any) -> bool:
    """Return whether a reader joins what `node` has joined with something that is smaller."""
    return reader.name() == JOINS and 2 * math.prod(_shape(node)) > math.prod(_shape(reader)) > 0


def _more(node: Any, reader: Any) -> int:
    """Return how many entries a reader joins to those of `node`."""
    shape = _shape(node)
    dim = _dim(node, shape) or 0
    return _shape(reader)[dim] - shape[dim]


def _is_part_of(node: Any, reader: Any) -> bool:
    """Return whether a reader joins along the same dimension, takes one entry of it, or all."""
    shape = _shape(node)
    if reader.name() == _SLICES:
        return shape == _shape(reader)
    return reader.name() in (JOINS, _READS_ONE) and _dim(node, shape) == _dim(reader, shape)


def _shape(node: Any) -> tuple[int, ...]:
    return autograd_private.gradient_kind(node, 0)[0]


def _dim(node: Any, shape: tuple[int, ...]) -> int | None:
    dim = autograd_private.saved_dim(node)
    return dim % len(shape) if dim is not None and shape else None


def sequence_number(node: Any) -> int | None:
    """Return a node's number; None where gradients are added up, since all of these have the largest."""
    number = int(node._sequence_nr())
    return number if number < autograd_private.NO_SEQUENCE else None


def is_python(node: Any) -> bool:
    """Return whether a node is of a function that is written in Python."""
    return hasattr(node, "_forward_cls")


def _key(node: Any) -> int:
    leaf = getattr(node, "variable", None)
    return int(node._sequence_nr()) if leaf is None else -id(leaf)
