"""Signals of the script's: threads that we start must not take them, and forks must not lose them. No torch.

In: `signals_go_elsewhere()` around the start of a thread, or `call_later`; `HeldSignal` around a fork. Out:
the thread has every signal blocked; the signal arrives when the child is as it would be without us.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def signals_go_elsewhere() -> Iterator[None]:
    """Start threads in here: none of the script's signals is delivered to them.

    A script that blocks a signal in its own threads and waits for it (`sigwait`) would wait for ever.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def call_later(seconds: float, call: Callable[..., object], *args: object) -> threading.Timer:
    """Have a thread of ours call this after so many seconds, unless it is cancelled or the process ends."""
    timer = threading.Timer(seconds, call, args=args)
    timer.daemon = True
    with signals_go_elsewhere():
        timer.start()
    return timer


class HeldSignal:
    """A signal that has a handler of ours, and waits while this process forks.

    Between the fork and the moment when the child is rid of our handler, Python would note such a signal and
    forget it: a pool that ends a worker which it has only just started would wait for it for ever.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._in_thread = threading.local()
        """Whether this thread has held it back: several may fork at once."""

    def hold(self) -> None:
        """This thread is about to fork."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [self._number])
        self._in_thread.held = self._number not in before

    def release(self) -> None:
        """Let it arrive again, in the parent or in the child."""
        if getattr(self._in_thread, "held", False):
            self._in_thread.held = False
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [self._number])
