"""What the hooks cost per step, measured in the script's own process once the windows are over.

In: the time that cuts and fetches took, counted as they happened; how often a phase was entered.
Out: microseconds per step. What one wrapped call costs is timed on a module that does nothing,
through the very hook that is in place; the least of many rounds, which other processes disturb
least. Calls of nested modules are counted as one per submodule and step.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnCost"]

ROUNDS = 20
CALLS = 50


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

    def __init__(self) -> None:
        self._spent_ns = 0
        self._steps_ns: list[float] = []
        self._known_steps = 0
        self.submodules = 0
        """Modules below the roots that were seen."""

    def add(self, began_ns: int) -> None:
        """Something of ours that began then has ended now."""
        self._spent_ns += perf_counter_ns() - began_ns

    def skip(self, steps: int) -> None:
        """What was spent is not what a timed step costs; `steps` have ended so far."""
        self._spent_ns = 0
        self._known_steps = steps

    def stepped(self, steps: int) -> None:
        """Steps have ended, `steps` in all: what was spent since the last call is theirs."""
        count = steps - self._known_steps
        self._steps_ns += [self._spent_ns / max(1, count)] * count
        self.skip(steps)

    def per_step_us(self, *, phases: float, original: Callable[..., Any]) -> float | None:
        """Return the microseconds that all hooks together take per step; None without steps.

        Args:
            phases: phases entered per step; each is one wrapped call.
            original: `nn.Module.__call__` as torch has it.
        """
        if not self._steps_ns:
            return None
        x = torch.zeros(1, device="cpu")
        single, nest = _Outer(0), _Outer(10)
        root_ns = _least_ns(lambda: single(x)) - _least_ns(lambda: original(single, x))
        both_ns = _least_ns(lambda: nest(x)) - _without(nest, x, original)
        inner_ns = max(0.0, (both_ns - root_ns) / len(nest.inner))
        # The median: a step in which the scheduler took the core away is not our cost.
        own_ns = median(self._steps_ns)
        return (own_ns + phases * max(0.0, root_ns) + self.submodules * inner_ns) / 1e3


def _without(module: _Outer, x: Any, original: Callable[..., Any]) -> float:
    """Time the nested calls as they are without the hook."""

    def plain() -> None:
        y = x
        for inner in module.inner:
            y = original(inner, y)
        original(module.inner[0], y)

    return _least_ns(plain)


def _least_ns(call: Callable[[], object]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began = perf_counter_ns()
        for _ in range(CALLS):
            call()
        rounds.append((perf_counter_ns() - began) / CALLS)
    return min(rounds)
