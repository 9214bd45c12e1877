"""Modules that are called again with the same input hand out what they returned before.

In: calls of modules. Out: the same outputs, computed once between two backward passes. Which modules repeat
themselves shows in the first two passes; the others then run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ... import torch_private
from ...facts.repeats import Signature, random_state, signature_of, state_of
from .base import Patch

_PASSES = 2
"""Backward passes before which each module is looked at."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A call, and what it returned."""

    signature: Signature
    output: Any
    state: list[tuple[Any, ...]]
    """Of the output's tensors: what the script changes in place is not handed out."""
    graded: bool

    @property
    def is_as_returned(self) -> bool:
        return self.signature.is_alive and [state_of(each) for each in _tensors(self.output)] == self.state


def _tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of an output that is one, or a tuple of them."""
    return [output] if isinstance(output, torch.Tensor) else list(output)


def _is_plain(output: Any) -> bool:
    several = type(output) in (tuple, list) and all(isinstance(each, torch.Tensor) for each in output)
    return isinstance(output, torch.Tensor) or several


class CalledOnce(Patch):
    """Each module computes the same thing once."""

    fix = "FX326"
    live = True
    settles = 1 + _PASSES
    says = ("{} answered by an earlier one", "call")
    nothing_to_do = "no module outside compiled code was called again with the same input"

    def install(self) -> None:
        self._known: dict[tuple[Any, ...], _Known] = {}
        self._repeating: set[int] = set()
        self._passes = 0
        self.replaced.put(torch.nn.Module, "__call__", self._make_call)
        self.replaced.put(torch.autograd, "backward", self._make_backward)

    def uninstall(self) -> None:
        super().uninstall()
        self._known.clear()

    def _make_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            # It frees what was recorded with the outputs.
            self._known.clear()
            self._passes += 1
            return original(*args, **kwargs)

        return backward

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - stands in for it
            looked_at = self._passes < _PASSES or id(module) in self._repeating
            if not looked_at or torch.compiler.is_compiling() or torch_private.in_backward():
                return original(module, *args, **kwargs)
            signature, graded = signature_of(module, args, kwargs), torch.is_grad_enabled()
            known = self._known.get(signature.key) if signature is not None else None
            if known is not None and known.is_as_returned and known.graded >= graded:
                self._repeating.add(id(module))
                self.acted_here()
                if known.graded == graded:
                    return known.output
                bare = [each.detach() for each in _tensors(known.output)]
                return bare[0] if isinstance(known.output, torch.Tensor) else type(known.output)(bare)
            random = random_state()
            output = original(module, *args, **kwargs)
            if signature is not None and _is_plain(output) and random_state() == random:
                state = [state_of(each) for each in _tensors(output)]
                self._known[signature.key] = _Known(signature, output, state, graded)
            return output

        return __call__
