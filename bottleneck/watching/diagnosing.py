"""Diagnoses captures of a job while it goes on.

In: the folder of its process. Out: diagnosis.json and the reports in each capture, made one after the other
by processes of low priority, so that the end of the job is noticed at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ..clocks import monotonic
from ..model.documents import DIAGNOSIS_FILE
from ..runs.captures import captures_in
from ..runs.store import partial_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CaptureDiagnoses"]

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
                self._running = _start(run)
                return True
        return False


def _start(run: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", __name__.split(".")[0], "analyze", str(run), "--out", str(run)]
    # In a session of its own: a Ctrl-C is meant for the job.
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    return process
