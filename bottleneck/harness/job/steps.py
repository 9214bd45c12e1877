"""The steps of a watched job, from the events of the training thread.

In: every event, through the buffer. Out: a `Stretch` for each step to the job's watch. The hooks, the buffer,
the step rule and the tracker are those of `diagnose`, in the state in which it times its baseline, all the
time.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ...clocks import perf_counter_ns
from ...runs.store import reason_of
from ..events.buffer import NOBODY
from ..events.table import EVALUATION, FETCH, FORWARD, SAVE
from ..facts.settings import in_environment
from ..lines.sites import user_site
from ..loading.batches import size_of, tensors_of
from ..torch_private import PHASE_FUNCTIONS
from ..windows.observer import StepObserver, harmless
from ..windows.presence import active
from .account import Captured, Counted, Evaluated, Stretch
from .epochs import EpochStarts
from .looks import Looks
from .watch import no_phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...runs.store import Store
    from ..events.table import Event
    from ..lines.frames import Frame
    from ..windows.steps import StepRule
    from ..windows.table import Row
    from .watch import JobWatch

__all__ = ["StepWatch"]

HELD_MS = 250.0
"""Steps of so much time are handed over together: a job that is killed loses them."""
HELD_STEPS = 64
NOTED_STEPS = 16
"""Between two countings, once there are as many steps as the baseline of run.json holds."""
COUNTED_NS = 800_000_000
"""So often steps that are only counted are handed over: noting all events of a step takes 20 to 40 us."""
COUNTED_FOR_NS = 10_000_000_000
"""So long nothing else is done, once there is that baseline."""
WIDENED = 64
"""So often calls of all modules are watched for a step or two, when steps are no longer held or counted: a
class that the program has not called before may be met then. Later only when the job is older by an eighth,
as it takes classes of torch their methods: see `fast`."""
WORTH_COUNTING_MS = 20.0
"""Beside longer steps that is nothing."""
LEAST_COUNTED = 16
"""Steps; where something ends the counting after fewer, it begins half as often."""


class _NeverStop:
    """A watched job runs to its end."""

    reason: str | None = None


class StepWatch(StepObserver[EpochStarts]):
    """Observer of the buffer, and taker of the tracker's steps."""

    done = False
    """Steps are taken until the script ends."""
    window_name = "job"

    def __init__(self, job: JobWatch, store: Store, *, rule: StepRule | None = None) -> None:
        """Watch nothing yet.

        Args:
            job: is given the steps.
            store: where facts go.
            rule: for steps that the program marks itself; None: where a step ends is learned.
        """
        super().__init__(store, _NeverStop(), loaders=EpochStarts(), rule=rule)
        self._marked = rule is not None
        self._job = job
        self._tracker.capture = self
        self._meter.reads_usage = False
        self.clock.log = []
        self._looks = Looks()
        self._roots: set[type] = set()
        self._looked_ns = 0
        self._garbage_ns: list[tuple[int, int]] = []
        self._handed_over = 0
        self._counts_until_ns = 0
        """When to note all events again; 0 while steps are not counted."""
        self._counted_from: int | None = None
        """The first step that was counted; None while the one under way then has not ended."""
        self.capture: Callable[[], None] = lambda: None
        """Called at the end of a step when a capture is wanted: somebody else may observe from there on."""
        self._widened = self._widen_at_ns = 0
        self._count_every = 1
        """Hand-overs of events after which steps are counted."""

    # -- life ----------------------------------------------------------------------------------

    def install(self) -> None:
        """Put every hook in."""
        super().install()
        self._hooks.watch_saves()
        self._job.phase = self._phase
        self._job.training_thread = lambda: self.buffer.thread

    def uninstall(self) -> None:
        """Take every hook out again."""
        self._job.training_thread, self._job.phase = lambda: None, no_phase
        super().uninstall()

    def tail(self) -> Stretch | None:
        """The script has ended: return what lies after its last step; None where it had none."""
        self.buffer.release()
        self.store.update(step_signal=self.rule.description, step_period=self.rule.period)
        self._compiles.write()
        if self._meter.start_ns is None:
            return None
        pending = self.rule.pending
        row = self._tracker.row(perf_counter_ns())
        return Stretch(
            row,
            evaluated=self._evaluated(row),
            looked_ns=self._looked_ns,
            learned=self._marked or self.rule.learned,
            tail=True,
            whole=pending,
        )

    def _phase(self, frames: list[Frame]) -> str:
        if self._compiles.compiling:
            return "compiling"
        if self.buffer.counting:
            return next(filter(None, map(_phase_of, frames)), "")
        return self.buffer.innermost((active() or self).clock.open_phases)

    # -- events --------------------------------------------------------------------------------

    @harmless
    def begin(self, event: Event, subject: Any, now: int, *, paused: bool) -> None:
        """See `Observer`."""
        if event is SAVE:
            self._job.seen_at("checkpoints", user_site())
            if self._meter.start_ns is None:
                return
        self._first_begins(now)
        super().begin(event, subject, now, paused=paused)

    def begin_step(self) -> None:
        """The program marks its first step's beginning itself (`Harness.step`)."""
        self._first_begins(perf_counter_ns())
        super().begin_step()

    def _first_begins(self, now: int) -> None:
        if self._job.first_step_ns is None:
            self._job.first_step_ns = now

    def _cut(self, now: int, *, paused: bool) -> None:
        self._tracker.cut(now, paused=paused)
        if self._job.wants_capture and self._job.account.usual_ms is not None:
            self.buffer.release()
            self._hooks.widen()
            self.capture()
            return
        if paused:
            self._handed_over += 1
            if self._may_count():
                self.buffer.release()
        if self._looks.wanted(self._job, self._tracker.steps):
            self._look()

    def _look_at(self, event: Event, subject: Any) -> None:
        if event is FORWARD and type(subject) not in self._roots:
            self._roots.update(_classes_to_watch(subject))
        elif event is EVALUATION and not self._meter.evaluations:
            self.first_evaluation(subject)

    @harmless
    def ended(self, event: Event, subject: Any, result: Any) -> None:  # noqa: ARG002 - the observer's signature
        """See `Observer`."""
        if event is FETCH and result is not None and torch.is_grad_enabled():
            self._job.seen_batch(size_of(tensors_of(result))[1])
        # Events are held again after each update: nothing that ended the holding lasts.
        if not event.updates or self.buffer.holding or self.rule.inside:
            return
        if self._may_count() and self._count():
            return
        if self._hold() and not self._compiles.asked_for:
            self._hooks.narrow(self._roots)

    @harmless
    def first_evaluation(self, module: Any) -> None:
        """See `Observer`."""
        self._job.acting.add(module.training or in_environment())
        self._job.seen_at("validation", user_site())

    def steps_to_hold(self) -> int:
        """See `Observer`."""
        usual_ms = self._job.account.usual_ms
        if usual_ms is None or self._job.wants_step:
            return 0
        most = NOTED_STEPS if self._job.has_baseline and usual_ms < WORTH_COUNTING_MS else HELD_STEPS
        steps = min(most, int(HELD_MS / max(usual_ms, 1e-3)))
        return steps if steps > 1 else 0

    def _may_count(self) -> bool:
        """Say whether the next steps may only be counted: they are short, and alike."""
        usual_ms = self._job.account.usual_ms
        return (
            self._handed_over >= self._count_every
            and usual_ms is not None
            and usual_ms < WORTH_COUNTING_MS
            and not (self._compiles.asked_for or self._job.wants_step or self.buffer.busy)
            and self.rule.next_cut != "unknown"
            # Each update counts as a step, where no fetch ends it.
            and (self.rule.next_cut == "fetch" or self.rule.period == 1)
        )

    def _count(self) -> bool:
        """Count steps, if that can be done; an update has just ended."""
        if not self.rule.pending:
            return False
        if not self._hooks.count(self._roots):
            self._hooks.widen()
            self._count_every = sys.maxsize
            return False
        self._handed_over = 0
        self._counted_from = None
        self._meter.garbage.sink = self._collected
        now = perf_counter_ns()
        self._counts_until_ns = now + (COUNTED_FOR_NS if self._job.has_baseline else COUNTED_NS)
        self.buffer.count(
            self._counted,
            so_far=self._counted_so_far,
            until_ns=now + COUNTED_NS,
            at_fetch=self.rule.next_cut == "fetch",
        )
        return True

    def released(self) -> None:
        """See `Observer`."""
        now = perf_counter_ns()
        rarely = self._widened >= WIDENED and now < self._widen_at_ns
        if rarely and self.buffer.thread != NOBODY and not self._compiles.asked_for:
            self._hooks.hand_over()
            self._meter.garbage.sink = None
            return
        self._widened += 1
        self._widen_at_ns = now + (now - self._job.began_ns) // 8
        super().released()

    def _collected(self, took_ns: int) -> None:
        self._garbage_ns.append((perf_counter_ns(), took_ns))

    def _counted_so_far(self, ends_ns: list[int]) -> int:
        """Steps have been counted; return until when to go on, which may be past."""
        self._take_counted(ends_ns)
        now = perf_counter_ns()
        return 0 if self._job.wants_step or now > self._counts_until_ns else now + COUNTED_NS

    @harmless
    def _take_counted(self, ends_ns: list[int]) -> None:
        """Hand over steps that were counted: the first had begun before, and one is under way."""
        if not ends_ns:
            return
        first_ns, last_ns = ends_ns[0], ends_ns[-1]
        garbage_ns, self._garbage_ns = self._garbage_ns, []
        if self._counted_from is None:
            self._meter.garbage.total_ns += sum(took for at, took in garbage_ns if at <= first_ns)
            self._tracker.cut(first_ns)
            self._counted_from = self._tracker.steps
        if len(ends_ns) > 1:
            between = [(at, took) for at, took in garbage_ns if first_ns < at <= last_ns]
            self._job.ended(Counted(self._tracker.steps, list(ends_ns), between))
            self._tracker.steps += len(ends_ns) - 1
            self._meter.begin(last_ns, fresh=False)
        self._garbage_ns += [(at, took) for at, took in garbage_ns if at > last_ns]

    @harmless
    def _counted(self, ends_ns: list[int]) -> None:
        """Steps are counted no more."""
        at_fetch = self.rule.next_cut == "fetch"
        self.released()
        self._take_counted(ends_ns)
        self._meter.garbage.total_ns += sum(took for _, took in self._garbage_ns)
        self._garbage_ns.clear()
        begun = self._counted_from is not None
        counted = 0 if self._counted_from is None else self._tracker.steps - self._counted_from
        if counted < LEAST_COUNTED:
            self._count_every *= 2
        elif self._count_every > 1:
            self._count_every //= 2
        if begun and not self.buffer.update_ended:
            # The step under way has not been updated, as the rule believes since the counting began.
            self.rule.fetch() if at_fetch else self.rule.forward()

    def _record_fault(self, error: Exception) -> None:
        self._job.problem = self._job.problem or reason_of(error)

    def _look(self) -> None:
        began = perf_counter_ns()
        self._looks.look(self._job, sys._getframe(1), self._tracker.steps)
        self._looked_ns += perf_counter_ns() - began

    # -- steps, from the tracker ---------------------------------------------------------------

    def cut(self, row: Row, *, learned: bool) -> bool:  # noqa: ARG002 - as a capture is told
        """A step has ended."""
        self.add(row)
        return False

    def add(self, row: Row) -> None:
        """A step ended before this call."""
        looked_ns, self._looked_ns = self._looked_ns, 0
        self._job.ended(
            Stretch(
                row,
                starting=self._loaders.at_cut(),
                restarted=self._loaders.restarted,
                evaluated=self._evaluated(row),
                looked_ns=looked_ns,
                learned=self._marked or self.rule.learned,
            )
        )
        if self._job.wants_step and self.buffer.holding:
            self.buffer.ask = True

    @property
    def iterations(self) -> list[tuple[Any, weakref.ref[Any]]]:
        """Iterators of data loaders that live, each with its loader."""
        return list(self._loaders.under_way.items())

    def resume(self, *, began_ns: int, steps: int) -> None:
        """Somebody else has observed so many steps; from the next one on they come here again."""
        now = perf_counter_ns()
        self._job.ended(Captured(began_ns, now, steps))
        self._tracker.steps += steps
        self._loaders.forget()
        self.clock.log = []
        self._meter.begin(now)

    def _evaluated(self, row: Row) -> Evaluated | None:
        """Return when this step evaluated, if it did; the log of phases begins anew."""
        log, self.clock.log = self.clock.log or [], []
        ends = [end for name, _, end in log if name == "evaluation"]
        if not row.validation or not ends:
            return None
        log.sort(key=lambda phase: phase[1])
        first = next(i for i, phase in enumerate(log) if phase[0] == "evaluation")
        # Its batches, and the start of their loader, are a part of it.
        while first > 0 and log[first - 1][0] == "data":
            first -= 1
        begin_ns, end_ns = log[first][1], max(ends)
        outside_ns, saved_ns, until_ns = 0, 0, begin_ns
        for name, begin, end in log[first:]:
            if begin < end_ns:
                outside_ns += max(0, begin - until_ns)
                saved_ns += end - begin if name == "checkpoint" else 0
                until_ns = max(until_ns, end)
        if len(ends) > 1:
            # What comes after the last forward takes as long as what came after the others.
            after_ns = next((begin for _, begin, _ in log if begin >= end_ns), sys.maxsize) - end_ns
            after_ns = min(after_ns, outside_ns // (len(ends) - 1))
            end_ns, outside_ns = end_ns + after_ns, outside_ns + after_ns
        return Evaluated(begin_ns, end_ns, saved_ns, outside_ns)

    def restart(self) -> None:
        """The step rule has learned another cycle; steps before it count as first steps."""


def _classes_to_watch(root: Any) -> Iterator[type]:
    """Yield the class of a module that the program calls, and of the one that it only wraps.

    Programs evaluate what they have put into DistributedDataParallel without it.
    """
    yield type(root)
    children = list(root.children())
    if len(children) == 1:
        yield from _classes_to_watch(children[0])


@functools.cache
def _phase_of_code(file: str, function: str) -> str:
    found = (PHASE_FUNCTIONS[key] for key in PHASE_FUNCTIONS if key[1] == function and file.endswith(key[0]))
    return next(found, "")


def _phase_of(frame: Frame) -> str:
    """Return the phase of a step that begins with a function of torch; empty for any other."""
    return _phase_of_code(frame.file, frame.code.co_name)
