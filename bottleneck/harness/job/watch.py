"""Watches a whole job: steps from the events, everything else from looks at the stack.

In: every event of the training thread, and looks of the sampler's thread. Out: the record of the job,
rewritten once a second, and a file of usual steps that only grows. No profiler, no synchronisation, and no
facts: an event costs what it costs while `diagnose` times its baseline.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from ...clocks import perf_counter_ns
from ...model.run import SourceSite, Window
from ...model.watch import RECORD_FILE, STEPS_FILE, JobRecord
from ...runs.store import reason_of, write_atomically
from ..cores import CoreShare, native_id_of
from ..lines.frames import site_in, stack_of
from .account import Account, Captured, Counted, Sample, Stretch, waited_in
from .beside import Beside
from .memory import MemoryWatch
from .over_time import OverTime
from .sampler import Sampler
from .series import Series

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...model.watch import CaptureTaken, Growth
    from ...runs.store import Store
    from ..lines.frames import Frame
    from ..windows.table import Row
    from .looks import Grown

__all__ = ["JobWatch", "no_phase"]

WRITE_NS = 1_000_000_000
LONGEST_SECONDS = 0.3
"""Between two looks once steps are usual: they have clocks of their own, and what lies before has none."""
YOUNG_NS = 60_000_000_000
MOST_RARELY = 4.0
"""A job that is older than `YOUNG_NS` is looked at and written down less often by as much, up to this: as
many looks say as much of a long job as of a short one."""
KEPT_STEPS = 512
"""Usual steps that run.json holds as its baseline, for `compare` and `analyze`."""


class JobWatch:
    """One per process, from before the script's first line on. The sampler's thread makes it look."""

    def __init__(self, store: Store, *, told: Callable[[JobRecord], None]) -> None:
        """Begin the account."""
        self._store = store
        self._told = told
        self._thread = threading.main_thread().ident or 0
        self.account = Account()
        self.series = Series(store.working / STEPS_FILE)
        self._memory = MemoryWatch()
        self._machine = Beside()
        self._cores = CoreShare()
        self._sampler = Sampler(self)
        self.began_ns = self._until_ns = self._written_ns = perf_counter_ns()
        self._over_time = OverTime(self.began_ns)
        self._samples: list[Sample] = []
        self._pauses: list[tuple[int, int]] = []
        self._stretches: deque[Stretch | Counted | Captured] = deque()
        self._noted: deque[tuple[str, SourceSite | None]] = deque()
        self._kept: list[Row] = []
        self._beside: list[Grown] | None = None
        """What grows beside it, the likeliest first; None until it was looked for."""
        self.problem = ""
        """Why steps or looks are taken no more; empty for most jobs."""
        self.phase: Callable[[list[Frame]], str] = no_phase
        """Innermost phase that is open, once torch is there; may be asked by another thread."""
        self.training_thread: Callable[[], int | None] = lambda: None
        self.acting: set[bool] = set()
        """Whether modules that were called without gradients act: in training mode, or in an environment."""
        self.first_step_ns: int | None = None
        """When the first step began, which may still be under way."""
        self.wants_look = False
        """The steps grow: the training thread is to look at what grows beside them."""
        self.wants_capture = False
        """Somebody has asked for a capture."""
        self.captures: list[CaptureTaken] = []
        self.notes: list[str] = []
        """Sentences for the report."""

    def start(self) -> None:
        """Watch from now on."""
        self._sampler.start()

    def forked(self) -> None:
        """This process is a fork of the one that is watched; its sampler is not here."""
        self._stretches.clear()

    # -- the training thread -------------------------------------------------------------------

    @property
    def has_baseline(self) -> bool:
        """There are as many usual steps as run.json holds."""
        return len(self._kept) >= KEPT_STEPS

    @property
    def wants_step(self) -> bool:
        """The training thread is to do something at the end of the next step."""
        return self.wants_look or self.wants_capture

    def ended(self, stretch: Stretch | Counted | Captured) -> None:
        """A step has ended, or several were counted, or captured."""
        self._stretches.append(stretch)

    def seen_at(self, part: str, site: SourceSite | None) -> None:
        """An event of this part begins at a line of the user's."""
        self._noted.append((part, site))

    def seen_batch(self, elements: int) -> None:
        """A loader has handed out a batch of so many; not every one is seen."""
        self._machine.batch = elements

    def found(self, grown: list[Grown]) -> None:
        """The looks have shown what grows."""
        self._beside = grown

    # -- the sampler's thread ------------------------------------------------------------------

    def look(self, now_ns: int, for_ns: int, *, paused_ns: int) -> None:
        """See `Watcher`."""
        thread = self.training_thread() or self._thread
        frames = stack_of(thread)
        imports = self.first_step_ns is None and self._is_importing(frames)
        phase = "importing" if imports else self.phase(frames)
        with_core = self._cores.since_last(thread, now_ns)
        waited_ns = round((1 - with_core) * for_ns)
        self._samples.append(Sample(now_ns, for_ns, phase, site_in(frames), waited_ns))
        if paused_ns:
            self._pauses.append((now_ns - paused_ns, paused_ns))
        self._take_in(now_ns)
        self._note_time()
        rarely = min(max(1.0, (now_ns - self.began_ns) / YOUNG_NS), MOST_RARELY)
        if self.account.usual_ms is not None:
            self._sampler.longest_seconds = LONGEST_SECONDS * rarely
            self._memory.look(now_ns, self.account.steps)
            native = native_id_of(thread) or 0
            self._machine.look(now_ns, self.series.steps, thread=native, with_core=with_core)
        if now_ns - self._written_ns >= WRITE_NS * rarely:
            self._look_for_growth(now_ns)
            self._write(now_ns, ended=False)

    def stopped(self, error: Exception) -> None:
        """See `Watcher`."""
        self.problem = reason_of(error)
        self._write(perf_counter_ns(), ended=False)

    def _is_importing(self, frames: list[Frame]) -> bool:
        return any(frame.file.startswith("<frozen importlib") for frame in frames[-60:])

    def _take_in(self, now_ns: int) -> None:
        """Divide the steps that have ended before the last sample."""
        while self._noted:
            self.account.seen_at(*self._noted.popleft())
        while self._stretches:
            stretch = self._stretches[0]
            if stretch.end_ns > now_ns:
                return
            self._stretches.popleft()
            self._outside_until(stretch.begin_ns)
            samples, paused_ns = self._taken_until(stretch.end_ns)
            around = samples + self._samples[:1]
            with_core = 1 - sum(s.waited_ns for s in around) / max(1, sum(s.for_ns for s in around))
            self._until_ns = stretch.end_ns
            if isinstance(stretch, Captured):
                self.account.captured(stretch, samples, paused_ns=paused_ns)
                continue
            if isinstance(stretch, Counted):
                steps_ms = self.account.counted(stretch, samples, paused_ns=paused_ns)
                self.series.add(stretch.first, steps_ms, with_core=with_core)
                continue
            waited_ns = waited_in(around, stretch.begin_ns, stretch.end_ns)
            took_ms = self.account.step(stretch._replace(paused_ns=paused_ns, waited_ns=waited_ns), samples)
            if took_ms is not None:
                self.series.add(stretch.row.index, [took_ms], with_core=with_core)
                self._machine.add(stretch.row)
                self._keep(stretch.row)
        if self.account.steps == 0:
            began_ns = self.first_step_ns
            self._outside_until(now_ns if began_ns is None else min(now_ns, began_ns))

    def _note_time(self) -> None:
        self._over_time.add(self._until_ns, self.account.sums_ns, steps=self.account.steps)

    def _outside_until(self, end_ns: int) -> None:
        """Divide what lies before the first step."""
        took_ns = end_ns - self._until_ns
        if took_ns <= 0:
            return
        samples, paused_ns = self._taken_until(end_ns)
        # A pause may have begun before what is divided here.
        paused_ns = min(paused_ns, took_ns)
        if self._samples:
            # The one after it stands for the rest of this stretch as well.
            after = self._samples[0]
            part_ns = min(after.for_ns, max(0, end_ns - (after.at_ns - after.for_ns)))
            samples.append(after._replace(at_ns=end_ns, for_ns=part_ns))
            self._samples[0] = after._replace(for_ns=after.for_ns - part_ns)
        self.account.paused(paused_ns)
        self.account.outside(samples, part="set-up", took_ns=took_ns - paused_ns)
        self._until_ns = end_ns

    def _taken_until(self, end_ns: int) -> tuple[list[Sample], int]:
        """Return the samples up to a time, and for how long the process was stopped until then."""
        count = next((i for i, s in enumerate(self._samples) if s.at_ns > end_ns), len(self._samples))
        taken, self._samples = self._samples[:count], self._samples[count:]
        paused_ns = 0
        while self._pauses and self._pauses[0][0] < end_ns:
            paused_ns += self._pauses.pop(0)[1]
        return taken, paused_ns

    def _keep(self, row: Row) -> None:
        if len(self._kept) < KEPT_STEPS and "checkpoint" not in row.phases_ns:
            self._kept.append(row)
            if len(self._kept) == KEPT_STEPS:
                self.series.settled = self.series.steps
                self._write_steps()

    def _write_steps(self) -> None:
        if self._kept:
            from ..windows.table import as_table

            window = Window(
                name="baseline", status="ok", planned_steps=len(self._kept), steps=as_table(self._kept)
            )
            self._store.update(windows=[window])

    def _look_for_growth(self, now_ns: int) -> None:
        growth = self.series.grown()
        if self._beside is None:
            self.wants_look = growth is not None or bool(self._memory.grown(now_ns))

    def _named(self, growth: Growth) -> list[Growth]:
        """Return the growth once for each that grows beside it."""
        return [msgspec.structs.replace(growth, **naming) for naming in self._what_grows()]

    def _what_grows(self) -> list[dict[str, Any]]:
        """Return what a record says of each that grows; of something unknown where there is none."""
        return [*map(_naming, self._beside or ())] or [{"looked": self._beside is not None}]

    # -- the record ----------------------------------------------------------------------------

    def end(self, tail: Stretch | None) -> None:
        """The script has ended; `tail` is what lies after its last step, None where it had none."""
        looks = self._sampler.runs
        self._sampler.stop()
        now = perf_counter_ns()
        with contextlib.suppress(Exception):
            if looks:
                self.look(now, now - self._sampler.before_ns, paused_ns=0)
        if tail is not None:
            self._stretches.append(tail)
        self._take_in(now)
        self.account.settle()
        self._note_time()
        self._write_steps()
        done_ns = perf_counter_ns()
        self.account.worked(done_ns - self._until_ns)
        self._until_ns = done_ns
        self._write(done_ns, ended=True)
        self._machine.close()

    def _write(self, now_ns: int, *, ended: bool) -> None:
        self._written_ns = now_ns
        growth = self.series.grown(last=ended)
        change = self.series.change(last=ended)
        if change is not None:
            change = msgspec.structs.replace(change, beside=self._machine.told(change.step))
        record = JobRecord(
            began_ns=self.began_ns,
            at_ns=self._until_ns,
            ended=ended,
            parts=self.account.parts(),
            acts=self.acting == {True},
            steps=self.account.steps,
            usual_ms=self.account.usual_ms,
            best_ms=self.series.best_ms,
            growth=[] if growth is None else self._named(growth),
            changes=[] if change is None or growth is not None else [change],
            memory=[
                msgspec.structs.replace(memory, **self._what_grows()[0])
                for memory in self._memory.grown(now_ns, last=ended)
            ],
            timeline=self._over_time.timeline(),
            captures=list(self.captures),
            notes=list(self.notes),
            problem=self.problem,
        )
        # A full disk must not end the watching: the next record may find room.
        with contextlib.suppress(OSError):
            self.series.write()
            write_atomically(self._store.working / RECORD_FILE, msgspec.json.encode(record))
        self._told(record)


def no_phase(frames: list[Frame]) -> str:  # noqa: ARG001 - as where there are steps
    """Return the phase of a program that has not imported torch."""
    return ""


def _naming(grown: Grown) -> dict[str, Any]:
    """Return what a record says of something that grows."""
    return {
        "what": grown.what,
        "kind": grown.kind,
        "site": grown.site,
        "objects_per_step": round(grown.per_step, 3),
    }
