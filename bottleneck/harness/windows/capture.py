"""Takes a program through the windows: warm-up, baseline, trace, between, memory, FLOPs, stacks, after.

In: `cut(row)` at the end of every step, at a safe point of the training thread. Out: windows,
artefacts and overheads in the store; `done` once all is captured. Nothing in here may harm the
script: each artefact has one broad `except` that turns into its status and reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...clocks import perf_counter_ns
from .. import torch_private
from ..events.update_label import holds_range
from ..facts.flops import FlopStep
from .book import WindowBook
from .memory_window import MemoryHistory, MemoryWindow
from .stack_window import StackWindow
from .timetable import Timetable
from .trace_window import ONLY_TIMED, TraceWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...model.run import Overhead
    from ...runs.plan import Plan
    from ...runs.store import Store
    from ..facts.memory_notes import NoteBook
    from ..process.progress import Progress
    from .horizon import Horizon
    from .phases import PhaseClock
    from .table import Row
    from .timetable import Stretch

Stage = Literal[
    "warm-up",
    "baseline",
    "waiting",
    "trace",
    "settling",
    "between",
    "memory",
    "before flops",
    "flops",
    "stacks",
    "after",
    "done",
]

PROFILER_PATIENCE_STEPS = 200
"""What keeps a profile of ours from beginning may go on for so many steps before that is given up: the
script's own profiler, or an optimizer's step that the trace has seen begin."""


class Capture:
    """The windows of one process."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        progress: Progress,
        *,
        horizon: Horizon,
        clock: PhaseClock,
        notes: NoteBook,
        optimizers: Callable[[], Iterable[Any]] = tuple,
        found: Callable[[str], None],
        at_trace_end: Callable[[], None],
    ) -> None:
        """Begin with the warm-up.

        Args:
            plan: wishes.
            store: receives everything.
            progress: is told of windows and steps.
            horizon: how many steps may be left.
            clock: tells the phases of a step.
            notes: is open while the memory window is.
            optimizers: returns those of the script.
            found: called at each synchronising call during the memory window, and each that empties the
                cache, with what it is.
            at_trace_end: called when the trace window has ended (settings are read then).
        """
        self.stage: Stage = "warm-up"
        self._plan = plan
        self._store = store
        self._progress = progress
        self._at_trace_end = at_trace_end
        self._book = WindowBook(store, progress)
        self._times = Timetable(plan, horizon, store)
        self._waited = 0
        self._settles_for: Stretch = "after"
        """Which stretch follows once the loader's stock is used up."""
        self._trace = TraceWindow(plan, store, self._book)
        self._foreign_profiler = False
        self._held_up = False
        """The warm-up went on because of the script's own profiler."""
        self._changed = False
        self._memory = MemoryWindow(store, self._book, notes=notes, found=found)
        self._flops = FlopStep(optimizers)
        self.stacks = StackWindow(store, clock)
        self._ended: str | None = None
        """Why there are no more steps, once there are none."""
        self._spent_ns = 0
        self._progress.window("warm-up", plan.warmup)

    @property
    def done(self) -> bool:
        """All windows have been captured or given up."""
        return self.stage == "done"

    @property
    def measuring(self) -> bool:
        """A window with nothing attached is open: every microsecond of ours counts."""
        return self.stage in ("baseline", "between", "after")

    @property
    def window_name(self) -> str:
        """The window that a step belongs to now, as run.json names windows."""
        return "trace" if self.stage == "waiting" else self.stage

    @property
    def own_profiler_busy(self) -> bool:
        """We are inside start or stop of our own profile."""
        return self._trace.busy or self._flops.busy

    @property
    def step_ms(self) -> float:
        """A typical step; zero before the warm-up is over."""
        return self._times.step_ms

    def forked(self) -> None:
        """This process is a fork of the one that is captured: record nothing in it."""
        self._trace.forked()
        self._flops.forked()

    def end_inherited(self) -> None:
        """This process is a fork that is to be captured itself: nothing of its parent's may be on."""
        self._trace.end_inherited()
        self._flops.end_inherited()

    def note_hook_cost(self, us_per_step: float | None) -> None:
        """Record what the hooks themselves cost."""
        if us_per_step is not None:
            self._book.note_overhead(hook_us_per_step=us_per_step)

    @property
    def overhead(self) -> Overhead:
        """What the captures have cost so far."""
        return self._book.overhead

    # -- cuts ----------------------------------------------------------------------------------

    def cut(self, row: Row, *, learned: bool) -> bool:
        """A step has ended.

        Args:
            row: the step.
            learned: the step rule knows the cycle; before that the windows do not move on.

        Returns:
            True if a window changed here: work of ours lies between this step and the next, which
            begins when this returns.
        """
        if self.stage == "done":
            return False
        stage = self.stage
        self._book.add(row, timed=stage != "warm-up")
        if stage == "trace":
            if self._trace.is_last(late=self._times.late):
                self._timed(lambda: self._end_trace(at_cut=True))
        elif stage == "warm-up":
            if learned:
                self._warmup_cut()
        elif stage in ("waiting", "before flops"):
            self._timed(self._try_to_trace if stage == "waiting" else self._open_flops)
        elif stage == "settling":
            if len(self._book.rows) >= self._times.schedule.settle:
                self._timed(lambda: self._open(self._settles_for))
        elif stage == "memory":
            if len(self._book.rows) >= self._times.schedule.memory:
                self._timed(self._end_memory)
        elif stage == "flops":
            self._timed(lambda: self._flops_cut(row.index))
        elif stage == "stacks":
            self._stacks_cut()
        elif self._times.stretch_is_enough(self._book.rows, evaluations=self._book.evaluations):
            ends = {"baseline": self._end_baseline, "between": self._end_between, "after": self._end_after}
            self._timed(ends[stage])
        changed, self._changed = self._changed, False
        if not changed:
            self._progress.step(len(self._book.rows), row.wall_ms)
        return changed

    def add(self, row: Row) -> None:
        """A step ended before this call, and no window changes by it; `mark` was called when it ended."""
        if self.stage != "done":
            self._book.add(row, timed=False)

    def mark(self) -> None:
        """A step ends whose row is added later."""
        self._book.mark()

    def before_backward(self) -> None:
        """A backward pass is about to begin."""
        self._book.before_backward()

    def steps_to_hold(self) -> int:
        """Return for how many steps from now on events may be held, and handed over together; 0: none."""
        return self._times.steps_to_hold() if self.measuring else 0

    def restart(self) -> None:
        """The step rule has learned another cycle: steps so far do not compare with later ones."""
        if self.stage in ("warm-up", "baseline"):
            self.stage = "warm-up"
            self._book.drop()

    def _timed(self, call: Callable[[], None]) -> None:
        began = perf_counter_ns()
        call()
        self._spent_ns += perf_counter_ns() - began
        self._changed = True

    def _open(self, stage: Literal["baseline", "between", "memory", "after"]) -> None:
        self.stage = stage
        if stage != "memory":
            self._times.begin_stretch(stage)
        self._book.open(stage, self._times.planned(stage))

    def _open_settled(self, stretch: Stretch) -> None:
        """Open a stretch of the baseline once the batches are used up that were made while we paused."""
        if self._times.schedule.settle == 0:
            self._open(stretch)
            return
        self.stage, self._settles_for = "settling", stretch
        self._book.drop()

    # -- warm-up -------------------------------------------------------------------------------

    def _warmup_cut(self) -> None:
        if self._foreign_profiler and not self._out_of_patience():
            # Step times under the script's own profiler are not the true ones.
            self._held_up = True
            return
        over, settled = self._times.warmup_is_over(self._book.rows)
        if over:
            self._timed(lambda: self._end_warmup(settled))

    def _out_of_patience(self) -> bool:
        """The script's own profiler has been on for as long as the windows behind the warm-up may take."""
        rows = self._book.rows
        # Ranks count steps only: all of them must end the warm-up at the same one.
        spent_ms = sum(row.wall_ms for row in rows) if self._times.alone else 0.0
        return len(rows) >= PROFILER_PATIENCE_STEPS or spent_ms > 1e3 * self._plan.max_seconds

    def _end_warmup(self, settled: bool | None) -> None:
        self._times.draw_up(self._book.rows)
        self._book.joins = self._times.schedule.joins
        self._book.close("warm-up", planned=self._plan.warmup or 0, settled=settled)
        self._open("baseline")

    # -- baseline ------------------------------------------------------------------------------

    def _end_baseline(self, reason: str | None = None) -> None:
        self._times.timed(self._book.rows, before_backward_ms=self._book.before_backward_ms())
        taken, before = len(self._book.rows), self._times.schedule.before
        least = min(before.least, before.soft_least or before.least)
        if reason is None and taken < least:
            reason = "time limit"
        self._book.close("baseline", planned=max(taken, least), reason=reason)
        if self._plan.trial is not None:
            for name in ("trace", "memory"):
                self._store.artefact(name, "absent", reason="an experiment times steps only")
            self._at_trace_end()
            self._complete()
            return
        self._waited = 0
        self._try_to_trace()

    # -- trace ---------------------------------------------------------------------------------

    def foreign_profiler(self, *, active: bool) -> None:
        """The script's own profiler begins or has ended; kineto has room for one: it is theirs."""
        self._foreign_profiler = active
        if active and self.measuring:
            self._profiles_itself("during the baseline, whose times it inflates")
        if active and self._trace.running:
            self._timed(lambda: self._end_trace(at_cut=False, reason="the script profiles itself"))
        elif active and self.stage == "flops":
            self._flops.abandon(self._store, reason="the script profiles itself")
            self._timed(self._open_stacks)
        elif active and self.stage == "stacks":
            self._timed(self._end_stacks)

    def _profiles_itself(self, when: str) -> None:
        self._store.update(profiles_itself=True)
        self._store.warn(f"The script's own profiler recorded {when}.")

    def _try_to_trace(self) -> None:
        if torch_private.profiler_running() or self._foreign_profiler:
            self._waited += 1
            if self._waited > PROFILER_PATIENCE_STEPS or self._times.late():
                self._profiles_itself("all the time")
                self._trace.lack("absent", "the script profiles itself all the time")
                self._after_trace()
            else:
                self.stage = "waiting"
                self._book.drop()
            return
        self.stage = "trace"
        times = self._times
        if not self._trace.begin(
            times.schedule, step_ms=times.step_ms, alone=times.alone, traced=times.traced
        ):
            self._after_trace()

    def _end_trace(self, *, at_cut: bool, reason: str | None = None) -> None:
        if self._trace.end(at_cut=at_cut, late=self._times.late, reason=reason):
            self._after_trace()

    def _after_trace(self) -> None:
        self._waited = 0
        self._at_trace_end()
        schedule = self._times.schedule
        if schedule.between is None or schedule.memory == 0 or self._ended or self._times.late():
            self._try_memory()
        else:
            self._open_settled("between")

    # -- between -------------------------------------------------------------------------------

    def _end_between(self, reason: str | None = None) -> None:
        self._book.close("between", planned=len(self._book.rows), reason=reason)
        self._try_memory()

    # -- memory --------------------------------------------------------------------------------

    def _try_memory(self) -> None:
        why_not = None if self._plan.memory else "not asked for"
        if why_not is None:
            why_not = MemoryHistory.why_not()
        if why_not is None and self._times.schedule.memory == 0:
            why_not = "too few steps left"
        if why_not is None and self._times.late():
            why_not = "time limit"
        if why_not is not None:
            self._memory.lack(why_not)
            self._open_flops()
            return
        self._open("memory")
        if not self._times.traced:
            self._memory.lack(ONLY_TIMED)
        elif not self._memory.begin():
            self._open_flops()

    def _end_memory(self, reason: str | None = None) -> None:
        if self._times.traced:
            self._memory.end()
        self._book.close("memory", planned=self._times.schedule.memory, reason=reason)
        self._open_flops()

    # -- steps to count FLOPs in ---------------------------------------------------------------

    def _open_flops(self) -> None:
        why_not = self._ended
        if why_not is None and (torch_private.profiler_running() or self._foreign_profiler):
            why_not = "the script profiles itself"
        elif why_not is None and self._times.late():
            why_not = "time limit"
        if why_not is None and holds_range():
            # The optimizer's step that the trace has seen begin goes on. The next one it will not have seen.
            self._waited += 1
            if self._waited <= PROFILER_PATIENCE_STEPS:
                self.stage = "before flops"
                self._book.drop()
                return
            why_not = "one step of the optimizer goes on and on"
        if self._flops.begin(self._store, why_not=why_not):
            self.stage = "flops"
            self._book.drop("FLOPs")
        else:
            self._open_stacks()

    def _flops_cut(self, step: int) -> None:
        # Ranks count their steps: whether two of them differ is no matter of one rank.
        most = self._times.schedule.traced if self._times.alone else 3
        tries = self._times.alone and not self._times.late()
        if not self._flops.cut(self._store, step=step, most=most, tries=tries):
            self._open_stacks()

    # -- whose code runs: some steps before the last stretch, as the script may end in it, and more behind

    def _open_stacks(self, *, behind: bool = False) -> None:
        why_not = self._ended
        if why_not is None and self._times.late():
            why_not = "time limit"
        steps = self._times.steps_to_sample(behind=behind)
        if self.stacks.begin(steps=steps, behind=behind, why_not=why_not):
            self.stage = "stacks"
            self._book.drop("stacks")
        else:
            self._after_stacks()

    def _stacks_cut(self) -> None:
        if self.stacks.is_enough(self._book.rows) or self._times.late():
            self._timed(self._end_stacks)

    def _end_stacks(self) -> None:
        self.stacks.end(self._book.rows)
        self._after_stacks()

    def _after_stacks(self) -> None:
        if self.stacks.behind:
            self._complete()
        else:
            self._open_after()

    # -- after ---------------------------------------------------------------------------------

    def _open_after(self) -> None:
        if self._ended or self._times.late():
            self._complete()
        else:
            self._open_settled("after")

    def _end_after(self, reason: str | None = None) -> None:
        planned = max(len(self._book.rows), self._times.schedule.after)
        self._book.close("after", planned=planned, reason=reason)
        self._open_stacks(behind=True)

    def _complete(self) -> None:
        self.stage = "done"
        self._book.drop()

    # -- the end -------------------------------------------------------------------------------

    def finish(self, *, last: Row | None, learned: bool, reason: str) -> None:
        """The script has ended or was stopped: close what is open and keep what there is.

        Args:
            last: a step that was complete but not yet cut, if there is one.
            learned: whether the step rule had learned the cycle.
            reason: why there are no more steps, as in "the script ended".
        """
        if self.stage == "done":
            return
        self._ended = reason
        if last is not None and self.stage != "after":
            # What came after its update nobody saw: the last stretch has steps enough without it.
            self.cut(last, learned=learned)
        stage = self.stage
        if stage == "warm-up":
            self._book.close("warm-up", planned=self._plan.warmup or 0, settled=False, reason=reason)
            self._came_too_late(reason)
        elif stage == "baseline":
            if self._book.rows:
                self._book.close("baseline", planned=self._times.schedule.before.least, reason=reason)
            self._came_too_late(reason)
        elif stage == "waiting":
            self._profiles_itself("until the end")
            self._trace.lack("absent", "the script profiles itself until its end")
        elif stage == "trace" and self._trace.running:
            self._times.cancel_memory()
            # Forks and worker shut-downs may be under way, so the open step is not counted.
            self._end_trace(at_cut=False, reason=reason)
        elif stage == "memory":
            self._end_memory(reason)
        elif stage == "between" or (stage == "settling" and self._settles_for == "between"):
            self._times.cancel_memory()
            if stage == "between" and self._book.rows:
                self._end_between(reason)
            else:
                self._try_memory()
        elif stage == "after" and self._book.rows:
            self._end_after(reason)
        elif stage in ("before flops", "flops"):
            self._flops.abandon(self._store, reason=reason)
        elif stage == "stacks":
            self.stacks.end(self._book.rows)
        self.stage = "done"
        self._book.write()

    def _came_too_late(self, reason: str) -> None:
        """The script has ended before the trace: by itself, or since its own profiler kept us waiting."""
        if self._held_up and not self._book.has_baseline:
            self._profiles_itself("all steps, whose times it inflates")
            reason = "the script profiles itself, and ended"
        self._trace.lack("absent", f"{reason} before the trace window")

    @property
    def spent_ms(self) -> float:
        """Wall time that the captures have added between steps so far."""
        return self._spent_ns / 1e6
