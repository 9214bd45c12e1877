"""Diagnoses captures of a job while it goes on.

In: the folder of its process. Out: diagnosis.json and the reports in each capture, made one after the other
by processes of low priority, so that the end of the job is noticed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clocks import monotonic
from ..model.documents import DIAGNOSIS_FILE
from ..runs.analysis import begin_analysis
from ..runs.captures import captures_in
from ..runs.store import partial_name

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

EVERY_SECONDS = 0.5
NICE = 10


class CaptureDiagnoses:
    """Those of one process of a job."""

    def __init__(self, process: Path) -> None:
        """Diagnose nothing yet; `process` is the folder by its final name."""
        self._process = process
        self._tried: set[str] = set()
        self._running: subprocess.Popen[bytes] | None = None
        self._looked = 0.0

    def attend(self) -> None:
        """Called again and again while the job runs."""
        now = monotonic()
        if now - self._looked >= EVERY_SECONDS:
            self._looked = now
            self._next(partial_name(self._process))

    def finish(self) -> None:
        """The job has ended, and its folder has its name: diagnose what is left."""
        while True:
            if self._running is not None:
                self._running.wait()
            if not self._next(self._process):
                return

    def _next(self, process: Path) -> bool:
        """Begin with the next capture, unless one is under way; return whether there was something to do."""
        if self._running is not None:
            if self._running.poll() is None:
                return True
            self._running = None
        for run in captures_in(process):
            if not (run / DIAGNOSIS_FILE).exists() and run.name not in self._tried:
                self._tried.add(run.name)
                # A Ctrl-C is meant for the job.
                self._running = begin_analysis(run, run, niceness=NICE, own_session=True)
                return True
        return False
