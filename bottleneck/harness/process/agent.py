"""The agent: makes steps, phases and windows of the events of one process.

In: a plan, and where to put facts; then every event of the training thread. Out: a run folder with
windows, trace and memory snapshot; a stop request once all of it is captured.

Between two cuts an event costs a few microseconds and allocates next to nothing; everything expensive
(profiler, counters, files) happens at cuts where a window changes, outside every step.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ...clocks import perf_counter_ns
from .. import profile_forks, torch_private
from ..events.table import (
    ANOMALIES,
    BACKWARD,
    CLOSURE,
    COPY,
    EVALUATION,
    FETCH,
    FORWARD,
    MODEL_WRAPPED,
    OPTIMIZER,
    OPTIMIZER_BUILT,
    SCALER,
    SCRIPT_PROFILER,
    WORKERS,
    ZERO_GRAD,
)
from ..events.update_label import UpdateLabel
from ..facts.facts import FactWriter
from ..facts.learned import Learned
from ..facts.memory_notes import NoteBook
from ..facts.out_of_memory import ARTEFACT as FAILURE_ARTEFACT
from ..facts.out_of_memory import FailureWatch
from ..facts.own_cost import OwnCost
from ..lines.sites import user_site
from ..loading.batches import size_of, tensors_of
from ..loading.watch import LoaderWatch
from ..windows.capture import Capture
from ..windows.meeting import compares_devices, gather
from ..windows.observer import StepObserver, harmless
from .trying import Trying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...runs.plan import Plan
    from ...runs.store import Store
    from ..events.table import Event
    from ..windows.steps import StepRule
    from .progress import Progress
    from .stopping import Stopper

LEAVE_SECONDS = 10.0
"""Longest wait for the other ranks before this one is stopped; they are at the same step."""


class Agent(StepObserver[LoaderWatch]):
    """Observer of the buffer; see `buffer.Observer` for when its methods are called."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        stopper: Stopper,
        progress: Progress,
        *,
        rule: StepRule | None = None,
        relieves: StepObserver[Any] | None = None,
        captured: Callable[[], None] | None = None,
    ) -> None:
        """Observe nothing yet.

        Once all is captured and the script goes on, `captured` is called at the end of a step; without it, no
        more events are taken then. `relieves`: see `StepObserver`.
        """
        super().__init__(store, stopper, loaders=LoaderWatch(store), rule=rule, relieves=relieves)
        self._captured = captured or self.buffer.close
        self._plan = plan
        self._stopper = stopper
        self._own_cost = OwnCost()
        self._learned = Learned(self.clock)
        self._update_label = UpdateLabel()
        self._facts = FactWriter(store, self._learned, self._own_cost)
        self._notes = NoteBook(self.clock, self._learned.optimizers.living)
        self._failures = FailureWatch(store, self._notes, self._whereabouts)
        self._at_training: Callable[[], None] | None = None
        self.capture = Capture(
            plan,
            store,
            progress,
            horizon=self._horizon,
            clock=self.clock,
            notes=self._notes,
            optimizers=self._learned.optimizers.living,
            found=self._learned.sites.note,
            at_trace_end=self._facts.write_settings,
        )
        self._tracker.capture, self._tracker.notes = self.capture, self._notes
        self.trying = Trying(plan, store, stopper, progress, buffer=self.buffer)
        self._whole = False
        """Everything that the capture is to say has been written."""
        self._to_hold = False
        """A window is timed: from the end of the next update on, events are held."""
        self._held_before = self._hooks_are_fast = False
        self._timing_last = False
        """All is captured but the last stretch of steps and the stacks around it, which may be cut short."""
        self._look: dict[Event, Callable[[Any], object]] = {
            FETCH: lambda _: self._learned.look("data"),
            WORKERS: lambda _: self._learned.look("data"),
            FORWARD: self._look_at_call,
            EVALUATION: self._look_at_evaluation,
            BACKWARD: lambda _: self._learned.backward(is_update=not self.rule.optimizers.known),
            OPTIMIZER: self._look_at_update,
            SCALER: lambda scaler: self._learned.grad_scaler(scaler[0]),
            ZERO_GRAD: self._learned.zero_grad,
            COPY: self._look_at_copy,
        }
        """What is learned from events while each is taken at once."""

    # -- life ----------------------------------------------------------------------------------

    def goes_on(self, iterations: Iterable[tuple[Any, weakref.ref[Any]]]) -> None:
        """Iterators of these loaders lived before this observer relieved another."""
        for iterator, loader in iterations:
            if (living := loader()) is not None:
                self._loaders.began_before(living, iterator)

    def uninstall(self) -> None:
        """Take every hook out again. May be called more than once."""
        super().uninstall()
        self._learned.lines.end()
        self._failures.detach()

    def program_ends(self) -> None:
        """The script has ended, and nothing of ours is on: what profiles have left behind goes, too."""
        profile_forks.program_ends()

    def forked(self) -> None:
        """See `StepObserver`."""
        super().forked()
        self.capture.forked()
        self._failures.detach()

    def finish(self, error: BaseException | None = None) -> None:
        """The script has ended or was stopped, or `error` left it: keep what there is. Never raises."""
        guarded = self._facts.guarded
        guarded("trials", lambda: self.trying.end("the script ended"))
        if self._whole:
            return
        guarded("capture", self.buffer.release)
        guarded(FAILURE_ARTEFACT, lambda: self._failures.ended(error))
        if not self._facts.has_settings or not self.capture.done:
            guarded("capture", self._finish_capture)
            if not self._facts.has_settings:
                # Later there is less to see: the script's optimizers and modules are gone when it returns.
                guarded("facts", self._facts.write_settings)
            if self._timing_last and error is None and not self._stopper.interrupted:
                self._probe()
        self._write_ending()

    def _write_ending(self) -> None:
        self._facts.write_ending(self._tracker, self.capture, loaders=self._loaders, compiles=self._compiles)

    def _finish_capture(self) -> None:
        last = self._tracker.last_row()
        self._meter.share_usage(at_end=True)
        reason = "interrupted" if self._stopper.interrupted else "the script ended"
        self.capture.finish(last=last, learned=self.rule.learned, reason=reason)

    def at_training(self, call: Callable[[], None]) -> None:
        """Have `call` called once, when the script's set-up is over: at a root forward or a cut."""
        self._at_training = call

    def _training_begins(self) -> None:
        call, self._at_training = self._at_training, None
        if call is not None:
            call()

    # -- events, taken at once -----------------------------------------------------------------

    def _look_at(self, event: Event, subject: Any) -> None:
        # What an optimizer tries inside its step is no state to leave a program in, if it can be helped.
        if self.rule.signal == "closure" if event is CLOSURE else (event.ends_step and not self.rule.inside):
            self._stopper.safe_point()
        look = self._look.get(event)
        if look is not None:
            look(subject)
        stacks = self.capture.stacks.sampler
        if stacks is not None:
            stacks.note(event.phase)

    def _look_at_copy(self, tensor: Any) -> None:
        self._learned.sites.note("h2d")
        self._learned.copied.note(tensor, self._tracker.steps, user_site())

    @harmless
    def ended(self, event: Event, subject: Any, result: Any) -> None:
        """See `Observer`."""
        if event is FETCH and result is not None:
            self._look_at_batch(subject, result)
        elif event.updates:
            if not self.rule.in_optimizer:
                self._update_label.end()
            if self._to_hold and not self.rule.inside:
                self._begin_holding()
        elif event is CLOSURE and self.rule.in_optimizer:
            self._update_label.go_on()

    @harmless
    def happened(self, event: Event, subject: Any) -> None:
        """See `Observer`."""
        super().happened(event, subject)
        if event is OPTIMIZER_BUILT:
            self._learned.optimizers.built(subject)
        elif event is MODEL_WRAPPED:
            self._learned.sites.note("model wrapped", 4)
        elif event is ANOMALIES:
            self._learned.sites.note("anomalies", 4)
        elif event is SCRIPT_PROFILER and not self.capture.own_profiler_busy:
            if subject:
                self._learned.sites.note("script profiler", 4)
            self.capture.foreign_profiler(active=subject)

    def _record_fault(self, error: Exception) -> None:  # noqa: ARG002 - its traceback says more
        self.store.artefact("harness", "failed", reason=traceback.format_exc(limit=-3))

    def _look_at_batch(self, iterator: object, batch: object) -> None:
        if self.capture.done:
            return
        began = perf_counter_ns()
        tensors = tensors_of(batch)
        count, elements = size_of(tensors)
        self._meter.batch_bytes += count
        self._meter.batch_elements += elements
        self._loaders.look_at(iterator, batch, tensors)
        self._own_cost.add(began)

    def _look_at_call(self, module: torch.nn.Module) -> None:
        if self._at_training is not None and torch.is_grad_enabled():
            self._training_begins()
        if self._learned.looking:
            self._learned.roots.add(type(module))
            self._learned.forward(module)
            self._notes.met_root(module)
            self._failures.attach()
        else:
            self._learned.lines.forward()

    def _look_at_evaluation(self, module: torch.nn.Module) -> None:
        if self._learned.looking:
            self._learned.roots.add(type(module))
        if not self._meter.evaluations:
            self._learned.without_gradients(module, fed=self._loaders.any_built)

    def _look_at_update(self, optimizer: object) -> None:
        if self._learned.looking:
            self._learned.update(optimizer)
            self._failures.attach()
        else:
            self._learned.lines.update()
        if not self.rule.in_optimizer:
            self._update_label.begin()

    def _whereabouts(self) -> tuple[str, int, str, int | None]:
        """Phase, step, window and training thread as of now; may be asked by another thread."""
        phase = self.buffer.innermost(self.clock.open_phases)
        return phase, self._tracker.steps, self.capture.window_name, self.buffer.thread

    def _recover(self, event: Event) -> None:
        super()._recover(event)
        if not self.rule.in_optimizer:
            self._update_label.left()
            self._update_label.close()

    # -- events, held --------------------------------------------------------------------------

    def _begin_holding(self) -> None:
        """An update has ended in a window that is timed: from now on events are held, not looked at."""
        self._to_hold = False
        if compares_devices(self._plan):
            self.buffer.before_backward = self.capture.before_backward
        if not self._hold(mark=self.capture.mark if torch_private.device_kind() != "cpu" else None):
            return
        self._held_before = True
        self._hooks_are_fast = not self._compiles.asked_for
        if self._hooks_are_fast and self._hooks.narrow(self._learned.roots):
            self._own_cost.nested_are_free = True

    def steps_to_hold(self) -> int:
        """See `Observer`."""
        return self.capture.steps_to_hold()

    def first_evaluation(self, module: Any) -> None:  # noqa: ARG002 - the observer's signature
        """See `Observer`."""
        self._learned.sites.note("evaluation")

    @contextlib.contextmanager
    def _as_when_timed(self, roots: Iterable[type]) -> Iterator[None]:
        """Have the hooks as they were while steps were timed; what is held meanwhile is forgotten."""
        if self._held_before:
            self.buffer.hold(sys.maxsize, at_fetch=True, armed=False, mark=None)
            self.buffer.ask = not self._hooks_are_fast
            if self._hooks_are_fast:
                self._hooks.narrow(roots)
        try:
            yield
        finally:
            self._hooks.widen()
            self.buffer.drop()

    # -- steps ---------------------------------------------------------------------------------

    def _cut(self, now: int, *, paused: bool) -> None:
        if self.capture.done:
            if self.trying.active:
                self._cut_trial(now)
            return
        if self._at_training is not None:
            self._training_begins()
        self._update_label.close()
        measuring = self.capture.measuring
        self._own_cost.add(now)
        began = perf_counter_ns()
        changed = self._tracker.cut(now, paused=paused)
        self._learned.at_cut(warming_up=self.capture.stage == "warm-up" and self._plan.trial is None)
        if changed:
            # What changing the window took lies outside of every step.
            self._own_cost.stepped(self._tracker.steps, counts=measuring)
            self._on_window()
            self._meter.begin(perf_counter_ns())
            return
        self._own_cost.add(began)
        self._own_cost.stepped(self._tracker.steps, counts=measuring)
        if self.buffer.holding and not self.capture.measuring:
            # The step rule has learned something new meanwhile: these steps are warm-up again.
            self.buffer.release()

    def _on_window(self) -> None:
        """A window has changed; nothing is measured while this runs."""
        self.buffer.release()
        stage = self.capture.stage
        self._to_hold = self.capture.measuring
        on_device = torch_private.device_kind() != "cpu"
        self._meter.reads_usage = not on_device
        if stage in ("trace", "memory") and on_device:
            self._hooks.label_copies()
        else:
            self._hooks.unlabel_copies()
            self._facts.write_copied(self._tracker.steps)
        self._timing_last = stage in ("stacks", "after")
        if stage == "done":
            self._all_captured()

    def _probe(self) -> None:
        """Measure the machine and the hooks, once the last step is timed."""
        self._facts.probe(
            self._tracker,
            self.capture,
            as_when_timed=self._as_when_timed,
            plain_call=self._hooks.plain_call,
            over=not self._plan.run_to_end,
        )

    def _all_captured(self) -> None:
        if self._plan.trial is None:
            self._probe()
        self._facts.write_summary(self._tracker, self.capture)
        if self._plan.run_to_end:
            if self.trying.wanted:
                self._write_ending()
                if self._begin_trials():
                    return
            # Compiled code guards on torch's table of optimizer hooks: taking ours out now would
            # make the script recompile. Closed they cost a microsecond a step until its end.
            self._captured()
        else:
            if self.trying.wanted:
                # Nothing of the trials belongs into the account of the script.
                self._write_ending()
                self._whole = True
                self._failures.detach()
                if self._begin_trials():
                    return
            self._request_stop()

    def _request_stop(self) -> None:
        # A rank that ends breaks a collective in which another one still receives.
        if torch_private.world()[1] > 1:
            gather("stop", None, kind=Any, patience_s=LEAVE_SECONDS)
        self._stopper.request()

    def _begin_trials(self) -> bool:
        return self.trying.begin(
            optimizers=self._learned.optimizers.living,
            loader_of=self._loaders.loader_of,
            queued=lambda: self._horizon.queued,
            step=self._tracker.steps,
            step_ms=self.capture.step_ms,
        )

    def _cut_trial(self, now: int) -> None:
        """A step of the trial window has ended."""
        row = self._tracker.row(now)
        self._tracker.steps += 1
        if self.trying.cut(validation=row.validation, compiled=row.compiled):
            self._request_stop()
        self._meter.begin(perf_counter_ns())

    def _compilation_begins(self) -> None:
        if self.buffer.thread == get_ident():
            self._to_hold = False
        super()._compilation_begins()
