"""Patches of what autograd is asked to do beside differentiating: look for NaN, compute things twice.

In: `torch.set_anomaly_enabled`, which all ways of detecting anomalies lead to; `torch.utils.checkpoint`.
Out: the same training without.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint as torch_checkpoint

from ...lines.sites import user_site
from .base import Patch, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....model.verify import Applied

_is_compiling = torch.compiler.is_compiling
MANY = 100
"""Calls whose lines are looked up; later ones are only counted."""


class NoAnomalies(Patch):
    """Anomaly detection stays off, however it is asked for."""

    fix = "FX512"

    def install(self) -> None:
        """See `Patch`."""
        self.replaced.put(torch, "set_anomaly_enabled", self._make)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_anomaly_enabled(mode: bool, *args: Any, **kwargs: Any) -> Any:
            if mode:
                if self.count < MANY:
                    self.acted(user_site())
                else:
                    self.count += 1
            return original(False, *args, **kwargs)

        return set_anomaly_enabled

    def check(self) -> Applied:
        """See `Patch`."""
        if torch.is_anomaly_enabled():
            return self.not_applied("anomaly detection was switched on in a way that was not seen")
        return super().check()

    def evidence(self) -> str:
        """See `Patch`."""
        return f"anomaly detection left off in {plural(self.count, 'call')}"

    def nothing_to_do(self) -> str:
        """See `Patch`."""
        return "anomaly detection was never switched on"


class NoCheckpoints(Patch):
    """What is checkpointed keeps its activations."""

    fix = "FX214"

    def install(self) -> None:
        """See `Patch`."""
        own = inspect.signature(torch_checkpoint.checkpoint).parameters.values()
        # Taken from the keywords by hand, so not in the signature.
        self._own = {p.name for p in own if p.kind is p.KEYWORD_ONLY} | {"preserve_rng_state"}
        self.replaced.put(torch_checkpoint, "checkpoint", self._make)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        own = self._own

        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                # The compiler sees to recomputation itself.
                return original(function, *args, **kwargs)
            if torch.is_grad_enabled():
                if self.count < MANY:
                    self.acted(user_site())
                else:
                    self.count += 1
            return function(*args, **{name: value for name, value in kwargs.items() if name not in own})

        return checkpoint

    def evidence(self) -> str:
        """See `Patch`."""
        return f"{plural(self.count, 'call')} of checkpoint() kept their activations"

    def nothing_to_do(self) -> str:
        """See `Patch`."""
        return "checkpoint() was never called outside compiled code"
