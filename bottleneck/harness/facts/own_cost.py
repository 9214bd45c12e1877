"""What the hooks cost per step, measured in the script's own process once the windows are over.

In: the time that cuts and fetches took, counted as they happened; how often a phase was entered.
Out: microseconds per step. What one wrapped call costs is timed on a module that does nothing,
through the very hook that is in place, and with the caches emptied before each call: between two of
our calls a real step runs through megabytes. Calls of nested modules are counted as one per
submodule and step.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from ...clocks import perf_counter_ns

ROUNDS = 25
EVICTED_BYTES = 4 << 20
"""Written before each timed call: as much as a step of small operators touches, so that what is found agrees
with what processes with and without the hooks differ by (tests/benchmarks/overhead.py)."""


class _Outer(torch.nn.Module):
    """Calls nothing, or a number of modules that do nothing."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(torch.nn.Identity() for _ in range(inner))

    def forward(self, x: Any) -> Any:
        """Return the input."""
        for module in self.inner:
            x = module(x)
        return x


class OwnCost:
    """Adds up what we spend inside the steps of the script."""

    MODULE = _Outer
    """The class of modules that is called to time the hooks."""

    def __init__(self) -> None:
        self._spent_ns = 0
        self._steps_ns: list[float] = []
        self._known_steps = 0
        self.submodules = 0
        """Modules below the roots that were seen."""
        self.nested_are_free = False
        """While steps were timed, only the roots were watched."""

    def add(self, began_ns: int) -> None:
        """Something of ours that began then has ended now."""
        self._spent_ns += perf_counter_ns() - began_ns

    def stepped(self, steps: int, *, counts: bool) -> None:
        """Steps have ended, `steps` in all: what was spent since the last call is theirs."""
        count = steps - self._known_steps
        if counts:
            self._steps_ns += [self._spent_ns / max(1, count)] * count
        self._spent_ns = 0
        self._known_steps = steps

    def per_step_us(self, *, phases: float, original: Callable[..., Any]) -> float | None:
        """Return the microseconds that all hooks together take per step; None without steps.

        `phases` are entered per step, each one a wrapped call; `original` is `nn.Module.__call__` as torch
        has it.
        """
        if not self._steps_ns:
            return None
        x = torch.zeros(1, device="cpu")
        single, nest = _Outer(0), _Outer(10)
        root_ns = _difference_ns(lambda: single(x), lambda: original(single, x))

        def plain() -> None:
            y = x
            for inner in nest.inner:
                y = original(inner, y)
            original(single, y)

        both_ns = _difference_ns(lambda: nest(x), plain)
        inner_ns = max(0.0, (both_ns - root_ns) / len(nest.inner))
        # The median: a step in which the scheduler took the core away is not our cost.
        own_ns = median(self._steps_ns)
        nested_ns = 0.0 if self.nested_are_free else self.submodules * inner_ns
        return (own_ns + phases * max(0.0, root_ns) + nested_ns) / 1e3


def _difference_ns(call: Callable[[], object], other: Callable[[], object]) -> float:
    """Return how much longer one call takes than another, both from cold caches, in turns."""
    target, source = bytearray(EVICTED_BYTES), bytes(EVICTED_BYTES)
    took: tuple[list[int], list[int]] = ([], [])
    call(), other()
    for _ in range(ROUNDS):
        for times, timed in zip(took, (call, other), strict=True):
            target[:] = source
            began = perf_counter_ns()
            timed()
            times.append(perf_counter_ns() - began)
    return median(took[0]) - median(took[1])
