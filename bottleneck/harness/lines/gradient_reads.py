"""Gradients that nobody reads, because they are cleared first or because no optimizer has their parameter.

In: every backward, every look at a tensor's `grad` and every way to clear it, while it is on. Out: the
parameters whose gradients nobody reads, by the backward that makes them, and what of its graph works for
nobody else. An optimizer, a norm, a script's own update all ask a parameter for its `grad`; only the
look of `zero_grad` itself is no use of it. What is not known counts as read: parameters with hooks, and all
of them where ranks train together or where a tensor inside the graph is asked.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from ...model.run import SourceSite
from .. import autograd_private, torch_private
from ..events.replacing import Replacements
from .backward_graph import GraphNode
from .chains import sites_leading_to

_MADE: Final = "made"
_READ: Final = "read"
_CLEARED: Final = "cleared"
_LEFT: Final = "left"
_ZERO_GRAD: Final = "zero_grad"
"""Of optimizers, of modules, of a script's own: a look by a function of this name clears."""


def held_by(optimizers: Iterable[Any]) -> set[int]:
    """Return the parameters, by id, that these have."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


@dataclass(slots=True)
class _Leaf:
    tensor: Any
    events: list[str] = field(default_factory=list)

    def fate(self, number: int, *, comes_round: bool) -> str:
        """Return what becomes of the gradient that was made after so many others."""
        made = [at for at, event in enumerate(self.events) if event == _MADE]
        after = self.events[made[number] + 1 :] + (self.events[: made[number]] if comes_round else [])
        return next((event for event in after if event != _MADE), _LEFT)


@dataclass(slots=True)
class Pass:
    """One backward."""

    lines: list[SourceSite]
    """The user's lines that lead to it, the innermost first."""
    graph: list[GraphNode]
    """Each after all that it leads to."""
    made: dict[int, int]
    """By id of a leaf that gets a gradient: how many it got before."""


class GradientReads:
    """On for a step or a few."""

    def __init__(self, held: Callable[[], set[int]], *, one_step: bool) -> None:
        """Prepare.

        Args:
            held: returns the parameters, by id, that optimizers may read in another step.
            one_step: what is looked at is one step, and the next begins as it began.
        """
        self._held, self._one_step = held, one_step
        self._replaced = Replacements()
        self._leaves: dict[int, _Leaf] = {}
        self._inside = False
        self.passes: list[Pass] = []
        self.left_out: set[int] | None = None
        """Leaves, by id, whose gradients are not made any more; nothing is noted then."""
        self.missed = False
        """Somebody read one of these."""

    def begin(self) -> bool:
        """Look from now on; False where what is read could not be seen."""
        if torch_private.world()[1] > 1 or autograd_private.grad_of_tensor() is None:
            return False
        self._replaced.set(torch.Tensor, "grad", self._property())
        return True

    def end(self) -> None:
        """Look no more; what was seen stays until `forget`."""
        self._replaced.undo()

    def forget(self) -> None:
        """Let go of the tensors and of their graphs."""
        self._leaves.clear()
        self.passes.clear()

    def backward(self, graph: list[GraphNode]) -> Pass:
        """Note a backward that begins, and fills all leaves in this graph."""
        made: dict[int, int] = {}
        for node in graph:
            if node.leaf is not None:
                leaf = self._leaf(node.leaf)
                made[id(node.leaf)] = leaf.events.count(_MADE)
                leaf.events.append(_MADE)
        found = Pass(lines=sites_leading_to(sys._getframe(1)), graph=graph, made=made)
        self.passes.append(found)
        return found

    def tensor(self, leaf: int) -> Any:
        """Return a leaf that was seen, by its id."""
        return self._leaves[leaf].tensor

    def is_decided(self, one: Pass) -> bool:
        """Return whether something has become of all its gradients."""
        fates = (self._leaves[leaf].fate(number, comes_round=False) for leaf, number in one.made.items())
        return _LEFT not in fates

    def unread(self, *passes: Pass) -> set[int]:
        """Return the leaves, by id, whose gradients of these passes nobody reads.

        Not where it is so of all of them, and nobody has read another gradient of theirs either: then
        somebody has a way to read that was not seen.
        """
        made: dict[int, set[int]] = defaultdict(set)
        for one in passes:
            for leaf, number in one.made.items():
                made[leaf].add(number)
        held = self._held()
        found = {leaf for leaf, numbers in made.items() if self._is_unread(self._leaves[leaf], numbers, held)}
        is_seen = len(found) < len(made) or any(_READ in self._leaves[leaf].events for leaf in found)
        return found if is_seen and not self._inside else set()

    def _is_unread(self, leaf: _Leaf, numbers: Iterable[int], held: set[int]) -> bool:
        fates = {leaf.fate(number, comes_round=self._one_step) for number in numbers}
        if _READ in fates or autograd_private.has_gradient_hooks(leaf.tensor):
            return False
        if _CLEARED in fates:
            return True
        return self._one_step and isinstance(leaf.tensor, nn.Parameter) and id(leaf.tensor) not in held

    @staticmethod
    def shares(one: Pass, unread: set[int]) -> Iterator[tuple[int, float]]:
        """Yield, by number of a node, how much of what it computes leads to these leaves and to no others.

        Half of a product's backward is for each of its factors.
        """
        idle: set[int] = set()
        for node in one.graph:
            if node.leaf is not None:
                if id(node.leaf) in unread:
                    idle.add(node.key)
                continue
            # What a function of Python does beside its gradients is not known.
            if node.is_python or not node.edges:
                continue
            if all(key in idle for key, _ in node.edges):
                idle.add(node.key)
                yield node.key, 1.0
                continue
            large = [key for key, is_large in node.edges if is_large]
            share = sum(key in idle for key in large) / max(1, len(large))
            if share:
                yield node.key, share

    def _property(self) -> property:
        original: Any = autograd_private.grad_of_tensor()

        asking = False

        def get(tensor: Any) -> Any:
            nonlocal asking
            if asking:  # a mode has been asked for it, and asks us again
                return original.__get__(tensor)
            asking = True
            try:
                value = original.__get__(tensor)
            finally:
                asking = False
            # It may have begun before we did, in a step that it begins.
            clears = sys._getframe(1).f_code.co_name == _ZERO_GRAD
            if self.left_out is None:
                self._note(tensor, _CLEARED if clears else _READ)
            elif id(tensor) in self.left_out and not clears:
                self.missed = True
                return torch.zeros_like(tensor) if value is None else value
            return value

        def put(tensor: Any, value: Any) -> None:
            self._note(tensor, _CLEARED)
            original.__set__(tensor, value)

        def delete(tensor: Any) -> None:
            self._note(tensor, _CLEARED)
            original.__delete__(tensor)

        return property(get, put, delete, original.__doc__)

    def _note(self, tensor: Any, event: str) -> None:
        if self.left_out is not None:
            return
        with contextlib.suppress(Exception):
            if not tensor.is_leaf:
                self._inside = True
            else:
                self._leaf(tensor).events.append(event)

    def _leaf(self, tensor: Any) -> _Leaf:
        return self._leaves.setdefault(id(tensor), _Leaf(tensor))
