"""Process-wide counters read at one instant: allocator statistics, getrusage, resident memory.

In: nothing. Out: `Counters` for the edges of a window and cheap per-step readings. Reading the
allocator's statistics does not synchronise the device. Peaks are since the start of the program:
resetting them would change what the script itself prints from `torch.cuda.max_memory_allocated`.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...clocks import perf_counter_ns
from ...model.run import Counters
from .. import torch_private

ALLOCATOR_KEYS = (
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
    "num_sync_all_streams",
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "active_bytes.all.current",
    "active_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "inactive_split_bytes.all.peak",
    "allocation.all.allocated",
    "segment.all.current",
    "segment.all.allocated",
    "segment.all.freed",
)

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def read_rss() -> int | None:
    """Return the resident memory in bytes, or None where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def read_counters() -> Counters:
    """Read everything once; what the platform does not offer is missing."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    names = (
        "ru_utime",
        "ru_stime",
        "ru_minflt",
        "ru_majflt",
        "ru_nvcsw",
        "ru_nivcsw",
        "ru_maxrss",
    )
    allocator: dict[str, int] = {}
    if torch_private.device_kind() != "cpu":
        stats = torch.cuda.memory_stats()
        allocator = {key: int(stats[key]) for key in ALLOCATOR_KEYS if key in stats}
    return Counters(
        allocator=allocator,
        rusage={name: float(getattr(usage, name)) for name in names},
        rss_bytes=read_rss(),
    )


def join_counters(end: Counters, before: Counters, after: Counters) -> Counters:
    """Return what `end` would be, had the stretch from `before` to `after` followed it at once.

    Counts add up; levels, peaks and resident memory are those of the later reading.
    """

    def grown(total: dict[str, Any], start: dict[str, Any], stop: dict[str, Any]) -> dict[str, Any]:
        return {
            name: stop[name]
            if name.endswith((".current", ".peak", "maxrss"))
            else total[name] + stop[name] - start[name]
            for name in total
            if name in start and name in stop
        }

    return Counters(
        allocator=grown(end.allocator, before.allocator, after.allocator),
        rusage=grown(end.rusage, before.rusage, after.rusage),
        rss_bytes=after.rss_bytes,
    )


class GarbageClock:
    """Time spent in Python's garbage collector, by `gc.callbacks`; about 0.3 us per collection."""

    def __init__(self) -> None:
        self.total_ns = 0
        self.sink: Callable[[int], None] | None = None
        """Where the ns of each collection go; None: into the total."""
        self._began = 0

    def install(self) -> None:
        """Begin to count."""
        if self._tick not in gc.callbacks:
            gc.callbacks.append(self._tick)

    def uninstall(self) -> None:
        """Stop counting; must happen before the interpreter shuts down."""
        if self._tick in gc.callbacks:
            gc.callbacks.remove(self._tick)

    def _tick(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = perf_counter_ns()
        elif self._began:
            took, self._began = perf_counter_ns() - self._began, 0
            if self.sink is None:
                self.total_ns += took
            else:
                self.sink(took)
