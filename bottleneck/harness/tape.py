"""Notes events while the steps are timed, and tells the tracker of them a few steps later.

In: what an observer of the hooks is told. Out: the same to the tracker, in one go every few steps.
Between the cold caches of a real step, a line of Python costs five times what it costs in a loop;
so as little of it as possible runs inside the steps that are timed, and the rest together, between
two of them. Whatever is not everyday (a stop that is wanted, another optimizer, a compilation, an
exception out of an optimizer) is left to the agent, who then hears of everything at once.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

import torch

from . import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from .observer import Observer
    from .stopping import Stopper
    from .tracker import Told, Tracker

__all__ = ["Tape"]

Answer = TypeVar("Answer")

PATIENCE = 4
"""Updates, in bursts, without the event at which they should have been told."""
MANY = 2000
"""Events: a long evaluation has no updates at all."""


class Tape:
    """An observer that takes notes; see `observer.Observer` for when its methods are called."""

    def __init__(
        self,
        agent: Observer,
        tracker: Tracker,
        stopper: Stopper,
        *,
        burst: Callable[[], int],
        mark: Callable[[], None],
        stop: Callable[[], None],
        found: Callable[[str], None],
    ) -> None:
        """Begin with nothing noted.

        Args:
            agent: is told in time of every cut at which a burst ends.
            tracker: is told of all the rest.
            stopper: a stop that is wanted ends the burst.
            burst: returns how many steps may be told of together, from now on.
            mark: called at the cuts in between: the device's time is taken there and then.
            stop: called when the tape cannot go on; it must `play`, and the agent observes from now on.
            found: called with "evaluation" while the user's line that evaluates can be seen.
        """
        self._agent = agent
        self._tracker = tracker
        self._stopper = stopper
        self._ask_burst = burst
        self._burst = burst()
        self._mark = mark
        self._stop = stop
        self._thread = get_ident()
        self._events: list[Told] = []
        self._fetch_begins, self._forward_begins = tracker.fetch_begins, tracker.forward_begins
        self._phase_ends = tracker.phase_ends
        self._at_fetch = tracker.rule.next_cut == "fetch"
        self._armed = tracker.rule.pending
        self._steps = self._updates = 0
        self._in_backward = self._in_optimizer = 0
        self._stepped_in_backward = False
        self._found = found
        self._looks_at_batch = True
        self._evaluated = False

    # -- bursts --------------------------------------------------------------------------------

    def play(self) -> None:
        """Tell the tracker of everything noted."""
        events, self._events = self._events, []
        self._steps = self._updates = 0
        self._evaluated = False
        if events:
            self._tracker.tell(events)

    @property
    def innermost(self) -> str:
        """The phase that was entered last, as far as it was noted; empty after the end of one."""
        if not self._events:
            return self._tracker.clock.innermost or ""
        event, _now, what = self._events[-1]
        name = event.__name__
        if name.endswith("_ends"):
            return ""
        return str(what) if name in ("forward_begins", "label_begins") else name.removesuffix("_begins")

    def _is_due(self, *, fetch: bool = False) -> bool:
        """At a safe point: whether the agent is to take this event, having heard of the rest."""
        if self._stopper.reason is not None:
            self._stop()
            return True
        if self._armed and (fetch or not self._at_fetch):
            self._armed = False
            self._steps += 1
            if self._steps < self._burst:
                self._mark()
                return False
        elif self._updates < PATIENCE * self._burst and len(self._events) < MANY:
            return False
        self.play()
        self._looks_at_batch = True
        return True

    def _ask(self, answer: Answer) -> Answer:
        """The agent has taken an event: pass its answer on, and ask how far the next burst may go."""
        self._burst = self._ask_burst()
        return answer

    # -- events --------------------------------------------------------------------------------

    def mine(self) -> bool:
        """See `Observer`."""
        return self._thread == get_ident()

    def begin_fetch(self, at: int | None = None) -> bool:  # noqa: ARG002 - for the agent
        """See `Observer`."""
        if self._thread != get_ident():
            return False
        now = perf_counter_ns()
        if self._in_optimizer or self._in_backward:
            # An exception has left an optimizer; or a backward hook fetches.
            self._stop()
        elif not self._is_due(fetch=True):
            self._events.append((self._fetch_begins, now, None))
            return True
        return self._ask(self._agent.begin_fetch(now))

    def end_fetch(self, iterator: object, batch: object) -> None:
        """See `Observer`."""
        if self._looks_at_batch and batch is not None:
            self._looks_at_batch = False
            self.play()
            self._agent.end_fetch(iterator, batch)
            return
        now = perf_counter_ns()
        fetched = (weakref.ref(iterator), torch.is_grad_enabled()) if batch is not None else None
        self._events.append((self._tracker.fetch_ends, now, fetched))
        if batch is None:
            # The end of an epoch: what is told of this iterator must be told while it lives.
            self.play()

    def begin_forward(self, module: torch.nn.Module, at: int | None = None) -> str | None:  # noqa: ARG002
        """See `Observer`."""
        if self._in_backward or self._thread != get_ident():
            return None
        now = perf_counter_ns()
        if not self._in_optimizer and self._is_due():
            return self._ask(self._agent.begin_forward(module, now))
        training = torch.is_grad_enabled() or torch_private.is_traced_module(module)
        label = "forward" if training else "evaluation"
        if not training and not self._evaluated:
            self._evaluated = True
            self._found(label)
        self._events.append((self._forward_begins, now, label))
        return label

    def begin_backward(self, accumulates: bool, at: int | None = None) -> bool:  # noqa: ARG002
        """See `Observer`."""
        if self._thread != get_ident():
            return False
        now = perf_counter_ns()
        if not (self._in_backward or self._in_optimizer) and self._is_due():
            begun = self._ask(self._agent.begin_backward(accumulates, now))
        else:
            self._events.append((self._tracker.backward_begins, now, accumulates))
            begun = True
        self._in_backward += 1
        return begun

    def end_backward(self) -> None:
        """See `Observer`."""
        self._in_backward -= 1
        if self._stepped_in_backward and not self._in_backward:
            self._stepped_in_backward = False
            self._updated()
        self._events.append((self._tracker.backward_ends, perf_counter_ns(), None))

    def begin_optimizer(self, optimizer: object) -> None:  # noqa: ARG002 - the agent knows them by now
        """See `Observer`."""
        if self._thread != get_ident():
            self._stepped_in_backward = True
            self._events.append((self._tracker.foreign_update, perf_counter_ns(), None))
            return
        self._in_optimizer += 1
        self._events.append((self._tracker.optimizer_begins, perf_counter_ns(), None))

    def end_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        if self._thread != get_ident():
            return
        self._in_optimizer -= 1
        self._events.append((self._tracker.optimizer_ends, perf_counter_ns(), id(optimizer)))
        if self._in_backward:
            self._stepped_in_backward = True
        elif not self._in_optimizer:
            self._updated()

    def _updated(self) -> None:
        self._armed = True
        self._updates += 1

    def begin_scaler(self, scaler: object) -> None:  # noqa: ARG002 - as above
        """See `Observer`."""
        self._in_optimizer += 1
        self._events.append((self._tracker.scaler_begins, perf_counter_ns(), None))

    def end_scaler(self, optimizer: object) -> None:
        """See `Observer`."""
        self._in_optimizer -= 1
        self._events.append((self._tracker.scaler_ends, perf_counter_ns(), id(optimizer)))
        if not self._in_optimizer and not self._in_backward:
            self._updated()

    def begin_zero_grad(self, set_to_none: object, at: int | None = None) -> bool:  # noqa: ARG002
        """See `Observer`."""
        if self._thread != get_ident():
            return False
        now = perf_counter_ns()
        if self._in_optimizer:
            self._stop()
        elif self._in_backward or not self._is_due():
            self._events.append((self._tracker.zero_grad_begins, now, None))
            return True
        return self._ask(self._agent.begin_zero_grad(set_to_none, now))

    def begin_label(self, name: str) -> None:
        """See `Observer`."""
        self._events.append((self._tracker.label_begins, perf_counter_ns(), name))

    def end_phase(self) -> None:
        """See `Observer`."""
        self._events.append((self._phase_ends, perf_counter_ns(), None))

    def collected(self, took_ns: int) -> None:
        """Python's garbage collector ran for so long."""
        self._events.append((self._tracker.collected, perf_counter_ns(), took_ns))

    # -- what is not everyday ------------------------------------------------------------------

    def begin_copy(self) -> None:
        """See `Observer`."""
        self._stop()
        self._agent.begin_copy()

    def built_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        self._stop()
        self._agent.built_optimizer(optimizer)

    def foreign_profiler(self, *, active: bool) -> None:
        """See `Observer`."""
        self._stop()
        self._agent.foreign_profiler(active=active)

    def own_profiler_busy(self) -> bool:
        """See `Observer`."""
        return self._agent.own_profiler_busy()
