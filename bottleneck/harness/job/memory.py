"""Memory that grows while a job trains, of the host and of each device, and when it will be full.

In: a look now and then, on the sampler's thread, once steps are usual. Out: what grows by a trend that is
significant and still goes on. The host's memory is what this process alone holds: pages of files that are
mapped can be dropped, and no training ends by them.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ...model.watch import MemoryGrowth
from ...runs.environment import available_memory, cgroup_files
from ..cores import read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MemoryWatch"]

APART_NS = 250_000_000
POINTS = 256
"""With so many, every second one is dropped, and looks are twice as far apart."""
LEAST_GROWTH = 0.05
"""Of what is used: less is no leak, however sure the trend."""
GOES_ON = 0.5
"""Of a step, from the second third to the last, over that from the first: what fills up at the beginning
levels off. Not of a second: the machine may be slower by then."""
TOLD_SECONDS = 7 * 86_400.0
"""Memory that lasts for longer than that is no trouble of this job's."""
PAGE = resource.getpagesize()
_USAGE = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


class _Point(NamedTuple):
    at_ns: int
    steps: int
    used_bytes: int


class MemoryWatch:
    """One per job; asked by one thread."""

    def __init__(self) -> None:
        self._points: dict[str, list[_Point]] = {}
        self._apart_ns = APART_NS
        self._next_ns = self._ask_ns = self._began_ns = 0
        self._found: list[MemoryGrowth] = []

    def look(self, now_ns: int, steps: int) -> None:
        """Note what is used, if it is time to."""
        if now_ns < self._next_ns:
            return
        self._began_ns = self._began_ns or now_ns
        self._next_ns = now_ns + self._apart_ns
        for where, used_bytes in _used():
            self._points.setdefault(where, []).append(_Point(now_ns, steps, used_bytes))
        if any(len(points) >= POINTS for points in self._points.values()):
            for points in self._points.values():
                del points[::2]
            self._apart_ns *= 2

    def grown(self, now_ns: int, *, last: bool = False) -> list[MemoryGrowth]:
        """Return what grows; decided anew when the job is longer by a tenth, or has ended (`last`)."""
        # Before the first look there is nothing to ask, and no beginning to count from.
        if self._points and (last or now_ns >= self._ask_ns):
            self._ask_ns = now_ns + (now_ns - self._began_ns) // 10
            self._found = [
                growth
                for where, points in self._points.items()
                if (growth := _growth(where, points)) is not None
            ]
        return self._found


def _growth(where: str, points: list[_Point]) -> MemoryGrowth | None:
    # Late: numpy reads the environment, which the script may set before it imports anything.
    from ...stats.growth import find_slope

    used = [float(point.used_bytes) for point in points]
    slope = find_slope(used, steps_per_point=1)
    if slope is None or used[-1] - used[0] < LEAST_GROWTH * used[-1]:
        return None
    third = len(used) // 3
    thirds = [points[:third], points[third:-third], points[-third:]]
    first, middle, last = (median(point.used_bytes for point in part) for part in thirds)
    steps = [median(point.steps for point in part) for part in thirds]
    if (last - middle) * (steps[1] - steps[0]) < GOES_ON * (middle - first) * (steps[2] - steps[1]):
        return None
    seconds = (points[-1].at_ns - points[0].at_ns) / 1e9
    per_point_s = seconds / (len(points) - 1)
    per_s = slope.per_step / per_point_s
    free_bytes = _free(where)
    full_in_s = free_bytes / per_s
    if full_in_s > TOLD_SECONDS:
        return None
    return MemoryGrowth(
        where=where,
        bytes_per_s=round(per_s, 1),
        low=round(slope.low / per_point_s, 1),
        high=round(slope.high / per_point_s, 1),
        bytes_per_step=round(per_s * seconds / max(1, points[-1].steps - points[0].steps), 1),
        used_bytes=points[-1].used_bytes,
        limit_bytes=points[-1].used_bytes + free_bytes,
        full_in_s=round(full_in_s, 1),
    )


def _used() -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError, ValueError):
        _, resident, shared, *_ = read_small_file("/proc/self/statm").split()
        yield "host", (int(resident) - int(shared)) * PAGE
    torch = sys.modules.get("torch")
    # Asking is no reason to make a context on a device.
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                allocated = int(torch.cuda.memory_allocated(device))
                if allocated:
                    yield f"device {device}", allocated


def _free(where: str) -> int:
    """Return how much more this process could use, as things are now."""
    if where == "host":
        return max(0, min(available_memory() or sys.maxsize, _left_of_group(), _left_of_process()))
    torch = sys.modules["torch"]
    device = int(where.rpartition(" ")[2])
    free = torch.cuda.mem_get_info(device)[0]
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _left_of_group() -> int:
    """Return what is left to the control groups (version 2, or 1) that this process is in."""
    left = sys.maxsize
    for limit in cgroup_files("memory.max", "memory/memory.limit_in_bytes"):
        usage = limit.with_name(_USAGE[limit.name])
        with contextlib.suppress(OSError, ValueError):
            left = min(left, int(limit.read_text()) - int(usage.read_text()))
    return left


def _left_of_process() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    size = int(read_small_file("/proc/self/statm").split()[0]) * PAGE
    return int(limit - size)
