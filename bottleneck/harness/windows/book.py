"""The windows of one capture as they are opened, filled with steps and closed.

In: rows of steps. Out: `Window`s with their counters, device times and columns, put into the store
each time one closes, so that a killed process leaves what it had.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from ...model.run import Overhead, Window
from .. import torch_private
from .counters import join_counters, read_counters
from .device_clock import DeviceClock
from .table import Row, as_table, join_tables, plain_ms

if TYPE_CHECKING:
    from ...model.run import Counters
    from ...runs.store import Store
    from ..process.progress import Progress

__all__ = ["WindowBook"]

WindowName = Literal["warm-up", "baseline", "trace", "memory", "after"]

AGREEMENT = 0.05
"""Steps after the captures join the baseline unless their median is longer than this allows, or than
the scatter of the steps can tell."""


class WindowBook:
    """The window that is open, and those that are closed."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self.rows: list[Row] = []
        """Steps of the open window."""
        self.baseline_rows: list[Row] = []
        self.evaluations: list[Row] = []
        """Steps with an evaluation, of all windows."""
        self.overhead = Overhead()
        self._store = store
        self._progress = progress
        self._windows: dict[str, Window] = {}
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

    def drop(self) -> None:
        """Forget the steps of the open window."""
        self.rows = []
        self._clock.stop()

    def open(self, name: WindowName, planned: int) -> None:
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
        if name == "baseline":
            self.baseline_rows = kept
        self._windows[name] = Window(
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
        self._before = None
        self.write()

    def lack(self, name: WindowName, status: Literal["absent", "failed"], reason: str) -> None:
        """State that a window never came to be, and why."""
        self._windows[name] = Window(name=name, status=status, reason=reason)

    def compare_after(self, *, resume: bool) -> None:
        """Compare the steps after the captures with the baseline, and join them if wanted.

        Without a device nothing of a capture stays attached, so what differs there is the
        machine's own noise, and both stretches are the truth.

        Args:
            resume: the baseline was cut short for an early trace and is to be completed.
        """
        first, second = self._windows.get("baseline"), self._windows.get("after")
        if first is None or second is None:
            return
        before, after = plain_ms(first.steps), plain_ms(second.steps)
        if not before or not after:
            return
        middle = median(after)
        ratio = middle / median(before)
        self.note_overhead(after_trace_ratio=ratio)
        spread = 1.4826 * median(abs(ms - middle) for ms in after) / middle
        allowed = max(AGREEMENT, 2.5 * spread / math.sqrt(len(before)))
        # What stays attached can only slow steps down: faster ones are the program's as well.
        undisturbed = ratio <= 1 + allowed or torch_private.device_kind() == "cpu"
        if resume and undisturbed:
            self._windows["baseline"] = _joined(first, second)
        self.write()

    def note_overhead(self, **values: float) -> None:
        """Record what a capture cost."""
        self.overhead = msgspec.structs.replace(self.overhead, **values)

    def write(self) -> None:
        """Put what is known into the store."""
        self._store.update(windows=list(self._windows.values()), overhead=self.overhead)


def _joined(first: Window, second: Window) -> Window:
    """Return a baseline in two stretches: before the captures, and after them."""
    end = first.after
    if end is not None and second.before is not None and second.after is not None:
        end = join_counters(end, second.before, second.after)
    return msgspec.structs.replace(
        first,
        planned_steps=first.planned_steps + len(second.steps.wall_ms),
        steps=join_tables(first.steps, second.steps),
        after=end,
    )
