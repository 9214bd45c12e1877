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

from .. import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..process.stopping import Stopper
    from ..windows.tracker import Told, Tracker
    from .observer import Observer

    Opened = tuple[Callable[[int, Any], None], int, Any, int]

__all__ = ["Tape"]

Answer = TypeVar("Answer")

PATIENCE = 40
"""Updates without the event at which the step should have been cut."""
MANY = 2000
"""Events: a long evaluation has no updates at all."""


class Tape:
    """An observer that takes notes; see `observer.Observer` for when its methods are called.

    Attributes:
        events: what was noted since the tracker was told last; always the same list.
        thread: the training thread, whose events alone are noted.
        armed: an update has ended, and the step has not yet been cut.
        goes_on: and it may be told of later, if a fetch comes next.
        look: the next event that begins is not everyday: it must come by way of the observer.
        deep: inside a root's forward or a backward, as `quick` sees it.
        opened: beginnings that `quick` will note when their end is known, outermost first: each an
            event, and its place in `events`.
        update: the one of an optimizer's step, while that is open.
        left: the agent observes again.
        steps: steps that will be told of together, so far.
        updates: since the last cut.
    """

    __slots__ = (
        "_ask_burst", "_burst", "_evaluated", "_found", "_looks_at_batch", "_stop", "_stopper", "agent",
        "armed", "at_fetch", "deep", "events", "goes_on", "in_backward", "in_optimizer", "left", "look",
        "mark", "opened", "stepped_in_backward", "steps", "thread", "tracker", "update", "updates",
    )  # fmt: skip

    def __init__(
        self,
        agent: Observer,
        tracker: Tracker,
        stopper: Stopper,
        *,
        burst: Callable[[], int],
        mark: Callable[[], None] | None,
        stop: Callable[[], None],
        found: Callable[[str], None],
    ) -> None:
        """Begin with nothing noted.

        Args:
            agent: is told in time of every cut at which a burst ends.
            tracker: is told of all the rest.
            stopper: a stop that is wanted ends the burst.
            burst: returns how many steps may be told of together, from now on.
            mark: called at the cuts in between: the device's time is taken there and then. None where
                there is no device.
            stop: called when the tape cannot go on; it must make it `leave`.
            found: called with "evaluation" while the user's line that evaluates can be seen.
        """
        self.agent = agent
        self.tracker = tracker
        self._stopper = stopper
        self._ask_burst = burst
        self._burst = burst()
        self.mark = mark
        self._stop = stop
        self.thread = get_ident()
        self.events: list[Told] = []
        self.at_fetch = tracker.rule.next_cut == "fetch"
        self.armed = tracker.rule.pending
        self.steps = self.updates = 0
        self.in_backward = self.in_optimizer = 0
        self.deep = self.left = False
        self.opened: list[Opened] = []
        self.update: Opened | None = None
        self.stepped_in_backward = False
        self._found = found
        self._looks_at_batch = True
        self._evaluated = False
        self.goes_on = False
        self.look = True

    # -- bursts --------------------------------------------------------------------------------

    def play(self) -> None:
        """Tell the tracker of everything noted."""
        while self.opened:
            self._note_beginning(self.opened.pop())
        events = self.events[:]
        self.events.clear()
        # Those that were told of count: a short epoch's end is no new beginning of the burst.
        self._burst = max(1, self._burst - self.steps)
        self.steps = self.updates = 0
        self._evaluated = self.goes_on = self.look = False
        if events:
            self.tracker.tell(events)

    @property
    def innermost(self) -> str:
        """The phase that was entered last, as far as it was noted; empty after the end of one."""
        if self.opened and self.opened[-1][3] == len(self.events):
            event, _now, what = self.opened[-1][:3]
        elif self.events:
            event, _now, what = self.events[-1]
        else:
            return self.tracker.clock.innermost or ""
        name = event.__name__
        if name.endswith(("_ends", "_done")):
            return ""
        if name == "fetch_begins":
            return "data"
        return str(what) if name in ("forward_begins", "label_begins") else name.removesuffix("_begins")

    def leave(self) -> None:
        """Play for the last time: the agent observes from now on, the ends of what is open among it."""
        self.left = True
        self.play()

    def closes(self, beginning: Opened) -> bool:
        """Note a beginning whose end is known now, if it was not told of; return whether to note the end."""
        if self.opened and self.opened[-1] is beginning:
            self._note_beginning(self.opened.pop())
        return not self.left

    def end_opened(self, beginning: Opened, now: int) -> None:
        """A phase that `quick` opened has ended, and something happened meanwhile."""
        if self.closes(beginning):
            self.events.append((self.tracker.phase_ends, now, None))
        else:
            self.agent.end_phase()

    def _note_beginning(self, beginning: Opened) -> None:
        event, now, what, place = beginning
        self.events.insert(place, (event, now, what))

    def _is_due(self, *, fetch: bool = False) -> bool:
        """At a safe point: whether the agent is to take this event, having heard of the rest."""
        self.look = self.goes_on = False
        if self._stopper.reason is not None:
            self._stop()
            return True
        if self.armed and (fetch or not self.at_fetch):
            self.armed = False
            self.updates = 0
            self.steps += 1
            if self.steps < self._burst:
                if self.mark is not None:
                    self.mark()
                return False
        elif self.updates < PATIENCE and len(self.events) < MANY:
            return False
        self.play()
        self._looks_at_batch = True
        return True

    def _ask(self, answer: Answer) -> Answer:
        """The agent has taken an event: pass its answer on, and ask how far the next burst may go."""
        self._burst = self._ask_burst()
        return answer

    def updated(self) -> None:
        """An update has ended: this step will be cut."""
        self.armed = True
        self.updates += 1
        if not self.at_fetch or self._stopper.reason is not None or self.updates >= PATIENCE:
            self.look = True
        elif self.steps + 1 < self._burst and not self._looks_at_batch:
            self.goes_on = True

    # -- events --------------------------------------------------------------------------------

    def mine(self) -> bool:
        """See `Observer`."""
        return self.thread == get_ident()

    def begin_fetch(self, at: int | None = None) -> bool:  # noqa: ARG002 - for the agent
        """See `Observer`."""
        if self.thread != get_ident():
            return False
        now = perf_counter_ns()
        if self.in_optimizer or self.in_backward:
            # An exception has left an optimizer; or a backward hook fetches.
            self._stop()
        elif not self._is_due(fetch=True):
            self.events.append((self.tracker.fetch_begins, now, None))
            return True
        return self._ask(self.agent.begin_fetch(now))

    def end_fetch(self, iterator: object, batch: object) -> None:
        """See `Observer`."""
        if self._looks_at_batch and batch is not None:
            self._looks_at_batch = False
            self.play()
            self.agent.end_fetch(iterator, batch)
            return
        now = perf_counter_ns()
        fetched = (weakref.ref(iterator), torch.is_grad_enabled()) if batch is not None else None
        self.events.append((self.tracker.fetch_ends, now, fetched))
        if batch is None:
            # The end of an epoch: what is told of this iterator must be told while it lives.
            self.play()

    def begin_forward(self, module: torch.nn.Module, at: int | None = None) -> str | None:  # noqa: ARG002
        """See `Observer`."""
        if self.in_backward or self.thread != get_ident():
            return None
        now = perf_counter_ns()
        if not self.in_optimizer and self._is_due():
            return self._ask(self.agent.begin_forward(module, now))
        training = torch.is_grad_enabled() or torch_private.is_traced_module(module)
        label = "forward" if training else "evaluation"
        if not training and not self._evaluated:
            self._evaluated = True
            self._found(label)
        self.events.append((self.tracker.forward_begins, now, label))
        return label

    def begin_backward(self, accumulates: bool, at: int | None = None) -> bool:  # noqa: ARG002
        """See `Observer`."""
        if self.thread != get_ident():
            return False
        now = perf_counter_ns()
        if not (self.in_backward or self.in_optimizer) and self._is_due():
            begun = self._ask(self.agent.begin_backward(accumulates, now))
        else:
            self.events.append((self.tracker.backward_begins, now, accumulates))
            begun = True
        self.in_backward += 1
        return begun

    def end_backward(self) -> None:
        """See `Observer`."""
        self.in_backward -= 1
        if self.stepped_in_backward and not self.in_backward:
            self.updated_in_backward()
        self.events.append((self.tracker.backward_ends, perf_counter_ns(), None))

    def updated_in_backward(self) -> None:
        """The backward that ends now has held an optimizer's step."""
        self.stepped_in_backward = False
        self.updated()

    def begin_optimizer(self, optimizer: object) -> None:  # noqa: ARG002 - the agent knows them by now
        """See `Observer`."""
        if self.thread != get_ident():
            self.stepped_in_backward = True
            self.events.append((self.tracker.foreign_update, perf_counter_ns(), None))
            return
        self.in_optimizer += 1
        self.events.append((self.tracker.optimizer_begins, perf_counter_ns(), None))

    def end_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        if self.thread != get_ident():
            return
        self.in_optimizer -= 1
        self.events.append((self.tracker.optimizer_ends, perf_counter_ns(), id(optimizer)))
        if self.in_backward:
            self.stepped_in_backward = True
        elif not self.in_optimizer:
            self.updated()

    def begin_scaler(self, scaler: object) -> None:  # noqa: ARG002 - as above
        """See `Observer`."""
        self.in_optimizer += 1
        self.events.append((self.tracker.scaler_begins, perf_counter_ns(), None))

    def end_scaler(self, optimizer: object) -> None:
        """See `Observer`."""
        self.in_optimizer -= 1
        self.events.append((self.tracker.scaler_ends, perf_counter_ns(), id(optimizer)))
        if not self.in_optimizer and not self.in_backward:
            self.updated()

    def begin_zero_grad(self, set_to_none: object, at: int | None = None) -> bool:  # noqa: ARG002
        """See `Observer`."""
        if self.thread != get_ident():
            return False
        now = perf_counter_ns()
        if self.in_optimizer:
            self._stop()
        elif self.in_backward or not self._is_due():
            self.events.append((self.tracker.zero_grad_begins, now, None))
            return True
        return self._ask(self.agent.begin_zero_grad(set_to_none, now))

    def begin_label(self, name: str) -> None:
        """See `Observer`."""
        self.events.append((self.tracker.label_begins, perf_counter_ns(), name))

    def end_phase(self) -> None:
        """See `Observer`."""
        self.events.append((self.tracker.phase_ends, perf_counter_ns(), None))

    def collected(self, took_ns: int) -> None:
        """Python's garbage collector ran for so long."""
        self.events.append((self.tracker.collected, perf_counter_ns(), took_ns))

    # -- what is not everyday ------------------------------------------------------------------

    def begin_copy(self) -> None:
        """See `Observer`."""
        self._stop()
        self.agent.begin_copy()

    def built_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        self._stop()
        self.agent.built_optimizer(optimizer)

    def foreign_profiler(self, *, active: bool) -> None:
        """See `Observer`."""
        self._stop()
        self.agent.foreign_profiler(active=active)

    def own_profiler_busy(self) -> bool:
        """See `Observer`."""
        return self.agent.own_profiler_busy()
