"""What follows the steps of a process, be it diagnosed or watched: hooks, buffer, step rule and tracker.

In: events of the training thread, through the buffer. Out: steps, through the tracker, to whatever a
subclass names; a fault of ours ends the observation, never the user's program.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any, Generic, TypeVar

from ...clocks import perf_counter_ns
from ...runs.store import Store
from .. import torch_private
from ..events.buffer import Entry, EventBuffer, Stop
from ..events.hooks import Hooks
from ..events.table import OPTIMIZER, OPTIMIZER_BUILT, Event
from ..events.update_label import updates_around
from ..facts.compiler import CompileWatch
from ..lines.sites import user_site
from . import presence
from .horizon import Horizon
from .steps import StepRule
from .tracker import FetchTaker, Tracker

Loaders = TypeVar("Loaders", bound=FetchTaker)


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Keep a fault of ours out of the user's program; StopRun is none, and passes."""

    @functools.wraps(method)
    def call(self: StepObserver[Any], *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._give_up(error)

    return call


class StepObserver(ABC, Generic[Loaders]):
    """Observer of the buffer; see `buffer.Observer` for when its methods are called."""

    def __init__(
        self,
        store: Store,
        stop: Stop,
        *,
        loaders: Loaders,
        rule: StepRule | None = None,
        relieves: StepObserver[Any] | None = None,
    ) -> None:
        """Observe nothing yet.

        Args:
            store: where facts go.
            stop: a stop that is wanted ends the holding of events.
            loaders: is told of every fetch.
            rule: tells where a step ends; None: it is learned.
            relieves: observes until now, and again from `uninstall` on: both use its hooks and its rule.
        """
        self._relieves = relieves
        self.store = store
        """Where facts go."""
        self._loaders = loaders
        self._compiles = CompileWatch(store, began=self._compilation_begins)
        if relieves is None:
            self.rule = rule if rule is not None else StepRule()
            self.buffer = EventBuffer(self, stop)
            self._hooks = Hooks(self.buffer)
        else:
            self.rule, self.buffer, self._hooks = relieves.rule, relieves.buffer, relieves._hooks
            self._compiles.asked_for = relieves._compiles.asked_for
        self._horizon = Horizon()
        self._tracker = Tracker(self.rule, loaders=loaders, compiles=self._compiles, horizon=self._horizon)
        self._meter = self._tracker.meter
        self.clock = self._meter.clock

    # -- life ----------------------------------------------------------------------------------

    def install(self) -> None:
        """Put every hook in; from now on the script is observed. To relieve another: while a step ends."""
        presence.register(self)
        if self._relieves is None:
            self._hooks.install()
        else:
            self.buffer.observer = self
            self.clock.take_over(self._relieves.clock, perf_counter_ns())
            self.begin_step()
        self._loaders.install()
        self._compiles.install()
        self._meter.garbage.install()
        torch_private.skip_package(torch_private.__name__.rpartition(".")[0])

    def uninstall(self) -> None:
        """Take every hook out again. May be called more than once."""
        self.buffer.release()
        if self._relieves is None:
            self.buffer.close()
        self._meter.garbage.uninstall()
        self._compiles.uninstall()
        self._loaders.uninstall()
        if self._relieves is None:
            self._hooks.uninstall()
        else:
            self._relieves.clock.take_over(self.clock, perf_counter_ns())
            self.buffer.observer = self._relieves
        presence.unregister(self)

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._tracker.steps

    def forked(self) -> None:
        """This process is a fork of the one that is observed: take no event, and record nothing.

        The hooks stay, closed: compiled code guards on torch's table of them.
        """
        self.buffer.close()
        self.released()
        self._meter.garbage.uninstall()
        self._loaders.uninstall()

    def _give_up(self, error: Exception) -> None:
        """Something of ours has failed in the middle of an event: the script goes on unobserved."""
        with contextlib.suppress(Exception):
            self.buffer.close()
            self.released()
            self._record_fault(error)

    @abstractmethod
    def _record_fault(self, error: Exception) -> None:
        """Say in the run folder why the observation has ended; called while the error is handled."""

    # -- events --------------------------------------------------------------------------------

    @harmless
    def begin(self, event: Event, subject: Any, now: int, *, paused: bool) -> None:
        """See `Observer`."""
        tracker = self._tracker
        tracker.start(now)
        if (event.follows_update or event is OPTIMIZER) and self.rule.in_optimizer:
            self._recover(event)
        if tracker.ends_step(event):
            self._cut(now, paused=paused)
        # The step may have ended with a relief.
        self.buffer.observer.enter(event, subject)

    def enter(self, event: Event, subject: Any) -> None:
        """See `Observer`."""
        self._look_at(event, subject)
        self._tracker.enter(event, perf_counter_ns(), subject if event.says_subject else None)

    def begin_step(self) -> None:
        """The program marks its first step's beginning itself (`Harness.step`)."""
        if self.buffer.thread is None:
            self.buffer.thread = get_ident()
        self._tracker.start(perf_counter_ns())

    @harmless
    def end_step(self) -> None:
        """The program marks the end of a step itself (`Harness.step`)."""
        self.buffer.flush()
        self._cut(perf_counter_ns(), paused=False)

    @harmless
    def take(self, entries: Iterable[Entry], *, held: bool) -> None:
        """See `Observer`."""
        self._tracker.take(entries, held=held)

    @abstractmethod
    def ended(self, event: Event, subject: Any, result: Any) -> None:
        """See `Observer`."""

    @harmless
    def happened(self, event: Event, subject: Any) -> None:
        """See `Observer`."""
        if event is OPTIMIZER_BUILT:
            self.rule.optimizers.built(id(subject), user_site())

    @abstractmethod
    def first_evaluation(self, module: Any) -> None:
        """See `Observer`."""

    @abstractmethod
    def _cut(self, now: int, *, paused: bool) -> None:
        """A step has ended at `now` (perf_counter_ns); `paused`: work of ours lies in between."""

    @abstractmethod
    def _look_at(self, event: Event, subject: Any) -> None:
        """Learn from an event that begins and is taken at once."""

    def _recover(self, event: Event) -> None:
        """An exception may have left an optimizer step, whose hook for the end then never runs."""
        # The hook of a step that begins is called from within it.
        if updates_around(sys._getframe(1)) <= (event is OPTIMIZER):
            self.buffer.in_optimizer = 0
            self.rule.optimizer_escaped()
            self.clock.close_to(0)

    # -- events, held --------------------------------------------------------------------------

    @abstractmethod
    def steps_to_hold(self) -> int:
        """See `Observer`."""

    def _hold(self, *, mark: Callable[[], None] | None = None) -> bool:
        """An update has ended: hold events from now on, if they may be held; return whether they are.

        Args:
            mark: see `EventBuffer.hold`.
        """
        rule, steps = self.rule, self.steps_to_hold()
        # The cycle of a step must be known, and a compilation must be noticed when it begins.
        if rule.next_cut == "unknown" or steps == 0 or not self._compiles.foretells:
            return False
        self._meter.garbage.sink = self.buffer.collected
        self.buffer.hold(
            steps,
            at_fetch=rule.next_cut == "fetch",
            armed=rule.pending,
            mark=mark,
            period=rule.period,
            in_step=rule.in_step,
        )
        return True

    def released(self) -> None:
        """See `Observer`."""
        self._hooks.widen()
        self._meter.garbage.sink = None

    def _compilation_begins(self) -> None:
        """A compilation begins on this thread."""
        if self.buffer.thread == get_ident():
            self.buffer.release()
