"""Modules that are called again with the same input hand out what they returned before, and so do products.

In: calls of modules and of products. Out: the same outputs, computed once between two backward passes. Which
of them repeat themselves shows in the first two passes; the others then run as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from ... import torch_private
from ...facts.repeats import Signature, given, products, random_state, signature_of, state_of
from .base import NotSwitchable, Patch

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


def _weight(argument: Any) -> Any:
    """Return what tells a product from others of its name: its weight, or how large what it is given is."""
    if not isinstance(argument, torch.Tensor):
        return None
    return id(argument) if isinstance(argument, torch.nn.Parameter) else argument.shape


class CalledOnce(Patch):
    """Each module, and each product, computes the same thing once."""

    fix = "FX326"
    live = True
    settles = 1 + _PASSES
    says = ("{} answered by an earlier one", "call")
    nothing_to_do = "no module or product outside compiled code was called again with the same input"

    def install(self) -> None:
        self._known: defaultdict[Hashable, dict[tuple[Any, ...], _Known]] = defaultdict(dict)
        """By module or product, and by what a call of it depends on."""
        self._parameters: dict[int, tuple[torch.nn.Module, list[torch.nn.Parameter]]] = {}
        """By module, as they were at its first call of this pass; kept with it: no other has its id then."""
        self._repeating: set[Hashable] = set()
        self._passes = self._inside = 0
        self.replaced.put(torch.nn.Module, "__call__", self._make_call)
        for owner, name in products():
            self.replaced.put(owner, name, self._make_product)
        engine = torch_private.engine_owner()
        if engine is None:
            raise NotSwitchable("this torch does not tell when a backward begins")
        self.replaced.put(*engine, self._make_engine)

    def uninstall(self) -> None:
        super().uninstall()
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._parameters.clear()

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad"):
                # It frees what was recorded with the outputs.
                self._forget()
                self._passes += 1
            elif len(args) > 1 and self._holds_graphs():
                # `autograd.grad` would: another one may go through the same outputs.
                args = torch_private.retaining(args)
            return original(outputs, *args, **kwargs)

        return run_backward

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - stands in for it
            self._inside += 1
            try:
                if not self._looks_at(id(module)):
                    return original(module, *args, **kwargs)
                if id(module) not in self._parameters:
                    self._parameters[id(module)] = module, list(module.parameters())
                signature = signature_of(module, args, kwargs, self._parameters[id(module)][1])
                return self._once(id(module), signature, lambda: original(module, *args, **kwargs))
            finally:
                self._inside -= 1

        return __call__

    def _make_product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def product(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                return original(*args, **kwargs)
            plain, named = given(args, kwargs)
            which = (id(original), *map(_weight, plain))
            if not self._looks_at(which):
                return original(*args, **kwargs)
            signature = signature_of(original, plain, named)
            return self._once(which, signature, lambda: original(*args, **kwargs))

        return product

    def _looks_at(self, which: Hashable) -> bool:
        wanted = self._passes < _PASSES or which in self._repeating
        return wanted and not torch.compiler.is_compiling() and not torch_private.in_backward()

    def _once(self, which: Hashable, signature: Signature | None, compute: Callable[[], Any]) -> Any:
        graded = torch.is_grad_enabled()
        known = self._known[which].get(signature.key) if signature is not None else None
        if known is not None and known.is_as_returned and known.graded >= graded:
            self._repeating.add(which)
            self.acted_here()
            if known.graded == graded:
                return known.output
            bare = [each.detach() for each in _tensors(known.output)]
            return bare[0] if isinstance(known.output, torch.Tensor) else type(known.output)(bare)
        random = random_state()
        output = compute()
        if signature is not None and _is_plain(output) and random_state() == random:
            state = [state_of(each) for each in _tensors(output)]
            self._keep(which, _Known(signature, output, state, graded))
        return output

    def _holds_graphs(self) -> bool:
        return any(known.graded for its in self._known.values() for known in its.values())

    def _keep(self, which: Hashable, new: _Known) -> None:
        """Keep a call, and no others of its module or product that nobody can ask for again."""
        its = self._known[which]
        for key, known in list(its.items()):
            if not known.signature.is_unchanged or known.signature.parameters != new.signature.parameters:
                del its[key]
        its[new.signature.key] = new
