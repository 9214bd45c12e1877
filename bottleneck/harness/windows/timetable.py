"""The windows of this process: what is planned for each, and whether one has enough.

In: the steps of the open window, what the data loader tells of the steps left, the wishes. Out:
answers for the capture, which moves from window to window by them. The rules are functions in
`windows`; here they meet the clock, the ranks and the device.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from ...clocks import perf_counter_ns
from .. import torch_private
from . import ranks
from .lengths import (
    AFTER_STEPS,
    Schedule,
    awaits_evaluation,
    baseline_is_enough,
    make_schedule,
    steps_to_hold,
    warmup_is_over,
)
from .table import counted_ms

if TYPE_CHECKING:
    from ...runs.plan import Plan
    from .horizon import Horizon
    from .table import Row

__all__ = ["Timetable"]


class Timetable:
    """The schedule of one process; there is none before the warm-up is over."""

    def __init__(self, plan: Plan, horizon: Horizon) -> None:
        """Begin with the warm-up.

        Args:
            plan: wishes.
            horizon: how many steps may be left.
        """
        self.step_ms = 0.0
        """A typical step; zero before the warm-up is over."""
        self._plan = plan
        self._horizon = horizon
        self._drawn_up: Schedule | None = None
        self._began_ns = 0

    # -- warm-up -------------------------------------------------------------------------------

    def warmup_is_over(self, rows: list[Row]) -> tuple[bool, bool | None]:
        """Return (over, settled) for the steps so far; ranks count them, so none of theirs settles."""
        _, count = torch_private.world()
        if count > 1:
            # Times differ between ranks; they must all end the window at the same step.
            return len(rows) >= (self._plan.warmup or ranks.WARMUP_STEPS), None
        return warmup_is_over(
            rows, plan=self._plan, left=self._horizon.steps_left(), queued=self._horizon.queued
        )

    def draw_up(self, rows: list[Row]) -> None:
        """Divide the time limit, which begins now, among the windows that follow these steps."""
        rank, count = torch_private.world()
        times = counted_ms(rows[1:]) or [row.wall_ms for row in rows]
        self.step_ms = median(times[-6:])
        schedule = make_schedule(
            self.step_ms,
            plan=self._plan,
            left=self._horizon.steps_left(),
            gpu=torch_private.device_kind() != "cpu",
            workers=self._horizon.workers,
            queued=self._horizon.queued,
            ranks=count,
        )
        self._drawn_up = ranks.agree(schedule, rank=rank) if count > 1 else schedule
        self._began_ns = perf_counter_ns()

    # -- what is planned -----------------------------------------------------------------------

    @property
    def schedule(self) -> Schedule:
        """Numbers of steps; there must be some by now."""
        assert self._drawn_up is not None
        return self._drawn_up

    def planned(self, window: str) -> int:
        """Return the most steps that a window is to have; zero before the warm-up is over."""
        if self._drawn_up is None:
            return 0
        return {
            "baseline": self._drawn_up.baseline_max,
            "trace": self._drawn_up.traced,
            "memory": self._drawn_up.memory,
            "after": self._drawn_up.after,
        }[window]

    def cancel(self, *windows: Literal["memory", "after"]) -> None:
        """No steps follow, so these windows get none."""
        self._drawn_up = msgspec.structs.replace(self.schedule, **dict.fromkeys(windows, 0))

    # -- the windows that are timed ------------------------------------------------------------

    def timed(self, rows: list[Row]) -> None:
        """The baseline is over: it tells best how long a step is."""
        times = counted_ms(rows)
        if times:
            self.step_ms = median(times)

    def baseline_is_enough(self, rows: list[Row]) -> bool:
        """Return whether the baseline may end with these steps."""
        return baseline_is_enough(rows, self.schedule)

    def after_is_enough(self, rows: list[Row], *, baseline: list[Row], evaluations: list[Row]) -> bool:
        """Return whether the steps behind the captures may end; they may have to complete the baseline.

        Args:
            rows: the steps.
            baseline: those of the baseline before the captures.
            evaluations: steps since the beginning that held an evaluation.
        """
        schedule, count = self.schedule, len(rows)
        if self.late():
            return True
        # Ranks count their steps alike, and one that evaluates keeps the others waiting.
        if self.alone and count and count >= min(schedule.after, AFTER_STEPS):
            waited_ms = (rows[-1].start_ns - rows[0].start_ns) / 1e6
            if awaits_evaluation(evaluations, steps=count, waited_ms=waited_ms, step_ms=self.step_ms):
                return False
        if count >= schedule.after:
            return True
        if not schedule.resume or count < AFTER_STEPS:
            return False
        total = msgspec.structs.replace(schedule, baseline_max=schedule.baseline_max + schedule.after)
        return baseline_is_enough([*baseline, *rows], total)

    def steps_to_hold(self, count: int, *, after: bool) -> int:
        """Return how many steps' events may be held, in a timed window that has `count` by now."""
        schedule = self._drawn_up
        if schedule is None or self._plan.trial is not None:
            return 1
        shortest, longest = schedule.baseline_min, schedule.baseline_max
        if after:
            shortest, longest = min(AFTER_STEPS, schedule.after), schedule.after
        return steps_to_hold(count, shortest=shortest, longest=longest, step_ms=self.step_ms)

    # -- the clock -----------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """There is one rank."""
        return torch_private.world()[1] == 1

    def late(self, share: float = 1.0) -> bool:
        """Past this share of the time limit for the windows behind the warm-up; never with ranks."""
        if not self.alone:
            return False
        limit_ns = self._plan.max_seconds * 1e9 * share
        return perf_counter_ns() - self._began_ns > limit_ns
