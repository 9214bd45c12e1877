"""The agent: turns what the hooks see into steps, phases and windows of one process.

In: a plan, and where to put facts; then every event of the training thread. Out: a run folder with
windows, trace and memory snapshot; a stop request once all of it is captured.

Between two cuts an event costs a few microseconds and allocates next to nothing; everything dear
(profiler, counters, files) happens at cuts where a window changes, outside every step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler as autograd_profiler

from . import horizon, probes, torch_private
from .batch_facts import size_of, tensors_of
from .capture import Capture
from .compiler import CompileWatch
from .hooks import Hooks
from .learned import Learned
from .loader import LoaderWatch
from .memory_notes import NoteBook
from .out_of_memory import ARTEFACT as FAILURE_ARTEFACT
from .out_of_memory import FailureWatch
from .own_cost import OwnCost
from .steps import StepRule
from .tape import Tape
from .tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from .observer import Observer
    from .plan import Plan
    from .progress import Progress
    from .stopping import Stopper
    from .store import Store

__all__ = ["Agent", "active"]

_installed: list[weakref.ref[Agent]] = []
"""The agent whose hooks are in, if any."""


def active() -> Agent | None:
    """Return the agent that watches this process, if there is one."""
    return _installed[-1]() if _installed else None


class Agent:
    """Observer of the hooks; see `observer.Observer` for when its methods are called."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        stopper: Stopper,
        progress: Progress,
        *,
        rule: StepRule | None = None,
    ) -> None:
        self.rule = rule if rule is not None else StepRule()
        self._plan = plan
        self._store = store
        self._stopper = stopper
        self._hooks = Hooks(self)
        self._own_cost = OwnCost()
        self._live = False
        self._thread: int | None = None
        self._loader_watch = LoaderWatch(store)
        self._compile_watch = CompileWatch(store, began=self._compilation_begins)
        self._horizon = horizon.Horizon()
        self._tracker = Tracker(
            self.rule, loaders=self._loader_watch, compiles=self._compile_watch, horizon=self._horizon
        )
        self._meter = self._tracker.meter
        self.clock = self._meter.clock
        self._learned = Learned(self.clock)
        self._ranges: list[Any] = []
        self._tape: Tape | None = None
        self._wants_tape = self._taped = False
        self._facts_read = False
        self._notes = NoteBook(self.clock, self._learned.optimizers.living)
        self._failures = FailureWatch(store, self._notes, self._whereabouts)
        self._at_training: Callable[[], None] | None = None
        self.capture = Capture(
            plan,
            store,
            progress,
            horizon=self._horizon,
            notes=self._notes,
            found_sync=lambda: self._learned.sites.note("synchronisation"),
            at_trace_end=self._read_facts,
        )
        self._tracker.capture, self._tracker.notes = self.capture, self._notes

    # -- life ----------------------------------------------------------------------------------

    def install(self) -> None:
        """Put every hook in; from now on the script is observed."""
        _installed.append(weakref.ref(self))
        self._live = True
        self._hooks.install()
        self._loader_watch.install()
        self._compile_watch.install()
        self._meter.garbage.install()
        torch_private.skip_package(__name__.rpartition(".")[0])
        # A forked data-loader worker has its parent's thread identity; it must not cut steps.
        os.register_at_fork(after_in_child=_deafen(weakref.ref(self)))

    def uninstall(self) -> None:
        """Take every hook out again. May be called more than once."""
        self._leave_tape()
        self._live = False
        self._failures.detach()
        self._meter.garbage.uninstall()
        self._compile_watch.uninstall()
        self._loader_watch.uninstall()
        self._hooks.uninstall()
        _installed[:] = [watching for watching in _installed if watching() not in (None, self)]

    def finish(self, error: BaseException | None = None) -> None:
        """The script has ended or was stopped, or `error` left it: keep what there is. Never raises."""
        self._guarded("capture", self._leave_tape)
        self._guarded(FAILURE_ARTEFACT, lambda: self._failures.ended(error))
        if not self._facts_read or not self.capture.done:
            self._guarded("capture", self._finish_capture)
            self._guarded("facts", self._read_facts)
        self._guarded("loader", self._loader_watch.write)
        self._guarded("compile", self._compile_watch.write)
        self._guarded("facts", self._write_summary)

    def _finish_capture(self) -> None:
        last = None
        if self.rule.pending and self._meter.start_ns is not None:
            # The last step is whole, though nothing came after it to cut at.
            last = self._tracker.row(max(self._tracker.last_update_ns, self._meter.start_ns + 1))
        self._meter.share_usage()
        reason = "interrupted" if self._stopper.interrupted else "the script ended"
        self.capture.finish(last=last, learned=self.rule.learned, reason=reason)

    def _guarded(self, artefact: str, call: Any) -> None:
        try:
            call()
        except Exception as error:
            with contextlib.suppress(Exception):
                self._store.artefact(artefact, "failed", reason=f"{type(error).__name__}: {error}")

    @property
    def steps(self) -> int:
        """Steps that have ended so far."""
        return self._tracker.steps

    def at_training(self, call: Callable[[], None]) -> None:
        """Have `call` called once, when the script's set-up is over: at a root forward or a cut."""
        self._at_training = call

    def _training_begins(self) -> None:
        call, self._at_training = self._at_training, None
        if call is not None:
            call()

    @property
    def observer(self) -> Observer:
        """Who is told of events just now."""
        return self._hooks.observer

    # -- who asks ------------------------------------------------------------------------------

    def mine(self) -> bool:
        """See `Observer`."""
        return self._live and (self._thread is None or self._thread == get_ident())

    def own_profiler_busy(self) -> bool:
        """See `Observer`."""
        return self.capture.own_profiler_busy

    def foreign_profiler(self, *, active: bool) -> None:
        """See `Observer`."""
        if self._live:
            self.capture.foreign_profiler(active=active)

    # -- events --------------------------------------------------------------------------------

    def begin_fetch(self, at: int | None = None) -> bool:
        """See `Observer`."""
        if not self.mine():
            return False
        self._tracker.start(perf_counter_ns())
        if self.rule.in_optimizer:
            self._recover()
        if self.rule.fetch():
            self._cut(at)
        if not self.rule.inside:
            self._stopper.safe_point()
        self._learned.look("data")
        self.clock.enter("data")
        return True

    def end_fetch(self, iterator: object, batch: object) -> None:
        """See `Observer`."""
        wait_ns = self.clock.leave()
        if batch is None or self.capture.done:
            return
        began = perf_counter_ns()
        tensors = tensors_of(batch)
        count, elements = size_of(tensors)
        self._meter.batch_bytes += count
        self._meter.batch_elements += elements
        self._tracker.came_from(iterator)
        self._loader_watch.fetched(
            iterator,
            batch,
            tensors,
            wait_ms=wait_ns / 1e6,
            step_index=self._tracker.steps,
            window=self.capture.window_name,
        )
        self._own_cost.add(began)

    def begin_forward(self, module: torch.nn.Module, at: int | None = None) -> str | None:
        """See `Observer`."""
        rule = self.rule
        if not self.mine() or rule.in_backward:
            return None
        self._tracker.start(perf_counter_ns())
        if not rule.inside:
            if rule.forward():
                self._cut(at)
            self._stopper.safe_point()
        if self._at_training is not None and torch.is_grad_enabled():
            self._training_begins()
        if self._learned.looking:
            self._learned.roots.add(type(module))
        label = "forward"
        if torch.is_grad_enabled() or torch_private.is_traced_module(module):
            if self._learned.looking:
                self._learned.forward(module)
                self._notes.met_root(module)
                self._failures.attach()
        else:
            label = "evaluation"
            if not self._meter.evaluations:
                self._learned.sites.note("evaluation")
        self._tracker.enter_forward(perf_counter_ns(), label)
        return label

    def begin_backward(self, accumulates: bool, at: int | None = None) -> bool:
        """See `Observer`."""
        if not self.mine():
            return False
        if self._thread is None:
            self._thread = get_ident()
        self._tracker.start(perf_counter_ns())
        if not self.rule.inside:
            if self.rule.backward():
                self._cut(at)
            self._stopper.safe_point()
        self._learned.backward(is_update=not self.rule.optimizer_built)
        self._tracker.enter_backward(perf_counter_ns(), accumulates)
        return True

    def end_backward(self) -> None:
        """See `Observer`."""
        self._tracker.backward_ends(perf_counter_ns())

    def begin_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        if not self._live:
            return
        if self._thread is None:
            self._thread = get_ident()
        elif self._thread != get_ident():
            self.rule.foreign_update()
            return
        self._tracker.start(perf_counter_ns())
        if self._learned.looking:
            self._learned.update(optimizer)
            self._failures.attach()
        if autograd_profiler._is_profiler_enabled and not self.rule.in_optimizer:
            label = torch_private.record_function("optimizer")
            label.__enter__()
            self._ranges.append(label)
        self._tracker.optimizer_begins(perf_counter_ns())

    def end_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        if not self.mine():
            return
        self._tracker.optimizer_ends(perf_counter_ns(), id(optimizer))
        if self._ranges and not self.rule.in_optimizer:
            self._ranges.pop().__exit__(None, None, None)
        if self._wants_tape:
            self._start_tape()

    def begin_scaler(self, scaler: object) -> None:
        """See `Observer`."""
        self._learned.grad_scaler(scaler)
        self._tracker.scaler_begins(perf_counter_ns())

    def end_scaler(self, optimizer: object) -> None:
        """See `Observer`."""
        self._tracker.scaler_ends(perf_counter_ns(), id(optimizer))
        if self._wants_tape:
            self._start_tape()

    def begin_zero_grad(self, set_to_none: object, at: int | None = None) -> bool:
        """See `Observer`."""
        if not self.mine():
            return False
        self._tracker.start(perf_counter_ns())
        if self.rule.in_optimizer:
            self._recover()
        inside = self.rule.inside
        if self.rule.zero_grad():
            self._cut(at)
        if not inside:
            self._stopper.safe_point()
        self._learned.zero_grad(set_to_none)
        self.clock.enter("zero_grad")
        return True

    def begin_copy(self) -> None:
        """See `Observer`."""
        self._learned.sites.note("h2d")
        self.clock.enter("h2d")

    def begin_label(self, name: str) -> None:
        """See `Observer`."""
        self.clock.enter(name)

    def end_phase(self) -> None:
        """See `Observer`."""
        self.clock.leave()

    def built_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        if self._live:
            self.rule.optimizer_built = True
            self._learned.optimizers.built(optimizer)

    def _whereabouts(self) -> tuple[str, int, str, int | None]:
        """Phase, step, window and training thread as of now; may be asked by another thread."""
        phase = self.clock.innermost or "" if self._tape is None else self._tape.innermost
        return phase, self._tracker.steps, self.capture.window_name, self._thread

    def _recover(self) -> None:
        """An exception may have left an optimizer step, whose hook for the end then never runs."""
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "wrapper" and "optim" in frame.f_code.co_filename:
                return
            if frame.f_code.co_filename.endswith("grad_scaler.py"):
                return
            frame = frame.f_back  # type: ignore[assignment]
        self.rule.optimizer_escaped()
        self.clock.close_to(0)
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)

    # -- steps ---------------------------------------------------------------------------------

    def _cut(self, at: int | None = None) -> None:
        """A step ends here, or ended at `at` (perf_counter_ns), and the next begins."""
        if self.capture.done:
            return
        if self._at_training is not None:
            self._training_begins()
        measuring = self.capture.measuring
        now = perf_counter_ns() if at is None else at
        self._own_cost.add(now)
        began = perf_counter_ns()
        changed = self._tracker.cut(now, paused=at is not None)
        self._learned.at_cut(warming_up=self.capture.stage == "warm-up" and self._plan.trial is None)
        if changed:
            # What changing the window took lies outside of every step.
            self._own_cost.stepped(self._tracker.steps, counts=measuring)
            self._on_window()
            self._meter.begin(perf_counter_ns())
            return
        self._own_cost.add(began)
        self._own_cost.stepped(self._tracker.steps, counts=measuring)
        if self._tape is not None and not self.capture.measuring:
            # The step rule has learned something new meanwhile: these steps are warm-up again.
            self._leave_tape()

    def end_step(self) -> None:
        """The program marks the end of a step itself (`Harness.step`)."""
        self._cut()

    def begin_step(self) -> None:
        """The program marks its first step's beginning itself (`Harness.step`)."""
        if self._thread is None:
            self._thread = get_ident()
        self._tracker.start(perf_counter_ns())

    def _on_window(self) -> None:
        """A window has changed; nothing is measured while this runs."""
        self._leave_tape()
        stage = self.capture.stage
        self._wants_tape = self.capture.measuring
        on_device = torch_private.device_kind() != "cpu"
        self._meter.reads_usage = not on_device
        if stage in ("trace", "memory") and on_device:
            self._hooks.label_copies()
        else:
            self._hooks.unlabel_copies()
        if stage == "done":
            self._all_captured()

    def _all_captured(self) -> None:
        if self._plan.trial is None:
            self._guarded("probes", lambda: probes.measure(self._store))
            self._guarded("probes", self._probe_ourselves)
        self._write_summary()
        if self._plan.run_to_end:
            # Compiled code guards on torch's table of optimizer hooks: taking ours out now would
            # make the script recompile. Deaf they cost a microsecond a step until its end.
            self._live = False
        else:
            self._stopper.request()

    # -- the tape ------------------------------------------------------------------------------

    def _start_tape(self) -> None:
        """An update has ended in a window that is timed: from now on events are noted, not looked at."""
        if self.rule.inside:
            return
        self._wants_tape = False
        if self.rule.next_cut == "unknown" or self.capture.burst() == 1 or not self._compile_watch.foretells:
            return
        self._taped = True
        self._tape = self._make_tape()
        if not self._compile_watch.asked_for and self._hooks.narrow(self._learned.roots):
            self._own_cost.nested_are_free = True
        self._meter.garbage.sink = self._tape.collected
        self._hooks.observer = self._tape

    def _make_tape(self) -> Tape:
        return Tape(
            self,
            self._tracker,
            self._stopper,
            burst=self.capture.burst,
            mark=self.capture.mark,
            stop=self._leave_tape,
            found=self._learned.sites.note,
        )

    def _compilation_begins(self) -> None:
        if self._thread == get_ident():
            self._leave_tape()

    def _leave_tape(self) -> None:
        """Hear of what was noted, and of everything as it happens from now on."""
        tape, self._tape = self._tape, None
        self._wants_tape = False
        if tape is not None:
            self._hooks.observer = self
            self._hooks.widen()
            self._meter.garbage.sink = None
            tape.play()

    # -- facts ---------------------------------------------------------------------------------

    def _read_facts(self) -> None:
        """Record what is in force now: settings, optimizers, machine; the trace window has ended."""
        self._facts_read = True
        self._learned.write_settings(self._store)
        self._own_cost.submodules = self._learned.submodules

    def _probe_ourselves(self) -> None:
        """Time the hooks through themselves; the windows are over, so no event counts any more."""
        self._learned.stop_looking()
        phases = self.clock.entered / max(1, self._tracker.steps)
        # As the hooks were while steps were timed; what this tape holds is never told to anybody.
        self._hooks.observer = self._make_tape() if self._taped else self
        try:
            with torch.enable_grad():
                cost = self._own_cost.per_step_us(phases=phases, original=self._hooks.module_call)
        finally:
            self._hooks.observer = self
        self.capture.note_hook_cost(cost)

    def _write_summary(self) -> None:
        import msgspec

        self._store.update(
            step_signal=self.rule.description,
            step_period=self.rule.period,
            sites=self._learned.entries(),
            overhead=msgspec.structs.replace(
                self.capture.overhead, total_seconds=self.capture.spent_ms / 1e3
            ),
        )


def _deafen(agent: weakref.ref[Agent]) -> Any:
    """Return what a forked child does with its parent's agent; a weak one, as it cannot be removed."""

    def deafen() -> None:
        watched = agent()
        if watched is not None:
            watched._live = False
            watched._hooks.observer = watched

    return deafen
