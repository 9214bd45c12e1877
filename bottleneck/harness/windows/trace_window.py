"""The trace window: one session of the profiler, or a probe of one step and then a session.

In: cuts. Out: the trace artefact and its window. A step that may write more than the size cap
allows is first recorded alone; its size then says how many steps the trace can hold. Should the
longer recording fail, or the script end in it, the probe is the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ...runs.plan import Plan
from ...runs.store import Store, reason_of
from .. import torch_private
from ..events.update_label import holds_range
from ..lines.read_lines import ReadLines
from .book import WindowBook
from .lengths import Schedule
from .table import Row
from .trace import EVENT_BYTES_PER_MS, TraceSession, compress

ONLY_TIMED = "this rank is only timed (--ranks)"
LATE = 0.85
"""Past this share of the time limit a trace with a whole step in it ends."""


class TraceWindow:
    """The profiler's part of a capture. Each method that can fail notes why and goes on."""

    def __init__(self, plan: Plan, store: Store, book: WindowBook) -> None:
        self.busy = False
        """We are inside start or stop of our own profile."""
        self._plan = plan
        self._store = store
        self._book = book
        self._session: TraceSession | None = None
        self._wanted = 1
        self._steps = 1
        self._left = 0
        """Steps that go by while other ranks are traced and this one is not."""
        self._probing = False
        self._probe: Path | None = None
        self._probe_rows: list[Row] = []
        self._lines = ReadLines()

    @property
    def running(self) -> bool:
        """A session of ours is on."""
        return self._session is not None and self._session.running

    def forked(self) -> None:
        """This process is a fork, and the recording is its parent's."""
        if self._session is not None:
            self._session.forked()

    def end_inherited(self) -> None:
        """This process is a fork that is to be captured itself: nothing of its parent's may be on."""
        if self._session is not None:
            self._session.end_inherited()

    def lack(self, status: Literal["absent", "failed"], reason: str) -> None:
        """There is no trace, and this is why."""
        self._store.artefact("trace", status, reason=reason)
        self._book.lack("trace", status, reason)

    def begin(self, schedule: Schedule, *, step_ms: float, alone: bool, traced: bool) -> bool:
        """Start recording; False if that failed.

        Args:
            schedule: steps to trace.
            step_ms: a typical step, from which its greatest size follows.
            alone: there is one rank. Several must trace the same steps, so they never probe.
            traced: False lets as many steps go by and records nothing.
        """
        self._wanted = schedule.traced
        bound = step_ms * EVENT_BYTES_PER_MS
        steps = schedule.traced
        if bound * steps > self._plan.trace_bytes_cap:
            self._probing = alone
            # The bound is what the fastest host could write; a third of it is common.
            steps = 1 if alone else min(steps, max(1, int(3 * self._plan.trace_bytes_cap / bound)))
        if not traced:
            self._left = steps + schedule.trace_warmup
            self._book.open("trace", self._left)
            self.lack("absent", ONLY_TIMED)
            return True
        return self._start(steps, schedule.trace_warmup)

    def _start(self, steps: int, warmup: int) -> bool:
        session = TraceSession(
            warmup=warmup,
            gpu=torch_private.device_kind() != "cpu",
            with_stack=self._plan.with_stack,
        )
        self._steps = steps
        self._book.open("trace", steps + warmup)
        self.busy = True
        try:
            session.start()
            if self._plan.lines:
                self._lines.start()
        except Exception as error:
            self._lines.stop()
            session.abandon()
            self.lack("failed", f"the profiler did not start: {reason_of(error)}")
            return False
        finally:
            self.busy = False
        self._session = session
        self._book.begin_first_step()
        if self._book.overhead.profiler_start_ms is None:
            self._book.note_overhead(profiler_start_ms=session.start_ms)
        return True

    def is_last(self, *, late: Callable[[float], bool]) -> bool:
        """Return whether the recording ends at this cut; if not, it goes on to the next step.

        Args:
            late: whether this share of the time limit has passed.
        """
        session = self._session
        if session is None:
            self._left -= 1
            return self._left <= 0
        whole = session.passed + 1 - session.warmup
        if whole >= self._steps or (whole >= 1 and late(LATE)):
            return True
        try:
            session.step()
        except Exception as error:
            self._lines.stop()
            session.abandon()
            self._session = None
            self.lack("failed", f"the profiler failed at a step: {reason_of(error)}")
            return True
        return False

    def end(self, *, at_cut: bool, late: Callable[[float], bool], reason: str | None = None) -> bool:
        """Stop recording and keep the trace.

        Args:
            at_cut: a step ends here, so that it counts as whole.
            late: whether this share of the time limit has passed.
            reason: why it ends early, if it does.

        Returns:
            True if the window is over; False if a longer recording has begun after a probe.
        """
        session, self._session = self._session, None
        if session is None:
            return True
        raw: Path | None = None
        size = 0
        self._lines.stop()
        self.busy = True
        try:
            target = self._store.write_trace_path()
            raw = target.with_name(f".{target.name.removesuffix('.gz')}")
            session.stop(at_cut=at_cut)
            size = session.export(raw)
            if not at_cut:
                session.mark_partial(raw)
        except Exception as error:
            session.abandon()
            if raw is not None:
                raw.unlink(missing_ok=True)
            if self._probe is None:
                self.lack("failed", f"the trace could not be written: {reason_of(error)}")
                return True
            raw = self._probe
        finally:
            self.busy = False
        self._book.note_overhead(profiler_stop_ms=session.stop_ms, trace_export_ms=session.export_ms)
        probing, self._probing = self._probing, False
        if probing and at_cut and reason is None:
            steps = min(self._wanted, int(self._plan.trace_bytes_cap / max(size, 1)))
            if steps > 1 and not late(0.5) and not holds_range():
                self._probe, self._probe_rows = raw, self._book.rows[session.warmup :]
                if self._start(steps, 0):
                    return False
        if reason is None and session.recorded < self._steps:
            reason = "time limit"
        self._choose(raw, session, reason)
        return True

    def _choose(self, raw: Path, session: TraceSession, reason: str | None) -> None:
        """Publish the longer recording, or the probe if the longer one has no whole step."""
        rows: list[Row] | None = None
        if self._probe is not None:
            if raw == self._probe or not session.recorded:
                rows = self._probe_rows
            keep, drop = (raw, self._probe) if rows is None else (self._probe, raw)
            if drop != keep:
                drop.unlink(missing_ok=True)
            raw, self._probe = keep, None
        try:
            target = raw.with_name(raw.name.removeprefix(".") + ".gz")
            compress(raw, target)
            self._store.artefact("trace", "ok", path=target)
        except Exception as error:
            self.lack("failed", f"the trace could not be compressed: {reason_of(error)}")
            return
        self._book.close("trace", planned=self._steps, rows=rows, skip=session.warmup, reason=reason)
