"""How soon python's interpreter lock changes hands, while a sampler looks at another thread.

In: `short_switches()` around a sampler's work. Out: nothing; the interval is the program's own again
when the last sampler has ended, and at once in a forked child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

SWITCH_SECONDS = 2e-5
"""With python's usual 5 ms a sampling thread sees another one only where it lets go of the lock, and
reports 98 % for a line that takes 9 %. A wait begins anew at each operator that lets go of the lock for
some microseconds: with 50 us, and timers that are 50 us late, a deep copy of a model had 20 to 45 % of its
time, with 20 us and exact ones 97 to 100 %. With 5 us and less the waiting thread keeps the lock's own
mutex busy, so that the one that has the lock cannot let go of it, and all takes twice its time."""
_PR_SET_TIMERSLACK = 29
_EXACT_NS = 1

_lock = threading.Lock()
_samplers = 0
_usual = 0.0


@contextlib.contextmanager
def short_switches() -> Iterator[None]:
    """Keep the switch interval short; several samplers at once share it. To be called in a sampler's thread.

    Linux lets a thread's waits last 50 us longer, in which the wait for the lock begins anew, too.
    """
    global _samplers, _usual  # noqa: PLW0603 - the interval is the interpreter's, and so is its owner
    with _lock:
        if not _samplers:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, SWITCH_SECONDS))
        _samplers += 1
    _wait_exactly()
    try:
        yield
    finally:
        with _lock:
            _samplers -= 1
            if not _samplers:
                sys.setswitchinterval(_usual)


def _wait_exactly() -> None:
    """Have the waits of the calling thread end on time; the program's other threads keep theirs."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _EXACT_NS, 0, 0, 0)


def _in_child() -> None:
    """A fork takes no sampler along, but it takes the interval."""
    global _lock, _samplers  # noqa: PLW0603
    _lock = threading.Lock()
    if _samplers:
        _samplers = 0
        sys.setswitchinterval(_usual)


os.register_at_fork(after_in_child=_in_child)
