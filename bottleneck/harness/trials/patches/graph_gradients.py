"""Gradients that a CUDA graph has written, kept where the script goes on to use them.

In: calls of `zero_grad`, optimizer steps, calls of root modules. Out: gradients that outlive the next
forward, whose graph writes over them: set to None where the script fills them with zeros, copied where
it adds up those of several backward passes. Without either, torch ends the script with an error.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch.optim import optimizer as optim_module

from .base import plural
from .optimizers import SetToNone


class GraphGradients(SetToNone):
    """A part of the patch that records CUDA graphs."""

    def install(self) -> None:
        super().install()
        self._passes = 0
        self._updates = 0
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._copies: dict[int, weakref.ref[Any]] = {}
        self.replaced.hook(optim_module.register_optimizer_step_post_hook(self._stepped))

    def take_out(self) -> None:
        """What the last graph has written stays the script's, whatever the graphs write later."""
        for root in self._roots:
            self._move(root)
        super().take_out()

    def _stepped(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._passes = 0

    def first_pass(self, module: torch.nn.Module) -> bool:
        """A root module is about to be called; say whether it is the first that trains in this update.

        Before a later one the gradients so far are moved out of the graphs' memory.
        """
        if not torch.is_grad_enabled():
            return False
        self._passes += 1
        self._roots.add(module)
        if self._passes == 1:
            return True
        moved = sum(self._move(root) for root in self._roots)
        if moved and self._passes == 2:
            self._updates += 1
        return False

    def _move(self, root: torch.nn.Module) -> int:
        moved = 0
        for parameter in root.parameters():
            gradient, known = parameter.grad, self._copies.get(id(parameter))
            if gradient is None or (known is not None and known() is gradient):
                continue
            with contextlib.suppress(RuntimeError):
                parameter.grad = gradient.detach().clone()
                self._copies[id(parameter)] = weakref.ref(parameter.grad)
                moved += 1
                continue
            # Written over already: left from the update before, and nobody will add to them.
            break
        return moved

    def evidence(self) -> str:
        told = [f"gradients set to None in {plural(self.count, 'call')} of zero_grad"] if self.count else []
        if self._updates:
            told.append(f"gradients copied between the backward passes of {plural(self._updates, 'update')}")
        return ", ".join(told)
