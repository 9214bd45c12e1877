"""What callbacks of trainers share: capture the steps that a trainer marks, and tell the diagnosis.

In: the trainer's begin and end of training and of each step. Out: a run folder, its report in
`diagnosis/` inside, and once, when that is there, what to log. The report is made by a process of its
own, at the lowest priority, while training goes on.

Nothing that fails here fails a training: it ends the capture, with one warning in the log.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .files import read_json
from .model.diagnosis import Diagnosis
from .model.documents import DIAGNOSIS_FILE
from .runs.analysis import begin_analysis

if TYPE_CHECKING:
    from collections.abc import Callable

    from .harness.process.api import Harness

__all__ = ["REPORT_FOLDER", "TrainerCapture", "wanted_by_environment"]

SWITCH = "BOTTLENECK"
REPORT_FOLDER = "diagnosis"
REPORT_SECONDS = 120.0
"""How long the end of a training waits for the report."""

_log = logging.getLogger("torch_bottleneck")
_Hook = TypeVar("_Hook", bound="Callable[..., Any]")


def wanted_by_environment() -> bool:
    """Return whether `BOTTLENECK=1` asks for a capture in whatever is trained."""
    return os.environ.get(SWITCH, "") not in ("", "0")


def _harmless(hook: _Hook) -> _Hook:
    @functools.wraps(hook)
    def call(self: TrainerCapture, *args: Any, **options: Any) -> Any:
        if self.failed:
            return None
        try:
            return hook(self, *args, **options)
        except Exception as error:
            self.failed = True
            with contextlib.suppress(Exception):
                self._leave()
            _log.warning("bottleneck: the capture has ended: %s: %s", type(error).__name__, error)
            return None

    return call  # type: ignore[return-value]


class TrainerCapture:
    """One capture in one training; every call after its end does nothing."""

    def __init__(self, out: str | os.PathLike[str] | None, **wishes: Any) -> None:
        """Choose what to capture.

        Args:
            out: the run folder; None: one beside what the trainer writes.
            wishes: options of `Harness`.
        """
        self._out = out
        self._wishes = wishes
        self._log_figures: Callable[[dict[str, float]], object] = dict
        self._harness: Harness | None = None
        self._report: subprocess.Popen[bytes] | None = None
        self._over = False
        """The report was begun."""
        self.folder: Path | None = None
        """The run folder, once it is complete."""
        self.failed = False

    @_harmless
    def begin(self, beside: str | os.PathLike[str], log: Callable[[dict[str, float]], object]) -> None:
        """Training begins.

        Args:
            beside: the folder that the trainer writes to.
            log: takes once what TensorBoard gets: `bottleneck/step_ms/true`, `bottleneck/budget_ms/<part>`.
        """
        if self._harness is not None or self.folder is not None:
            return
        from .harness.process.api import Harness

        self._log_figures = log
        self._harness = Harness(self._out or Path(beside) / "bottleneck", **self._wishes)
        self._harness.__enter__()
        # A training that raises may tell its callbacks nothing.
        atexit.register(self._leave)

    @_harmless
    def step_begins(self) -> None:
        """The trainer begins a training step."""
        if self._harness is not None:
            self._harness.step_begins()

    @_harmless
    def step_ends(self) -> None:
        """A training step has ended, its update included; the diagnosis is told at the first one after it."""
        if self._harness is not None:
            self._harness.step_ends()
        self.look()

    @_harmless
    def look(self) -> None:
        """See how far capture and report are, where nobody marks steps."""
        if self._harness is not None:
            if self._harness.done:
                self._finish()
        elif self._report is not None and self._report.poll() is not None:
            self._tell()

    @_harmless
    def end(self) -> None:
        """Training is over: tell the diagnosis, if it was not told yet."""
        self._finish()
        if self._report is not None:
            self._report.wait(REPORT_SECONDS)
            self._tell()

    def _finish(self) -> None:
        self._leave()
        if self.folder is None or self._over or os.environ.get("RANK", "0") != "0":
            return
        self._over = True
        self._report = begin_analysis(self.folder, self.folder / REPORT_FOLDER, niceness=19)

    def _leave(self) -> None:
        """Complete the run folder, and take every hook out."""
        harness, self._harness = self._harness, None
        atexit.unregister(self._leave)
        if harness is not None:
            harness.__exit__(None, None, None)
            self.folder = harness.folder

    def _tell(self) -> None:
        from .review.events import figures

        self._report = None
        assert self.folder is not None
        report = self.folder / REPORT_FOLDER
        diagnosis = read_json(report / DIAGNOSIS_FILE, Diagnosis)
        verdict = diagnosis.verdict
        name = verdict.bottleneck_class.value
        _log.warning(
            "bottleneck: %s: %s (confidence %s); %s", name, verdict.headline, verdict.confidence, report
        )
        self._log_figures({f"bottleneck/{tag}": ms for tag, ms, _ in figures(diagnosis)})
