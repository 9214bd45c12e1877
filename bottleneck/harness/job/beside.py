"""What changes beside a change of pace: phases, batches, cores, load, clocks, pages read, the device.

In: usual steps with their phases, sizes of batches, and a look once a second. Out: sentences on what differs
between the steps before a change and those after it. What is measured is said, and not what is a cause of
what.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from ...clocks import process_time_ns
from ..cores import read_small_file
from .nvml import REASONS, DeviceState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..windows.table import Row
    from .nvml import DeviceLook

__all__ = ["Beside"]

APART_NS = 1_000_000_000
POINTS = 512
"""With so many, every second one is dropped, and looks are twice as far apart."""
LEAST_POINTS = 3
"""On either side of a change."""
LEAST_CORES = 0.25
LEAST_RATIO = 1.1
LEAST_FAULTS = 50.0
"""A second."""
LEAST_SHARE = 0.2
"""Of what a step takes more or less: a phase with less of it is not named."""
LEAST_WITHOUT = 0.1
"""Of the time: so much more or less often the training thread waits for a core."""
LEAST_DEGREES = 5.0
LEAST_OFTEN = 0.5
"""Of the looks on one side: so much more or less often a device is held back."""
CLOCKS = 8
"""Cores of which the clock is read."""
_SAID = {"data": "waiting for input", "h2d": "copying to the device", "optimizer": "the update"}
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class _Point(NamedTuple):
    steps: int
    phases_ms: dict[str, float]
    others: float | None
    """Cores that other processes used."""
    clock_mhz: float | None
    faults: float
    """Pages that had to be read from a disk, a second."""
    device: DeviceLook | None
    batch: int | None
    """Elements of the batch that was seen last."""
    cores: int
    """Those on which the training thread may run."""
    with_core: float
    """Share of the time in which it had one when it wanted one."""


class Beside:
    """One per job; fed by one thread."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._device = DeviceState()
        self._apart_ns = APART_NS
        self._phases: Counter[str] = Counter()
        self._steps = 0
        self._before: tuple[int, float | None, float, int] | None = None
        self._with_core: list[float] = []
        self.batch: int | None = None
        """Elements of a batch, of late."""

    def add(self, row: Row) -> None:
        """A usual step has ended, of which the phases are known."""
        self._phases.update(row.phases_ns)
        self._steps += 1

    def look(self, now_ns: int, steps: int, *, thread: int = 0, with_core: float = 1.0) -> None:
        """Note what the machine does, if it is time to; `steps` usual ones have ended.

        Args:
            now_ns: the time of this look.
            steps: see above.
            thread: native identity of the training thread, 0 where it is not known.
            with_core: see `_Point`; since the look before.
        """
        self._with_core.append(with_core)
        if self._before is not None and now_ns - self._before[0] < self._apart_ns:
            return
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        before, self._before = self._before, (now_ns, _busy(), process_time_ns() / 1e9, faults)
        if before is None:
            return
        passed = (now_ns - before[0]) / 1e9
        others = None
        if before[1] is not None and self._before[1] is not None:
            own = self._before[2] - before[2]
            others = max(0.0, (self._before[1] - before[1] - own) / passed)
        phases_ms = {name: ns / 1e6 / self._steps for name, ns in self._phases.items()} if self._steps else {}
        self._phases.clear()
        self._steps = 0
        faults_s = (faults - before[3]) / passed
        had_core, self._with_core = fmean(self._with_core), []
        device, cores = self._device.look(), _cores(thread)
        self._points.append(
            _Point(steps, phases_ms, others, _clock(), faults_s, device, self.batch, cores, had_core)
        )
        if len(self._points) == POINTS:
            del self._points[::2]
            self._apart_ns *= 2

    def close(self) -> None:
        """Look no more."""
        self._device.close()

    def told(self, at: int) -> list[str]:
        """Return what is different from usual step `at` on, the phases first."""
        before = [point for point in self._points if point.steps <= at]
        after = [point for point in self._points if point.steps > at]
        if min(len(before), len(after)) < LEAST_POINTS:
            return []
        out = []
        # Between two points of which the phases are known, steps may only have been counted for a while.
        known = all(any(point.phases_ms for point in side) for side in (before, after))
        names = dict.fromkeys(name for point in self._points for name in point.phases_ms if known)
        sides = {name: (_phase(before, name), _phase(after, name)) for name in names}
        moved = sum(abs(new - old) for old, new in sides.values())
        for name, (old, new) in sides.items():
            if abs(new - old) > LEAST_SHARE * moved and max(old, new) > LEAST_RATIO * min(old, new):
                out.append(f"{_SAID.get(name, name)} takes {new:.3g} ms instead of {old:.3g}")
        batch = [_middle(point.batch for point in points) for points in (before, after)]
        if max(batch) > LEAST_RATIO * min(batch) > 0:
            out.append(f"a batch holds {batch[1]:.0f} numbers instead of {batch[0]:.0f}")
        cores = [_middle(point.cores for point in points) for points in (before, after)]
        if cores[0] != cores[1]:
            out.append(f"cores that the training may use: {cores[1]:.0f} instead of {cores[0]:.0f}")
        without = [1 - _middle(point.with_core for point in points) for points in (before, after)]
        if abs(without[1] - without[0]) >= LEAST_WITHOUT:
            out.append(
                f"the training waits for a core in {without[1]:.0%} of the time instead of {without[0]:.0%}"
            )
        others = [_middle(point.others for point in points) for points in (before, after)]
        if abs(others[1] - others[0]) >= LEAST_CORES:
            out.append(
                f"other processes use {others[1]:.1f} of {os.cpu_count()} cores instead of {others[0]:.1f}"
            )
        clock = [_middle(point.clock_mhz for point in points) for points in (before, after)]
        if min(clock) > 0 and max(clock) > LEAST_RATIO * min(clock):
            out.append(f"the cores run at {clock[1] / 1e3:.2f} GHz instead of {clock[0] / 1e3:.2f}")
        faults = [_middle(point.faults for point in points) for points in (before, after)]
        if abs(faults[1] - faults[0]) >= LEAST_FAULTS:
            out.append(f"{faults[1]:.0f} pages a second are read from disk instead of {faults[0]:.0f}")
        return [*out, *_told_of_device(*([p.device for p in side if p.device] for side in (before, after)))]


def _told_of_device(before: list[DeviceLook], after: list[DeviceLook]) -> Iterator[str]:
    if min(len(before), len(after)) < LEAST_POINTS:
        return
    name, sides = f"device {after[0].device}", (before, after)
    clock = [_middle(look.clock_mhz for look in side) for side in sides]
    if min(clock) > 0 and max(clock) > LEAST_RATIO * min(clock):
        yield f"{name} runs at {clock[1]:.0f} MHz instead of {clock[0]:.0f}"
    for bit, reason in REASONS.items():
        often = [sum(bool(look.held_back & bit) for look in side) / len(side) for side in sides]
        if abs(often[1] - often[0]) >= LEAST_OFTEN:
            yield (
                f"{name}'s clock is held back by {reason} in {often[1]:.0%} of the looks instead of"
                f" {often[0]:.0%}"
            )
    degrees = [_middle(look.temperature_c for look in side) for side in sides]
    if min(degrees) > 0 and abs(degrees[1] - degrees[0]) >= LEAST_DEGREES:
        yield f"{name} is at {degrees[1]:.0f} °C instead of {degrees[0]:.0f}"
    milliwatts = [_middle(look.power_mw for look in side) for side in sides]
    if min(milliwatts) > 0 and max(milliwatts) > LEAST_RATIO * min(milliwatts):
        yield f"{name} takes {milliwatts[1] / 1e3:.0f} W instead of {milliwatts[0] / 1e3:.0f}"


def _phase(points: list[_Point], name: str) -> float:
    return _middle(point.phases_ms.get(name, 0.0) for point in points if point.phases_ms)


def _middle(values: Iterable[float | None]) -> float:
    """Return the median of what was measured; 0 where nothing was."""
    return median([value for value in values if value is not None] or [0.0])


def _cores(thread: int) -> int:
    """Return on how many cores a thread may run."""
    with contextlib.suppress(OSError, AttributeError):
        return len(os.sched_getaffinity(thread))
    return os.cpu_count() or 1


def _busy() -> float | None:
    """Return the seconds that all cores of the machine have worked."""
    with contextlib.suppress(OSError, ValueError):
        ticks = [int(word) for word in read_small_file("/proc/stat").partition(b"\n")[0].split()[1:9]]
        # Of user, nice, system, idle, iowait, irq, softirq, steal: not the two that are idle.
        return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS
    return None


def _clock() -> float | None:
    """Return the clock of the cores in MHz, where the kernel says it."""
    found = []
    for core in range(min(CLOCKS, os.cpu_count() or 1)):
        with contextlib.suppress(OSError, ValueError):
            path = f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
            found.append(int(read_small_file(path)) / 1e3)
    return median(found) if found else None
