"""Profiles that cannot be ended here, and how they are kept from doing harm.

In: a profile of ours starts or ends, a forked child inherits one that records, or one cannot be ended. Out:
nothing; the child records nothing, and the process can end.

From its first profile on, Kineto has a thread, which a fork does not take along. In the child the
destructor of `libkineto::ConfigLoader` waits at exit for that thread to leave a condition variable, for
ever, or joins what is no longer a thread and aborts. The same happens without us as soon as a program has
profiled itself (torch 2.13). The thread cannot be stopped from Python. So a child ends before destructors
of C++ run, as children of `multiprocessing` do: Python has shut down and flushed its streams by then.
The destructor of a profile that was never ended is a segmentation fault, so its process ends in the same way.

With a GPU each profile that ends, also one of operators alone, leaves a thread behind that takes CUPTI away
at the program's next call of CUDA. Where none follows, as behind an exception, the destructor of Kineto waits
for that thread for ever (torch 2.11). At the end of the script such a call is made; if the thread stays, this
process, too, ends before destructors run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..clocks import sleep
from . import torch_private

_registered = False
_left: set[str] = set()
"""Threads that the ends of profiles have left behind."""
_GOES_SECONDS = 0.5
_LOOKS = 10


def profile_begins() -> None:
    """A profile is about to start: from now on this process has Kineto's thread."""
    global _registered  # noqa: PLW0603 - what is registered for forks cannot be taken back
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=end_before_destructors)


@contextlib.contextmanager
def profile_ends() -> Iterator[None]:
    """Keep in mind, around the end of a profile of ours, which threads of this process it leaves behind."""
    before = _threads()
    try:
        yield
    finally:
        if torch_private.device_kind() == "cuda":
            _left.update(_threads() - before)


def program_ends() -> None:
    """The script has ended: have go what profiles have left behind, or end the process before destructors."""
    for _ in range(_LOOKS):
        if not _left & _threads():
            return
        with contextlib.suppress(Exception):
            torch_private.wait_for_device()  # a call of CUDA
        sleep(_GOES_SECONDS / _LOOKS)
    if _left & _threads():
        # Only what registers after Kineto's destructors runs before them.
        end_before_destructors()


def _threads() -> set[str]:
    """Return the threads of this process, as far as the system tells."""
    with contextlib.suppress(OSError):
        return set(os.listdir("/proc/self/task"))  # noqa: PTH208 - names, and no more
    return set()


def record_nothing(*, with_stack: bool = False) -> None:
    """In a forked child: the profile that was on at the fork is the parent's; leave it alone.

    Stopping it would first turn all that it holds into results, in each DataLoader worker, and on a GPU
    would call CUPTI, which does not survive a fork.
    """
    torch_private.record_in_this_thread(enabled=False)
    if with_stack:
        sys.setprofile(None)


def end_inherited(profile: Any) -> None:
    """In a forked child that is to take a profile of its own: end the one that `record_nothing` has silenced.

    For profiles without a GPU.
    """
    with contextlib.suppress(Exception):
        torch_private.record_in_this_thread(enabled=True)
        profile.stop()


def end_before_destructors() -> None:
    """Have this process flush C's streams and leave when its exit handlers come to this point."""
    if _LIBC is not None:
        # Handlers run in reverse order: those of the child's own before these, the parent's not at all.
        _LIBC.on_exit(_LIBC.leave, None)
        _LIBC.at_exit(_LIBC.flush, None, None)


class _Libc(NamedTuple):
    on_exit: Any
    at_exit: Any
    leave: ctypes.c_void_p
    flush: ctypes.c_void_p


def _libc() -> _Libc | None:
    """Look the functions up beforehand: in a child, a thread left behind may hold the lock for that."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        leave, flush = (ctypes.cast(call, ctypes.c_void_p) for call in (libc._exit, libc.fflush))
        return _Libc(libc.on_exit, libc.__cxa_atexit, leave, flush)
    return None


_LIBC = _libc()
