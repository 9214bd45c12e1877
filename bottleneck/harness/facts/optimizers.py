"""Which optimizers were built, where, and which implementation their step takes.

In: each optimizer as it is constructed; looked at again when facts are read. Out: `OptimizerFacts`.
Only weak references are kept.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Literal

import torch

from ...model.run import OptimizerFacts, SourceSite
from ..lines.sites import user_site
from .values import denormals

MAX_OPTIMIZERS = 32


class OptimizerBook:
    """The optimizers of one process, in order of construction."""

    def __init__(self) -> None:
        self._entries: list[tuple[weakref.ref[Any], SourceSite | None]] = []

    def built(self, optimizer: object) -> None:
        """Remember an optimizer and the user's line that made it."""
        self._remember(optimizer, user_site(4))

    def met(self, optimizer: object) -> None:
        """Remember an optimizer that was built before we came."""
        if all(reference() is not optimizer for reference, _site in self._entries):
            self._remember(optimizer, None)

    def _remember(self, optimizer: object, site: SourceSite | None) -> None:
        if len(self._entries) < MAX_OPTIMIZERS:
            with contextlib.suppress(TypeError):
                self._entries.append((weakref.ref(optimizer), site))

    def living(self) -> list[Any]:
        """Return the optimizers that still live."""
        return [found for found in (reference() for reference, _site in self._entries) if found is not None]

    def facts(self) -> list[OptimizerFacts]:
        """Return what the optimizers that still live are and do."""
        found = []
        for reference, site in self._entries:
            optimizer = reference()
            if optimizer is not None:
                with contextlib.suppress(Exception):
                    found.append(_facts(optimizer, site))
        return found


def _facts(optimizer: Any, site: SourceSite | None) -> OptimizerFacts:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kind = type(optimizer)
    return OptimizerFacts(
        cls=kind.__name__,
        module=kind.__module__,
        flavour=_flavour(optimizer, parameters),
        parameters=len(parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        parameter_dtype=_main_dtype(parameters),
        compiled=_is_compiled(optimizer),
        denormal_share=_denormal_share(optimizer, parameters),
        site=site,
    )


def _denormal_share(optimizer: Any, parameters: list[torch.Tensor]) -> float | None:
    states = [value for state in optimizer.state.values() for value in state.values()]
    held = [*parameters, *(p.grad for p in parameters), *states]
    here = [
        each.detach()
        for each in held
        if isinstance(each, torch.Tensor)
        and (each.device.type, each.layout) == ("cpu", torch.strided)
        and each.is_floating_point()
    ]
    whole = sum(each.numel() for each in here)
    return sum(denormals(each) for each in here if each.numel()) / whole if whole else None


def _main_dtype(parameters: list[Any]) -> str:
    elements: dict[str, int] = {}
    for parameter in parameters:
        name = str(parameter.dtype).removeprefix("torch.")
        elements[name] = elements.get(name, 0) + parameter.numel()
    return max(elements, key=elements.__getitem__, default="")


def _flavour(optimizer: Any, parameters: list[Any]) -> Literal["fused", "foreach", "for-loop", "unknown"]:
    """Tell which implementation torch takes, by torch's own rule where the user left it open."""
    groups = optimizer.param_groups
    if not type(optimizer).__module__.startswith("torch.optim") or not groups:
        return "unknown"
    group = groups[0]
    if group.get("fused"):
        return "fused"
    if group.get("foreach"):
        return "foreach"
    if "foreach" not in group:
        return "for-loop"
    if group["foreach"] is False or group.get("differentiable"):
        return "for-loop"
    from torch.optim import optimizer as optim_module

    choose = getattr(optim_module, "_default_to_fused_or_foreach", None)
    if choose is None:
        return "unknown"
    with_grad = [p for p in parameters if p.grad is not None] or parameters
    _fused, foreach = choose(with_grad, bool(group.get("differentiable")), False)
    return "foreach" if foreach else "for-loop"


def _is_compiled(optimizer: Any) -> bool:
    step = getattr(optimizer, "step", None)
    return hasattr(step, "_torchdynamo_orig_callable")
