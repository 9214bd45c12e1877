"""Which of the user's lines the producing of batches spends its time in.

In: a thread that says when it is producing. Out: counts per line. A second thread looks at the
first one's stack two hundred times a second, in wall time, so that waiting for a disk counts too.

While it samples, the switch interval is short (see `switching`), which leaves the wall time as it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

from ...clocks import monotonic, sleep
from ...model.run import SiteTime, SourceSite
from ..signals import signals_go_elsewhere
from .calls import Position, call_at, is_read_by_index, name_of, position_of
from .frames import Frame, stack_of
from .sites import is_library
from .switching import short_switches

INTERVAL_SECONDS = 0.005
ENOUGH = 400
"""Samples after which the shares are known to a few points; then the thread ends."""
IDLE_SECONDS = 5.0
"""Nothing produced for so long: the thread ends, and a later batch starts another."""

Line = tuple[str, str, Position]
"""File, function, and the part of the source that runs. Without a file: `module.name` of a library's."""
_ROWS = "torch.utils.data"
_GIVES_A_ROW = ("__getitem__", "__getitems__", "__iter__", "__next__")
_PASSED_OVER = {*sys.stdlib_module_names, __name__.partition(".")[0]}
_NOWHERE: Position = (0, None, None, None)


class LineSampler:
    """Samples the thread that calls `begin` and `end`."""

    def __init__(self, *, enough: int = ENOUGH) -> None:
        self._first: dict[Line, int] = {}
        self._later: dict[Line, int] = {}
        """Intervals that were spent at each line, in the first batch and in all others."""
        self._batches = 0
        self.taken = 0
        self._enough = enough
        self._producer: int | None = None
        self._running = False
        self.wants = enough > 0
        """More samples are to be taken; an attribute, as it is asked for in every batch."""

    @property
    def counts(self) -> dict[Line, int]:
        """Intervals that were spent at each line; with the first batch begins what no other does again."""
        return self._later or self._first

    def begin(self) -> None:
        """The calling thread begins to produce a batch."""
        if self.wants:
            self._batches += 1
            self._producer = threading.get_ident()
            if not self._running:
                self._running = True
                with signals_go_elsewhere():
                    threading.Thread(target=self._sample, name="bottleneck-sampler", daemon=True).start()

    def end(self) -> None:
        """The batch is done."""
        self._producer = None

    def stop(self) -> None:
        """Take no more samples."""
        self.wants = False

    def _sample(self) -> None:
        idle_since = looked = monotonic()
        try:
            with short_switches():
                while self.wants and monotonic() - idle_since < IDLE_SECONDS:
                    sleep(INTERVAL_SECONDS)
                    producer = self._producer
                    stack = stack_of(producer) if producer is not None else []
                    before, looked = looked, monotonic()
                    if not stack:
                        continue
                    idle_since = looked
                    line = _user_line(stack)
                    counts = self._first if self._batches == 1 else self._later
                    self.taken += 1
                    if self.taken >= self._enough and counts is self._later:
                        self.wants = False
                    if line is not None:
                        # A call that keeps the interpreter lock is seen once, when it has returned.
                        intervals = max(1, round((looked - before) / INTERVAL_SECONDS))
                        counts[line] = counts.get(line, 0) + intervals
        finally:
            self._running = False


def as_sites(counts: dict[Line, int], *, share_of_ms: float | None = None) -> list[SiteTime]:
    """Return the lines of the user's, the most frequent first."""
    total = sum(counts.values())
    lines: dict[SourceSite, dict[Position, int]] = {}
    for (file, function, position), count in counts.items():
        if not file:
            continue
        lines.setdefault(SourceSite(file=file, line=position[0], function=function), {})[position] = count
    out = []
    for site, parts in sorted(lines.items(), key=lambda item: -sum(item[1].values())):
        count = sum(parts.values())
        call, callee = call_at(site.file, max(parts, key=lambda part: parts[part]), _names_in(site.file))
        total_ms = round(share_of_ms * count / total, 3) if share_of_ms is not None else None
        out.append(
            SiteTime(site=site, phase="fetch", call=call, callee=callee, count=count, total_ms=total_ms)
        )
    return out


def _names_in(file: str) -> dict[str, Any]:
    """Return the globals of a file's module; none where this process has not imported it.

    What workers run was sampled there, and the names of a module are the same in all processes.
    """
    found: Iterator[dict[str, Any]] = (getattr(module, "__dict__", {}) for module in [*sys.modules.values()])
    return next((names for names in found if names.get("__file__") == file), {})


def rows_share(counts: dict[Line, int]) -> float | None:
    """Return the share of producing that handles rows one by one; None where nothing was sampled.

    That is torch's part: its fetcher, its datasets, its collating. And the user's in what gives one row,
    where a line only reads something by its index, or the function is entered. What a line calls is work,
    and an index in a function that is called for the row.
    """
    total = sum(counts.values())
    rows = sum(count for line, count in counts.items() if _handles_rows(line))
    return rows / total if total else None


def _handles_rows(line: Line) -> bool:
    file, function, position = line
    if not file:
        return function.startswith("torch.")
    return (function in _GIVES_A_ROW or function.startswith("<")) and is_read_by_index(file, position)


def _user_line(stack: list[Frame]) -> Line | None:
    """Return the innermost line of the user's, or what a library does where none of the user's runs.

    The training loop's `for` is none of producing.
    """
    outside = ""
    for frame in stack:
        if not is_library(frame.file):
            return (frame.file, frame.code.co_name, position_of(frame.code, frame.instruction))
        if frame.code.co_name == "timed_fetch" and frame.file.endswith("worker.py"):
            return ("", outside or _ROWS, _NOWHERE)
        name = name_of(frame.code, frame.namespace)
        # The outermost that is neither torch's nor Python's own: `isinstance` in a collate is torch's.
        if not name.startswith(_ROWS) and name.partition(".")[0] not in _PASSED_OVER:
            outside = name
    return None
