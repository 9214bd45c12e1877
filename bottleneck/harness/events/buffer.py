"""The one buffer that every event of the training thread goes through.

In: beginnings and ends of events, from the hooks. Out: the same to an observer: each at once, or, while
steps are timed, held and handed over together at a cut a few steps later. Between the cold caches of a
real step a line of Python costs five times what it costs in a loop: so as little of it as possible runs
inside the steps that are timed. What is rare (a stop that is wanted, another optimizer, a compilation, an
exception out of an optimizer, one that calls its closure again) ends the holding. While steps are only
counted, nothing is noted but when each ends; any event but those of a usual step ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ...clocks import perf_counter_ns
from ..torch_private import is_traced_module
from .table import (
    BACKWARD,
    CLOSURE,
    COLLECTED,
    EVALUATION,
    FETCH,
    FORWARD,
    LABEL,
    OPTIMIZER,
    UPDATE_ELSEWHERE,
    Event,
)

BEGINS, ENDS = True, False
NOBODY = -1
"""Identity of no thread."""
UPDATES_HELD = 40
"""Updates without the event at which the step should have been cut."""
PARTS_HELD = 16_000
"""Of entries, four to each: a long evaluation has no updates at all."""

if TYPE_CHECKING:
    Entry = tuple[Event, bool, int, Any]
    """An event, whether it begins, perf_counter_ns() of it, and what the table says it says."""
else:
    Entry = tuple


class Observer(Protocol):
    """Who the buffer hands events to; all on the training thread."""

    def begin(self, event: Event, subject: Any, now: int, *, paused: bool) -> None:
        """An event begins, and is taken at once. May raise StopRun: then it does not begin.

        `paused`: work of ours lies between `now` (perf_counter_ns) and this call.
        """

    def enter(self, event: Event, subject: Any) -> None:
        """Take the beginning of an event that a step has ended before, if one did."""

    def take(self, entries: Iterable[Entry], *, held: bool) -> None:
        """Take these in; `held`: they happened since the last cut or before it."""

    def ended(self, event: Event, subject: Any, result: Any) -> None:
        """An event has ended, and was taken at once; `result` is what a fetch returned."""

    def happened(self, event: Event, subject: Any) -> None:
        """An instant that is taken at once."""

    def first_evaluation(self, module: Any) -> None:
        """The user's line that evaluates can be seen; once per hand-over of held events."""

    def steps_to_hold(self) -> int:
        """Return how many steps may be held, from now on; 0: no more than the one that begins."""

    def released(self) -> None:
        """Events are handed over at once again."""


class Stop(Protocol):
    """A wish to stop the program."""

    reason: str | None
    """Why; None while there is no such wish."""


class EventBuffer:
    """Holds events or hands them over; one per process.

    Attributes:
        observer: is handed the events; it may name another one while a step ends.
        note: adds the four parts of an entry; always the same list's method.
        thread: the training thread, whose events alone are taken; None until it is known.
        holding: steps are timed.
        ask: the fast wrappers are to come by way of `begin`: the next event may be a cut.
        goes_on: the step ends at the next fetch, and its events may be held beyond that.
        busy: open events whose inner calls of modules are parts of them.
        guard: makes the calls of the training thread that are events, while fixes are tried; None otherwise.
        counting: steps are only counted: the fast wrappers note in `ends_ns`, until `count_until_ns`.
        counts_at_fetch: they are, and end at a fetch; if not, at the first call of a module after an update.
        update_ended: meanwhile, the update of the step under way has ended.
        before_backward: called when a backward pass is about to begin; None: nobody asks.
        went_back: a backward pass has begun since the last update.
    """

    __slots__ = (
        "_armed", "_at_fetch", "_closures", "_counted", "_counted_so_far", "_entries", "_evaluated", "_group",
        "_in_step", "_limit", "_looks_at_batch", "_mark", "_period", "_steps", "_stop", "_updates", "ask",
        "before_backward", "busy", "count_until_ns", "counting", "counts_at_fetch", "ends_ns", "goes_on",
        "guard", "holding", "in_backward", "in_optimizer", "note", "observer", "thread", "update_ended",
        "updated_in_backward", "went_back",
    )  # fmt: skip

    def __init__(self, observer: Observer, stop: Stop) -> None:
        """Begin with nothing held, handing over at once."""
        self.observer = observer
        self._stop = stop
        self._entries: list[Any] = []
        self.note = self._entries.extend
        self.thread: int | None = None
        self.guard: Callable[[Event, Callable[..., Any], Any, Any], Any] | None = None
        self.before_backward: Callable[[], None] | None = None
        self.busy = self.in_backward = self.in_optimizer = self._closures = 0
        self.counting = self.counts_at_fetch = self.update_ended = False
        self.ends_ns: list[int] = []
        self.count_until_ns = 0
        self._counted: Callable[[list[int]], None] = list.clear
        self._counted_so_far: Callable[[list[int]], int] = len
        self._mark: Callable[[], None] | None = None
        self._limit = self._period = 1
        self._in_step = 0
        self._group: set[int | None] = set()
        self.went_back = False
        self._hand_over_at_once()

    def _hand_over_at_once(self) -> None:
        self.holding = self.goes_on = False
        self.ask = self._looks_at_batch = True
        self._at_fetch = self._armed = self._evaluated = self.updated_in_backward = False
        self._steps = self._updates = 0

    # -- counting ------------------------------------------------------------------------------

    def count(
        self,
        counted: Callable[[list[int]], None],
        *,
        so_far: Callable[[list[int]], int],
        until_ns: int,
        at_fetch: bool,
    ) -> None:
        """An update has ended: only count steps from now on.

        `counted` is given when each ended (ns), in the end; `so_far` the same once it is `until_ns` (ns), and
        returns until when to go on. `at_fetch`: a step ends at a fetch.
        """
        self.counting = self.update_ended = True
        self.counts_at_fetch = at_fetch
        self.count_until_ns = until_ns
        self._counted, self._counted_so_far = counted, so_far

    def counts_on(self, now: int) -> bool:
        """Say what was counted so far; return whether the step that ends now is counted as well."""
        self.count_until_ns = self._counted_so_far(self.ends_ns)
        # The next one to be said begins with the last of these.
        del self.ends_ns[:-1]
        return now <= self.count_until_ns

    def count_no_more(self) -> None:
        """Say what was counted; events are handed over at once from now on."""
        if self.counting:
            self.counting = self.counts_at_fetch = False
            ends_ns, self.ends_ns[:] = self.ends_ns[:], []
            self._counted(ends_ns)

    # -- holding -------------------------------------------------------------------------------

    def hold(
        self,
        steps: int,
        *,
        at_fetch: bool,
        armed: bool,
        mark: Callable[[], None] | None,
        period: int = 1,
        in_step: int = 0,
    ) -> None:
        """An update has ended in a window that is timed: hold events from now on.

        Args:
            steps: how many of them may be held.
            at_fetch: a step ends at a fetch; if not, at the first safe point after its last update.
            armed: its last update has ended, and the step not yet.
            period: updates in a step, those with no backward between them as one; at a fetch it may be any.
            in_step: so many of them have ended.
            mark: called when a step ends that is held on: the device's time is taken there and then. None
                where there is no device.
        """
        self.holding = True
        self._mark = mark
        self._limit, self._at_fetch, self._armed = steps, at_fetch, armed
        self._period, self._in_step, self.went_back = 1 if at_fetch else period, in_step, False
        self._group.clear()

    def release(self) -> None:
        """Hand over what is held, and everything at once from now on."""
        self.count_no_more()
        self.flush()
        if self.holding:
            self._hand_over_at_once()
            self.observer.released()

    def close(self) -> None:
        """Take no more events, of no thread."""
        self.thread = NOBODY
        self.drop()

    def drop(self) -> None:
        """Forget what is held, and hold nothing more."""
        self.counting = self.counts_at_fetch = False
        self.ends_ns.clear()
        self._entries.clear()
        self._hand_over_at_once()

    def flush(self) -> None:
        """Hand over what is held."""
        entries = self._entries
        count = len(entries)
        if count:
            parts = iter(entries[:count])
            # What another thread adds meanwhile stays.
            del entries[:count]
            self.observer.take(zip(parts, parts, parts, parts, strict=True), held=self.holding)
        if self.holding:
            # Steps that were handed over count: a short epoch's end does not put off the next look.
            self._limit = max(1, self._limit - self._steps)
            self._steps = self._updates = 0
            self._evaluated = self.goes_on = self.ask = False

    def innermost(self, phases: list[str]) -> str:
        """Return the phase that is open now; may be asked by another thread."""
        phases, entries = list(phases), self._entries[:]
        for i in range(0, len(entries) - 3, 4):
            event, begins, _now, what = entries[i : i + 4]
            if not begins:
                del phases[-1:]
            elif event is LABEL or event.phase is not None:
                phases.append(what if event is LABEL else event.phase)
        return phases[-1] if phases else ""

    # -- events --------------------------------------------------------------------------------

    def is_training_thread(self) -> bool:
        """Whether the calling thread is the training thread, or none is known yet."""
        return self.thread is None or self.thread == get_ident()

    def begin(self, event: Event, subject: Any = None) -> Event | None:
        """Something begins; return the event, which without gradients is an evaluation and no forward.

        None where it is none of the training thread's: then `end` is not to be called.
        """
        thread = get_ident()
        if thread != self.thread:
            if self.thread is not None:
                if event is OPTIMIZER and self.thread != NOBODY:
                    self.updated_in_backward = self.holding
                    self.note((UPDATE_ELSEWHERE, BEGINS, perf_counter_ns(), None))
                return None
            if event.names_thread:
                self.thread = thread
        if self.counting:
            self.count_no_more()
        now = perf_counter_ns()
        if event is FORWARD and not (torch.is_grad_enabled() or is_traced_module(subject)):
            event = EVALUATION
        if event is BACKWARD and self.before_backward is not None:
            self.before_backward()
        held = self.holding
        if held and not self._is_due(event):
            if event is EVALUATION and not self._evaluated:
                self._evaluated = True
                self.observer.first_evaluation(subject)
            self.note((event, BEGINS, now, subject if event.says_subject else None))
        else:
            # What is handed over for its size alone leaves the rest of the steps to be held.
            ends = not held or self._steps >= self._limit
            self.flush()
            self.observer.begin(event, subject, now, paused=held)
            if self.holding and ends:
                self._limit = max(1, self.observer.steps_to_hold())
        if event.hides_calls:
            self.busy += 1
            if event is BACKWARD:
                self.in_backward += 1
                self.went_back = True
        elif event.updates:
            self._closures = 0
            self.in_optimizer += 1
        return event

    def _is_due(self, event: Event) -> bool:
        """Whether an event is taken at once although events are held: the step ends here, or holding does."""
        self._closures += event is CLOSURE
        # An optimizer that calls its closure again may do so for all the rest of the training.
        again = event is CLOSURE and self._closures > 1
        if event.flushed == "at once" or again or (event.follows_update and self.in_optimizer):
            self.release()
            return True
        if not event.ends_step or self.in_optimizer or self.in_backward:
            return False
        self.ask = self.goes_on = False
        if self._stop.reason is not None:
            self.release()
            return True
        if self._armed and (event.ends_step == "fetch" or not self._at_fetch):
            self.step_goes_on()
            if self._steps < self._limit:
                return False
        elif self._updates < UPDATES_HELD and len(self._entries) < PARTS_HELD:
            return False
        self._looks_at_batch = True
        return True

    def step_goes_on(self) -> None:
        """A step ends here, and stays in the buffer."""
        self._armed = self.goes_on = False
        self._updates = self._in_step = 0
        self._steps += 1
        if self._mark is not None and self._steps < self._limit:
            self._mark()

    def end(self, event: Event, subject: Any = None, result: Any = None) -> None:
        """What began has ended; `result` is what a fetch returned, None where it raised."""
        now = perf_counter_ns()
        what = event.ends_with(subject, result) if event.ends_with is not None else None
        if event.hides_calls:
            self.busy -= 1
            self.in_backward -= event is BACKWARD
        elif event.updates and self.in_optimizer:
            self.in_optimizer -= 1
        self.note((event, ENDS, now, what))
        if not self.holding:
            self.flush()
            self.observer.ended(event, subject, result)
        elif event is FETCH and (self._looks_at_batch or result is None):
            # At the end of an epoch: what is said of the iterator must be said while it lives.
            self.flush()
            if result is not None:
                self._looks_at_batch = False
                self.observer.ended(event, subject, result)
        elif event.updates:
            if self.in_backward:
                self.updated_in_backward = True
            elif not self.in_optimizer:
                self.updated(what)
        elif self.updated_in_backward and event is BACKWARD and not self.in_backward:
            self.updated()

    def updated(self, optimizer: int | None = None) -> None:
        """An update has ended, by an optimizer of this identity: the last one of a step has it cut."""
        self.updated_in_backward = False
        self._updates += 1
        if self._period > 1:
            if self.went_back or optimizer in self._group:
                self._in_step += 1
                self._group.clear()
            self._group.add(optimizer)
            self.went_back = False
        self._armed = self._armed or self._period == 1 or self._in_step >= self._period
        due = self._armed and not self._at_fetch
        if due or self._updates >= UPDATES_HELD or self._stop.reason is not None:
            self.ask = True
        elif self._steps + 1 < self._limit and not self._looks_at_batch:
            self.goes_on = True

    def happened(self, event: Event, subject: Any) -> None:
        """An instant that is taken at once."""
        if self.thread != NOBODY:
            self.release()
            self.observer.happened(event, subject)

    def collected(self, took_ns: int) -> None:
        """Python's garbage collector ran for so long, on any thread."""
        self.note((COLLECTED, BEGINS, perf_counter_ns(), took_ns))
