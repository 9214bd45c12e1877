"""Stopping someone else's program in the middle without harming it.

In: wishes to stop (all windows done, Ctrl-C). Out: `StopRun`, raised on the training thread at a
safe point: outside every optimizer, backward and `record_function` of torch, but for an optimizer that
does the whole training in one step.

`StopRun` derives from BaseException: `finally`, `with` and `atexit` of the script run, and
`except Exception` does not see it. A script that swallows it anyway meets it again at its next
safe point; one that goes on swallowing, or hangs while unwinding, is ended by a watchdog.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from ...clocks import monotonic, sleep
from ..lines.frames import stack_of
from ..signals import signals_go_elsewhere

MAX_RAISES = 10
"""A `finally` that evaluates, or an epoch loop with a bare `except`, meets a few stops on its way
out; a loop that swallows every batch's stop meets one per batch and would never end."""
GRACE_SECONDS = 60.0
"""From the first raise to the end of the process: time for `finally` blocks and process groups."""
PATIENCE_SECONDS = 5.0
"""After Ctrl-C: how long to wait for a safe point before stopping wherever the program stands."""
THREAD_SECONDS = 10.0
"""For a stopped training thread to unwind."""
CHILDREN_SECONDS = 5.0
"""After the last stopped child has gone: for its parent to come to its end without our help."""
SAME_PRESS_SECONDS = 0.25
"""One Ctrl-C may arrive twice: from the terminal and handed on by our parent process."""


class StopRun(BaseException):
    """The capture is complete, or the user asked to stop: unwind and leave."""


class Stopper:
    """Decides when and how the script is stopped. One per process."""

    def __init__(
        self,
        *,
        max_raises: int = MAX_RAISES,
        grace_seconds: float = GRACE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.reason: str | None = None
        """Why the script is to stop: "done", "interrupted"; None while it is not."""
        self.raises = 0
        """Times that StopRun was raised."""
        self.safe_points = 0
        self._max_raises = max_raises
        self._grace_seconds = grace_seconds
        self._patience_seconds = patience_seconds
        self._pid = os.getpid()
        self.wake: signal.Signals | int | None = None
        """The signal by which a child that was stopped tells this process so."""
        self._before_raise: list[Callable[[], None]] = []
        self._at_first_safe_point: Callable[[], None] | None = None
        self._last_resort: Callable[[str], NoReturn] | None = None
        self._children_alive: Callable[[], bool] | None = None
        self._thread: int | None = None
        self._released = False
        self._gone = threading.Event()
        self._pressed = 0.0

    @property
    def requested(self) -> bool:
        """A stop is wanted, raised or not yet."""
        return self.reason is not None

    @property
    def interrupted(self) -> bool:
        """Ctrl-C asked for it: whatever window is open is cut short."""
        return self.reason == "interrupted"

    @property
    def under_way(self) -> bool:
        """StopRun has been raised at least once: the program is unwinding."""
        return self.raises > 0

    def before_raise(self, call: Callable[[], None]) -> None:
        """Run `call` once, just before the first raise (divert saves, say so)."""
        self._before_raise.append(call)

    def at_first_safe_point(self, call: Callable[[], None]) -> None:
        """Run `call` once, when training has begun."""
        self._at_first_safe_point = call

    def last_resort(self, call: Callable[[str], NoReturn]) -> None:
        """Set what ends the process when unwinding does not: gets the reason, must not return."""
        self._last_resort = call

    def follow_children(self, alive: Callable[[], bool]) -> None:
        """Stop this process too when its children were stopped; `alive` says whether any runs on."""
        self._children_alive = alive

    def prepare(self) -> None:
        """Do what is to be done before the first raise now, if it is not done yet."""
        calls, self._before_raise = self._before_raise, []
        for call in calls:
            call()

    def request(self) -> None:
        """Ask for a stop at the next safe point; the capture is complete."""
        if self.reason is None:
            self.reason = "done"

    def safe_point(self) -> None:
        """Stop here if a stop was asked for; call it on the training thread only.

        Raises:
            StopRun: a stop was asked for.
        """
        self.safe_points += 1
        if self.safe_points == 1 and self._at_first_safe_point is not None:
            self._at_first_safe_point()
        if self.reason is None or os.getpid() != self._pid or self._released:
            return
        self._raise()

    def wait_for_thread(self) -> None:
        """Let a training thread that is being stopped run its `finally` blocks first."""
        deadline = monotonic() + THREAD_SECONDS
        while self._is_unwinding() and monotonic() < deadline:
            sleep(0.005)

    def _is_unwinding(self) -> bool:
        """Look at the thread itself: one whose join() was interrupted passes for ended (3.11)."""
        stack = stack_of(self._thread) if self._thread is not None else []
        if not stack or self._thread == threading.get_ident():
            return False
        # A worker of a pool has unwound once it waits for its next task.
        return not stack[0].file.endswith(os.path.join("futures", "thread.py"))  # noqa: PTH118

    def release(self) -> None:
        """The program has left its own code: raise no more. The watchdog stays on guard."""
        self._released = True

    def stand_down(self) -> None:
        """The process is not going to end because of us: call the watchdog off too."""
        self._released = True
        self._gone.set()

    def forked(self) -> None:
        """This process is a fork of the one that is to stop: signals act as without us, and it goes on."""
        self.uninstall_signals()
        # The watchdog is not here, and a lock of its may be.
        self._released, self._gone = True, threading.Event()
        self.reason, self.raises = None, 0

    # -- Ctrl-C ------------------------------------------------------------------------------

    def install_signals(self) -> None:
        """Take over Ctrl-C if python's own handler is in place; main thread only."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_sigint)
        # A real signal is needed to wake a main thread that waits in join(); a real-time one,
        # since scripts and schedulers use SIGUSR1 and SIGUSR2 for themselves.
        candidate = getattr(signal, "SIGRTMAX", None)
        number = candidate - 3 if candidate is not None else signal.SIGUSR2
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, self._on_wake)
            self.wake = number

    def uninstall_signals(self) -> None:
        """Put the handlers back that `install_signals` replaced; main thread only."""
        if signal.getsignal(signal.SIGINT) == self._on_sigint:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.wake is not None and signal.getsignal(self.wake) == self._on_wake:
            signal.signal(self.wake, signal.SIG_DFL)
        self.wake = None

    def interrupt(self) -> None:
        """Ctrl-C: the first stops the capture and the script, the second kills at once.

        Raises:
            KeyboardInterrupt: nothing has been captured yet, so python's own behaviour is right.
        """
        if os.getpid() != self._pid or self._released or (self.reason is None and self.safe_points == 0):
            raise KeyboardInterrupt
        now = monotonic()
        again, self._pressed = now - self._pressed < SAME_PRESS_SECONDS, now
        if again:
            return
        if self.interrupted or self.under_way:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
            return
        self.reason = "interrupted"
        print(  # noqa: T201 - stderr is where we speak to the user
            "\nbottleneck: stopping at the next safe point; Ctrl-C again ends it at once.",
            file=sys.stderr,
            flush=True,
        )
        self._start_thread(self._lose_patience)

    def _on_sigint(self, _signum: int, _frame: FrameType | None) -> None:
        self.interrupt()

    def _on_wake(self, _signum: int, _frame: FrameType | None) -> None:
        # In a forked child, or after the program has left, a late signal means nothing.
        if os.getpid() != self._pid or self._released:
            return
        if self.reason is not None:
            self._raise()
        if self._children_alive is not None:
            alive, self._children_alive = self._children_alive, None
            self._start_thread(lambda: self._end_with(alive))

    def _end_with(self, alive: Callable[[], bool]) -> None:
        """Wait for the children, and then for this process to end by itself; stop it if it hangs.

        One that trains as well is left alone: its own capture decides.
        """
        quiet_since = monotonic()
        while monotonic() - quiet_since < CHILDREN_SECONDS:
            sleep(0.1)
            if self.reason is not None or self._released or self.safe_points:
                return
            if alive():
                quiet_since = monotonic()
        self.reason = "done"
        main = threading.main_thread().ident
        if self.wake is not None and main is not None:
            signal.pthread_kill(main, self.wake)

    # -- raising -----------------------------------------------------------------------------

    def _raise(self) -> NoReturn:
        first = self.raises == 0
        self.raises += 1
        if first:
            self.prepare()
            self._start_thread(self._watch)
        if self.raises > self._max_raises:
            self.end_now("the script swallowed every stop")
        if threading.current_thread() is not threading.main_thread():
            self._leave_from_thread()
        raise StopRun

    def _leave_from_thread(self) -> None:
        """Let the raise end this thread in silence, and stop the main thread as well."""
        previous = threading.excepthook

        def silent(args: threading.ExceptHookArgs) -> None:
            if not issubclass(args.exc_type, StopRun):
                previous(args)

        threading.excepthook = silent
        self._thread = threading.get_ident()
        main = threading.main_thread().ident
        if self.wake is not None and main is not None and self.raises == 1:
            signal.pthread_kill(main, self.wake)

    def _lose_patience(self) -> None:
        sleep(self._patience_seconds)
        main = threading.main_thread().ident
        if not self.under_way and self.wake is not None and main is not None and not self._released:
            signal.pthread_kill(main, self.wake)

    def _watch(self) -> None:
        if not self._gone.wait(self._grace_seconds):
            self.end_now("the script did not leave within the grace time after the stop")

    def end_now(self, reason: str) -> NoReturn:
        """End the process from whatever thread: the program hangs, or does not let itself be stopped."""
        if self._last_resort is not None:
            self._last_resort(reason)
        os._exit(0)

    @staticmethod
    def _start_thread(target: Callable[[], None]) -> None:
        with signals_go_elsewhere():
            threading.Thread(target=target, name="bottleneck-watchdog", daemon=True).start()


class NeverStop(Stopper):
    """The program ends by itself."""

    def request(self) -> None:
        """Nothing to stop."""

    def safe_point(self) -> None:
        """No safe point ever stops."""
