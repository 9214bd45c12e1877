"""A script that is watched to its end: nothing stops it, no signal is taken over, no file diverted.

In: a plan. Out: a process folder with the record of the job. Steps are seen from the first `import torch` on;
processes that the script starts itself run without us.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.watch import in_one_line
from ...runs.plan import beginning_run
from ...runs.store import Store, reason_of
from ...runs.tasks import certain_task
from ..imports import ImportWatch
from ..job.watch import JobWatch
from .capturing import Captures
from .outcome import outcome_of, process_group, read_machine
from .progress import Progress

if TYPE_CHECKING:
    from ...model.watch import JobRecord
    from ...runs.plan import Plan
    from ..job.steps import StepWatch
    from ..windows.steps import StepRule


class WatchedRun:
    """Everything of ours that lives in the process of a watched script."""

    def __init__(self, plan: Plan, *, store: Store | None = None, rule: StepRule | None = None) -> None:
        """Create the process folder.

        Raises:
            OSError: the folder cannot be written.
        """
        self._pid = os.getpid()
        # Where it is not certain, the process group will tell.
        task = certain_task()
        self._store = store or Store(
            Path(plan.out) / task.folder, run=beginning_run(plan, task=task, launched=task.size > 1)
        )
        self._rule = rule
        self._store.artefact("trace", "absent", reason="`watch` attaches no profiler, `diagnose` does")
        self._progress = Progress(quiet=plan.quiet, rank=task.rank)
        self._job = JobWatch(self._store, told=self._say)
        self._captures = Captures(plan, self._store, self._job)
        self.steps: StepWatch | None = None
        """Once torch is there; None where the hooks could not be put in."""
        self._imports = ImportWatch("torch", self._on_torch)
        self._closed = False

    def arm(self) -> None:
        """Watch from now on, and put the hooks in when the script imports torch."""
        os.register_at_fork(after_in_child=self._forked)
        self._captures.listen()
        self._imports.install()
        self._job.start()

    def _forked(self) -> None:
        """In a forked child: take no event and write nothing."""
        self._closed = True
        # An error here would be printed among what the child prints.
        with contextlib.suppress(Exception):
            self._imports.uninstall()
            self._job.forked()

    def close(self, error: BaseException | None) -> None:
        """The script has ended, or `error` left it: write what there is, and give the folder its name."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._imports.uninstall()
        # Whatever fails here is ours, and the script has ended as it has.
        try:
            self._captures.end(error)
            tail = self.steps.tail() if self.steps is not None else None
            if self.steps is not None:
                self.steps.uninstall()
                read_machine(self._store)
            self._job.end(tail)
        except Exception:
            self._store.artefact("harness", "failed", reason=traceback.format_exc(limit=-3))
        self._progress.clear()
        with contextlib.suppress(OSError):
            self._store.finish(outcome_of(error))

    def _on_torch(self) -> None:
        """Torch is there: put the hooks in. Whatever fails, the script goes on."""
        try:
            from ..job.steps import StepWatch

            self.steps = StepWatch(self._job, self._store, rule=self._rule)
            self._captures.follow(self.steps)
            self.steps.install()
        except Exception as error:
            self._store.artefact("harness", "failed", reason=traceback.format_exc(limit=-3))
            self._store.warn(f"The hooks could not be put in, so no step was seen ({reason_of(error)}).")

    def _read_rank(self) -> None:
        """Ask the process group who we are, which may be gone when the script ends."""
        group = process_group()
        if group is not None and group != (self._store.run.rank, self._store.run.world_size):
            self._store.update(rank=group[0], world_size=group[1])
            self._progress.speak_for(group[0])

    def _say(self, record: JobRecord) -> None:
        """Rewrite the line in the terminal."""
        self._read_rank()
        self._captures.look()
        if record.ended or not record.steps:
            return
        self._progress.live(in_one_line(record))
