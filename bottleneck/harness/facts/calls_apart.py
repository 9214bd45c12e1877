"""Modules that are called several times where one call could have all of their inputs.

In: calls of modules with gradients, and the begin of each backward. Out: those that a first one could make,
too, on its own input and theirs together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from ...clocks import perf_counter_ns
from .seen_calls import SeenCall, ns_of


@dataclass(slots=True)
class _Group:
    """Calls of one module before one backward, on inputs that are alike but for their values."""

    state: list[tuple[object, int]]
    """What the module held besides its parameters after the first: each tensor with its version."""
    calls: list[SeenCall] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of each, ns."""
    is_stateful: bool = False
    """A call depends on the one before, through the module."""


class CallsApart:
    """Groups the calls before each backward."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self.joinable: list[SeenCall] = []
        """All calls but the first of each group."""

    def forget(self) -> None:
        """A step ends: what no backward has followed is none of it."""
        self._groups.clear()

    def note(
        self, call: SeenCall, start_ns: int, module: torch.nn.Module, inputs: Sequence[torch.Tensor]
    ) -> None:
        """Note a call whose input comes out of no earlier one."""
        key = id(module), module.training, tuple((each.shape, each.dtype) for each in inputs)
        state = _state(module)
        group = self._groups.setdefault(key, _Group(state))
        same = len(group.state) == len(state) and all(
            now is then and count == counted
            for (then, counted), (now, count) in zip(group.state, state, strict=True)
        )
        group.is_stateful = group.is_stateful or not same
        group.calls.append(call)
        group.spans.append((start_ns, perf_counter_ns()))

    def join(self) -> None:
        """A backward begins: what was called apart until now could have been one call."""
        inside: list[tuple[int, int]] = []
        # The outer modules first: what they call is theirs.
        for group in sorted(self._groups.values(), key=lambda group: -ns_of(group.calls)):
            within = any(begin <= group.spans[0][0] and group.spans[0][1] <= end for begin, end in inside)
            if len(group.calls) > 1 and not group.is_stateful and not within:
                self.joinable += group.calls[1:]
                inside += group.spans
        self._groups.clear()


def _state(module: torch.nn.Module) -> list[tuple[object, int]]:
    """Return what a module keeps from call to call besides parameters and buffers, as far as it shows.

    Tensors with their versions, collections with their lengths.
    """
    found: list[tuple[object, int]] = []
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                found.append((value, -1 if value.is_inference() else value._version))
            elif isinstance(value, (list, dict, set, deque)) and not name.startswith("_"):
                found.append((value, len(value)))
    return found
