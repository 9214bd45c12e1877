"""What one step took: clocks, counters and what the events added up to, from cut to cut.

In: `begin` at a cut, small notes while the step runs, `row` at the next cut. Out: a `Row`.
Reading everything at a cut costs 3 us hot, and 10 us between the cold caches of a real step.
"""

from __future__ import annotations

import resource
from typing import Any

from ...clocks import perf_counter_ns
from .counters import GarbageClock
from .phases import PhaseClock
from .table import Row

HISTORY = 16


class StepMeter:
    """The step under way."""

    def __init__(self) -> None:
        self.clock = PhaseClock()
        self.garbage = GarbageClock()
        self.start_ns: int | None = None
        """None until the first event of the program."""
        self.backwards = 0
        self.accumulations = 0
        self.evaluations = 0
        self.batch_bytes = 0
        self.batch_elements = 0
        self.reads_usage = True
        """Page faults and CPU times of each step: what a run without a device is judged by. The
        system call takes 7 us between cold caches, and for a device run its windows' totals do."""
        self.late = False
        """Steps are taken in later: what counters show then is shared out among them and the next."""
        self._usage: Any = resource.getrusage(resource.RUSAGE_SELF)
        self._unread: list[Row] = []
        self._history: list[int] = []
        self._collected_by_update_ns = 0

    def begin(self, now_ns: int, *, fresh: bool = True) -> None:
        """A step begins; `fresh` reads the counters anew, as work of ours lies before it.

        A phase that was open then, like an update that calls its closure, goes on from here.
        """
        self.start_ns = now_ns
        if fresh:
            self.clock.take(now_ns)
            self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self.garbage.total_ns = self._collected_by_update_ns = 0
        self.backwards = self.accumulations = self.evaluations = 0
        self.batch_bytes = self.batch_elements = 0

    def row(self, now_ns: int, *, index: int, compiled: bool) -> Row:
        """Return the step that ends at `now_ns`."""
        assert self.start_ns is not None
        row = Row(
            index=index,
            start_ns=self.start_ns,
            wall_ms=(now_ns - self.start_ns) / 1e6,
            phases_ns=self.clock.take(now_ns),
            batch_bytes=self.batch_bytes,
            batch_elements=self.batch_elements,
            validation=(self.evaluations > 0 or bool(self._history)) and self._is_validation(),
            compiled=compiled,
            # A gradient penalty is no micro-step; a script that updates by hand has nothing else.
            micro_steps=self.accumulations or self.backwards,
            gc_ms=self.garbage.total_ns / 1e6,
        )
        if self.reads_usage:
            self._unread.append(row)
            if not self.late:
                self.share_usage()
        return row

    def regroup(self, count: int) -> None:
        """From now on a step is as many of those seen until now."""
        self._history = [sum(self._history[-count:])]

    def updated(self) -> None:
        """An update has ended: if the program ends here, no cut follows, and the step ended now."""
        self._collected_by_update_ns = self.garbage.total_ns

    def last_row(self, now_ns: int, *, index: int, compiled: bool) -> Row:
        """Return the step that ended at `now_ns`, with its update, and that nothing came after to cut at.

        What the collector did since then is not the step's: the program may have gone on for long. So it
        is with the other counters, which wait for `share_usage`.
        """
        self.garbage.total_ns = self._collected_by_update_ns
        self.late = True
        row = self.row(now_ns, index=index, compiled=compiled)
        self.late = False
        return row

    def share_usage(self, *, at_end: bool = False) -> None:
        """Read the counters for the steps since they were read last, in equal shares.

        Args:
            at_end: the program has gone on since the last of these steps. They get the share of what the
                counters show that they have of the time.
        """
        rows, self._unread = self._unread, []
        if not rows:
            return
        now_ns = perf_counter_ns()
        usage, before = resource.getrusage(resource.RUSAGE_SELF), self._usage
        self._usage = usage
        part = 1.0
        if at_end:
            began_ns, ended_ns = rows[0].start_ns, rows[-1].start_ns + rows[-1].wall_ms * 1e6
            part = min(1.0, (ended_ns - began_ns) / max(1, now_ns - began_ns))
        share, rest = divmod(round((usage.ru_minflt - before.ru_minflt) * part), len(rows))
        for i, row in enumerate(rows):
            row.minor_faults = share + (i < rest)
            row.user_cpu_ms = (usage.ru_utime - before.ru_utime) * 1e3 * part / len(rows)
            row.system_cpu_ms = (usage.ru_stime - before.ru_stime) * 1e3 * part / len(rows)

    def _is_validation(self) -> bool:
        """More evaluation forwards than steps usually have.

        A teacher or an encoder without gradients runs in every step and is part of it.
        """
        history = self._history
        usual = sorted(history)[len(history) // 2] if history else 0
        history.append(self.evaluations)
        del history[:-HISTORY]
        return self.evaluations > 2 * usual
