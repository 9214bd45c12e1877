"""How much of the time a thread had a core when it wanted one.

In: looks at a thread. Out: a share of the time since the last look; 1 where Linux does not tell.
"""

from __future__ import annotations

import threading
from pathlib import Path

__all__ = ["CoreShare"]

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
    for known in threading.enumerate():
        if known.ident == thread:
            try:
                return int(Path(f"/proc/self/task/{known.native_id}/schedstat").read_bytes().split()[1])
            except (OSError, ValueError, IndexError):
                return None
    return None
