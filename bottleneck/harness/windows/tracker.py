"""Keeps the account of steps: what each event of the training thread means for the step under way.

In: events, each with the time at which it happened. Out: phases, rows, cuts; a row goes to the
capture at every cut. An event may be taken in as it happens, or later together with others: what comes
of it is the same, but that windows do not change for a step taken in later.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ...clocks import perf_counter_ns
from ..events.buffer import Entry
from ..events.table import (
    BACKWARD,
    COLLECTED,
    EVALUATION,
    EVENTS,
    FETCH,
    LABEL,
    OPTIMIZER,
    SCALER,
    UPDATE_ELSEWHERE,
    Event,
)
from ..facts.compiler import CompileWatch
from ..facts.memory_notes import NoteBook
from .horizon import Horizon
from .meter import StepMeter
from .steps import StepRule
from .table import Row

VOTES = 200
"""Batches whose fate, trained on or evaluated, is noted by the loader watch; then never again."""


class _Meaning(NamedTuple):
    """What an event means for the step under way."""

    ends_step: Callable[[], bool] | None
    """Asks the step rule whether a step ends right before it."""
    begin: Callable[[Any], None] | None
    end: Callable[[int, Any, int], None] | None
    """Is given the time of its end, what its end says, and the ns it took."""


class StepTaker(Protocol):
    """Who the steps go to; see `Capture`."""

    @property
    def done(self) -> bool:
        """No more steps are wanted."""

    @property
    def window_name(self) -> str:
        """The window that a step belongs to now."""

    def cut(self, row: Row, *, learned: bool) -> bool:
        """A step has ended; return whether a window changed."""

    def add(self, row: Row) -> None:
        """A step ended before this call."""

    def restart(self) -> None:
        """The step rule has learned another cycle."""


class FetchTaker(Protocol):
    """Who is told of fetches; see `LoaderWatch`."""

    def install(self) -> None:
        """Put its own hooks in."""

    def uninstall(self) -> None:
        """Take them out again."""

    def handed_over(
        self, iterator: object, *, at_ns: int, grad: bool, wait_ms: float, step_index: int, window: str
    ) -> None:
        """A batch was handed over."""

    def exhausted(self, *, wait_ms: float, step_index: int) -> None:
        """A fetch found no further batch."""

    def train_fetch(self, iterator: object) -> None:
        """A backward followed this iterator's batch."""

    def eval_fetch(self, iterator: object) -> None:
        """An evaluation and no backward followed it."""


class Tracker:
    """The step under way. Events come from the training thread, one at a time."""

    def __init__(
        self,
        rule: StepRule,
        *,
        loaders: FetchTaker,
        compiles: CompileWatch,
        horizon: Horizon,
    ) -> None:
        """Begin before the first step.

        Args:
            rule: tells where a step ends.
            loaders: is told of every fetch.
            compiles: is asked at every cut whether something was compiled.
            horizon: is told of fetches and steps.
        """
        self.rule = rule
        self.meter = StepMeter()
        self.clock = self.meter.clock
        self.steps = 0
        """Steps that have ended."""
        self.capture: StepTaker
        """Set by the owner: it needs the clock of this object first."""
        self.notes: NoteBook | None = None
        """Likewise; None where no memory window is to come."""
        self.last_update_ns = 0
        self._loaders = loaders
        self._compiles = compiles
        self._horizon = horizon
        self._generation = 0
        self._iterator: weakref.ref[Any] | None = None
        self._trained = self._evaluated = False
        self._votes = 0
        begins: dict[Event, Callable[[Any], None]] = {
            EVALUATION: self._evaluation_begins,
            BACKWARD: self._backward_begins,
            OPTIMIZER: lambda _: rule.optimizer_begin(),
            SCALER: lambda _: rule.scaler_begin(),
            COLLECTED: self._collected,
            UPDATE_ELSEWHERE: lambda _: rule.foreign_update(),
        }
        ends: dict[Event, Callable[[int, Any, int], None]] = {
            FETCH: self._fetch_ended,
            BACKWARD: self._backward_ended,
            OPTIMIZER: self._optimizer_ended,
            SCALER: self._scaler_ended,
        }
        self._meanings = {
            event: _Meaning(
                getattr(rule, event.ends_step) if event.ends_step else None,
                begins.get(event),
                ends.get(event),
            )
            for event in EVENTS
        }

    # -- events --------------------------------------------------------------------------------

    def take(self, entries: Iterable[Entry], *, held: bool) -> None:
        """Take in events; `held`: since the last cut or before it, so that no window changes by them."""
        meanings, clock = self._meanings, self.clock
        self.meter.late = held
        # The phase that the entry before has begun, which may end at once.
        phase: str | None = None
        since = 0
        try:
            for event, begins, now, what in entries:
                if begins:
                    if phase is not None:
                        clock.enter(phase, since)
                    ends_step, begin, end = meanings[event]
                    if ends_step is not None and ends_step():
                        self.cut(now)
                    if begin is not None:
                        begin(what)
                    phase, since = what if event is LABEL else event.phase, now
                    continue
                if phase is not None:
                    took_ns = clock.spend(phase, since, now)
                    phase = None
                else:
                    took_ns = clock.leave(now)
                    end = meanings[event].end
                if end is not None:
                    end(now, what, took_ns)
        finally:
            if phase is not None:
                clock.enter(phase, since)
            self.meter.late = False

    def ends_step(self, event: Event) -> bool:
        """An event is about to begin: whether the step ends right before it."""
        ends_step = self._meanings[event].ends_step
        return ends_step is not None and ends_step()

    def enter(self, event: Event, now: int, what: Any) -> None:
        """An event begins, the cut before it having been made."""
        begin = self._meanings[event].begin
        if begin is not None:
            begin(what)
        self.clock.enter(what if event is LABEL else event.phase or "", now)

    # -- steps ---------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """Something happens; the first step begins with the first event of the program."""
        if self.meter.start_ns is None:
            self.meter.begin(now)

    def row(self, now: int) -> Row:
        """Return the step that ends at `now`."""
        return self.meter.row(now, index=self.steps, compiled=self._compiles.at_cut(self.steps))

    def last_row(self) -> Row | None:
        """Return the step that its update has ended and no cut, now that the program ends; None if none."""
        if not self.rule.pending or self.meter.start_ns is None:
            return None
        ended_ns = max(self.last_update_ns, self.meter.start_ns + 1)
        return self.meter.last_row(ended_ns, index=self.steps, compiled=self._compiles.at_cut(self.steps))

    def cut(self, now: int, *, paused: bool = False) -> bool:
        """A step ends here; return whether a window changed.

        Args:
            now: perf_counter_ns().
            paused: work of ours lies between `now` and this call: the next step begins after it.
        """
        if self.capture.done:
            return False
        row = self.row(now)
        if self.rule.generation != self._generation:
            if self._generation:
                self.capture.restart()
            self._generation = self.rule.generation
            self.meter.regroup(self.rule.period)
        self._horizon.at_cut()
        self.steps += 1
        if self.meter.late:
            self.capture.add(row)
            changed = False
        else:
            changed = self.capture.cut(row, learned=self.rule.learned)
        paused = paused or changed
        self.meter.begin(perf_counter_ns() if paused else now, fresh=paused)
        return changed

    # -- what single events mean ---------------------------------------------------------------

    def _fetch_ended(self, now: int, handed_over: tuple[weakref.ref[Any], bool] | None, wait_ns: int) -> None:
        """A batch is here: from this iterator, with or without gradients enabled; None when none came."""
        iterator = handed_over[0]() if handed_over is not None else None
        if self.capture.done:
            return
        if handed_over is None:
            self._loaders.exhausted(wait_ms=wait_ns / 1e6, step_index=self.steps)
        if handed_over is None or iterator is None:
            return
        self._vote(iterator)
        self._horizon.fetched(iterator)
        self._loaders.handed_over(
            iterator,
            at_ns=now,
            grad=handed_over[1],
            wait_ms=wait_ns / 1e6,
            step_index=self.steps,
            window=self.capture.window_name,
        )

    def _vote(self, iterator: object) -> None:
        """Tell the loader watch what became of the batch before this one: trained on or evaluated."""
        if self._votes >= VOTES:
            return
        before = self._iterator() if self._iterator is not None else None
        if before is not None:
            self._votes += 1
            if self._trained:
                self._loaders.train_fetch(before)
            elif self._evaluated:
                self._loaders.eval_fetch(before)
        self._trained = self._evaluated = False
        if before is not iterator:
            self._iterator = weakref.ref(iterator)

    def _evaluation_begins(self, _: None) -> None:
        self.meter.evaluations += 1
        self._evaluated = True

    def _backward_begins(self, accumulates: bool) -> None:
        self.rule.backward_begin()
        if accumulates:
            self.meter.accumulations += 1

    def _backward_ended(self, now: int, _what: None, _took_ns: int) -> None:
        if self.rule.backward_end():
            if not self.meter.late and self.notes is not None:
                self.notes.after_backward()
            self.meter.backwards += 1
            self._trained = True
            if self.rule.pending:
                self._updated(now)

    def _optimizer_ended(self, now: int, key: int, _took_ns: int) -> None:
        self.rule.optimizer_end(key)
        self._updated(now)

    def _scaler_ended(self, now: int, key: int, _took_ns: int) -> None:
        self.rule.scaler_end(key)
        self._updated(now)

    def _updated(self, now: int) -> None:
        self.last_update_ns = now
        self.meter.updated()

    def _collected(self, took_ns: int) -> None:
        self.meter.garbage.total_ns += took_ns
