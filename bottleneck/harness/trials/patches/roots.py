"""Patches around root modules: autocast and channels_last.

In: calls of modules that no other module's call surrounds, and that have parameters. Out: the same
calls, in bf16 or in another memory format, with outputs as before. A loss module has no parameters
and is left alone; a block that is recomputed during backward is no root.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...lines.sites import user_site
from .base import Patch, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....model.verify import Applied

__all__ = ["RootPatch"]

_is_compiling = torch.compiler.is_compiling


class _Local(threading.local):
    depth = 0


class RootPatch(Patch):
    """Comes between the script and its root modules."""

    def install(self) -> None:
        """See `Patch`."""
        self._local = _Local()
        self._roots: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.replaced.put(torch.nn.Module, "__call__", self._make_call)

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        local = self._local

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # is_compiling() must come first: dynamo would guard on the thread-local.
            if _is_compiling() or local.depth or torch_private.in_backward():
                return original(module, *args, **kwargs)
            local.depth = 1
            try:
                if not self._is_ours(module):
                    return original(module, *args, **kwargs)
                return self.around(original, module, args, kwargs)
            finally:
                local.depth = 0

        return call

    def _is_ours(self, module: torch.nn.Module) -> bool:
        known = self._roots.get(module)
        if known is None:
            if not torch.is_grad_enabled():
                # What trains is decided when it trains: an evaluation before the first step is none.
                return False
            known = self._roots[module] = self.takes(module)
        return known

    def takes(self, module: torch.nn.Module) -> bool:
        """Decide, at its first call with gradients on, whether a root module is to be changed."""
        return next(module.parameters(), None) is not None

    def around(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a root module that `takes` accepted."""
        return original(module, *args, **kwargs)

    def nothing_to_do(self) -> str:
        """See `Patch`."""
        return "no module with parameters was called"


class Bf16(RootPatch):
    """Autocast to bf16 around each root, its outputs handed back in fp32."""

    fix = "FX303"

    def install(self) -> None:
        """See `Patch`."""
        super().install()
        self._seen = False

    def takes(self, module: torch.nn.Module) -> bool:
        """See `RootPatch`."""
        if not super().takes(module):
            return False
        device = next(module.parameters()).device.type
        if torch.is_autocast_enabled(device):
            self.passed("the script runs it under autocast already")
            return False
        floats = {p.dtype for p in module.parameters() if p.is_floating_point()}
        if floats and torch.float32 not in floats:
            self.passed(f"its parameters are {', '.join(sorted(str(d)[6:] for d in floats))}")
            return False
        self.acted(user_site())
        return True

    def around(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """See `RootPatch`."""
        device = next(module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            outputs = original(module, *args, **kwargs)
            self._seen = self._seen or _any_of(outputs, torch.bfloat16)
        return _cast(outputs)

    def evidence(self) -> str:
        """See `Patch`."""
        halves = ", which returned bfloat16" if self._seen else ""
        return f"autocast(bfloat16) around {plural(self.count, 'module')}{halves}"


class ChannelsLast(RootPatch):
    """Convolution weights and images with channels as the innermost dimension."""

    fix = "FX310"

    def install(self) -> None:
        """See `Patch`."""
        super().install()
        self._inputs = 0
        self._changed: list[weakref.ref[Any]] = []

    def takes(self, module: torch.nn.Module) -> bool:
        """See `RootPatch`."""
        images = [p for p in module.parameters() if p.dim() == 4 and p.shape[2] * p.shape[3] > 1]
        if not images:
            self.passed("it has no convolution weights")
            return False
        if all(p.is_contiguous(memory_format=torch.channels_last) for p in images):
            self.passed("it is in channels_last already")
            return False
        module.to(memory_format=torch.channels_last)
        self._changed.append(weakref.ref(module))
        self.acted(user_site())
        return True

    def around(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """See `RootPatch`."""
        return original(
            module,
            *(self._converted(value) for value in args),
            **{name: self._converted(value) for name, value in kwargs.items()},
        )

    def _converted(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() == 4:
            self._inputs += 1
            return value.contiguous(memory_format=torch.channels_last)
        return value

    def check(self) -> Applied:
        """See `Patch`."""
        modules = [m for m in (reference() for reference in self._changed) if m is not None]
        kept = [
            p.is_contiguous(memory_format=torch.channels_last)
            for m in modules
            for p in m.parameters()
            if p.dim() == 4 and p.shape[2] * p.shape[3] > 1
        ]
        if self.count and kept and not all(kept):
            return self.not_applied("the weights went back to their old memory format")
        return super().check()

    def evidence(self) -> str:
        """See `Patch`."""
        return f"channels_last on {plural(self.count, 'module')} and {plural(self._inputs, 'input')}"


def _cast(value: Any) -> Any:
    """Return outputs with bfloat16 tensors in fp32: what comes after the module is not under autocast."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is torch.bfloat16 else value
    if isinstance(value, tuple):
        items = [_cast(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_cast(item) for item in value]
    if isinstance(value, dict):
        # Transformers' outputs are ordered dictionaries whose fields are attributes as well.
        for key, item in list(value.items()):
            cast = _cast(item)
            if cast is not item:
                value[key] = cast
    return value


def _any_of(value: Any, dtype: torch.dtype) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype is dtype
    if isinstance(value, dict):
        return any(_any_of(item, dtype) for item in value.values())
    return isinstance(value, (tuple, list)) and any(_any_of(item, dtype) for item in value)
