"""After the capture: asks what to try, and opens the trial window.

In: a capture that is complete and on disk. Out: a window that each step drives, or none. What a trial does
to the script (an error, a hang, an exit) costs nothing of what was captured. A script that is stopped
afterwards is its own test bench; one that goes on to its end waits while a copy of its process is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from ...files import json_of
from ...model.verify import TrialRequest, TriedFix, TriedFixes
from ...runs.asking import TRIALS, ask
from ...runs.store import reason_of, write_atomically
from .. import torch_private
from ..lines.sites import raised_by_script, told_of_error
from ..signals import call_later
from ..windows.meeting import gather
from .isolation import NotPrivateError, isolate, tell_of_effects
from .private_copy import OwnPasses, make_copy, wait_for
from .progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.plan import Plan
    from ...runs.store import Store
    from ..events.buffer import EventBuffer
    from ..trials.window import TrialWindow
    from .stopping import Stopper

ANSWER_SECONDS = 60.0
"""Longest wait for the analysis; a trace of the largest size that is captured takes some 4 s."""
GRACE_SECONDS = 15.0
"""Beyond the time for trials: then one that hangs, or compiles on, is ended with the process."""
DECIDING_STEPS = 12
"""Fewest steps without a fix that decide about it: three times those whose losses are compared, and three of
the shortest blocks. From the window's figures, which come with all the patches."""
FIRST_STEP_SECONDS = 20.0
FIRST_STEP_STEPS = 20
"""For the first step in a copy: so many seconds, or so many times what a step takes."""


class Trying:
    """One per process."""

    def __init__(
        self, plan: Plan, store: Store, stopper: Stopper, progress: Progress, *, buffer: EventBuffer
    ) -> None:
        """Begin with no window."""
        self._plan = plan
        self._store = store
        self._stopper = stopper
        self._progress = progress
        self._buffer = buffer
        self._window: TrialWindow | None = None
        self._watchdog: threading.Timer | None = None
        self._first_step: threading.Timer | None = None
        """In a copy: ends it where the script waits for a thread that a fork does not take along."""
        self._copy = 0
        """Process number of the copy of the script's process; 0 where there is none."""

    @property
    def wanted(self) -> bool:
        """There are to be trials; where they were asked for and cannot be made, that is noted."""
        if self._plan.trial is not None or not self._plan.trial_seconds:
            return False
        if torch_private.world()[1] > 1 and (self._plan.run_to_end or torch_private.default_store() is None):
            self._store.artefact(TRIALS, "absent", reason=_SEVERAL_RANKS)
            return False
        return True

    @property
    def active(self) -> bool:
        """The window is open."""
        return self._window is not None

    def begin(
        self,
        *,
        optimizers: Callable[[], list[Any]],
        loader_of: Callable[[Any], Any],
        queued: Callable[[], int],
        step: int,
        step_ms: float,
    ) -> bool:
        """Ask what to try, and open the window; see `TrialWindow`. Never raises.

        Of several ranks the first one asks; `step`, the number of this one, must be the same on all.

        Returns:
            Whether the window is open now.
        """
        self._store.artefact(TRIALS, "absent", reason="the script ended before anything was tried")
        if not self._plan.run_to_end:
            # Whatever the script saves from now on comes from a training with other parts in it.
            self._stopper.prepare()
        self._progress.note("analysing, to see what to try")
        rank, count = torch_private.world()
        request = self._ask() if rank == 0 else None
        if count > 1:
            said = gather("trials", _Said(step, step_ms, request), kind=_Said, patience_s=2 * ANSWER_SECONDS)
            if said is None or len({one.step for one in said}) > 1:
                self._store.artefact(TRIALS, "absent", reason="the ranks are not at the same step")
                return False
            request, step_ms = said[0].request, said[0].step_ms
        if request is None or not request.wishes:
            why = "no answer came" if request is None else "no suggestion can be tried in a running process"
            self._store.artefact(TRIALS, "absent", reason=why)
            return False
        least = DECIDING_STEPS * step_ms / 1e3
        if request.seconds < least:
            why = f"{DECIDING_STEPS} steps are the least to compare, {least:.0f} s here (--trial-seconds)"
            self._store.artefact(TRIALS, "absent", reason=why)
            return False
        if self._plan.run_to_end and not self._copied(request, loader_of=loader_of, step_ms=step_ms):
            return False
        try:
            # With all the patches: only where something is tried.
            from ..trials.window import TrialWindow

            self._window = TrialWindow(
                request,
                write=self._write,
                optimizers=optimizers,
                loader_of=loader_of,
                queued=queued,
                step_ms=step_ms,
                say=self._progress.note,
                everyone=_Ranks() if count > 1 else None,
            )
        except Exception as error:
            self._store.artefact(TRIALS, "failed", reason=reason_of(error))
            self.leave_copy()
            return False
        self._buffer.guard = self._window.guard
        self._watchdog = call_later(request.seconds + GRACE_SECONDS, self._give_up)
        return True

    def _ask(self) -> TrialRequest | None:
        return ask(self._store.working, seconds=ANSWER_SECONDS, unless=lambda: self._stopper.requested)

    def _write(self, facts: TriedFixes) -> None:
        try:
            if self._copy:
                write_atomically(self._store.working / f"{TRIALS}.json", msgspec.json.format(json_of(facts)))
            else:
                self._store.write_json(TRIALS, facts)
        except Exception as error:
            self._store.artefact(TRIALS, "failed", reason=reason_of(error))

    # -- a script that runs to its end -----------------------------------------------------------

    def _copied(self, request: TrialRequest, *, loader_of: Callable[[Any], Any], step_ms: float) -> bool:
        """Fork; return True in the copy, and False in the script's process once the copy has ended."""
        self._progress.note("trying fixes in a copy of the process, while the script waits")
        try:
            copy = make_copy()
        except NotPrivateError as error:
            self._write(_none_tried(request, str(error)))
            return False
        if copy:
            self._wait_for(copy, seconds=request.seconds + 2 * GRACE_SECONDS)
            return False
        try:
            self._be_private(loader_of, step_ms=step_ms)
        except BaseException as error:
            why = str(error) if isinstance(error, NotPrivateError) else reason_of(error)
            self._write(_none_tried(request, why))
            os._exit(0)
        return True

    def _wait_for(self, copy: int, *, seconds: float) -> None:
        why = wait_for(copy, seconds=seconds, unless=lambda: self._stopper.requested)
        # What the copy has saved is of no training that anybody wants.
        shutil.rmtree(self._store.working / "diverted", ignore_errors=True)
        file = self._store.working / f"{TRIALS}.json"
        if file.exists():
            self._store.artefact(TRIALS, "ok", path=file)
        else:
            self._store.artefact(TRIALS, "failed", reason=f"the copy of the process ended {why}".rstrip())

    def _be_private(self, loader_of: Callable[[Any], Any], *, step_ms: float) -> None:
        """In the copy: let nothing of what happens from now on reach the script or its files."""
        self._copy = os.getpid()
        # Quiet, unless there is a place to speak: what the script has for it leads nowhere from now on.
        self._progress, place = Progress(quiet=True), -1
        with contextlib.suppress(OSError, ValueError, AttributeError):
            place = os.dup(sys.__stderr__.fileno())  # type: ignore[union-attr]
            self._progress = Progress(quiet=self._plan.quiet, stream=os.fdopen(place, "w"))
        isolate(keep=place)
        torch_private.compile_in_this_process()
        self._stopper.prepare()
        OwnPasses(loader_of).install()
        tell_of_effects(self._would_show, allowed=self._store.working)
        self._first_step = call_later(
            max(FIRST_STEP_SECONDS, FIRST_STEP_STEPS * step_ms / 1e3),
            lambda: self.end("the script does not go on in a copy of its process: its threads are not there"),
        )

    def _would_show(self, what: str) -> None:
        self.end(f"with --run-to-end fixes are tried in a copy of the process, and there the script {what}")

    def leave_copy(self) -> None:
        """The script has ended: so does a copy of its process, without a trace. Elsewhere nothing happens."""
        if self._copy == os.getpid():
            self.end("the script ended")
            os._exit(0)

    def _give_up(self) -> None:
        """A trial hangs or compiles on: what was measured is kept, and the process ended."""
        self.end(_LATE)
        self._stopper.end_now("a trial of a fix did not end in time")

    def cut(self, *, validation: bool, compiled: bool) -> bool:
        """A step has ended; return whether the window is over now. Never raises."""
        window = self._window
        if window is None:
            return True
        if self._first_step is not None:
            self._first_step.cancel()
        try:
            over = window.cut(validation=validation, compiled=compiled)
        except Exception as error:
            self._store.artefact(TRIALS, "failed", reason=reason_of(error))
            over = True
        if over or self._stopper.requested:
            self.end("the run was interrupted" if self._stopper.interrupted else "")
            return True
        return False

    def raised(self, error: BaseException) -> None:
        """The script has ended with this while the window was open."""
        if self._window is not None:
            if isinstance(error, Exception) and not raised_by_script(error):
                # Not for `sys.exit()`, a check of the script's own, or the end of its data: so scripts end.
                self._window.fails(error)
            self.end(f"the script ended: {told_of_error(error)}")

    def end(self, reason: str) -> None:
        """Close the window. May be called more than once, and from another thread when the process ends."""
        window, self._window = self._window, None
        self._buffer.guard = None
        if self._watchdog is not None:
            self._watchdog.cancel()
        if window is None:
            return
        in_copy = self._copy == os.getpid()
        window.end(reason, in_place=self._buffer.is_training_thread() and not in_copy)
        if in_copy:
            os._exit(0)
        torch_private.end_compile_workers()


class _Said(msgspec.Struct, frozen=True):
    """What a rank tells the others before fixes are tried."""

    step: int
    step_ms: float
    request: TrialRequest | None


class _Ranks:
    """Asks all ranks of the job, time after time."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, own: Any) -> list[Any] | None:
        """Return what each of them says, in their order; None where one does not answer."""
        self._asked += 1
        return gather(f"trials/{self._asked}", own, kind=Any)


def _none_tried(request: TrialRequest, reason: str) -> TriedFixes:
    """Return that nothing was tried, and why."""
    return TriedFixes(
        rows=[TriedFix(fix=wish.wish.fix, state="not tried", reason=reason) for wish in request.wishes]
    )


_SEVERAL_RANKS = (
    "ranks that train together try none in a copy of their processes (--run-to-end), nor where they cannot "
    "agree on a step through the store of a process group; `bottleneck verify` tries fixes"
)
_LATE = "it did not end in time (--trial-seconds)"
