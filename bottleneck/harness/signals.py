"""Signals of the script's, which threads that we start must not take. Imports no torch.

In: `signals_go_elsewhere()` around the start of a thread. Out: the thread has every signal blocked.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["signals_go_elsewhere"]


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
