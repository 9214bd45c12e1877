"""Takes a program through the windows: warm-up, baseline, trace, memory, after.

In: `cut(row)` at the end of every step, at a safe point of the training thread. Out: windows,
artefacts and overheads in the store; `done` once all is captured. Nothing in here may harm the
script: each artefact has one broad `except` that turns into its status and reason.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal

import msgspec

from ..model.run import Overhead, Window
from . import ranks, torch_private
from .counters import join_counters, read_counters
from .device_clock import DeviceClock
from .memory import MemoryHistory, SyncSites
from .table import Row, as_table, counted_ms, join_tables, plain_ms
from .trace import EVENT_BYTES_PER_MS, TraceSession, compress
from .windows import (
    AFTER_STEPS,
    Schedule,
    baseline_is_enough,
    make_schedule,
    warmup_is_over,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.run import Counters
    from .horizon import Horizon
    from .plan import Plan
    from .progress import Progress
    from .store import Store

__all__ = ["Capture"]

Stage = Literal["warm-up", "baseline", "waiting", "probe", "trace", "memory", "after", "done"]

AGREEMENT = 0.05
"""Steps after the captures join the baseline if their medians are this close, or as close as the
scatter of the steps can tell."""
PROFILER_PATIENCE_STEPS = 200
"""The script's own profiler may be on for so many steps before the trace is given up."""


class Capture:
    """The windows of one process."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        progress: Progress,
        *,
        horizon: Horizon,
        found_sync: Callable[[], None],
        at_trace_end: Callable[[], None],
    ) -> None:
        """Begin with the warm-up.

        Args:
            plan: wishes.
            store: receives everything.
            progress: is told of windows and steps.
            horizon: how many steps may be left.
            found_sync: called at each synchronising call during the memory window.
            at_trace_end: called when the trace window has ended (settings are read then).
        """
        self.stage: Stage = "warm-up"
        self.own_profiler_busy = False
        """We are inside start or stop of our own profile."""
        self._plan = plan
        self._store = store
        self._progress = progress
        self._horizon = horizon
        self._at_trace_end = at_trace_end
        self._rows: list[Row] = []
        self._baseline_rows: list[Row] = []
        self._windows: dict[str, Window] = {}
        self._before: Counters | None = None
        self._clock = DeviceClock()
        self._schedule: Schedule | None = None
        self._step_ms = 0.0
        self._began_ns = 0
        self._waited = 0
        self._session: TraceSession | None = None
        self._foreign_profiler = False
        self._probe: Path | None = None
        self._probe_rows: list[Row] = []
        self._traced = 0
        self._history = MemoryHistory()
        self._syncs = SyncSites(found_sync)
        self._overhead = Overhead()
        self._spent_ns = 0
        self._progress.window("warm-up", plan.warmup)

    @property
    def done(self) -> bool:
        """All windows have been captured or given up."""
        return self.stage == "done"

    @property
    def measuring(self) -> bool:
        """A window with nothing attached is open: every microsecond of ours counts."""
        return self.stage in ("baseline", "after")

    @property
    def window_name(self) -> str:
        """The window that a step belongs to now, as run.json names windows."""
        return "trace" if self.stage in ("waiting", "probe") else self.stage

    @property
    def mean_step_ms(self) -> float:
        """A typical step as known so far."""
        return self._step_ms

    # -- cuts ----------------------------------------------------------------------------------

    def cut(self, row: Row, *, learned: bool) -> bool:
        """A step has ended.

        Args:
            row: the step.
            learned: the step rule knows the cycle; before that the windows do not move on.

        Returns:
            True if a window changed here: work of ours lies between this step and the next, which
            begins when this returns.
        """
        if self.stage == "done":
            return False
        self._rows.append(row)
        stage = self.stage
        if stage != "warm-up":
            self._clock.mark()
        if stage in ("trace", "probe"):
            self._trace_cut()
        elif stage == "warm-up":
            if learned:
                self._warmup_cut()
        elif stage == "baseline":
            assert self._schedule is not None
            if baseline_is_enough(self._rows, self._schedule):
                self._timed(self._end_baseline)
        elif stage == "waiting":
            self._timed(self._try_to_trace)
        elif stage == "memory":
            if len(self._rows) >= self._planned("memory"):
                self._timed(self._end_memory)
        elif self._after_is_enough():
            self._timed(self._end_after)
        if self.stage == stage:
            self._progress.step(len(self._rows), row.wall_ms)
        return self.stage != stage

    def restart(self) -> None:
        """The step rule has learned another cycle: steps so far do not compare with later ones."""
        if self.stage in ("warm-up", "baseline"):
            self.stage = "warm-up"
            self._rows = []
            self._clock.stop()

    def _timed(self, call: Callable[[], None]) -> None:
        began = perf_counter_ns()
        call()
        self._spent_ns += perf_counter_ns() - began

    def _planned(self, window: str) -> int:
        schedule = self._schedule
        if schedule is None:
            return 0
        return {
            "baseline": schedule.baseline_max,
            "trace": self._traced,
            "memory": schedule.memory,
            "after": schedule.after,
        }[window]

    def _open(self, stage: Stage) -> None:
        self.stage = stage
        self._rows = []
        if stage in ("baseline", "trace", "memory", "after"):
            self._progress.window(stage, self._planned(stage))
            self._before = read_counters()
            self._clock.start()
            self._clock.mark()

    def _close(
        self,
        name: Literal["warm-up", "baseline", "trace", "memory", "after"],
        *,
        planned: int,
        rows: list[Row] | None = None,
        skip: int = 0,
        settled: bool | None = None,
        reason: str | None = None,
    ) -> None:
        """Store a window: `rows`, or those seen since it was opened but for the first `skip`."""
        device_ms = self._clock.stop()[skip:] if rows is None else []
        rows = self._rows[skip:] if rows is None else rows
        self._windows[name] = Window(
            name=name,
            status="short" if reason else "ok",
            reason=reason,
            planned_steps=planned,
            steps=as_table(rows, device_ms=device_ms),
            before=self._before,
            after=read_counters(),
            settled=settled,
        )
        self._before = None
        self._store.update(windows=list(self._windows.values()), overhead=self._overhead)

    # -- warm-up -------------------------------------------------------------------------------

    def _warmup_cut(self) -> None:
        rank, count = torch_private.world()
        if self._foreign_profiler and len(self._rows) < PROFILER_PATIENCE_STEPS:
            # Step times under the script's own profiler are not the true ones.
            return
        if count > 1:
            # Times differ between ranks; they must all end the window at the same step.
            needed = self._plan.warmup or ranks.WARMUP_STEPS
            over, settled = len(self._rows) >= needed, None
        else:
            over, settled = warmup_is_over(self._rows, plan=self._plan, left=self._horizon.steps_left())
        if not over:
            return

        def move_on() -> None:
            times = counted_ms(self._rows[1:]) or [row.wall_ms for row in self._rows]
            self._step_ms = median(times[-6:])
            schedule = make_schedule(
                self._step_ms,
                plan=self._plan,
                left=self._horizon.steps_left(),
                gpu=torch_private.device_kind() != "cpu",
                workers=self._horizon.workers,
                ranks=count,
            )
            if count > 1:
                schedule = ranks.agree(schedule, rank=rank)
            self._schedule = schedule
            self._traced = schedule.traced
            self._close("warm-up", planned=self._plan.warmup or 0, settled=settled)
            self._began_ns = perf_counter_ns()
            self._open("baseline")

        self._timed(move_on)

    # -- baseline ------------------------------------------------------------------------------

    def _end_baseline(self, reason: str | None = None) -> None:
        assert self._schedule is not None
        times = counted_ms(self._rows)
        if times:
            self._step_ms = median(times)
        self._baseline_rows = self._rows
        enough = len(self._rows) >= self._schedule.baseline_min
        planned = len(self._rows) if enough else self._schedule.baseline_min
        if reason is None and not enough:
            reason = "time limit"
        self._close("baseline", planned=planned, reason=reason)
        self._waited = 0
        self._try_to_trace()

    # -- trace ---------------------------------------------------------------------------------

    def _try_to_trace(self) -> None:
        assert self._schedule is not None
        if torch_private.profiler_running() or self._foreign_profiler:
            self._waited += 1
            if self._waited > PROFILER_PATIENCE_STEPS or self._late():
                self._no_trace("absent", "the script profiles itself all the time")
                self._after_trace()
            else:
                self.stage = "waiting"
                self._rows = []
            return
        bound = self._step_ms * EVENT_BYTES_PER_MS
        steps = self._schedule.traced
        _, count = torch_private.world()
        if bound * steps <= self._plan.trace_bytes_cap:
            self._start_trace("trace", steps, self._schedule.trace_warmup)
        elif count > 1:
            # No probing: ranks must trace the same steps.
            limit = max(1, int(3 * self._plan.trace_bytes_cap / bound))
            self._start_trace("trace", min(steps, limit), self._schedule.trace_warmup)
        else:
            self._start_trace("probe", 1, self._schedule.trace_warmup)

    def foreign_profiler(self, *, active: bool) -> None:
        """The script's own profiler begins or has ended; kineto has room for one, and it is theirs."""
        self._foreign_profiler = active
        if active and self.measuring:
            self._store.warn(
                "The script's own profiler recorded during the baseline, whose step times it inflates."
            )
        if active and self._session is not None and self._session.running:
            self._timed(lambda: self._end_trace(at_cut=False, reason="the script profiles itself"))

    def _start_trace(self, stage: Literal["probe", "trace"], steps: int, warmup: int) -> None:
        session = TraceSession(
            warmup=warmup,
            gpu=torch_private.device_kind() != "cpu",
            with_stack=self._plan.with_stack,
        )
        self._traced = steps
        self._open(stage)
        try:
            self.own_profiler_busy = True
            session.start()
        except Exception as error:
            self._no_trace("failed", f"the profiler did not start: {_text(error)}")
            self._after_trace()
            return
        finally:
            self.own_profiler_busy = False
        self._session = session
        if self._overhead.profiler_start_ms is None:
            self._note_overhead(profiler_start_ms=session.start_ms)

    def _trace_cut(self) -> None:
        session = self._session
        assert session is not None
        last = session.recorded + 1 >= self._traced and session.passed >= session.warmup
        late = session.recorded >= 1 and self._late(0.85)
        if last or late:
            reason = "time limit" if late and not last else None
            self._timed(lambda: self._end_trace(at_cut=True, reason=reason))
            return
        try:
            session.step()
        except Exception as error:
            self._session = None
            session.abandon()
            self._no_trace("failed", f"the profiler failed at a step: {_text(error)}")
            self._after_trace()

    def _end_trace(self, *, at_cut: bool, reason: str | None = None) -> None:
        session, self._session = self._session, None
        assert session is not None
        was_probe = self.stage == "probe"
        raw = self._store.write_trace_path()
        raw = raw.with_name(f".{raw.name.removesuffix('.gz')}")
        try:
            self.own_profiler_busy = True
            session.stop(at_cut=at_cut)
            size = session.export(raw)
            if not at_cut:
                session.mark_partial(raw)
        except Exception as error:
            raw.unlink(missing_ok=True)
            if self._probe is None:
                self._no_trace("failed", f"the trace could not be written: {_text(error)}")
                self._after_trace()
                return
            raw, size = self._probe, 0
        finally:
            self.own_profiler_busy = False
        self._note_overhead(profiler_stop_ms=session.stop_ms, trace_export_ms=session.export_ms)

        if was_probe and at_cut and reason is None:
            affordable = int(self._plan.trace_bytes_cap / max(size, 1))
            steps = min(self._planned_trace, affordable)
            if steps > 1 and not self._late(0.5):
                self._probe, self._probe_rows = raw, self._rows[session.warmup :]
                self._start_trace("trace", steps, 0)
                return
        rows: list[Row] | None = None
        if self._probe is not None:
            # The longer recording replaces the probe, unless it has not one whole step.
            if raw == self._probe or not session.recorded:
                rows = self._probe_rows
            keep, drop = (raw, self._probe) if rows is None else (self._probe, raw)
            if drop != keep:
                drop.unlink(missing_ok=True)
            raw, self._probe = keep, None
        self._finish_trace(raw, rows, skip=session.warmup, reason=reason)
        self._after_trace()

    @property
    def _planned_trace(self) -> int:
        return self._schedule.traced if self._schedule is not None else 1

    def _finish_trace(self, raw: Path, rows: list[Row] | None, *, skip: int, reason: str | None) -> None:
        try:
            target = raw.with_name(raw.name.removeprefix(".") + ".gz")
            compress(raw, target)
            self._store.artefact("trace", "ok", path=target)
        except Exception as error:
            self._no_trace("failed", f"the trace could not be compressed: {_text(error)}")
            return
        self._close("trace", planned=self._traced, rows=rows, skip=skip, reason=reason)

    def _no_trace(self, status: Literal["absent", "failed"], reason: str) -> None:
        self._store.artefact("trace", status, reason=reason)
        self._windows["trace"] = Window(name="trace", status=status, reason=reason)

    # -- memory --------------------------------------------------------------------------------

    def _after_trace(self) -> None:
        self._at_trace_end()
        assert self._schedule is not None
        why_not = None if self._plan.memory else "not asked for"
        if why_not is None:
            why_not = self._history.why_not()
        if why_not is None and self._schedule.memory == 0:
            why_not = "too few steps left"
        if why_not is None and self._late() and self._alone:
            why_not = "time limit"
        if why_not is not None:
            self._store.artefact("memory", "absent", reason=why_not)
            self._open_after()
            return
        self._open("memory")
        try:
            self._history.start()
            self._syncs.start()
        except Exception as error:
            self._store.artefact("memory", "failed", reason=_text(error))
            self._syncs.stop()
            self._open_after()

    def _end_memory(self, reason: str | None = None) -> None:
        target = self._store.path("memory")
        try:
            self._syncs.stop()
            self._history.stop(target)
            self._store.artefact("memory", "ok", path=target)
        except Exception as error:
            self._store.artefact("memory", "failed", reason=_text(error))
        self._note_overhead(memory_dump_ms=self._history.dump_ms)
        self._close("memory", planned=self._planned("memory"), reason=reason)
        self._open_after()

    # -- after ---------------------------------------------------------------------------------

    def _open_after(self) -> None:
        if self._planned("after") == 0 or (self._late() and self._alone):
            self._complete()
        else:
            self._open("after")

    def _after_is_enough(self) -> bool:
        assert self._schedule is not None
        count = len(self._rows)
        if count >= self._schedule.after or (self._alone and self._late()):
            return True
        if not self._schedule.resume or count < AFTER_STEPS:
            return False
        total = msgspec.structs.replace(
            self._schedule, baseline_max=self._schedule.baseline_max + self._schedule.after
        )
        return baseline_is_enough([*self._baseline_rows, *self._rows], total)

    def _end_after(self, reason: str | None = None) -> None:
        planned = self._planned("after") if reason else len(self._rows)
        self._close("after", planned=planned, reason=reason)
        first, second = self._windows.get("baseline"), self._windows["after"]
        if first is not None:
            before, after = plain_ms(first.steps), plain_ms(second.steps)
            if before and after:
                middle = median(after)
                ratio = middle / median(before)
                self._note_overhead(after_trace_ratio=ratio)
                spread = 1.4826 * median(abs(ms - middle) for ms in after) / middle
                allowed = max(AGREEMENT, 2.5 * spread / math.sqrt(len(before)))
                # Without a device nothing stays attached, and what differs is the machine's noise.
                agrees = abs(ratio - 1) <= allowed or torch_private.device_kind() == "cpu"
                if self._resumes and agrees:
                    self._windows["baseline"] = _joined(first, second)
        self._complete()

    @property
    def _resumes(self) -> bool:
        return self._schedule is not None and self._schedule.resume

    def _complete(self) -> None:
        self.stage = "done"
        self._rows = []

    # -- the end -------------------------------------------------------------------------------

    def finish(self, *, last: Row | None, learned: bool, reason: str) -> None:
        """The script has ended or was stopped: close what is open and keep what there is.

        Args:
            last: a step that was complete but not yet cut, if there is one.
            learned: whether the step rule had learned the cycle.
            reason: why there are no more steps, as in "the script ended".
        """
        if self.stage == "done":
            return
        if last is not None:
            self.cut(last, learned=learned)
        stage = self.stage
        if stage == "warm-up":
            self._close("warm-up", planned=self._plan.warmup or 0, settled=False, reason=reason)
            self._no_trace("absent", f"{reason} before the trace window")
        elif stage == "baseline":
            if self._rows:
                self._close("baseline", planned=self._planned("baseline"), reason=reason)
            self._no_trace("absent", f"{reason} before the trace window")
        elif stage == "waiting":
            self._no_trace("absent", "the script profiles itself until its end")
        elif stage in ("trace", "probe") and self._session is not None:
            self._schedule = msgspec.structs.replace(self._schedule or _NOTHING, memory=0, after=0)
            # Forks and worker shut-downs may be under way, so the open step is not counted.
            self._end_trace(at_cut=False, reason=reason)
        elif stage == "memory":
            self._schedule = msgspec.structs.replace(self._schedule or _NOTHING, after=0)
            self._end_memory(reason)
        elif stage == "after" and self._rows:
            self._end_after(reason)
        self.stage = "done"
        self._store.update(windows=list(self._windows.values()), overhead=self._overhead)

    @property
    def spent_ms(self) -> float:
        """Wall time that the captures have added between steps so far."""
        return self._spent_ns / 1e6

    @property
    def overhead(self) -> Overhead:
        """What the captures have cost so far."""
        return self._overhead

    def _note_overhead(self, **values: float) -> None:
        self._overhead = msgspec.structs.replace(self._overhead, **values)

    @property
    def _alone(self) -> bool:
        return torch_private.world()[1] == 1

    def _late(self, share: float = 1.0) -> bool:
        """Past this share of the time limit for the windows behind the warm-up; never with ranks."""
        if not self._alone:
            return False
        limit = self._plan.max_seconds * 1e9 * share
        return perf_counter_ns() - self._began_ns > limit


_NOTHING = Schedule(
    baseline_min=0,
    baseline_max=0,
    baseline_ms=0,
    traced=0,
    trace_warmup=0,
    memory=0,
    after=0,
)


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


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
