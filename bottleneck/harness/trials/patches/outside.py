"""Which of torch's modules run outside dynamo's graphs, and how much of the roots' calls they take.

In: the roots, while something is compiled of them. Out: names of modules, and their share of host time in
the last call of a root. At least so much is outside: the script's own code is not counted. Where
dynamo has captured a module of torch's, nothing calls it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ....clocks import perf_counter_ns
from ...events.replacing import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outside"]

_is_compiling = torch.compiler.is_compiling


class Outside:
    """Watches calls from `begin` to `end`."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        """Classes of modules with weights, in the order in which they were called."""
        self.share: float | None = None
        """0 to 1; that of the first call counts the compiling, too, as none of it. None without a call."""
        self._replaced = Replacements()
        self._ns = 0
        self._inside = False

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
            begun = perf_counter_ns()
            try:
                return original(module, *args, **kwargs)
            finally:
                self._ns += perf_counter_ns() - begun
                self._inside = False
                self.names[type(module).__name__] = None

        return call

    def _make_root_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return original(module, *args, **kwargs)
            self._ns = 0
            begun = perf_counter_ns()
            try:
                return original(module, *args, **kwargs)
            finally:
                self.share = self._ns / (perf_counter_ns() - begun)

        return call


def _is_torchs_with_weights(module: torch.nn.Module) -> bool:
    """Dynamo makes no graph of a frame of torch's own when it is called from outside graphs."""
    owner = str(getattr(type(module).forward, "__module__", ""))
    return owner.startswith("torch.nn.modules") and next(module.parameters(), None) is not None
