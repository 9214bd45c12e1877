"""Between the end of the capture and the stop: asks what to try, and opens the trial window.

In: a capture that is complete and on disk. Out: a window that each step drives, or none. What a trial does
to the script (an error, a hang, an exit) costs nothing of what was captured.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ...runs.asking import TRIALS, ask
from ...runs.store import reason_of
from .. import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.plan import Plan
    from ...runs.store import Store
    from ..events.buffer import EventBuffer
    from ..trials.window import TrialWindow
    from .progress import Progress
    from .stopping import Stopper

__all__ = ["Trying"]

ANSWER_SECONDS = 60.0
"""Longest wait for the analysis; a trace of the largest size that is captured takes some 4 s."""
GRACE_SECONDS = 15.0
"""Beyond the time for trials: then one that hangs, or compiles on, is ended with the process."""


class Trying:
    """One per process."""

    def __init__(
        self, plan: Plan, store: Store, stopper: Stopper, progress: Progress, *, buffer: EventBuffer
    ) -> None:
        """Begin with no window.

        Args:
            plan: says whether, and for how long.
            store: receives trials.json.
            stopper: is asked whether the script is to stop.
            progress: says what is going on.
            buffer: lets the window make the script's calls.
        """
        self._plan = plan
        self._store = store
        self._stopper = stopper
        self._progress = progress
        self._buffer = buffer
        self._window: TrialWindow | None = None
        self._watchdog: threading.Timer | None = None

    @property
    def why_not(self) -> str | None:
        """Why there are no trials; None where there are to be some."""
        if self._plan.trial is not None or not self._plan.trial_seconds:
            return "not asked for"
        if self._plan.run_to_end:
            return "the script runs to its end, which trials would change"
        if torch_private.world()[1] > 1:
            return "several ranks would have to switch at the same step"
        return None

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
        step_ms: float,
    ) -> bool:
        """Ask what to try, and open the window; see `TrialWindow`. Never raises.

        Returns:
            Whether the window is open now.
        """
        self._store.artefact(TRIALS, "absent", reason="the script ended before anything was tried")
        # Whatever the script saves from now on comes from a training with other parts in it.
        self._stopper.prepare()
        self._progress.note("analysing, to see what to try")
        request = ask(self._store.working, seconds=ANSWER_SECONDS, unless=lambda: self._stopper.requested)
        if request is None or not request.wishes:
            why = "no answer came" if request is None else "no suggestion can be tried in a running process"
            self._store.artefact(TRIALS, "absent", reason=why)
            return False
        try:
            # With all the patches: only where something is tried.
            from ..trials.window import TrialWindow

            self._window = TrialWindow(
                self._store,
                request,
                optimizers=optimizers,
                loader_of=loader_of,
                queued=queued,
                step_ms=step_ms,
                say=self._progress.note,
            )
        except Exception as error:
            self._store.artefact(TRIALS, "failed", reason=reason_of(error))
            return False
        self._buffer.guard = self._window.guard
        self._watchdog = threading.Timer(request.seconds + GRACE_SECONDS, self._give_up)
        self._watchdog.daemon = True
        self._watchdog.start()
        return True

    def _give_up(self) -> None:
        """A trial hangs or compiles on: what was measured is kept, and the process ended."""
        self.end(_LATE)
        self._stopper.end_now("a trial of a fix did not end in time")

    def cut(self, *, odd: bool) -> bool:
        """A step has ended; return whether the window is over now. Never raises."""
        window = self._window
        if window is None:
            return True
        try:
            over = window.cut(odd=odd)
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
            self._window.fails(error)
            self.end(f"the script ended: {reason_of(error)}")

    def end(self, reason: str) -> None:
        """Close the window. May be called more than once, and from another thread when the process ends."""
        window, self._window = self._window, None
        self._buffer.guard = None
        if self._watchdog is not None:
            self._watchdog.cancel()
        if window is None:
            return
        window.end(reason, in_place=self._buffer.is_training_thread())
        torch_private.end_compile_workers()


_LATE = "it did not end in time (--trial-seconds)"
