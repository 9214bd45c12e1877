"""Other threads of the program that are at work while it trains: they take the interpreter lock.

In: the stacks of all threads now and then, and the processor time that the kernel accounts to each.
Out: the most frequent line of each thread that used a processor for much of the time. Where the kernel
does not tell (no /proc), nothing is said.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

from ...clocks import monotonic
from ...model.run import BUSY_THREAD, SiteTime, SourceSite
from .frames import site_in, stack_of, threads

SHORTEST_SECONDS = 0.1
"""The kernel counts in ticks of 10 ms."""
LEAST_SHARE = 0.3
"""Of the time: two threads that want the interpreter lock all the time have it half of the time each."""
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
        for thread in self._lines:
            if thread not in used or used[thread] - before.get(thread, used[thread]) < LEAST_SHARE * passed:
                continue
            site, count = self._lines[thread].most_common(1)[0]
            out.append(SiteTime(site=site, phase=BUSY_THREAD, count=count))
        return out


def _processor_seconds() -> dict[int, float]:
    """Return what each of Python's threads has used of the processor, in s; empty where nothing tells."""
    try:
        tick = os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError, OSError):
        return {}
    used: dict[int, float] = {}
    for thread in threading.enumerate():
        if thread.ident is None or thread.native_id is None:
            continue
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="utf-8")
            # The name in brackets may hold blanks; user and system time are the 14th and 15th field.
            fields = stat.rpartition(")")[2].split()
            used[thread.ident] = (int(fields[11]) + int(fields[12])) / tick
        except (OSError, ValueError, IndexError):
            continue
    return used
