"""A capture in the middle of a watched job: windows as `diagnose` has them, and then the job goes on.

In: a signal that the user has chosen, or a question in the run folder. Out: a run folder below `captures/`;
the job's account says what it cost. The agent of `diagnose` relieves the watch at the end of a step, and is
relieved at the end of another: it uses the watch's hooks and what it has learned of steps.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from typing import TYPE_CHECKING

import msgspec

from ...clocks import perf_counter_ns
from ...model.run import ScriptOutcome
from ...model.watch import CaptureTaken
from ...runs.captures import next_capture, take_question
from ...runs.plan import beginning_run
from ...runs.store import Store, reason_of
from ..signals import HeldSignal
from .outcome import read_machine
from .progress import Progress

if TYPE_CHECKING:
    from types import FrameType

    from ...runs.plan import Plan
    from ..job.steps import StepWatch
    from ..job.watch import JobWatch
    from .agent import Agent


class Captures:
    """Those of one watched process."""

    def __init__(self, plan: Plan, store: Store, job: JobWatch) -> None:
        """Listen to nothing yet."""
        self._plan = plan
        self._store = store
        self._job = job
        self._number = int(getattr(signal, plan.on_signal)) if plan.on_signal else 0
        self._before: signal.Handlers | None = None
        self._held = HeldSignal(self._number)
        self._steps: StepWatch | None = None
        self._agent: Agent | None = None
        self._taken: CaptureTaken | None = None
        self._began_ns = 0

    # -- wishes --------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take the user's signal from now on; the script may still set a handler of its own."""
        if not self._number or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(self._number) is signal.SIG_DFL:
            signal.signal(self._number, self._on_signal)
            self._before = signal.SIG_DFL
            os.register_at_fork(
                before=self._held.hold, after_in_parent=self._held.release, after_in_child=self._forked
            )
        else:
            self._note_taken()

    def end(self, error: BaseException | None) -> None:
        """The script has ended, or `error` left it: keep what was captured, and give the signal back."""
        self.look()
        self._finish(error)
        if self._is_ours():
            signal.signal(self._number, signal.SIG_DFL)

    def look(self) -> None:
        """See whether somebody has asked, and whether the signal is still ours. May be any thread's."""
        if take_question(self._store.working):
            self._job.wants_capture = True
        if self._before is not None and not self._is_ours():
            self._before = None
            self._note_taken()

    def _is_ours(self) -> bool:
        return self._before is not None and signal.getsignal(self._number) == self._on_signal

    def _note_taken(self) -> None:
        self._job.notes.append(
            f"The script has its own use for {self._plan.on_signal}, so that it captures nothing:"
            " ask with `bottleneck watch --diagnose RUN`."
        )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._job.wants_capture = True

    def _forked(self) -> None:
        """In a forked child: the signal does what it does without us."""
        try:
            if self._is_ours():
                signal.signal(self._number, signal.SIG_DFL)
        finally:
            self._held.release()

    # -- the training thread, at the end of a step -------------------------------------------------

    def follow(self, steps: StepWatch) -> None:
        """Capture the steps that this one watches."""
        self._steps = steps
        steps.capture = self._begin

    def _begin(self) -> None:
        self._job.wants_capture = False
        try:
            self._relieve()
        except Exception as error:
            self._job.notes.append(f"A capture could not begin ({reason_of(error)}).")

    def _relieve(self) -> None:
        from .agent import Agent
        from .stopping import NeverStop

        assert self._steps is not None
        self._began_ns = perf_counter_ns()
        run = self._store.run
        folder = next_capture(self._store.working)
        plan = msgspec.structs.replace(self._plan, watch=False, run_to_end=True, out=str(folder))
        store = Store(
            folder,
            run=beginning_run(plan, rank=run.rank, world_size=run.world_size, local_rank=run.local_rank),
        )
        self._taken = CaptureTaken(
            folder=folder.relative_to(self._store.working).as_posix(),
            step=self._steps.steps,
            steps=0,
            at_s=round((self._began_ns - self._job.began_ns) / 1e9, 3),
            took_s=0.0,
        )
        self._agent = Agent(
            plan,
            store,
            NeverStop(),
            Progress(quiet=plan.quiet, rank=run.rank),
            relieves=self._steps,
            captured=lambda: self._finish(None),
        )
        self._agent.install()
        self._agent.goes_on(self._steps.iterations)

    def _finish(self, error: BaseException | None) -> None:
        """The windows are captured, or the script has ended: the watch goes on."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        assert self._steps is not None
        assert self._taken is not None
        steps, store = agent.steps, agent.store
        try:
            agent.finish(error)
            agent.uninstall()
            read_machine(store)
            how = ScriptOutcome(
                how="finished",
                exit_code=0,
                notes=[f"Captured in the middle of a watched job, from its step {self._taken.step} on."],
            )
            store.finish(how)
        except Exception:
            self._job.notes.append(f"A capture failed: {traceback.format_exc(limit=-3)}")
        self._steps.resume(began_ns=self._began_ns, steps=steps)
        took_s = round((perf_counter_ns() - self._began_ns) / 1e9, 3)
        self._job.captures.append(msgspec.structs.replace(self._taken, steps=steps, took_s=took_s))
