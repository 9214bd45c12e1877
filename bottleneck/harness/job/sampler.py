"""The other thread of a watched job: it looks at the training thread up to twenty times a second.

In: the training thread. Out: calls of its owner, one per look, with the time since the look before, and the
part of it in which the process was stopped. Nothing else in the process runs for us between two events.

There is no other thread while the script forks: a child must not inherit what this one holds, and Python 3.12
warns of threads beside a fork.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Protocol

from ...clocks import perf_counter_ns, process_time_ns, thread_time_ns
from ..signals import signals_go_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sampler", "Watcher"]

INTERVAL_SECONDS = 0.05
LONGEST_SECONDS = 0.1
SHARE = 0.0015
"""Of one processor: where looks take more than that together, there are fewer."""
SMOOTH = 16
PAUSED_NS = 500_000_000
"""A look that comes later than that, while the process used next to no processor time, was kept away."""
IDLE_SHARE = 0.05
ENDING_SECONDS = 5.0


class Watcher(Protocol):
    """Who looks."""

    def look(self, now_ns: int, for_ns: int, *, paused_ns: int) -> None:
        """Look now; `for_ns` is the time since the look before, without the `paused_ns` of it."""

    def stopped(self, error: Exception) -> None:
        """A look has failed: there are no more."""


class Sampler:
    """Looks from `start` until `stop`."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.longest_seconds = LONGEST_SECONDS
        """Between two looks, whatever they cost."""
        self.before_ns = perf_counter_ns()
        """When it looked last."""
        self._stop = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._pid = os.getpid()
        self.runs = self._forks = False
        """It looks now."""
        ours = weakref.WeakMethod(self._before_fork), weakref.WeakMethod(self._after_fork)
        os.register_at_fork(before=_calling(ours[0]), after_in_parent=_calling(ours[1]))

    def start(self) -> None:
        """Begin to look, or go on."""
        self._stop.acquire()
        self._ended.acquire()
        self.runs = True
        # The script may count its threads: this one is not among those that `threading` knows.
        with signals_go_elsewhere():
            _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Look no more; the thread has ended when this returns."""
        if self.runs and os.getpid() == self._pid:
            self.runs = False
            self._stop.release()
            if self._ended.acquire(timeout=ENDING_SECONDS):
                self._ended.release()

    def _before_fork(self) -> None:
        self._forks = self.runs
        self.stop()

    def _after_fork(self) -> None:
        if self._forks:
            self.start()

    def _run(self) -> None:
        used_ns = process_time_ns()
        wait, cost_ns, own_ns = INTERVAL_SECONDS, 0.0, thread_time_ns()
        try:
            while not self._stop.acquire(timeout=wait):
                now = perf_counter_ns()
                for_ns, self.before_ns = now - self.before_ns, now
                used_before_ns, used_ns = used_ns, process_time_ns()
                late_ns = for_ns - round(wait * 1e9)
                idle = used_ns - used_before_ns < IDLE_SHARE * for_ns
                paused_ns = late_ns if late_ns > PAUSED_NS and idle else 0
                self._watcher.look(now, for_ns - paused_ns, paused_ns=paused_ns)
                own_before_ns, own_ns = own_ns, thread_time_ns()
                # Of late, since some looks write and most do not.
                cost_ns += (own_ns - own_before_ns - cost_ns) / SMOOTH
                wait = min(max(INTERVAL_SECONDS, cost_ns / 1e9 / SHARE), self.longest_seconds)
        except Exception as error:
            self.runs = False
            with contextlib.suppress(Exception):
                self._watcher.stopped(error)
        finally:
            with contextlib.suppress(RuntimeError):
                self._stop.release()
            self._ended.release()


def _calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    """Return a call of a method, as long as its object lives: what is registered cannot be removed."""

    def call() -> None:
        bound = method()
        if bound is not None:
            # An error here would be printed among what the script prints.
            with contextlib.suppress(Exception):
                bound()

    return call
