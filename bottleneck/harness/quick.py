"""The wrappers in place while steps are timed: they note their events on the tape themselves.

In: a tape, and for each place the wrapper that is there otherwise ("wide") and what torch has
there. Out: the replacement. Between the cold caches of a real step every call of a Python function
costs a microsecond or two; so an event takes one frame here, where it takes four on the way through
the observer. Whatever is not everyday (another thread, an evaluation, an optimizer within a
backward, a cut that is due) goes that way all the same.

For programs that do not compile only: dynamo would see other code than before.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from . import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tape import Tape

__all__ = ["after_step", "before_step", "fetch", "root_call", "run_backward", "zero_grad"]


def root_call(tape: Tape, wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return `__call__` for one class of modules that the program calls itself."""
    note, thread = tape.events.append, tape.thread
    begins, ends = tape.tracker.forward_begins, tape.tracker.phase_ends
    grad_enabled = torch.is_grad_enabled
    # Its `__call__` is looked up at each call: torch.fx and others replace it for a while.
    module_class = torch.nn.Module

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if tape.deep or get_ident() != thread:
            return module_class.__call__(self, *args, **kwargs)
        if tape.look or not grad_enabled():
            return wide(self, *args, **kwargs)
        tape.deep = 1
        note((begins, perf_counter_ns(), "forward"))
        try:
            return module_class.__call__(self, *args, **kwargs)
        finally:
            tape.deep = 0
            note((ends, perf_counter_ns(), None))

    return call


def run_backward(tape: Tape, original: Callable[..., Any], wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return the way into the autograd engine."""
    note, thread = tape.events.append, tape.thread
    begins, ends = tape.tracker.backward_begins, tape.tracker.backward_ends
    plain = torch_private.PLAIN_TENSORS

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        everyday = type(t_outputs) is tuple and t_outputs and type(t_outputs[0]) in plain
        if not everyday or tape.look or tape.deep or get_ident() != thread:
            return wide(t_outputs, *args, **kwargs)
        # No module is watched inside: checkpointing runs them there again.
        tape.deep = tape.in_backward = 1
        note((begins, perf_counter_ns(), kwargs.get("accumulate_grad", False)))
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            tape.deep = tape.in_backward = 0
            if tape.stepped_in_backward:
                tape.updated_in_backward()
            note((ends, perf_counter_ns(), None))

    return _engine_run_backward


def fetch(tape: Tape, original: Callable[..., Any], wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return `__next__` of the iterators of data loaders."""
    note, thread, mark = tape.events.append, tape.thread, tape.mark
    begins, ends = tape.tracker.fetch_begins, tape.tracker.fetch_ends
    grad_enabled, ref = torch.is_grad_enabled, weakref.ref

    def fetch(self: Any) -> Any:
        if not tape.goes_on or tape.in_optimizer or tape.deep or get_ident() != thread:
            return wide(self)
        # The step before this fetch is told of later.
        tape.goes_on = tape.armed = False
        tape.steps += 1
        tape.updates = 0
        if mark is not None:
            mark()
        note((begins, perf_counter_ns(), None))
        try:
            batch = original(self)
        except BaseException:
            tape.end_fetch(self, None)
            raise
        note((ends, perf_counter_ns(), (ref(self), grad_enabled())))
        return batch

    return fetch


def zero_grad(tape: Tape, original: Callable[..., Any], wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Optimizer.zero_grad`."""
    note, thread = tape.events.append, tape.thread
    begins, ends = tape.tracker.zero_grad_begins, tape.tracker.phase_ends
    inner = torch_private.undisabled(original)

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tape.look or tape.deep or tape.in_optimizer or get_ident() != thread:
            return wide(self, *args, **kwargs)
        note((begins, perf_counter_ns(), None))
        try:
            return inner(self, *args, **kwargs)
        finally:
            note((ends, perf_counter_ns(), None))

    return zero_grad


def before_step(tape: Tape, wide: Callable[..., None]) -> Callable[..., None]:
    """Return the hook before each optimizer's step."""
    note, thread = tape.events.append, tape.thread
    begins = tape.tracker.optimizer_begins

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if tape.deep or get_ident() != thread:
            return wide(optimizer, args, kwargs)
        tape.in_optimizer += 1
        note((begins, perf_counter_ns(), None))
        return None

    return before


def after_step(tape: Tape, wide: Callable[..., None]) -> Callable[..., None]:
    """Return the hook after each optimizer's step."""
    note, thread = tape.events.append, tape.thread
    ends = tape.tracker.optimizer_ends

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if tape.deep or tape.in_optimizer != 1 or get_ident() != thread:
            return wide(optimizer, args, kwargs)
        note((ends, perf_counter_ns(), id(optimizer)))
        tape.in_optimizer = 0
        tape.updated()
        return None

    return after
