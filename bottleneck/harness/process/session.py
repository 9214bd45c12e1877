"""One captured process: store, stopper, progress, saves and the agent, put together and taken apart.

In: a plan and where this process stands among its fellows. Out: a process folder. The runner makes
one session for the script's process, `children` one for each process that the script starts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ...clocks import perf_counter_ns
from ...model.run import ScriptOutcome
from ...runs.plan import beginning_run
from ...runs.store import Store, reason_of
from ...runs.tasks import certain_task, this_task
from ..imports import ImportWatch
from ..lines.sites import site_of_frame, user_frame_of
from ..signals import HeldSignal, call_later
from ..trials.trial import TrialRun
from .dropped import Dropped
from .outcome import TERMINATED, outcome_of, process_group, read_machine
from .progress import Progress
from .saves import SaveGuard
from .stopping import Stopper, StopRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...runs.plan import Plan
    from .agent import Agent

END_SECONDS = 20.0
"""How long the last flush may take before the process is ended regardless."""

_current: Session | None = None


def begin_in_child(plan: Plan) -> Session:
    """Begin the session of a process that the script has started."""
    if _current is not None:
        # Forked: the hooks in place count the parent's steps and write the parent's folder.
        _current.abandon()
    session = Session(plan, child=True)
    session.arm()
    return session


class Session:
    """Everything of ours that lives in one process of the user's program."""

    def __init__(self, plan: Plan, *, child: bool = False) -> None:
        """Create the process folder.

        `plan.out` holds one folder per process. The rank of a `child`, which the script itself started, shows
        only later.

        Raises:
            OSError: the folder cannot be written.
        """
        self.plan = plan
        self.pid = os.getpid()
        self._child = child
        # Where it is not certain, the process group will tell.
        task = certain_task()
        self.store = Store(
            Path(plan.out) / (f"child-{self.pid}" if child else task.folder),
            run=beginning_run(
                plan,
                task=task,
                launched=task.size > 1 and (plan.launched or not child),
                began_ns=None if child else perf_counter_ns(),
            ),
        )
        self.stopper = Stopper()
        # A child of the script's own shows its rank only later; until then its parent speaks.
        speaks = task.rank if not child or plan.launched else 1
        self.progress = Progress(quiet=plan.quiet, rank=speaks)
        self.saves = SaveGuard(self.store)
        self.agent: Agent | None = None
        self._trial = TrialRun(plan.trial, self.store) if plan.trial is not None else None
        self._notes: list[str] = []
        self._watch = ImportWatch("torch", self._on_torch)
        self._sigterm: signal.Handlers | None = None
        self._held = HeldSignal(signal.SIGTERM)
        self._dropped = Dropped(self._again)
        self._closed = False
        self._ended_by_us = False
        """Its end is our doing, though nothing of it was unwound."""

    def arm(self) -> None:
        """Take over signals and wait for the script to import torch."""
        global _current  # noqa: PLW0603 - one session per process is the meaning of it
        _current = self
        self.stopper.before_raise(self._before_stop)
        self.stopper.last_resort(self._end_now)
        self.stopper.at_first_safe_point(self._read_ranks)
        self.stopper.install_signals()
        if not self._child and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._sigterm = signal.SIG_DFL
        self._dropped.install()
        os.register_at_fork(
            before=self._held.hold, after_in_parent=self._held.release, after_in_child=self._after_fork
        )
        if self._trial is not None:
            self._trial.prepare()
        self._watch.install()

    def note(self, text: str) -> None:
        """Add a sentence to the outcome."""
        if text not in self._notes:
            self._notes.append(text)

    def was_trying(self, error: BaseException) -> bool:
        """Say whether this left the script while fixes were tried in it, and take note of it then."""
        trying = self.agent.trying if self.agent is not None else None
        if trying is None or not trying.active or isinstance(error, KeyboardInterrupt):
            return False
        trying.raised(error)
        self._ended_by_us = True
        return True

    def abandon(self) -> None:
        """In a forked child: take the parent's hooks out and write nothing."""
        self._watch.uninstall()
        self._dropped.uninstall()
        self.stopper.stand_down()
        self._closed = True
        if self.agent is not None:
            with contextlib.suppress(Exception):
                self.agent.uninstall()
                self.agent.capture.end_inherited()
        if self._trial is not None:
            self._trial.uninstall()
            self._trial.finish()

    def close(self, error: BaseException | None) -> None:
        """The script has ended: export what there is and give the folder its name. Once.

        An error is what left the script; a stop of ours is none.
        """
        if self.agent is not None:
            self.agent.trying.leave_copy()
        if self._closed or os.getpid() != self.pid:
            return
        self._closed = True
        self.stopper.release()
        self._watch.uninstall()
        self._dropped.uninstall()
        if self.agent is not None:
            # The agent guards each artefact; this is for a fault in the agent itself.
            try:
                self._read_ranks()
                self.agent.finish(error)
                if self._trial is not None:
                    self._trial.conclude()
                    self._trial.uninstall()
                self.agent.uninstall()
                self.agent.program_ends()
                if self._trial is not None:
                    self._trial.finish()
                    self._trial.end_helpers()
            except Exception:
                self.store.artefact("harness", "failed", reason=traceback.format_exc(limit=-3))
        read_machine(self.store)
        self.progress.clear()
        # A full disk, or a folder taken away meanwhile, must not turn into the script's failure.
        try:
            self.store.finish(self._outcome(error))
        except OSError as problem:
            self.store.lost = reason_of(problem)
        if self.store.lost:
            self.progress.note(f"the run folder cannot be written, so nothing is kept ({self.store.lost})")

    def amend(self) -> None:
        """Record what the script's exit functions tried to save; after `close`, before the end."""
        with contextlib.suppress(OSError):
            self.store.update(outcome=self._outcome(None))

    # -- what happens during the run ------------------------------------------------------------

    def _on_torch(self) -> None:
        """Torch is there: put the hooks in. Whatever fails, the script goes on."""
        from . import children, relaunches

        began_ns = perf_counter_ns()
        try:
            relaunches.install(self.plan)
            children.install(self.plan, begin=begin_in_child, wake=self.stopper.wake)
            self.stopper.follow_children(children.any_alive)
            from .agent import Agent

            if self._trial is not None:
                self._trial.install()
            self.agent = Agent(self.plan, self.store, self.stopper, self.progress)
            self.agent.install()
            if self._trial is not None:
                self._trial.follow(self.agent)
            self.store.update(
                torch_import_ms=self._watch.took_ms, install_ms=(perf_counter_ns() - began_ns) / 1e6
            )
        except Exception:
            reason = traceback.format_exc(limit=-3)
            self.store.artefact("harness", "failed", reason=reason)
            said = f"the hooks could not be put in, so nothing is measured: {_last_line(reason)}"
            self.store.warn(said)
            self.progress.note(said)

    def _before_stop(self) -> None:
        self.saves.install()
        self._read_ranks()

    def _read_ranks(self) -> None:
        """Ask torch.distributed who we are, which a script's own children only know by now."""
        group = process_group()
        if group is not None:
            rank, world_size = group
            self.store.update(rank=rank, world_size=world_size)
            task = this_task()
            if not task.certain and not self._child and task.size == world_size:
                self.store.update(launched=True, local_rank=task.local_rank)
            self.progress.speak_for(rank)

    def _on_sigterm(self, _signum: int, frame: FrameType | None) -> None:
        if not self.stopper.under_way:
            told = "the script was terminated (SIGTERM)"
            if not any(note.startswith(told) for note in self._notes):  # it may be sent again
                site = site_of_frame(user_frame_of(frame))
                self.note(f"{told}, at {site.short} ({site.function})" if site is not None else told)
            raise SystemExit(TERMINATED)

    def _again(self, error: BaseException) -> Callable[[], None] | None:
        """Say which signal brings back an exception of ours that was dropped."""
        if self._closed or os.getpid() != self.pid:
            return None
        number = self.stopper.wake if isinstance(error, StopRun) else None
        if isinstance(error, SystemExit) and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            number = signal.SIGTERM
        main = threading.main_thread().ident
        if number is None or main is None:
            return None
        return functools.partial(signal.pthread_kill, main, number)

    def _after_fork(self) -> None:
        """In a forked child: what is not in place yet stays out, and signals act as without us.

        A child that imports torch itself, or starts the script again, would be captured into its
        parent's folder, which may be gone by then; and a worker that is terminated must die as it would
        without us. A child that is to be observed gets a session of its own (`begin_in_child`).
        """
        from . import children, relaunches

        try:
            if self._sigterm is not None and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._sigterm)
            self._watch.uninstall()
            self._dropped.uninstall()
            children.uninstall()
            relaunches.uninstall()
            self.stopper.forked()
        finally:
            self._held.release()

    def _end_now(self, reason: str) -> NoReturn:
        """Last resort of the stopper: keep what there is, then end the process."""
        call_later(END_SECONDS, os._exit, 0)
        self.note(f"{reason}; the process was ended")
        self._ended_by_us = True
        self.close(None)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _remove_shared_folder()
        os._exit(0)

    # -- what is known at the end ---------------------------------------------------------------

    def _outcome(self, error: BaseException | None) -> ScriptOutcome:
        notes = [*self._notes, *self.saves.notes, *self._elsewhere()]
        diverted = self.saves.diverted
        if self.stopper.under_way or self._ended_by_us or isinstance(error, StopRun):
            how = "interrupted" if self.stopper.interrupted else "stopped"
            return ScriptOutcome(how=how, exit_code=0, diverted_saves=diverted, notes=notes)  # type: ignore[arg-type]
        return outcome_of(error, notes=notes, terminated=bool(self._notes))

    def _elsewhere(self) -> list[str]:
        """Say where the training may be when this process has seen none."""
        from .relaunches import unseen

        programs = unseen()
        if self.stopper.safe_points or not programs:
            return []
        names = ", ".join(programs[:4])
        return [
            f"Other programs that the script has started are not observed: {names}. If the training is in"
            " them, start bottleneck there (`torchrun ... -m torch_bottleneck diagnose train.py`), or put"
            " torch_bottleneck.Harness around its loop."
        ]


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]


def _remove_shared_folder() -> None:
    """Remove the folder of sockets that `multiprocessing` makes for its workers, and removes at an exit."""
    processes = sys.modules.get("multiprocessing.process")
    # Children have the folder of their parent.
    if processes is not None and processes.parent_process() is None:
        folder = getattr(processes.current_process(), "_config", {}).get("tempdir")
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
