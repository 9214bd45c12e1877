"""What is replaced in torch while a script runs under us, and how it is put back.

In: the buffer that takes events. Out: nothing; `uninstall` restores every attribute on the object it
was replaced on.

Neutral to torch.compile (graphs, breaks, recompiles are those of a run without us), because each
wrapper asks `is_compiling()` first, which dynamo folds to a constant, and is marked as code that
dynamo skips. Global module hooks, torch-function modes or a wrapped `profile_hook_step` are not
neutral and are not used. Costs without a profiler, per call: nested module 0.4 us (none while steps are
timed, where nothing is compiled), any other about 3 us in a real step, less where `fast` stands in.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.optim import optimizer as optim_module
from torch.utils.data import dataloader as loader_module

from .. import autograd_private, loader_private, torch_private
from . import fast
from .replacing import Replacements, exchange
from .table import (
    ANOMALIES,
    BACKWARD,
    CLOSURE,
    COPY,
    FETCH,
    FORWARD,
    MODEL_WRAPPED,
    OPTIMIZER,
    OPTIMIZER_BUILT,
    SAVE,
    SCALER,
    SCRIPT_PROFILER,
    WORKERS,
    ZERO_GRAD,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .buffer import EventBuffer
    from .table import Event

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

_is_compiling = torch.compiler.is_compiling
_OURS = __name__.partition(".")[0]


_FAST: dict[str, Callable[..., Function]] = {
    "_engine_run_backward": fast.run_backward,
    "__next__": fast.fetch,
    "zero_grad": fast.zero_grad,
}


class Hooks:
    """The set of replacements; one per process."""

    def __init__(self, buffer: EventBuffer) -> None:
        """Replace nothing yet; `buffer` will take the events."""
        self.plain_call: Function = torch.nn.Module.__call__
        """`nn.Module.__call__` as torch has it."""
        self._buffer = buffer
        self._replaced = Replacements()
        self._copies = Replacements()
        self._narrowed = Replacements()
        self._only_roots = False
        self._handles: list[Any] = []
        self._step_hooks: list[Callable[..., Any]] = []

    # -- installing ----------------------------------------------------------------------------

    def install(self) -> None:
        """Put everything in. What this torch does not have is left out."""
        put = self._replaced.put
        self.plain_call = torch.nn.Module.__call__
        put(torch.nn.Module, "__call__", self._watch(FORWARD))
        owner = autograd_private.engine_owner()
        if owner is not None:
            put(*owner, self._watch(BACKWARD, _accumulates))
        put(loader_private.LoaderIterator, "__next__", self._watch(FETCH))
        put(loader_module.DataLoader, "__iter__", self._watch(WORKERS))
        self._replaced.put_disabled(optim_module.Optimizer, "zero_grad", self._watch(ZERO_GRAD, _set_to_none))
        put(optim_module.Optimizer, "__init__", self._building(OPTIMIZER_BUILT))
        if torch.distributed.is_available():
            put(torch.nn.parallel.DistributedDataParallel, "__init__", self._building(MODEL_WRAPPED))
        put(torch, "set_anomaly_enabled", self._set_anomaly_enabled)
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is not None:
            put(scaler, "step", self._watch(SCALER, _scaler_and_optimizer))
        session = autograd_profiler.profile
        if hasattr(session, "_prepare_trace"):
            put(session, "_prepare_trace", self._prepare_trace)
            put(session, "__exit__", self._profile_exit)
        self._step_hooks = [self._step_hook(begins=True), self._step_hook(begins=False)]
        self._handles = [
            optim_module.register_optimizer_step_pre_hook(self._step_hooks[0]),
            optim_module.register_optimizer_step_post_hook(self._step_hooks[1]),
        ]

    def uninstall(self) -> None:
        """Put everything back that is still ours; what the script has replaced since stays its."""
        self.widen()
        self.unlabel_copies()
        for handle in self._handles:
            handle.remove()
        self._handles, self._step_hooks = [], []
        self._replaced.undo()

    def narrow(self, roots: Iterable[type]) -> bool:
        """Have the fast wrappers note events, until `widen`; the buffer holds events already.

        Not for programs that compile: what dynamo saw of these functions must not change.

        Args:
            roots: classes of the modules that the program calls itself: calls of others cost nothing.

        Returns:
            Whether only these classes are watched.
        """
        buffer = self._buffer
        before, after = self._step_hooks
        self._set_step_hooks(fast.before_step(buffer, before), fast.after_step(buffer, after))
        if not self._narrowed.entries:
            for owner, name, original, wide, _own in self._replaced.entries:
                if name in _FAST and vars(owner).get(name) is wide:
                    self._narrowed.put(owner, name, partial(_FAST[name], buffer, original))
            self._only_roots = self._narrow_calls(roots)
        return self._only_roots

    def count(self, roots: Iterable[type]) -> bool:
        """Have them note the ends of steps and nothing else, until `narrow` or `widen`; the buffer counts.

        Returns whether it can be done: not where the classes `roots` cannot be watched alone.
        """
        if not self.narrow(roots):
            return False
        self._set_step_hooks(_nothing, fast.count_update(self._buffer))
        self._exchange_backward(counts=True)
        return True

    def hand_over(self) -> None:
        """The buffer holds and counts no more: the fast wrappers stay, and pass all events on at once."""
        self._set_step_hooks(*self._step_hooks)
        self._exchange_backward(counts=False)

    def widen(self) -> None:
        """Have all events go through the buffer's own methods again, calls of all modules among them."""
        self.hand_over()
        self._narrowed.undo()

    def _set_step_hooks(self, *hooks: Callable[..., Any]) -> None:
        for handle, hook in zip(self._handles, hooks, strict=True):
            torch_private.exchange_hook(handle, hook)

    def _exchange_backward(self, *, counts: bool) -> None:
        """No backward is an event while steps are counted. As it is no method, changing it costs nothing."""
        ours = {entry.name: entry for entry in self._narrowed.entries}.get("_engine_run_backward")
        torchs = {entry.name: entry for entry in self._replaced.entries}.get("_engine_run_backward")
        if ours is not None and torchs is not None:
            before, after = (ours.ours, torchs.original) if counts else (torchs.original, ours.ours)
            exchange(ours.owner, ours.name, before, after)

    def _narrow_calls(self, roots: Iterable[type]) -> bool:
        """Watch calls of these classes of modules alone; return whether that is so."""
        chosen = set(roots)
        ours: Any = next((r.ours for r in self._replaced.entries if r.owner is torch.nn.Module), None)
        if ours is None or vars(torch.nn.Module).get("__call__") is not ours:
            return False
        # A class with a `__call__` of its own reaches torch's by its own ways.
        if not chosen or any(kind.__call__ is not ours for kind in chosen):
            return False
        self._narrowed.set(torch.nn.Module, "__call__", self.plain_call)
        call = fast.root_call(self._buffer, self._watch(FORWARD)(_call_module))
        for kind in chosen:
            self._narrowed.put(kind, "__call__", lambda _plain: call)
        return True

    def label_copies(self) -> None:
        """Report host-to-device copies from now on: for the trace window of GPU runs only.

        Replacing `Tensor.to` is neutral to torch.compile, but it changes the identity of
        `torch.Tensor.to`, by which tensor subclasses dispatch, and costs 0.4 us on every call.
        """
        if not self._copies.entries:
            for name in ("to", "cuda"):
                self._copies.put(torch.Tensor, name, self._watch(COPY, _moves))

    def watch_saves(self) -> None:
        """Report calls of `torch.save` too."""
        self._replaced.put(torch, "save", self._save)

    def unlabel_copies(self) -> None:
        """Stop reporting copies."""
        self._copies.undo()

    # -- the wrappers --------------------------------------------------------------------------

    def _watch(
        self, event: Event, about: Callable[[Any, Args, Kwargs], Any] | None = None
    ) -> Callable[[Function], Function]:
        """Return what wraps a function whose calls are events.

        `about` returns what the call is about, by default its first argument, or None where it is no such
        event.
        """
        buffer, range_of = self._buffer, torch_private.record_function
        calls_module = event is FORWARD

        def make(original: Function) -> Function:
            def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
                # is_compiling() must come first: dynamo would guard on the rest.
                if _is_compiling() or (calls_module and buffer.busy):
                    return original(self, *args, **kwargs)
                subject = self if about is None else about(self, args, kwargs)
                begun = None if subject is None else buffer.begin(event, subject)
                if begun is None:
                    return original(self, *args, **kwargs)
                result, guard = None, buffer.guard
                try:
                    if guard is not None:
                        result = guard(begun, original, (self, *args), kwargs)
                    elif autograd_profiler._is_profiler_enabled:
                        with range_of(begun.phase or begun.name):
                            result = original(self, *args, **kwargs)
                    else:
                        result = original(self, *args, **kwargs)
                finally:
                    buffer.end(begun, subject, result)
                return result

            if calls_module:
                # With stacks, torch's profiler takes every frame of the code behind `nn.Module.__call__`
                # for a module's and reads its local `self`: no other wrapper may share that code.
                call.__code__ = call.__code__.replace()
            return call

        return make

    def _save(self, original: Function) -> Function:
        buffer = self._buffer

        def save(*args: Any, **kwargs: Any) -> Any:
            begun = buffer.begin(SAVE)
            try:
                return original(*args, **kwargs)
            finally:
                if begun is not None:
                    buffer.end(SAVE)

        return save

    def _step_hook(self, *, begins: bool) -> Callable[..., Any]:
        buffer = self._buffer

        mark = self._watch(CLOSURE)(_call_closure)

        def before(optimizer: Any, args: Any, kwargs: Any) -> tuple[Args, Kwargs] | None:
            if _is_compiling() or buffer.begin(OPTIMIZER, optimizer) is None:
                return None
            return _with_closure(args, kwargs, mark)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
            if not _is_compiling() and buffer.is_training_thread():
                buffer.end(OPTIMIZER, optimizer)

        hook = before if begins else after
        torch_private.mark_skip(hook.__code__)
        return hook

    def _building(self, event: Event) -> Callable[[Function], Function]:
        buffer = self._buffer

        def make(original: Function) -> Function:
            def build(self: Any, *args: Any, **kwargs: Any) -> None:
                original(self, *args, **kwargs)
                if not _is_compiling():
                    buffer.happened(event, self)

            return build

        return make

    def _set_anomaly_enabled(self, original: Function) -> Function:
        buffer, noted = self._buffer, False

        def set_anomaly_enabled(mode: bool, *args: Any, **kwargs: Any) -> Any:
            nonlocal noted
            # Not where our own probe puts back what a script switched on before we came.
            if mode and not noted and not sys._getframe(1).f_globals.get("__name__", "").startswith(_OURS):
                noted = True
                buffer.happened(ANOMALIES, None)
            return original(mode, *args, **kwargs)

        return set_anomaly_enabled

    def _prepare_trace(self, original: Function) -> Function:
        buffer = self._buffer

        def _prepare_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
            buffer.happened(SCRIPT_PROFILER, True)
            return original(self, *args, **kwargs)

        return _prepare_trace

    def _profile_exit(self, original: Function) -> Function:
        buffer = self._buffer

        def leave(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                buffer.happened(SCRIPT_PROFILER, False)

        return leave


def _nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Take the place of a hook."""


def _with_closure(args: Args, kwargs: Kwargs, mark: Function) -> tuple[Args, Kwargs] | None:
    """Return the arguments of an optimizer's step with its closure marked.

    None where it has none, or one that is marked: an optimizer around it has handed it on.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure) or (isinstance(closure, partial) and closure.func is mark):
        return None
    marked = partial(mark, closure)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": marked}
    return (args[0], marked, *args[2:]), kwargs


def _call_closure(closure: Function, *args: Any, **kwargs: Any) -> Any:
    return closure(*args, **kwargs)


def _call_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module as torch does now: torch.fx and others replace that for a while."""
    return torch.nn.Module.__call__(self, *args, **kwargs)


# -- what an event is about ------------------------------------------------------------------------


def _accumulates(outputs: Any, _args: Args, kwargs: Kwargs) -> bool | None:
    return bool(kwargs.get("accumulate_grad", False)) if autograd_private.is_real_loss(outputs) else None


def _set_to_none(_optimizer: Any, args: Args, kwargs: Kwargs) -> bool:
    return bool(kwargs.get("set_to_none", args[0] if args else True))


def _scaler_and_optimizer(scaler: Any, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
    return scaler, args[0] if args else kwargs.get("optimizer")


def _moves(tensor: Any, args: Args, kwargs: Kwargs) -> Any:
    return tensor if tensor.device.type == "cpu" and goes_to_device(args, kwargs) else None


def goes_to_device(args: Args, kwargs: Kwargs) -> bool:
    """Return whether the arguments of `Tensor.to` (or `.cuda`) name another device than the CPU."""
    target = kwargs.get("device", args[0] if args else "cuda")
    if isinstance(target, torch.dtype):
        return False
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        return bool(target.type != "cpu")
    return isinstance(target, int) or (isinstance(target, str) and not target.startswith("cpu"))
