"""What dynamo captures of the roots' calls, and what stays outside: seen before anything is compiled.

In: the roots, while dynamo captures and nothing is made of it. Out: the share of host time in the roots'
calls that lies in graphs, run as they were captured; names of torch's modules that run outside. What else is
outside (the script's own code after a break, what is kept from dynamo) counts by its time, without a name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....clocks import perf_counter_ns
from ...events.replacing import Replacements

_is_compiling = torch.compiler.is_compiling


class Outside:
    """Watches calls from `begin` to `end`."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        """Classes of modules with weights, in the order in which they were called."""
        self._replaced = Replacements()
        self._graphs_made = 0
        self._in_graphs_ns = 0
        self._inside = False
        self._last_ns: dict[int, tuple[int, int]] = {}
        """In graphs, and in all: of each root's last call in which nothing new was captured."""

    @property
    def share(self) -> float | None:
        """Host time outside of graphs in the roots' calls, 0 to 1; None where each call captured anew."""
        captured_ns, all_ns = map(sum, zip(*self._last_ns.values(), strict=True)) if self._last_ns else (0, 0)
        return 1.0 - captured_ns / all_ns if all_ns else None

    def backend(self, graph: Any, _inputs: Any) -> Callable[..., Any]:
        """Make a graph run as it is, timed: a back end of dynamo's."""
        self._graphs_made += 1
        forward = graph.forward

        def run(*args: Any) -> Any:
            begun = perf_counter_ns()
            try:
                return forward(*args)
            finally:
                self._in_graphs_ns += perf_counter_ns() - begun

        return run

    def begin(self, roots: tuple[torch.nn.Module, ...]) -> None:
        """Begin to watch."""
        self._replaced.put(torch.nn.Module, "__call__", self._make_call)
        for kind in {type(root) for root in roots}:
            if kind is not torch.nn.Module:
                self._replaced.put(kind, "__call__", self._make_root_call)

    def end(self) -> None:
        """End watching."""
        self._replaced.undo()

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or self._inside or not _is_torchs_with_weights(module):
                return original(module, *args, **kwargs)
            self._inside = True
            try:
                return original(module, *args, **kwargs)
            finally:
                self._inside = False
                self.names[type(module).__name__] = None

        return call

    def _make_root_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return original(module, *args, **kwargs)
            made, self._in_graphs_ns = self._graphs_made, 0
            begun = perf_counter_ns()
            try:
                return original(module, *args, **kwargs)
            finally:
                if made == self._graphs_made:
                    # An earlier one may have been given up while it was captured.
                    self._last_ns[id(module)] = (self._in_graphs_ns, perf_counter_ns() - begun)

        return call


def _is_torchs_with_weights(module: torch.nn.Module) -> bool:
    """Dynamo makes no graph of a frame of torch's own when it is called from outside graphs."""
    owner = str(getattr(type(module).forward, "__module__", ""))
    return owner.startswith("torch.nn.modules") and next(module.parameters(), None) is not None
