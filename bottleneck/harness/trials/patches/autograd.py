"""Patches of what autograd is asked to do beside differentiating: look for NaN, cast, move, compute twice.

In: `torch.set_anomaly_enabled`, which all ways of detecting anomalies lead to; autocast; what a backward
makes gradients for; `save_on_cpu`; the two ways in which `torch.utils.checkpoint` computes things twice. Out:
the same training without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....model.verify import Applied
from ... import torch_private
from ...lines.gradient_reads import held_by
from ..fewer_gradients import PASSES_SEEN, OnlyWhatIsRead
from .base import Patch, Program, plural
from .roots import RootPatch


class NoAnomalies(Patch):
    """Anomaly detection stays off, however it is asked for."""

    fix = "FX512"
    live = True
    for_ranks = True
    says = ("anomaly detection left off in {}", "call")
    nothing_to_do = "anomaly detection was never switched on"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._was: tuple[bool, bool] | None = None

    def install(self) -> None:
        self.replaced.put(torch, "set_anomaly_enabled", self._make)

    def training_begins(self) -> None:
        """Nothing can have been switched on before, unless this patch comes while the script trains."""
        if torch.is_anomaly_enabled():
            self._was = (True, torch.is_anomaly_check_nan_enabled())
            torch.set_anomaly_enabled(False, self._was[1])
            self.acted(None)

    def uninstall(self) -> None:
        super().uninstall()
        if self._was is not None:
            torch.set_anomaly_enabled(*self._was)
            self._was = None

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_anomaly_enabled(mode: bool, *args: Any, **kwargs: Any) -> Any:
            if mode:
                self.acted_here()
            return original(False, *args, **kwargs)

        return set_anomaly_enabled

    def check(self) -> Applied:
        if torch.is_anomaly_enabled():
            return self.not_applied("anomaly detection was switched on in a way that was not seen")
        return super().check()


class NoAutocastOnCpu(Patch):
    """Autocast does nothing on the CPU."""

    fix = "FX322"
    live = True
    for_ranks = True
    is_guarded = True
    says = ("autocast left off in {}", "context")
    nothing_to_do = "autocast was never entered: the parameters have 16 bits themselves"

    def install(self) -> None:
        self.replaced.put(torch.autocast, "__enter__", self._make)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(context: Any) -> Any:
            entered = original(context)
            # What it was before, `__exit__` has kept.
            if context.device == "cpu" and torch.is_autocast_enabled("cpu"):
                torch.set_autocast_enabled("cpu", False)
                self.acted_here()
            return entered

        return enter


class NoUnusedGradients(RootPatch):
    """What no optimizer has gets no gradient, and a backward makes none that is cleared before it is read."""

    fix = "FX325"
    nothing_to_do = "all gradients are read, as far as could be seen"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: set[int] = set()
        self._off: list[Any] = []
        self._narrowed = 0
        self._backward = OnlyWhatIsRead(lambda: self._held)

    def install(self) -> None:
        super().install()
        self.replaced.put(torch.optim.Optimizer, "add_param_group", self._make_adding)

    def training_begins(self) -> None:
        self._backward.begin(self.replaced, self._narrows)

    def put_in(self, program: Program) -> None:
        self._held = held_by(program.optimizers)
        self._narrowed = 0
        super().put_in(program)
        if not program.is_replicated and self._backward.begin(self.replaced, self._narrows):
            for root in program.roots:
                self._roots[root] = self.takes(root)
        else:
            self._take_now(program)

    def settle_steps(self, program: Program) -> int:
        return super().settle_steps(program) + (0 if self._backward.is_known else PASSES_SEEN)

    def _narrows(self) -> None:
        self._narrowed += 1
        self.acted_here()

    def _make_adding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            added = original(optimizer, *args, **kwargs)
            self._held |= held_by([optimizer])
            return added

        return add_param_group

    def takes(self, module: torch.nn.Module) -> bool:
        """Turn gradients off in a module that is in training; its calls stay as they are."""
        parameters = list(module.parameters())
        if any(id(p) in self._held for p in parameters):
            unused = [p for p in parameters if p.requires_grad and id(p) not in self._held]
            for parameter in unused:
                parameter.requires_grad_(False)
                self._off.append(parameter)
                self.acted(None)
        return False

    def uninstall(self) -> None:
        super().uninstall()
        self._backward.end()
        while self._off:
            self._off.pop().requires_grad_(True)

    def close(self) -> None:
        self._backward.forget()

    def check(self) -> Applied:
        if self._backward.missed:
            return self.not_applied("a gradient was read that nobody had read before")
        return super().check()

    def evidence(self) -> str:
        off = self.count - self._narrowed
        told = [f"gradients turned off for {plural(off, 'parameter')}"] if off else []
        if self._narrowed:
            told.append(f"{plural(self._narrowed, 'backward')} asked only for gradients that are read")
        return ", ".join(told)


class NoOffloads(Patch):
    """What is saved for backward stays where it is."""

    fix = "FX341"
    live = True
    for_ranks = True
    settles = 3
    says = ("saved tensors stayed where they were in {} of save_on_cpu()", "context")
    nothing_to_do = "save_on_cpu() was not entered while training"

    def install(self) -> None:
        self.replaced.put(torch.autograd.graph.save_on_cpu, "__enter__", self._make)

    def _make(self, _original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(_context: Any) -> None:
            # Hooks all the same: its own `__exit__` takes off what was put on last.
            torch.autograd.graph.saved_tensors_hooks(_with_version, _unchanged).__enter__()
            self.acted_here()

        return enter


def _with_version(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    # Detached: a graph that holds its own output is never freed.
    return tensor.detach(), tensor._version


def _unchanged(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    """Return a tensor that is as it was saved; where there are hooks, autograd does not look for itself."""
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError("a tensor that backward needs was changed in place after save_on_cpu() had it")
    return tensor


class NoCheckpoints(Patch):
    """What is checkpointed keeps its activations."""

    fix = "FX214"
    live = True
    settles = 3
    says = ("{} of checkpoint() kept their activations", "call")
    nothing_to_do = "checkpoint() was never called outside compiled code"

    def install(self) -> None:
        """Replace what `checkpoint` calls: scripts import it by its name, and dynamo knows it by sight."""
        for owner, name in torch_private.checkpoint_ways():
            make = self._make_once if isinstance(getattr(owner, name), type) else self._make_around
            self.replaced.set(owner, name, make())

    def _note(self) -> None:
        if torch.is_grad_enabled():
            self.acted_here()

    def _make_once(self) -> Any:
        class CheckpointFunction:
            """Calls the function itself."""

            @staticmethod
            def apply(function: Any, _preserve_rng_state: bool, *args: Any) -> Any:
                self._note()
                return function(*args)

        return CheckpointFunction

    def _make_around(self) -> Callable[..., Iterator[None]]:
        def generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
            # What lies before the yield comes before the function, what lies after it comes after.
            self._note()
            yield

        return generator
