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

from .. import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tape import Tape

__all__ = ["after_step", "before_step", "fetch", "root_call", "run_backward", "zero_grad"]


def root_call(tape: Tape, wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return `__call__` for one class of modules that the program calls itself."""
    events, opened, thread, tracker = tape.events, tape.opened, tape.thread, tape.tracker
    begins, done = tracker.forward_begins, tracker.forward_done
    grad_enabled, clock = torch.is_grad_enabled, perf_counter_ns
    # Its `__call__` is looked up at each call: torch.fx and others replace it for a while.
    module_class = torch.nn.Module

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if tape.deep or get_ident() != thread:
            return module_class.__call__(self, *args, **kwargs)
        if tape.look or not grad_enabled():
            return wide(self, *args, **kwargs)
        tape.deep = True
        mine = (begins, clock(), "forward", len(events))
        opened.append(mine)
        try:
            return module_class.__call__(self, *args, **kwargs)
        finally:
            now = clock()
            tape.deep = False
            if opened and opened[-1] is mine and mine[3] == len(events):
                opened.pop()
                events.append((done, mine[1], now))
            else:
                tape.end_opened(mine, now)

    return call


def run_backward(tape: Tape, original: Callable[..., Any], wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return the way into the autograd engine."""
    events, opened, thread, tracker = tape.events, tape.opened, tape.thread, tape.tracker
    begins, ends, done = tracker.backward_begins, tracker.backward_ends, tracker.backward_done
    plain, clock = torch_private.PLAIN_TENSORS, perf_counter_ns

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        everyday = type(t_outputs) is tuple and t_outputs and type(t_outputs[0]) in plain
        if not everyday or tape.look or tape.deep or get_ident() != thread:
            return wide(t_outputs, *args, **kwargs)
        # No module is watched inside: checkpointing runs them there again.
        tape.deep, tape.in_backward = True, 1
        mine = (begins, clock(), kwargs.get("accumulate_grad", False), len(events))
        opened.append(mine)
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            now = clock()
            tape.deep, tape.in_backward = False, 0
            if tape.stepped_in_backward:
                tape.updated_in_backward()
            if opened and opened[-1] is mine and mine[3] == len(events):
                opened.pop()
                events.append((done, mine[1], (now, mine[2])))
            elif tape.closes(mine):
                events.append((ends, now, None))
            else:
                tape.agent.end_backward()

    return _engine_run_backward


def fetch(tape: Tape, original: Callable[..., Any], wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return `__next__` of the iterators of data loaders."""
    events, opened, thread, tracker, mark = tape.events, tape.opened, tape.thread, tape.tracker, tape.mark
    begins, done = tracker.fetch_begins, tracker.fetch_done
    grad_enabled, ref, clock = torch.is_grad_enabled, weakref.ref, perf_counter_ns

    def fetch(self: Any) -> Any:
        if not tape.goes_on or tape.in_optimizer or tape.deep or get_ident() != thread:
            return wide(self)
        # The step before this fetch is told of later.
        tape.goes_on = tape.armed = False
        tape.steps += 1
        tape.updates = 0
        if mark is not None:
            mark()
        mine = (begins, clock(), None, len(events))
        opened.append(mine)
        batch = None
        try:
            batch = original(self)
        finally:
            if batch is not None and opened and opened[-1] is mine and mine[3] == len(events):
                opened.pop()
                events.append((done, mine[1], (clock(), ref(self), grad_enabled())))
            elif tape.closes(mine):
                tape.end_fetch(self, batch)
            else:
                tape.agent.end_fetch(self, batch)
        return batch

    return fetch


def zero_grad(tape: Tape, original: Callable[..., Any], wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Optimizer.zero_grad`."""
    events, opened, thread, tracker = tape.events, tape.opened, tape.thread, tape.tracker
    begins, done = tracker.zero_grad_begins, tracker.zero_grad_done
    inner, clock = torch_private.undisabled(original), perf_counter_ns

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tape.look or tape.deep or tape.in_optimizer or get_ident() != thread:
            return wide(self, *args, **kwargs)
        mine = (begins, clock(), None, len(events))
        opened.append(mine)
        try:
            return inner(self, *args, **kwargs)
        finally:
            now = clock()
            if opened and opened[-1] is mine and mine[3] == len(events):
                opened.pop()
                events.append((done, mine[1], now))
            else:
                tape.end_opened(mine, now)

    return zero_grad


def before_step(tape: Tape, wide: Callable[..., None]) -> Callable[..., None]:
    """Return the hook before each optimizer's step."""
    events, opened, thread, begins = tape.events, tape.opened, tape.thread, tape.tracker.optimizer_begins
    clock = perf_counter_ns

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if tape.deep or tape.in_optimizer or get_ident() != thread:
            return wide(optimizer, args, kwargs)
        tape.in_optimizer = 1
        tape.update = mine = (begins, clock(), None, len(events))
        opened.append(mine)
        return None

    return before


def after_step(tape: Tape, wide: Callable[..., None]) -> Callable[..., None]:
    """Return the hook after each optimizer's step; a tape that was left has the wide one back by then."""
    events, opened, thread, tracker = tape.events, tape.opened, tape.thread, tape.tracker
    ends, done, clock = tracker.optimizer_ends, tracker.optimizer_done, perf_counter_ns

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        mine = tape.update
        if mine is None or tape.deep or tape.in_optimizer != 1 or get_ident() != thread:
            return wide(optimizer, args, kwargs)
        now = clock()
        if opened and opened[-1] is mine and mine[3] == len(events):
            opened.pop()
            events.append((done, mine[1], (now, id(optimizer))))
        else:
            tape.closes(mine)
            events.append((ends, now, id(optimizer)))
        tape.update = None
        tape.in_optimizer = 0
        tape.updated()
        return None

    return after
