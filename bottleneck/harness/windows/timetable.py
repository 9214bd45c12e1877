"""The windows of this process: what is planned for each, and whether one has enough.

In: the steps of the open window, what the data loader tells of the steps left, the wishes. Out:
answers for the capture, which moves from window to window by them. The rules are functions in
`lengths`; here they meet the clock, the ranks and the device.

All ranks must cut, trace and stop at the same step: ranks that decided by their own clocks would leave each
other waiting in a collective. So rank 0 makes the schedule from its own step time, and the others take it
from there, once, between the warm-up and the baseline (`meeting`).
"""

from __future__ import annotations

from statistics import median
from typing import Literal

import msgspec

from ...clocks import perf_counter_ns
from ...runs.plan import Plan
from ...runs.store import Store
from .. import torch_private
from .enough import Watch
from .horizon import Horizon
from .lengths import (
    AFTER_STEPS,
    FIRST_STACKS,
    Enough,
    Schedule,
    awaits_evaluation,
    make_schedule,
    steps_to_hold,
    steps_to_sample,
    warmup_is_over,
)
from .meeting import agree, traced_here
from .table import Row, counted_ms

RANKS_WARMUP_STEPS = 8
Stretch = Literal["baseline", "between", "after"]
"""Stretches of the baseline, by the names of the windows in which they are timed."""


class Timetable:
    """The schedule of one process; there is none before the warm-up is over."""

    def __init__(self, plan: Plan, horizon: Horizon, store: Store) -> None:
        """Begin with the warm-up."""
        self.traced = True
        """This rank is traced; one that is only timed goes through the same steps."""
        self.step_ms = 0.0
        """A typical step; zero before the warm-up is over."""
        self._plan = plan
        self._horizon = horizon
        self._store = store
        self._drawn_up: Schedule | None = None
        self._began_ns = 0
        self._whole = Watch()
        """Of all stretches of the baseline."""
        self._stretch = Watch()
        """Of the one that is open, which is:"""
        self._open: Stretch = "baseline"

    # -- warm-up -------------------------------------------------------------------------------

    def warmup_is_over(self, rows: list[Row]) -> tuple[bool, bool | None]:
        """Return (over, settled) for the steps so far; ranks count them, so none of theirs settles."""
        _, count = torch_private.world()
        if count > 1:
            # Times differ between ranks; they must all end the window at the same step.
            return len(rows) >= (self._plan.warmup or RANKS_WARMUP_STEPS), None
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
        if count > 1:
            schedule = agree(schedule, rank=rank, plan=self._plan, store=self._store)
        self._drawn_up = schedule
        self._began_ns = perf_counter_ns()
        self._whole = Watch()

    # -- what is planned -----------------------------------------------------------------------

    @property
    def schedule(self) -> Schedule:
        """Numbers of steps; there must be some by now."""
        assert self._drawn_up is not None
        return self._drawn_up

    def planned(self, window: str) -> int | None:
        """Return the most steps that a window is to have; None where time decides, or it is not known yet."""
        schedule = self._drawn_up
        if schedule is None:
            return None
        if window in ("trace", "memory"):
            return schedule.traced if window == "trace" else schedule.memory
        enough = schedule.before if window == "baseline" else schedule.between
        return enough.most if enough is not None and enough.least == enough.most else None

    def cancel_memory(self) -> None:
        """No steps follow, so its window gets none."""
        self._drawn_up = msgspec.structs.replace(self.schedule, memory=0)

    # -- the windows that are timed ------------------------------------------------------------

    def begin_stretch(self, name: Stretch) -> None:
        """A stretch of the baseline begins."""
        self._stretch, self._open = Watch(), name

    def timed(self, rows: list[Row], *, before_backward_ms: float | None = None) -> None:
        """The first stretch of the baseline is over: it tells best how long a step is.

        `before_backward_ms`: the device's time from a step's begin to its backward pass; None: not taken.
        """
        times = counted_ms(rows)
        if times:
            self.step_ms = median(times)
        if self._plan.trial is None:
            self.traced = traced_here(
                self._plan, rows, step_ms=self.step_ms, before_backward_ms=before_backward_ms
            )

    def stretch_is_enough(self, rows: list[Row], *, evaluations: list[Row]) -> bool:
        """Return whether the open stretch of the baseline may end; the last one completes the whole."""
        new = rows[self._stretch.taken :]
        self._stretch.take(new)
        self._whole.take(new)
        if self._open == "after":
            return self._after_is_enough(rows, evaluations)
        return self._stretch.is_enough(self._enough)

    @property
    def _enough(self) -> Enough:
        """What ends the open stretch, which is not the last."""
        between = self.schedule.between
        return between if self._open == "between" and between is not None else self.schedule.before

    def _after_is_enough(self, rows: list[Row], evaluations: list[Row]) -> bool:
        schedule, count = self.schedule, len(rows)
        if self.late():
            return True
        # Ranks count their steps alike, and one that evaluates keeps the others waiting.
        if self.alone and count and count >= min(schedule.after, AFTER_STEPS):
            waited_ms = (rows[-1].start_ns - rows[0].start_ns) / 1e6
            if awaits_evaluation(evaluations, steps=count, waited_ms=waited_ms, step_ms=self.step_ms):
                return False
        return count >= schedule.after and self._whole.is_enough(schedule.whole)

    def steps_to_hold(self) -> int:
        """Return how many steps' events may be held in the open stretch; 0: none."""
        if self._drawn_up is None or self._plan.trial is not None:
            return 0
        if self._open == "after":
            rest = self._whole.rest(self.schedule.whole, step_ms=self.step_ms)
            rest = max(rest, self.schedule.after - self._stretch.taken)
        else:
            rest = self._stretch.rest(self._enough, step_ms=self.step_ms)
        return steps_to_hold(rest, step_ms=self.step_ms)

    def steps_to_sample(self, *, behind: bool) -> int:
        """Return how many steps have their stacks sampled, in all, before the last stretch or behind it.

        Ranks count them as agreed, all of them before it.
        """
        if not self.alone:
            return self.schedule.stacks
        wanted = steps_to_sample(self.step_ms)
        return wanted if behind else min(wanted, FIRST_STACKS)

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
