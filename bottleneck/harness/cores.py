"""What threads get of the cores: whether one had a core when it wanted it, and what libraries' threads use.

In: looks at a thread, or at the process. Out: a share of the time since the last look, 1 where Linux does
not tell; processor time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import lru_cache

__all__ = [
    "CoreShare",
    "computing_waited_ns",
    "library_threads_ns",
    "native_id_of",
    "ran_ns",
    "read_small_file",
    "waited_ns_in",
]

_TASKS = "/proc/self/task"
_LEAST = 0.05
"""The waiting and the look at the clock are not read at the same moment."""


class CoreShare:
    """One per thread that looks."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None
        """Thread, ns of the look, and ns that it had waited for a core by then."""

    def since_last(self, thread: int, now_ns: int) -> float:
        """Return the share of the time in which the thread did not wait for a core.

        Args:
            thread: identity of a thread of this process.
            now_ns: the time of this look.
        """
        waited_ns = _waited_ns(thread)
        if waited_ns is None:
            self._last = None
            return 1.0
        last, self._last = self._last, (thread, now_ns, waited_ns)
        if last is None or last[0] != thread or now_ns <= last[1]:
            return 1.0
        return min(max(1.0 - (waited_ns - last[2]) / (now_ns - last[1]), _LEAST), 1.0)


def _waited_ns(thread: int) -> int | None:
    """Return how long a thread has been able to run and had no core, since it began (proc(5), schedstat)."""
    file = _schedstat(thread)
    found = None if file is None else waited_ns_in(file)
    if found is None and file is not None:
        # The thread may have ended, and another one may have its identity.
        native_id_of.cache_clear()
    return found


def waited_ns_in(file: str) -> int | None:
    """Return how long the thread of a `schedstat` had no core, in ns; None where it cannot be read."""
    try:
        return int(read_small_file(file).split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _schedstat(thread: int) -> str | None:
    native = native_id_of(thread)
    return None if native is None else f"{_TASKS}/{native}/schedstat"


@lru_cache(maxsize=4)
def native_id_of(thread: int) -> int | None:
    """Return by what identity the system knows a thread of this process; None where it has ended."""
    found = (known.native_id for known in threading.enumerate() if known.ident == thread)
    return next(found, None)


def read_small_file(path: str) -> bytes:
    """Return what a file of the kernel's holds; a third of the time that a Python file takes.

    Raises:
        OSError: it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def library_threads_ns() -> int:
    """Return the processor time of threads that run and Python has not started (BLAS, OpenMP, OpenCV).

    0 where Linux does not tell.
    """
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):  # one may just have ended
        for task in _library_threads():
            total += ran_ns(task)
    return total


def computing_waited_ns(thread: int) -> int | None:
    """Return how long a thread of Python's and those of libraries could run and had no core, all together.

    Parallel operators wait for the last of them. None where Linux does not tell.
    """
    own = _waited_ns(thread)
    if own is None:
        return None
    others = (waited_ns_in(f"{_TASKS}/{task}/schedstat") for task in _library_threads())
    return own + sum(waited or 0 for waited in others)


def _library_threads() -> set[str]:
    """Return the threads that Python has not started; none where Linux does not tell."""
    own = {str(thread.native_id) for thread in threading.enumerate()}
    with contextlib.suppress(OSError):
        return set(os.listdir(_TASKS)) - own  # noqa: PTH208 - names only
    return set()


def ran_ns(native: int | str) -> int:
    """Return how long a thread of this process has been on a processor, in ns (proc(5), schedstat).

    Args:
        native: by what identity the system knows it.

    Raises:
        OSError: the thread has ended, or Linux does not tell.
        ValueError, IndexError: what it tells is of another form.
    """
    return int(read_small_file(f"{_TASKS}/{native}/schedstat").split()[0])
