"""Which of the user's lines the producing of batches spends its time in.

In: a thread that says when it is producing. Out: counts per line. A second thread looks at the
first one's stack two hundred times a second, in wall time, so that waiting for a disk counts too.

While it samples, the switch interval is short (see `switching`), which leaves the wall time as it was.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from ...clocks import monotonic, sleep
from ...model.run import SiteTime, SourceSite
from .sites import is_library, line_of
from .switching import short_switches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

__all__ = ["Line", "LineSampler", "as_sites", "merge"]

INTERVAL_SECONDS = 0.005
ENOUGH = 400
"""Samples after which the shares are known to a few points; then the thread ends."""
IDLE_SECONDS = 5.0
"""Nothing produced for so long: the thread ends, and a later batch starts another."""

Line = tuple[str, int, str]


class LineSampler:
    """Samples the thread that calls `begin` and `end`."""

    def __init__(self, *, enough: int = ENOUGH) -> None:
        self.counts: dict[Line, int] = {}
        self.taken = 0
        self._enough = enough
        self._producer: int | None = None
        self._running = False
        self.wants = enough > 0
        """More samples are to be taken; an attribute, as it is asked for in every batch."""

    def begin(self) -> None:
        """The calling thread begins to produce a batch."""
        if self.wants:
            self._producer = threading.get_ident()
            if not self._running:
                self._running = True
                threading.Thread(target=self._sample, name="bottleneck-sampler", daemon=True).start()

    def end(self) -> None:
        """The batch is done."""
        self._producer = None

    def stop(self) -> None:
        """Take no more samples."""
        self.wants = False

    def _sample(self) -> None:
        idle_since = monotonic()
        try:
            with short_switches():
                while self.wants and monotonic() - idle_since < IDLE_SECONDS:
                    sleep(INTERVAL_SECONDS)
                    producer = self._producer
                    frame = sys._current_frames().get(producer) if producer is not None else None
                    if frame is None:
                        continue
                    idle_since = monotonic()
                    line = _user_line(frame)
                    self.taken += 1
                    if self.taken >= self._enough:
                        self.wants = False
                    if line is not None:
                        self.counts[line] = self.counts.get(line, 0) + 1
        finally:
            self._running = False


def as_sites(counts: dict[Line, int], *, share_of_ms: float | None = None) -> list[SiteTime]:
    """Return the lines, the most frequent first.

    Args:
        counts: samples per line.
        share_of_ms: the time that all samples together stand for.
    """
    total = sum(counts.values())
    return [
        SiteTime(
            site=SourceSite(file=file, line=line, function=function),
            phase="fetch",
            count=count,
            total_ms=round(share_of_ms * count / total, 3) if share_of_ms is not None else None,
        )
        for (file, line, function), count in sorted(counts.items(), key=lambda item: -item[1])
    ]


def merge(parts: Iterable[dict[Line, int]]) -> dict[Line, int]:
    """Add up the counts of several samplers."""
    total: dict[Line, int] = {}
    for counts in parts:
        for line, count in counts.items():
            total[line] = total.get(line, 0) + count
    return total


def _user_line(frame: FrameType) -> Line | None:
    """Return the innermost line of the user's; the training loop's `for` is none of producing."""
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        if not is_library(code.co_filename):
            return (code.co_filename, line_of(current), code.co_name)
        if code.co_name == "timed_fetch" and code.co_filename.endswith("loader_worker.py"):
            return None
        current = current.f_back
    return None
