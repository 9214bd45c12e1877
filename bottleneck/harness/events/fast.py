"""The wrappers in place while steps are timed: they add their events to the buffer themselves.

In: the buffer, and for each place the wrapper that is there otherwise ("wide") and what torch has
there. Out: the replacement. Between the cold caches of a real step every call of a Python function
costs a microsecond or two, so an event takes no call of ours here. Whatever is rare (another thread, an
evaluation, an optimizer within a backward, a cut that is due) goes through the wide wrapper all the same.

The same wrappers stay while steps are only counted, and while events are handed over at once: they ask the
buffer. A class of torch that gets another method makes the interpreter forget what it knew of the class and
of all below it, which takes about a millisecond; and Python 3.13 and newer learn it no more than a thousand
times, after which every call of a module is slower for good.

For programs that do not compile only: dynamo would see other code than before.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ...clocks import perf_counter_ns
from .. import autograd_private, torch_private
from .buffer import BEGINS, ENDS
from .table import BACKWARD, FETCH, FORWARD, OPTIMIZER, ZERO_GRAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from .buffer import EventBuffer

    Function = Callable[..., Any]


def root_call(buffer: EventBuffer, wide: Function) -> Function:
    """Return `__call__` for one class of modules that the program calls itself."""
    note, thread, clock = buffer.note, buffer.thread, perf_counter_ns
    grad_enabled = torch.is_grad_enabled
    # Its `__call__` is looked up at each call: torch.fx and others replace it for a while.
    module_class = torch.nn.Module

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if buffer.counts_at_fetch and grad_enabled():
            # Steps are counted, and end elsewhere.
            return module_class.__call__(self, *args, **kwargs)
        if buffer.busy or get_ident() != thread:
            return module_class.__call__(self, *args, **kwargs)
        if not grad_enabled():
            # While steps are counted as well: that is no part of a usual one.
            return wide(self, *args, **kwargs)
        if buffer.counting:
            if buffer.update_ended:
                now = clock()
                if now > buffer.count_until_ns and not buffer.counts_on(now):
                    return wide(self, *args, **kwargs)
                buffer.update_ended = False
                buffer.ends_ns.append(now)
            return module_class.__call__(self, *args, **kwargs)
        if buffer.ask:
            return wide(self, *args, **kwargs)
        buffer.busy = 1
        note((FORWARD, BEGINS, clock(), None))
        try:
            return module_class.__call__(self, *args, **kwargs)
        finally:
            note((FORWARD, ENDS, clock(), None))
            buffer.busy = 0

    return call


def run_backward(buffer: EventBuffer, original: Function, wide: Function) -> Function:
    """Return the way into the autograd engine."""
    note, thread, clock = buffer.note, buffer.thread, perf_counter_ns
    plain = autograd_private.PLAIN_TENSORS

    def call(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        usual = type(outputs) is tuple and outputs and type(outputs[0]) in plain
        if not usual or buffer.ask or buffer.busy or get_ident() != thread:
            return wide(outputs, *args, **kwargs)
        if buffer.before_backward is not None:
            buffer.before_backward()
        # No module is watched inside: checkpointing runs them there again.
        buffer.busy = buffer.in_backward = 1
        buffer.went_back = True
        note((BACKWARD, BEGINS, clock(), kwargs.get("accumulate_grad", False)))
        try:
            return original(outputs, *args, **kwargs)
        finally:
            note((BACKWARD, ENDS, clock(), None))
            buffer.busy = buffer.in_backward = 0
            if buffer.updated_in_backward:
                buffer.updated()

    return call


def fetch(buffer: EventBuffer, original: Function, wide: Function) -> Function:
    """Return `__next__` of the iterators of data loaders."""
    note, thread, clock = buffer.note, buffer.thread, perf_counter_ns
    grad_enabled, ref = torch.is_grad_enabled, weakref.ref

    def call(self: Any) -> Any:
        if buffer.counting and not buffer.busy and get_ident() == thread:
            if not buffer.counts_at_fetch:
                return original(self)
            if buffer.update_ended:
                now = clock()
                if now > buffer.count_until_ns and not buffer.counts_on(now):
                    return wide(self)
                buffer.update_ended = False
                buffer.ends_ns.append(now)
            batch = None
            try:
                batch = original(self)
            finally:
                if batch is None:
                    # What follows an epoch is no part of a usual step.
                    buffer.count_no_more()
            return batch
        if not buffer.goes_on or buffer.busy or buffer.in_optimizer or get_ident() != thread:
            return wide(self)
        buffer.step_goes_on()
        buffer.busy = 1
        note((FETCH, BEGINS, clock(), None))
        batch = None
        try:
            batch = original(self)
        finally:
            if batch is None:
                buffer.end(FETCH, self)
            else:
                note((FETCH, ENDS, clock(), (ref(self), grad_enabled())))
                buffer.busy = 0
        return batch

    return call


def zero_grad(buffer: EventBuffer, original: Function, wide: Function) -> Function:
    """Return `Optimizer.zero_grad`."""
    note, thread, clock = buffer.note, buffer.thread, perf_counter_ns
    inner = torch_private.undisabled(original)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if buffer.counting and get_ident() == thread:
            return inner(self, *args, **kwargs)
        if buffer.ask or buffer.busy or buffer.in_optimizer or get_ident() != thread:
            return wide(self, *args, **kwargs)
        note((ZERO_GRAD, BEGINS, clock(), None))
        try:
            return inner(self, *args, **kwargs)
        finally:
            note((ZERO_GRAD, ENDS, clock(), None))

    return call


def before_step(buffer: EventBuffer, wide: Function) -> Function:
    """Return the hook before each optimizer's step; one that is given a closure is for the wide one."""
    note, thread, clock = buffer.note, buffer.thread, perf_counter_ns

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if buffer.busy or buffer.in_optimizer or kwargs or len(args) > 1 or get_ident() != thread:
            return wide(optimizer, args, kwargs)
        buffer.in_optimizer = 1
        note((OPTIMIZER, BEGINS, clock(), None))
        return None

    return before


def after_step(buffer: EventBuffer, wide: Callable[..., None]) -> Callable[..., None]:
    """Return the hook after each optimizer's step; once events are released the wide one is back."""
    note, thread, clock = buffer.note, buffer.thread, perf_counter_ns

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if buffer.busy or buffer.in_optimizer != 1 or get_ident() != thread:
            return wide(optimizer, args, kwargs)
        key = id(optimizer)
        note((OPTIMIZER, ENDS, clock(), key))
        buffer.in_optimizer = 0
        buffer.updated(key)
        return None

    return after


# -- while steps are only counted ------------------------------------------------------------------

OVERDUE_NS = 1_000_000_000
"""Later than that, no step ends any more where steps did: the loop has changed."""


def count_update(buffer: EventBuffer) -> Callable[..., None]:
    """Return the hook after each optimizer's step."""
    thread, clock = buffer.thread, perf_counter_ns

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if get_ident() != thread:
            return
        if buffer.update_ended and clock() > buffer.count_until_ns + OVERDUE_NS:
            buffer.count_no_more()
        buffer.update_ended = True

    return after
