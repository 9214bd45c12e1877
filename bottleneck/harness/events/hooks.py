"""What is replaced in torch while a script runs under us, and how it is put back.

In: an observer whose methods are called at each event. Out: nothing; `uninstall` restores every
attribute on the object it was replaced on.

Neutral to torch.compile (graphs, breaks, recompiles are those of a run without us), because each
wrapper asks `is_compiling()` first, which dynamo folds to a constant, and is marked as code that
dynamo skips. Global module hooks, torch-function modes or a wrapped `profile_hook_step` are not
neutral and are not used. Costs without a profiler, per call: nested module 0.4 us (none while steps are
timed, where nothing is compiled), any other about 3 us in a real step, 2 us where `quick` stands in.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.optim import optimizer as optim_module
from torch.utils.data import dataloader as loader_module

from .. import torch_private
from . import quick
from .replacing import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .observer import Observer
    from .tape import Tape

__all__ = ["Hooks"]

_is_compiling = torch.compiler.is_compiling


_QUICK: dict[str, Callable[..., Callable[..., Any]]] = {
    "_engine_run_backward": quick.run_backward,
    "__next__": quick.fetch,
    "zero_grad": quick.zero_grad,
}


class _Local(threading.local):
    depth = 0


class Hooks:
    """The set of replacements; one per process."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        """May change between any two events."""
        self._replaced = Replacements()
        self._handles: list[Any] = []
        self._step_hooks: list[Callable[..., None]] = []
        self._copies = Replacements()
        self._narrowed = Replacements()
        self._plain_call: Callable[..., Any] = torch.nn.Module.__call__
        self._wide: Any = None
        """Our `nn.Module.__call__` while it is not in place."""
        self._local = _Local()

    # -- installing ----------------------------------------------------------------------------

    def install(self) -> None:
        """Put everything in. What this torch does not have is left out."""
        put = self._replaced.put
        self._plain_call = torch.nn.Module.__call__
        put(torch.nn.Module, "__call__", self._module_call)
        owner = torch_private.engine_owner()
        if owner is not None:
            put(*owner, self._run_backward)
        put(torch_private.LoaderIterator, "__next__", self._next)
        put(loader_module.DataLoader, "__iter__", self._iter)
        self._replaced.put_disabled(optim_module.Optimizer, "zero_grad", self._zero_grad)
        put(optim_module.Optimizer, "__init__", self._optimizer_init)
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is not None:
            put(scaler, "step", self._scaler_step)
        session = autograd_profiler.profile
        if hasattr(session, "_prepare_trace"):
            put(session, "_prepare_trace", self._prepare_trace)
            put(session, "__exit__", self._profile_exit)
        self._step_hooks = [self._step_hook(begin=True), self._step_hook(begin=False)]
        self._handles = [
            optim_module.register_optimizer_step_pre_hook(self._step_hooks[0]),
            optim_module.register_optimizer_step_post_hook(self._step_hooks[1]),
        ]

    @property
    def module_call(self) -> Callable[..., Any]:
        """`nn.Module.__call__` as torch has it."""
        return self._plain_call

    def uninstall(self) -> None:
        """Put everything back that is still ours; what the script has replaced since stays its."""
        self.widen()
        self.unlabel_copies()
        for handle in self._handles:
            handle.remove()
        self._handles, self._step_hooks = [], []
        self._replaced.undo()

    def quicken(self, tape: Tape, roots: Iterable[type]) -> bool:
        """Have events noted on the tape right where they happen, until `widen`.

        Not for programs that compile: what dynamo saw of these functions must not change.

        Args:
            tape: is the observer already.
            roots: classes of the modules that the program calls itself: calls of others cost nothing.

        Returns:
            Whether only these classes are watched.
        """
        for owner, name, original, wide, _own in self._replaced.entries:
            make = _QUICK.get(name)
            if make is not None and vars(owner).get(name) is wide:
                self._narrowed.put(owner, name, partial(make, tape, original))
        for handle, wide_hook, make_hook in zip(
            self._handles, self._step_hooks, (quick.before_step, quick.after_step), strict=True
        ):
            torch_private.exchange_hook(handle, make_hook(tape, wide_hook))
        return self._narrow(tape, roots)

    def _narrow(self, tape: Tape, roots: Iterable[type]) -> bool:
        ours = vars(torch.nn.Module).get("__call__")
        plain = self.module_call
        chosen = set(roots)
        # A class with a `__call__` of its own reaches torch's by its own ways.
        if not chosen or ours is plain or any(kind.__call__ is not ours for kind in chosen):
            return False
        torch.nn.Module.__call__ = plain
        wide = self._root_call()
        for kind in chosen:
            self._narrowed.put(kind, "__call__", lambda _plain: quick.root_call(tape, wide))
        self._wide = ours
        return True

    def widen(self) -> None:
        """Tell the observer of everything again, calls of all modules among it."""
        wide, self._wide = self._wide, None
        self._narrowed.undo()
        if wide is not None and vars(torch.nn.Module).get("__call__") is self.module_call:
            torch.nn.Module.__call__ = wide
        for handle, hook in zip(self._handles, self._step_hooks, strict=True):
            torch_private.exchange_hook(handle, hook)

    def label_copies(self) -> None:
        """Report host-to-device copies from now on: for the trace window of GPU runs only.

        Replacing `Tensor.to` is neutral to torch.compile, but it changes the identity of
        `torch.Tensor.to`, by which tensor subclasses dispatch, and costs 0.4 us on every call.
        """
        if self._copies.entries:
            return
        for name in ("to", "cuda"):
            self._copies.put(torch.Tensor, name, self._copy)

    def unlabel_copies(self) -> None:
        """Stop reporting copies."""
        self._copies.undo()

    # -- the wrappers --------------------------------------------------------------------------

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        local, hooks = self._local, self
        range_of = torch_private.record_function

        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # is_compiling() must come first: dynamo would guard on the thread-local.
            if _is_compiling() or local.depth:
                return original(self, *args, **kwargs)
            label = hooks.observer.begin_forward(self)
            if label is None:
                return original(self, *args, **kwargs)
            local.depth = 1
            try:
                if autograd_profiler._is_profiler_enabled:
                    with range_of(label):
                        return original(self, *args, **kwargs)
                return original(self, *args, **kwargs)
            finally:
                local.depth = 0
                hooks.observer.end_phase()

        return call

    def _root_call(self) -> Callable[..., Any]:
        """The same for single classes, while nothing is compiled."""
        local, hooks = self._local, self
        range_of = torch_private.record_function
        # Its `__call__` is looked up at each call: torch.fx and others replace it for a while.
        module_class = torch.nn.Module

        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if local.depth:
                return module_class.__call__(self, *args, **kwargs)
            label = hooks.observer.begin_forward(self)
            if label is None:
                return module_class.__call__(self, *args, **kwargs)
            local.depth = 1
            try:
                if autograd_profiler._is_profiler_enabled:
                    with range_of(label):
                        return module_class.__call__(self, *args, **kwargs)
                return module_class.__call__(self, *args, **kwargs)
            finally:
                local.depth = 0
                hooks.observer.end_phase()

        return call

    def _run_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self
        range_of = torch_private.record_function
        is_real_loss = torch_private.is_real_loss

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or not is_real_loss(t_outputs):
                return original(t_outputs, *args, **kwargs)
            if not hooks.observer.begin_backward(bool(kwargs.get("accumulate_grad", False))):
                return original(t_outputs, *args, **kwargs)
            try:
                if autograd_profiler._is_profiler_enabled:
                    with range_of("backward"):
                        return original(t_outputs, *args, **kwargs)
                return original(t_outputs, *args, **kwargs)
            finally:
                hooks.observer.end_backward()

        return _engine_run_backward

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self
        range_of = torch_private.record_function

        def fetch(self: Any) -> Any:
            if not hooks.observer.begin_fetch():
                return original(self)
            batch = None
            try:
                if autograd_profiler._is_profiler_enabled:
                    with range_of("data"):
                        batch = original(self)
                else:
                    batch = original(self)
            finally:
                hooks.observer.end_fetch(self, batch)
            return batch

        return fetch

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self
        range_of = torch_private.record_function

        def begin(self: Any) -> Any:
            # Starting workers is part of waiting for data, though no batch comes of it.
            if not hooks.observer.begin_fetch():
                return original(self)
            try:
                with range_of("data"):
                    return original(self)
            finally:
                hooks.observer.end_phase()

        return begin

    def _zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self
        range_of = torch_private.record_function

        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            set_to_none = kwargs.get("set_to_none", True) if kwargs or not args else args[0]
            if not hooks.observer.begin_zero_grad(set_to_none):
                return original(self, *args, **kwargs)
            try:
                if autograd_profiler._is_profiler_enabled:
                    with range_of("zero_grad"):
                        return original(self, *args, **kwargs)
                return original(self, *args, **kwargs)
            finally:
                hooks.observer.end_phase()

        return zero_grad

    def _optimizer_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self

        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not _is_compiling():
                hooks.observer.built_optimizer(self)

        return build

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self
        range_of = torch_private.record_function

        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or not hooks.observer.mine():
                return original(self, optimizer, *args, **kwargs)
            hooks.observer.begin_scaler(self)
            try:
                if autograd_profiler._is_profiler_enabled:
                    with range_of("optimizer"):
                        return original(self, optimizer, *args, **kwargs)
                return original(self, optimizer, *args, **kwargs)
            finally:
                hooks.observer.end_scaler(optimizer)

        return step

    def _step_hook(self, *, begin: bool) -> Callable[..., None]:
        hooks = self

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
            if _is_compiling():
                return
            hooks.observer.begin_optimizer(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
            if _is_compiling():
                return
            hooks.observer.end_optimizer(optimizer)

        hook = before if begin else after
        torch_private.mark_skip(hook.__code__)
        return hook

    def _prepare_trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self

        def _prepare_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks.observer.own_profiler_busy():
                hooks.observer.foreign_profiler(active=True)
            return original(self, *args, **kwargs)

        return _prepare_trace

    def _profile_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self

        def leave(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                if not hooks.observer.own_profiler_busy():
                    hooks.observer.foreign_profiler(active=False)

        return leave

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self
        range_of = torch_private.record_function

        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or self.device.type != "cpu" or not _to_device(args, kwargs):
                return original(self, *args, **kwargs)
            if not hooks.observer.mine():
                return original(self, *args, **kwargs)
            hooks.observer.begin_copy()
            try:
                with range_of("h2d"):
                    return original(self, *args, **kwargs)
            finally:
                hooks.observer.end_phase()

        return copy


def _to_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the arguments of `Tensor.to` (or `.cuda`) name another device than the CPU."""
    target = kwargs.get("device", args[0] if args else "cuda")
    if isinstance(target, torch.dtype):
        return False
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        return bool(target.type != "cpu")
    return isinstance(target, int) or (isinstance(target, str) and not target.startswith("cpu"))
