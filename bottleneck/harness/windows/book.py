"""The windows of one capture as they are opened, filled with steps and closed.

In: rows of steps. Out: `Window`s with their counters, device times and columns, put into the store
each time one closes, so that a killed process leaves what it had.
"""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

import msgspec

from ...model.finding import NEGLIGIBLE_SHARE
from ...model.run import Overhead, Stretch, Window
from ...stats import mean_interval
from ...timeline.steps.clock import step_times
from .. import torch_private
from .counters import join_counters, read_counters
from .device_clock import DeviceClock
from .lengths import FIRST_STRETCH_WORKERS
from .table import Row, as_table, join_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model.run import Counters, StepTable
    from ...runs.store import Store
    from ..process.progress import Progress

StretchName = Literal["baseline", "between", "after"]
WindowName = Literal["warm-up", "baseline", "trace", "between", "memory", "after"]


class WindowBook:
    """The window that is open, and those that are closed."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self.rows: list[Row] = []
        """Steps of the open window."""
        self.joins = True
        """Later stretches may become part of the baseline."""
        self.evaluations: list[Row] = []
        """Steps with an evaluation, of all windows."""
        self.overhead = Overhead()
        self._store = store
        self._progress = progress
        self._windows: dict[str, Window] = {}
        self._stretches: dict[StretchName, Window] = {}
        """Of the baseline, the first one before the captures."""
        self._before: Counters | None = None
        self._clock = DeviceClock()

    def add(self, row: Row, *, timed: bool) -> None:
        """A step of the open window has ended; `timed` marks the device's time as well."""
        self.rows.append(row)
        if row.validation:
            self.evaluations.append(row)
        if timed:
            self.mark()

    def mark(self) -> None:
        """A step ends: its row will be added later, the device's time is taken now."""
        self._clock.mark()

    def before_backward(self) -> None:
        """A backward pass is about to begin: the device's time is taken now."""
        self._clock.before_backward()

    def before_backward_ms(self) -> float | None:
        """Return the device's time from the end of a step to the next backward pass, if it was asked for."""
        return self._clock.before_backward_ms()

    def drop(self, doing: str = "") -> None:
        """Forget the steps of the open window; `doing` says what comes now, which is no window."""
        self.rows = []
        if doing:
            self._progress.window(doing, None)
        self._clock.stop()

    def open(self, name: WindowName, planned: int | None) -> None:
        """Begin a window; the last thing done is to mark the device's time."""
        self.rows = []
        self._progress.window(name, planned)
        self._before = read_counters()
        self.begin_first_step()

    def begin_first_step(self) -> None:
        """The window's first step begins only now: something was still to be switched on."""
        self._clock.start()
        self._clock.mark()

    def close(
        self,
        name: WindowName,
        *,
        planned: int,
        rows: list[Row] | None = None,
        skip: int = 0,
        settled: bool | None = None,
        reason: str | None = None,
    ) -> None:
        """Store a window: `rows`, or those seen since it was opened but for the first `skip`.

        Args:
            name: which window.
            planned: steps it was to have.
            rows: steps that take the place of those seen.
            skip: steps at its beginning that do not belong to it.
            settled: warm-up only.
            reason: why it is shorter than planned; None when it is not.
        """
        device_ms = self._clock.stop()[skip:] if rows is None else []
        kept = self.rows[skip:] if rows is None else rows
        window = Window(
            name=name,
            status="short" if reason else "ok",
            reason=reason,
            planned_steps=planned,
            # A mark more or less than steps: which is whose cannot be told.
            steps=as_table(kept, device_ms=device_ms if len(device_ms) == len(kept) else None),
            before=self._before,
            after=read_counters(),
            settled=settled,
        )
        self._windows[name] = window
        if name == "baseline" or name == "between" or name == "after":  # noqa: PLR1714 (narrows the type)
            self._stretches[name] = window
            self._windows["baseline"] = self._baseline()
        self._before = None
        self.write()

    def lack(self, name: WindowName, status: Literal["absent", "failed"], reason: str) -> None:
        """State that a window never came to be, and why."""
        self._windows[name] = Window(name=name, status=status, reason=reason)

    def _baseline(self) -> Window:
        """Return the stretches so far as one window; what differs for our being there does not count.

        On a GPU what stays attached can only slow steps down: faster ones are the program's own.
        """
        first, *later = self._stretches.items()
        baseline, stretches = first[1], [Stretch(window="baseline", steps=len(first[1].steps.wall_ms))]
        before = _plain_ms(first[1].steps)
        for name, window in later:
            after = _plain_ms(window.steps)
            disturbed = (
                _fewer_faults(first[1].steps, window.steps)
                if torch_private.device_kind() == "cpu"
                else _exceed(after, before, least=NEGLIGIBLE_SHARE * fmean(before or [0.0]))
            )
            counted = self.joins and not disturbed
            if counted:
                baseline = _joined(baseline, window)
            stretches.append(Stretch(window=name, steps=len(window.steps.wall_ms), counted=counted))
            if before and after:
                self.note_overhead(after_trace_ratio=median(after) / median(before))
        return msgspec.structs.replace(baseline, stretches=stretches if later and self.joins else [])

    @property
    def has_baseline(self) -> bool:
        """Steps were timed before the trace."""
        return bool(self._stretches)

    def note_overhead(self, **values: float) -> None:
        """Record what a capture cost."""
        self.overhead = msgspec.structs.replace(self.overhead, **values)

    def write(self) -> None:
        """Put what is known into the store."""
        self._store.update(windows=list(self._windows.values()), overhead=self.overhead)


def _plain_ms(table: StepTable) -> list[float]:
    """Return the times of the steps without an evaluation or a compilation, by the step's clock."""
    columns = zip(step_times(table)[0], table.validation, table.compiled, strict=True)
    return [ms for ms, validation, compiled in columns if ms is not None and not (validation or compiled)]


def _fewer_faults(before: StepTable, after: StepTable) -> bool:
    """Return whether what a capture left in the heap spares the steps after it page faults, and so time.

    Blocks of ours above those of the program keep malloc from giving free memory back. The few steps that are
    timed first where the script may end at any moment cannot stand alone.
    """
    if len(before.wall_ms) <= FIRST_STRETCH_WORKERS:
        return False
    least = NEGLIGIBLE_SHARE * fmean(before.wall_ms)
    return _exceed(before.minor_faults, after.minor_faults, least=0.0) and _exceed(
        before.system_cpu_ms, after.system_cpu_ms, least=least
    )


def _exceed(higher: Sequence[float], lower: Sequence[float], *, least: float) -> bool:
    """Return whether the mean of some steps is above that of others, by more than `least` and their noise."""
    first, second = mean_interval(higher), mean_interval(lower)
    if first is None or second is None:
        return False
    noise = math.hypot(first[1] - first[0], second[1] - second[0]) / 2
    return fmean(higher) - fmean(lower) > max(noise, least)


def _joined(first: Window, second: Window) -> Window:
    """Return both as one window: its counters are what both have counted."""
    end = first.after
    if end is not None and second.before is not None and second.after is not None:
        end = join_counters(end, second.before, second.after)
    return msgspec.structs.replace(
        first,
        planned_steps=first.planned_steps + len(second.steps.wall_ms),
        steps=join_tables(first.steps, second.steps),
        after=end,
    )
