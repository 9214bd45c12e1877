"""Patches around root modules: autocast and channels_last.

In: calls of modules that no other module's call surrounds, and that have parameters. Out: the same
calls, in bf16 or in another memory format, with outputs as before. A loss module has no parameters
and is left alone; a block that is recomputed during backward is no root.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ....model.verify import Applied
from ... import autograd_private
from ...facts.settings import CHANNELS_LAST, is_channels_last, is_convolution_weight
from .base import NotSwitchable, Patch, Program, plural

CALLS_NOTED = 100
_is_compiling = torch.compiler.is_compiling


class _Local(threading.local):
    depth = 0


class RootPatch(Patch):
    """Comes between the script and its root modules."""

    live = True
    is_guarded = True
    settles = 3
    nothing_to_do = "no module with parameters was called"

    def install(self) -> None:
        self._watch({torch.nn.Module})

    def put_in(self, program: Program) -> None:
        """The roots are known by now: calls of other modules cost nothing then."""
        self._watch({type(root) for root in program.roots})

    def _watch(self, kinds: set[type]) -> None:
        self._local = _Local()
        self._calls = 0
        self._roots: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        for kind in kinds:
            self.replaced.put(kind, "__call__", self._make_call)

    def _take_now(self, program: Program) -> None:
        """Decide about the roots between two steps, not at their next call.

        Raises:
            NotSwitchable: none is to be changed.
        """
        for root in program.roots:
            self._roots[root] = self.takes(root)
        if not self.count:
            raise NotSwitchable("; ".join(self.reasons) or self.nothing_to_do)

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        local = self._local

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # is_compiling() must come first: dynamo would guard on the thread-local.
            if _is_compiling() or local.depth or autograd_private.in_backward():
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
        self.note_call(module)
        return original(module, *args, **kwargs)

    def note_call(self, module: torch.nn.Module) -> None:
        """Note the line of a call that trains; every line is seen in the first steps."""
        if self._calls < CALLS_NOTED and torch.is_grad_enabled():
            self._calls += 1
            self.called(module)


class Bf16(RootPatch):
    """Autocast to bf16 around each root, its outputs handed back in fp32."""

    fix = "FX303"
    for_ranks = True

    def _watch(self, kinds: set[type]) -> None:
        super()._watch(kinds)
        self._seen = False

    def takes(self, module: torch.nn.Module) -> bool:
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
        self.acted(None, device=device)
        return True

    def around(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        self.note_call(module)
        device = next(module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            outputs = original(module, *args, **kwargs)
            self._seen = self._seen or _any_of(outputs, torch.bfloat16)
        return _cast(outputs)

    def evidence(self) -> str:
        halves = ", which returned bfloat16" if self._seen else ""
        return f"autocast(bfloat16) around {plural(self.count, 'module')}{halves}"


class ChannelsLast(RootPatch):
    """Convolution weights and images with channels as the innermost dimension."""

    fix = "FX310"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed: list[weakref.ref[Any]] = []
        self._were: list[tuple[weakref.ref[Any], torch.Tensor]] = []
        """Weights and buffers, and the memory that they were in: others may look at it, too."""
        self._optimizers: tuple[Any, ...] = ()

    def _watch(self, kinds: set[type]) -> None:
        super()._watch(kinds)
        self._inputs = 0

    def put_in(self, program: Program) -> None:
        """Convert the weights, and with them what the optimizers keep of each."""
        super().put_in(program)
        if program.is_replicated:
            raise NotSwitchable("DistributedDataParallel laid its buckets out for the weights as they are")
        self._optimizers = program.optimizers
        self._take_now(program)

    def uninstall(self) -> None:
        """Every weight as it lay before; what came into being meanwhile lies as its weight does."""
        super().uninstall()
        for reference, before in self._were:
            tensor = reference()
            if tensor is not None:
                tensor.data = before.copy_(tensor.data)
                self._lay(tensor, before.stride())
        self._were.clear()
        self._changed.clear()
        self._optimizers = ()

    def takes(self, module: torch.nn.Module) -> bool:
        weights = [p for p in module.parameters() if is_convolution_weight(p)]
        if not weights:
            self.passed("it has no convolution weights")
            return False
        if all(map(is_channels_last, weights)):
            self.passed("it is in channels_last already")
            return False
        # Not module.to(): it hands one format to tensors of four and of five dimensions.
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.dim() in CHANNELS_LAST and 0 not in tensor.stride():
                self._were.append((weakref.ref(tensor), tensor.data))
                meta = tensor.to(memory_format=CHANNELS_LAST[tensor.dim()], device="meta")
                self._lay(tensor, meta.stride())
        self._changed.append(weakref.ref(module))
        formats = sorted({str(CHANNELS_LAST[p.dim()]) for p in weights})
        self.acted(None, memory_format=formats[0], parts=len(formats) > 1)
        return True

    def around(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        self.note_call(module)
        return original(
            module,
            *(self._converted(value) for value in args),
            **{name: self._converted(value) for name, value in kwargs.items()},
        )

    def _lay(self, tensor: torch.Tensor, stride: tuple[int, ...]) -> None:
        """Lay a tensor out with other strides, and with it what belongs to a weight.

        What optimizers keep of it goes along: fused kernels want all in one order.
        """
        states = (optimizer.state.get(tensor, {}) for optimizer in self._optimizers)
        for laid in (tensor, tensor.grad, *(value for state in states for value in state.values())):
            if isinstance(laid, torch.Tensor) and laid.shape == tensor.shape and laid.stride() != stride:
                laid.data = _strided(laid.data, stride)

    def _converted(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() in CHANNELS_LAST:
            self._inputs += 1
            return value.contiguous(memory_format=CHANNELS_LAST[value.dim()])
        return value

    def check(self) -> Applied:
        modules = [m for m in (reference() for reference in self._changed) if m is not None]
        kept = [is_channels_last(p) for m in modules for p in m.parameters() if is_convolution_weight(p)]
        if self.count and kept and not all(kept):
            return self.not_applied("the weights went back to their old memory format")
        return super().check()

    def evidence(self) -> str:
        return f"channels_last on {plural(self.count, 'module')} and {plural(self._inputs, 'input')}"


def _strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return the same values in memory of another order."""
    laid = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return laid.copy_(tensor)


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
