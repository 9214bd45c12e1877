"""Other threads of the program that are at work while it trains: they take the interpreter lock, and a core.

In: the stacks of all threads now and then, and the processor time that the kernel accounts to each.
Out: the most frequent line of each thread that used a processor, and for how much of the time; and how much
of the time those that compute for the training had to wait for a core. Where the kernel does not tell (no
/proc), nothing is said.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass

from ...clocks import monotonic
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.run import BUSY_THREAD, SiteTime, SourceSite
from ..cores import computing_waited_ns, ran_ns
from .frames import site_in, stack_of, threads

SHORTEST_SECONDS = 0.1
MOST_THREADS = 64
"""Of a program with more, none is looked at: that takes longer than the time between two looks."""


@dataclass(frozen=True, slots=True)
class _Moment:
    seconds: float
    used: dict[int, float]
    """What each of Python's threads has used of the processor, in s."""
    waited_ns: int | None
    """What those that compute for the training have waited for a core."""


class BusyThreads:
    """Looks at all threads of Python's but some."""

    def __init__(self) -> None:
        self._lines: dict[int, Counter[SourceSite]] = {}
        self._training = 0
        self._began: _Moment | None = None
        self._ended: _Moment | None = None

    def look(self, training: int, *, but: int) -> None:
        """Take a look at all threads but the training's and another one."""
        if self._began is None:
            self._training = training
            self._began = self._now()
        running = threads()
        if len(running) > MOST_THREADS:
            return
        for thread in running:
            site = site_in(stack_of(thread)) if thread not in (training, but) else None
            if site is not None:
                self._lines.setdefault(thread, Counter())[site] += 1

    def end(self) -> None:
        """Count until now, if that is long enough to tell: later on a thread may be gone."""
        if self._began is not None and monotonic() - self._began.seconds >= SHORTEST_SECONDS:
            self._ended = self._now()

    def entries(self) -> list[SiteTime]:
        """Return the most frequent line of each thread that was at work from the first look to the end."""
        since, until = self._began, self._ended or self._now()
        if since is None or (passed := until.seconds - since.seconds) < SHORTEST_SECONDS:
            return []
        out = []
        for thread, lines in self._lines.items():
            used_by_then = until.used.get(thread, 0.0)
            share = (used_by_then - since.used.get(thread, used_by_then)) / passed
            if share >= NEGLIGIBLE_SHARE:
                site, count = lines.most_common(1)[0]
                out.append(
                    SiteTime(site=site, phase=BUSY_THREAD, count=count, share=round(min(share, 1.0), 3))
                )
        return out

    def waited_share(self) -> float | None:
        """Return how much of that time those that compute waited for a core, at most 1; None if not known."""
        since, until = self._began, self._ended
        if since is None or until is None or since.waited_ns is None or until.waited_ns is None:
            return None
        waited = max(0, until.waited_ns - since.waited_ns) / 1e9
        return round(min(1.0, waited / (until.seconds - since.seconds)), 3)

    def _now(self) -> _Moment:
        return _Moment(monotonic(), _processor_seconds(), computing_waited_ns(self._training))


def _processor_seconds() -> dict[int, float]:
    """Return what each of Python's threads has used of the processor, in s; empty where nothing tells."""
    used: dict[int, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.native_id is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                used[thread.ident] = ran_ns(thread.native_id) / 1e9
    return used
