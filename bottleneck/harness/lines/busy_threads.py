"""Other threads of the program that are at work while it trains: they take the interpreter lock.

In: the stacks of all threads now and then, and the processor time that the kernel accounts to each.
Out: the most frequent line of each thread that used a processor, and for how much of the time. Where the
kernel does not tell (no /proc), nothing is said.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

from ...clocks import monotonic
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.run import BUSY_THREAD, SiteTime, SourceSite
from ..cores import ran_ns
from .frames import site_in, stack_of, threads

SHORTEST_SECONDS = 0.1
MOST_THREADS = 64
"""Of a program with more, none is looked at: that takes longer than the time between two looks."""


class BusyThreads:
    """Looks at all threads of Python's but some."""

    def __init__(self) -> None:
        self._lines: dict[int, Counter[SourceSite]] = {}
        self._began: tuple[float, dict[int, float]] | None = None

    def look(self, *, but: tuple[int, ...]) -> None:
        """Take a look at all threads but those."""
        if self._began is None:
            self._began = (monotonic(), _processor_seconds())
        running = threads()
        if len(running) > MOST_THREADS:
            return
        for thread in running:
            site = site_in(stack_of(thread)) if thread not in but else None
            if site is not None:
                self._lines.setdefault(thread, Counter())[site] += 1

    def entries(self) -> list[SiteTime]:
        """Return the most frequent line of each thread that was at work from the first look until now."""
        if self._began is None:
            return []
        since, before = self._began
        passed, used = monotonic() - since, _processor_seconds()
        if passed < SHORTEST_SECONDS:
            return []
        out = []
        for thread, lines in self._lines.items():
            share = (used[thread] - before.get(thread, used[thread])) / passed if thread in used else 0.0
            if share >= NEGLIGIBLE_SHARE:
                site, count = lines.most_common(1)[0]
                out.append(
                    SiteTime(site=site, phase=BUSY_THREAD, count=count, share=round(min(share, 1.0), 3))
                )
        return out


def _processor_seconds() -> dict[int, float]:
    """Return what each of Python's threads has used of the processor, in s; empty where nothing tells."""
    used: dict[int, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.native_id is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                used[thread.ident] = ran_ns(thread.native_id) / 1e9
    return used
