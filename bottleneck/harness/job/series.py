"""The usual steps of a job over time, in stretches: on disk for good, in memory for the trend.

In: one time per usual step, in order. Out: lines of a file that only grows, and at most some hundred points.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from ...model.watch import Change, Growth

if TYPE_CHECKING:
    from pathlib import Path

    from ...stats.growth import Slope

__all__ = ["Series"]

FIRST_LOOK = 500
"""Usual steps; from there on growth is looked for at each half of a doubling, and at the end."""
STRETCH = 8
"""Steps of a point, as long as there are few points."""
POINTS = 512
"""With so many, each two become one."""
FINE_STEPS = 4096
LINE_STEPS = 64
"""Steps of a line in the file, beyond those of the fine beginning: 0.6 MB for a million steps."""


class Series:
    """One per job; fed by one thread."""

    def __init__(self, file: Path) -> None:
        """Begin without steps; lines go to the end of `file`, which need not exist."""
        self._file = file
        self._open: list[float] = []
        self._points: list[float] = []
        self._own: list[float] = []
        """The points without the time for which the training waited for a core: growth is looked for there,
        as a burst of other load is no growth."""
        self._merged: list[tuple[float, float]] = []
        self._shares = 0.0
        """Of the open steps, added up: in which part of each its thread had a core."""
        self._per_point = STRETCH
        self._line: list[float] = []
        self._lines: list[bytes] = []
        self._line_steps = 0
        self._look_at = self._change_at = FIRST_LOOK
        self._growth: Growth | None = None
        self._change: Change | None = None
        self.steps = 0
        """Usual steps so far."""
        self.settled = 0
        """The usual step up to which each was noted with all its events, in a process that was still warming
        up: that they become faster by then is no change of the job's pace."""

    def add(self, first: int, steps_ms: list[float], *, with_core: float = 1.0) -> None:
        """Usual steps have ended.

        Args:
            first: the number of the first of them among all steps.
            steps_ms: what each took.
            with_core: share of that in which their thread did not wait for a core.
        """
        self.steps += len(steps_ms)
        at = 0
        while (wanted := STRETCH - len(self._open)) <= len(steps_ms) - at:
            self._open += steps_ms[at : at + wanted]
            self._shares += with_core * wanted
            at += wanted
            self._close(first + at)
        self._open += steps_ms[at:]
        self._shares += with_core * (len(steps_ms) - at)

    def _close(self, end: int) -> None:
        """A stretch is full; its last step comes before `end`."""
        # Without the fastest and the slowest: one step that the machine gave away moves no point.
        mean = sum(sorted(self._open)[1:-1]) / (STRETCH - 2)
        own = mean * self._shares / STRETCH
        self._open.clear()
        self._shares = 0.0
        self._add_point(mean, own)
        self._line.append(mean)
        self._line_steps += STRETCH
        if self.steps <= FINE_STEPS or self._line_steps >= LINE_STEPS:
            line = [end - self._line_steps, self._line_steps, round(fmean(self._line), 4)]
            self._lines.append(msgspec.json.encode(line) + b"\n")
            self._line.clear()
            self._line_steps = 0

    def write(self) -> None:
        """Append what is new."""
        if self._lines:
            with self._file.open("ab") as file:
                file.write(b"".join(self._lines))
            self._lines.clear()

    def _add_point(self, mean: float, own: float) -> None:
        self._merged.append((mean, own))
        if len(self._merged) * STRETCH < self._per_point:
            return
        means, owns = zip(*self._merged, strict=True)
        self._points.append(fmean(means))
        self._own.append(fmean(owns))
        self._merged.clear()
        if len(self._points) == POINTS:
            self._points, self._own = _halved(self._points), _halved(self._own)
            self._per_point *= 2

    @property
    def best_ms(self) -> float | None:
        """A usual step in the fastest tenth of the job."""
        points = sorted(self._points)
        return points[len(points) // 10] if points else None

    def grown(self, *, last: bool = False) -> Growth | None:
        """Return how the steps have grown up to the last look, if they have.

        A later look sees more steps and decides anew: what was a growth by chance is none at the end.

        Args:
            last: look now, whenever the last look was.
        """
        if self.steps >= FIRST_LOOK and (last or self.steps >= self._look_at):
            # Late: numpy reads the environment, which the script may set before it imports anything.
            from ...stats.growth import find_slope

            self._look_at = round(self.steps * 2**0.5)
            slope = find_slope(self._own, steps_per_point=self._per_point)
            self._growth = None if slope is None else self._as_growth(slope)
        return self._growth

    def _as_growth(self, slope: Slope) -> Growth:
        return Growth(
            what="step",
            ms_per_1000_steps=round(slope.per_step * 1000, 4),
            low=round(slope.low * 1000, 4),
            high=round(slope.high * 1000, 4),
            step_ms=round(fmean(self._points[-max(1, len(self._points) // 10) :]), 4),
            at_step=self.steps,
        )

    def change(self, *, last: bool) -> Change | None:
        """Return from which usual step on the steps are slower or faster, if they are.

        Args:
            last: look now; otherwise only when there are more steps by a tenth.
        """
        if self.steps >= FIRST_LOOK and (last or self.steps >= self._change_at):
            from ...stats.growth import find_change

            self._change_at = self.steps * 11 // 10
            found, first = find_change(self._points), 0
            if found is not None and found.ratio < 1 and found.point * self._per_point <= 1.1 * self.settled:
                first = found.point
                found = find_change(self._points[first:])
            self._change = None
            if found is not None:
                step = (first + found.point) * self._per_point
                self._change = Change(step=step, ratio=round(found.ratio, 3))
        return self._change


def _halved(points: list[float]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(points[::2], points[1::2], strict=True)]
