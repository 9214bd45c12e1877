"""Patches of optimizers: fused or foreach implementations, gradients set to None, or dropped earlier.

In: the constructors of torch.optim, `zero_grad`, the end of `step`. Out: the same optimizers with
another implementation of their step, or gradients that live for less long.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch.optim import optimizer as optim_module

from ....model.verify import Applied
from ....runs.store import reason_of
from ... import torch_private
from ...lines.sites import user_site
from .base import NotSwitchable, Patch, Program
from .optimizer_state import OptimizerState


class _Local(threading.local):
    depth = 0


class Flavour(Patch):
    """Another implementation of the optimizer's step; subclasses say which."""

    keyword: ClassVar[str]
    live = True
    for_ranks = True
    is_guarded = True
    settles = 2

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._local = _Local()
        self._changed: list[weakref.ref[Any]] = []
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._were: list[OptimizerState] = []

    def install(self) -> None:
        self._watch_steps()
        for kind in vars(torch.optim).values():
            if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
                continue
            if (
                "__init__" in vars(kind)
                and self.keyword in inspect.signature(vars(kind)["__init__"]).parameters
            ):
                self.replaced.put(kind, "__init__", functools.partial(self._make_init, kind))

    def put_in(self, program: Program) -> None:
        """The optimizers are built by now: change their groups, and where their state lies."""
        self._watch_steps()
        for optimizer in program.optimizers:
            groups = optimizer.param_groups
            if all(self._may_change(optimizer, group) for group in groups) and self._takes(optimizer):
                was = OptimizerState(optimizer)
                self._were.append(was)
                for group in groups:
                    self._choose(group)
                if self.keyword == "fused":
                    # For a gradient scaler: the fused step unscales, and finds what overflowed, itself.
                    optimizer._step_supports_amp_scaling = True
                was.place_steps(fused=self.keyword == "fused")
                self._note_change(optimizer)
        if not self.count:
            raise NotSwitchable("; ".join(self.reasons) or "no optimizer of torch.optim trains")

    def uninstall(self) -> None:
        super().uninstall()
        for was in self._were:
            was.put_back()
        self._were.clear()
        self._changed.clear()

    def _watch_steps(self) -> None:
        self._stepped.clear()
        self.replaced.hook(optim_module.register_optimizer_step_post_hook(self._note_step))

    def _takes(self, optimizer: Any) -> bool:
        name = type(optimizer).__name__
        if any(self.keyword not in group for group in optimizer.param_groups):
            self.passed(f"{name} has no {self.keyword} implementation")
            return False
        if self.keyword == "foreach" and any(
            isinstance(group["lr"], torch.Tensor) and not group.get("capturable")
            for group in optimizer.param_groups
        ):
            self.passed(f"{name} refuses foreach: its lr is a tensor")
            return False
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters):
            self.passed(f"{name} has sparse gradients")
            return False
        refusal = torch_private.fused_refuses(parameters) if self.keyword == "fused" else ""
        if refusal:
            self.passed(f"{name} refuses {self.keyword}: {refusal}")
        return not refusal

    def _choose(self, given: dict[str, Any]) -> None:
        """Ask for this implementation, among arguments or in a parameter group."""
        other = "foreach" if self.keyword == "fused" else "fused"
        given[self.keyword] = True
        if other in given:
            given[other] = None

    def _note_change(self, optimizer: Any) -> None:
        self._changed.append(weakref.ref(optimizer))
        self.acted(user_site(), **{self.keyword: True})

    def _note_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepped.add(optimizer)

    def _make_init(self, kind: type, original: Any) -> Any:
        local = self._local
        signature = inspect.signature(original)

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
            if local.depth:
                return original(optimizer, *args, **kwargs)  # type: ignore[no-any-return]
            local.depth = 1
            try:
                bound = signature.bind(optimizer, *args, **kwargs)
                given = bound.arguments
                if not self._may_change(optimizer, given):
                    return original(optimizer, *args, **kwargs)  # type: ignore[no-any-return]
                given["params"] = list(given["params"])
                as_given = dict(given)
                self._choose(given)
                try:
                    original(*bound.args, **bound.kwargs)
                except (RuntimeError, ValueError, TypeError) as error:
                    # Parameters that this implementation cannot take: the script's own choice stands.
                    self.passed(f"{kind.__name__} refuses {self.keyword}: {reason_of(error)}")
                    bound.arguments.clear()
                    bound.arguments.update(as_given)
                    return original(*bound.args, **bound.kwargs)  # type: ignore[no-any-return]
            finally:
                local.depth = 0
            self._note_change(optimizer)
            return None

        return __init__

    def _may_change(self, optimizer: Any, given: dict[str, Any]) -> bool:
        name = type(optimizer).__name__
        if given.get(self.keyword):
            self.passed(f"{name} is {self.keyword} already")
        elif given.get("differentiable"):
            self.passed(f"{name} is differentiable, which no {self.keyword} implementation is")
        elif not type(optimizer).__module__.startswith("torch.optim"):
            self.passed(f"{name} may have a step of its own")
        else:
            return True
        return False

    def check(self) -> Applied:
        """Look at the parameter groups: a loaded state may have brought the old choice back."""
        alive = [o for o in (reference() for reference in self._changed) if o is not None]
        groups = [group for optimizer in alive for group in optimizer.param_groups]
        if self.count and groups and not all(group.get(self.keyword) for group in groups):
            return self.not_applied(f"the parameter groups are no longer {self.keyword}")
        # One whose step is compiled calls no hooks, but has state by now.
        if self.count and groups and not any(o in self._stepped or o.state for o in alive):
            return self.not_applied("the optimizer it was built into never made a step")
        return super().check()


class Fused(Flavour):
    """One kernel for many parameters."""

    fix = "FX311"
    keyword = "fused"
    says = ("fused=True on {}", "optimizer")
    nothing_to_do = "no optimizer of torch.optim with a fused implementation was built"


class Foreach(Flavour):
    """Each operation once over the whole list of parameters."""

    fix = "FX312"
    keyword = "foreach"
    says = ("foreach=True on {}", "optimizer")
    nothing_to_do = "no optimizer of torch.optim with a foreach implementation was built"


class _Dropping(Patch):
    """Gradients are dropped that the script would keep: what had one gets one again, of zeros."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._had: list[weakref.ref[Any]] = []

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        self.remember(program)

    def remember(self, program: Program) -> None:
        """Note which parameters have a gradient."""
        trained: Iterable[Any] = [p for root in program.roots for p in root.parameters()]
        updated = [p for o in program.optimizers for group in o.param_groups for p in group["params"]]
        had = {id(p): p for p in (*trained, *updated) if p.grad is not None and not p.grad.is_sparse}
        self._had = [weakref.ref(parameter) for parameter in had.values()]

    def take_out(self) -> None:
        """A parameter that takes no part in the step would otherwise never be updated again."""
        super().take_out()
        for reference in self._had:
            parameter = reference()
            if parameter is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._had.clear()


class SetToNone(_Dropping):
    """Gradients are dropped instead of filled with zeros."""

    fix = "FX313"
    live = True
    for_ranks = True
    says = ("set_to_none=True in {} of zero_grad", "call")
    nothing_to_do = "no gradients were filled with zeros"

    def install(self) -> None:
        self.replaced.put_disabled(torch.optim.Optimizer, "zero_grad", self._make_zero_grad)
        self.replaced.put(torch.nn.Module, "zero_grad", self._make_zero_grad)

    def _make_zero_grad(self, original: Any) -> Any:
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            if not set_to_none:
                self.acted_here(set_to_none=True)
            return original(owner, set_to_none=True)

        return zero_grad


class DropAfterStep(_Dropping):
    """Gradients go as soon as the optimizer has used them, not only before the next backward."""

    fix = "FX210"
    live = True
    says = ("gradients dropped after {} of the optimizer", "step")
    nothing_to_do = "after the optimizer's step no gradient was left"

    def install(self) -> None:
        self.replaced.hook(optim_module.register_optimizer_step_post_hook(self._drop))

    def _drop(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(parameter.grad is not None for parameter in parameters):
            self.acted_here()
        for parameter in parameters:
            parameter.grad = None
