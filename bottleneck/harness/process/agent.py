"""The agent: turns what the hooks see into steps, phases and windows of one process.

In: a plan, and where to put facts; then every event of the training thread. Out: a run folder with
windows, trace and memory snapshot; a stop request once all of it is captured.

Between two cuts an event costs a few microseconds and allocates next to nothing; everything dear
(profiler, counters, files) happens at cuts where a window changes, outside every step.
"""

from __future__ import annotations

import sys
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from .. import torch_private
from ..events.hooks import Hooks
from ..events.tape_deck import TapeDeck
from ..events.update_label import UpdateLabel, in_update
from ..facts.batch_facts import size_of, tensors_of
from ..facts.compiler import CompileWatch
from ..facts.facts import FactWriter
from ..facts.learned import Learned
from ..facts.loader import LoaderWatch
from ..facts.memory_notes import NoteBook
from ..facts.out_of_memory import ARTEFACT as FAILURE_ARTEFACT
from ..facts.out_of_memory import FailureWatch
from ..facts.own_cost import OwnCost
from ..windows import horizon
from ..windows.capture import Capture
from ..windows.steps import StepRule
from ..windows.tracker import Tracker
from . import presence

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.plan import Plan
    from ...runs.store import Store
    from ..events.observer import Observer
    from .progress import Progress
    from .stopping import Stopper

__all__ = ["Agent"]


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
            notes=self._notes,
            found_sync=lambda: self._learned.sites.note("synchronisation"),
            at_trace_end=self._facts.write_settings,
        )
        self._deck = TapeDeck(
            self,
            self._hooks,
            self._tracker,
            stopper,
            capture=self.capture,
            compiles=self._compile_watch,
            learned=self._learned,
            own_cost=self._own_cost,
        )
        self._tracker.capture, self._tracker.notes = self.capture, self._notes

    # -- life ----------------------------------------------------------------------------------

    def install(self) -> None:
        """Put every hook in; from now on the script is observed."""
        presence.came(self)
        self._live = True
        self._hooks.install()
        self._loader_watch.install()
        self._compile_watch.install()
        self._meter.garbage.install()
        torch_private.skip_package(torch_private.__name__.rpartition(".")[0])

    def uninstall(self) -> None:
        """Take every hook out again. May be called more than once."""
        self._deck.leave()
        self._live = False
        self._failures.detach()
        self._meter.garbage.uninstall()
        self._compile_watch.uninstall()
        self._loader_watch.uninstall()
        self._hooks.uninstall()
        presence.went(self)

    def deafen(self) -> None:
        """This process is a fork of the one that is watched: hear nothing any more."""
        self._live = False
        self._hooks.observer = self
        self._hooks.widen()

    def finish(self, error: BaseException | None = None) -> None:
        """The script has ended or was stopped, or `error` left it: keep what there is. Never raises."""
        guarded = self._facts.guarded
        guarded("capture", self._deck.leave)
        guarded(FAILURE_ARTEFACT, lambda: self._failures.ended(error))
        if not self._facts.has_settings or not self.capture.done:
            guarded("capture", self._finish_capture)
            guarded("facts", self._facts.write_settings)
        self._facts.write_ending(
            self._tracker, self.capture, loaders=self._loader_watch, compiles=self._compile_watch
        )

    def _finish_capture(self) -> None:
        last = None
        if self.rule.pending and self._meter.start_ns is not None:
            # The last step is whole, though nothing came after it to cut at.
            last = self._tracker.row(max(self._tracker.last_update_ns, self._meter.start_ns + 1))
        self._meter.share_usage()
        reason = "interrupted" if self._stopper.interrupted else "the script ended"
        self.capture.finish(last=last, learned=self.rule.learned, reason=reason)

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
                self._learned.lines.forward()
        else:
            label = "evaluation"
            if not self._meter.evaluations:
                self._learned.without_gradients(module)
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
        else:
            self._learned.lines.update()
        if not self.rule.in_optimizer:
            self._update_label.begin()
        self._tracker.optimizer_begins(perf_counter_ns())

    def end_optimizer(self, optimizer: object) -> None:
        """See `Observer`."""
        if not self.mine():
            return
        self._tracker.optimizer_ends(perf_counter_ns(), id(optimizer))
        if not self.rule.in_optimizer:
            self._update_label.end()
        if self._deck.wanted:
            self._deck.start()

    def begin_scaler(self, scaler: object) -> None:
        """See `Observer`."""
        self._learned.grad_scaler(scaler)
        self._tracker.scaler_begins(perf_counter_ns())

    def end_scaler(self, optimizer: object) -> None:
        """See `Observer`."""
        self._tracker.scaler_ends(perf_counter_ns(), id(optimizer))
        if self._deck.wanted:
            self._deck.start()

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
        phase = self.clock.innermost or "" if self._deck.tape is None else self._deck.tape.innermost
        return phase, self._tracker.steps, self.capture.window_name, self._thread

    def _recover(self) -> None:
        """An exception may have left an optimizer step, whose hook for the end then never runs."""
        if in_update(sys._getframe(2)):
            return
        self.rule.optimizer_escaped()
        self.clock.close_to(0)
        self._update_label.close()

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
        if self._deck.tape is not None and not self.capture.measuring:
            # The step rule has learned something new meanwhile: these steps are warm-up again.
            self._deck.leave()

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
        self._deck.leave()
        stage = self.capture.stage
        self._deck.wanted = self.capture.measuring
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
            over = not self._plan.run_to_end
            self._facts.probe(self._tracker, self.capture, deck=self._deck, hooks=self._hooks, over=over)
        self._facts.write_summary(self._tracker, self.capture)
        if self._plan.run_to_end:
            # Compiled code guards on torch's table of optimizer hooks: taking ours out now would
            # make the script recompile. Deaf they cost a microsecond a step until its end.
            self._live = False
        else:
            self._stopper.request()

    def _compilation_begins(self) -> None:
        if self._thread == get_ident():
            self._deck.leave()
