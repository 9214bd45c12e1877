"""Keeps the account of steps: what each event of the training thread means for the step under way.

In: events, each with the time at which it happened. Out: phases, rows, cuts; a row goes to the
capture at every cut. An event may be told as it happens, by the agent, or later together with
others, by the tape: what comes of it is the same, but that windows do not change for a step told
later.
"""

from __future__ import annotations

import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .meter import StepMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..facts.compiler import CompileWatch
    from ..facts.loader import LoaderWatch
    from ..facts.memory_notes import NoteBook
    from .capture import Capture
    from .horizon import Horizon
    from .steps import StepRule
    from .table import Row

__all__ = ["Told", "Tracker"]

VOTES = 200
"""Batches whose fate, trained on or evaluated, is told to the loader watch; then never again."""

if TYPE_CHECKING:
    Told = tuple[Callable[[int, Any], None], int, Any]
    """An event: a method of the tracker, time.perf_counter_ns() of it, and what the method needs."""
else:
    Told = tuple


class Tracker:
    """The step under way. Events come from the training thread, one at a time."""

    def __init__(
        self,
        rule: StepRule,
        *,
        loaders: LoaderWatch,
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
        self.capture: Capture
        """Set by the owner: it needs the clock of this object first."""
        self.notes: NoteBook
        """Likewise."""
        self.last_update_ns = 0
        self._loaders = loaders
        self._compiles = compiles
        self._horizon = horizon
        self._generation = 0
        self._iterator: weakref.ref[Any] | None = None
        self._trained = self._evaluated = False
        self._votes = 0

    def tell(self, events: Iterable[Told]) -> None:
        """Take in what happened since the last cut or before it; no window changes by it."""
        self.meter.late = True
        try:
            for event, now, what in events:
                event(now, what)
        finally:
            self.meter.late = False

    # -- steps ---------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """Something happens; the first step begins with the first event of the program."""
        if self.meter.start_ns is None:
            self.meter.begin(now)

    def row(self, now: int) -> Row:
        """Return the step that ends at `now`."""
        return self.meter.row(now, index=self.steps, compiled=self._compiles.at_cut(self.steps))

    def cut(self, now: int, *, paused: bool = False) -> bool:
        """A step ends here; return whether a window changed.

        Args:
            now: time.perf_counter_ns().
            paused: work of ours lies between `now` and this call: the next step begins after it.
        """
        if self.capture.done:
            return False
        row = self.row(now)
        if self.rule.generation != self._generation:
            if self._generation:
                self.capture.restart()
            self._generation = self.rule.generation
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

    # -- events: each takes its time in ns, and what it is about -------------------------------

    def fetch_begins(self, now: int, _: None = None) -> None:
        """A batch is about to be fetched."""
        if self.rule.fetch():
            self.cut(now)
        self.clock.enter("data", now)

    def fetch_ends(self, now: int, fetched: tuple[weakref.ref[Any], bool] | None) -> None:
        """It is here: from this iterator, with or without gradients enabled; None when none came."""
        wait = self.clock.leave(now)
        if fetched is not None:
            self._handed_over(*fetched, now, wait)

    def fetch_done(self, began: int, done: tuple[int, weakref.ref[Any], bool]) -> None:
        """Both at once, for a fetch in which nothing happened: its end in ns, then as above."""
        if self.rule.fetch():
            self.cut(began)
        now, iterator, grad = done
        self._handed_over(iterator, grad, now, self.clock.spend("data", began, now))

    def _handed_over(self, source: weakref.ref[Any], grad: bool, now: int, wait: int) -> None:
        iterator = source()
        if iterator is None or self.capture.done:
            return
        self.came_from(iterator)
        self._loaders.handed_over(
            iterator,
            at_ns=now,
            grad=grad,
            wait_ms=wait / 1e6,
            step_index=self.steps,
            window=self.capture.window_name,
        )

    def came_from(self, iterator: object) -> None:
        """A batch has come from this iterator."""
        self._vote(iterator)
        self._horizon.fetched(iterator)

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

    def forward_begins(self, now: int, label: str) -> None:
        """A root module is about to be called: as "forward" or as "evaluation"."""
        if self.rule.forward():
            self.cut(now)
        self.enter_forward(now, label)

    def enter_forward(self, now: int, label: str) -> None:
        """The call itself, the cut before it having been made."""
        if label == "evaluation":
            self.meter.evaluations += 1
            self._evaluated = True
        self.clock.enter(label, now)

    def forward_done(self, began: int, now: int) -> None:
        """Beginning and end of a forward with gradients in which nothing happened."""
        if self.rule.forward():
            self.cut(began)
        self.clock.spend("forward", began, now)

    def backward_begins(self, now: int, accumulates: bool) -> None:
        """The autograd engine is about to run."""
        if self.rule.backward():
            self.cut(now)
        self.enter_backward(now, accumulates)

    def enter_backward(self, now: int, accumulates: bool) -> None:
        """The engine itself, the cut before it having been made."""
        self.rule.backward_begin()
        if accumulates:
            self.meter.accumulations += 1
        self.clock.enter("backward", now)

    def backward_ends(self, now: int, _: None = None) -> None:
        """It has returned or raised."""
        self.clock.leave(now)
        self._backward_ended(now)

    def backward_done(self, began: int, done: tuple[int, bool]) -> None:
        """Beginning and end, in ns, of a backward in which nothing happened, and whether it accumulates."""
        if self.rule.backward():
            self.cut(began)
        self.rule.backward_begin()
        now, accumulates = done
        if accumulates:
            self.meter.accumulations += 1
        self.clock.spend("backward", began, now)
        self._backward_ended(now)

    def _backward_ended(self, now: int) -> None:
        if self.rule.backward_end():
            if not self.meter.late:
                self.notes.after_backward()
            self.meter.backwards += 1
            self._trained = True
            if self.rule.pending:
                self.last_update_ns = now

    def optimizer_begins(self, now: int, _: None = None) -> None:
        """An optimizer step begins."""
        self.rule.optimizer_begin()
        self.clock.enter("optimizer", now)

    def optimizer_ends(self, now: int, key: int) -> None:
        """The step of the optimizer with this identity has ended."""
        self.clock.leave(now)
        self.rule.optimizer_end(key)
        self.last_update_ns = now

    def optimizer_done(self, began: int, done: tuple[int, int]) -> None:
        """Beginning and end of an optimizer step in which nothing happened, and of which optimizer."""
        self.rule.optimizer_begin()
        now, key = done
        self.clock.spend("optimizer", began, now)
        self.rule.optimizer_end(key)
        self.last_update_ns = now

    def foreign_update(self, _now: int, _: None = None) -> None:
        """An optimizer stepped on another thread."""
        self.rule.foreign_update()

    def scaler_begins(self, now: int, _: None = None) -> None:
        """A GradScaler step begins."""
        self.rule.scaler_begin()
        self.clock.enter("optimizer", now)

    def scaler_ends(self, now: int, key: int) -> None:
        """The GradScaler step for the optimizer with this identity has ended."""
        self.clock.leave(now)
        self.rule.scaler_end(key)
        self.last_update_ns = now

    def zero_grad_begins(self, now: int, _: None = None) -> None:
        """Gradients are about to be cleared."""
        if self.rule.zero_grad():
            self.cut(now)
        self.clock.enter("zero_grad", now)

    def zero_grad_done(self, began: int, now: int) -> None:
        """Beginning and end of a zero_grad."""
        if self.rule.zero_grad():
            self.cut(began)
        self.clock.spend("zero_grad", began, now)

    def phase_ends(self, now: int, _: None = None) -> None:
        """The phase that was entered last has ended."""
        self.clock.leave(now)

    def label_begins(self, now: int, name: str) -> None:
        """The program names a stretch of its own."""
        self.clock.enter(name, now)

    def collected(self, _now: int, took_ns: int) -> None:
        """Python's garbage collector ran for so long."""
        self.meter.garbage.total_ns += took_ns
