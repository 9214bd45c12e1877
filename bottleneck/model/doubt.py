"""A reason to doubt the figures of a run: a code for decisions, and a text for people.

In: nothing. Out: `Doubt` and its codes. Code is compared, text is only shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

WATCHED_REMEDY = "This run was watched, without a profiler: run `bottleneck diagnose` to divide its step."


class DoubtCode(str, Enum):
    """Every doubt that reading a trace or judging a capture can raise."""

    # Of a CPU reading.
    THREADS_WAIT = "threads-wait"
    MACHINE_BUSY = "machine-busy"
    STEPS_DIFFER = "steps-differ"
    NOT_TRACED = "not-traced"
    ONE_TRACED_STEP = "one-traced-step"
    NO_BASELINE = "no-baseline"
    # Of a GPU reading.
    KERNELS_WITHOUT_LAUNCH = "kernels-without-launch"
    NOTHING_PREDICTED = "nothing-predicted"
    STEPS_VARY = "steps-vary"
    FEW_TRACED_STEPS = "few-traced-steps"
    DEVICE_SHARED = "device-shared"
    BASELINE_SLOWER = "baseline-slower"
    BASELINE_DISTURBED = "baseline-disturbed"
    NO_DEVICE_ACTIVITY = "no-device-activity"
    # Of the whole capture.
    NO_STEP_FOUND = "no-step-found"
    NO_STEP_SEEN = "no-step-seen"
    MEMORY_ALONE = "memory-alone"
    REPLAY_MISSES = "replay-misses"
    KERNELS_MISSING = "kernels-missing"
    OWN_PROFILER = "own-profiler"
    UNEXPLAINED = "unexplained"
    PROFILED_TIMES = "profiled-times"
    FEW_TIMED_STEPS = "few-timed-steps"
    FEW_WHOLE_STEPS = "few-whole-steps"
    STEPS_SCATTER = "steps-scatter"
    STEPS_DRIFT = "steps-drift"
    LATER_STEPS_SLOWER = "later-steps-slower"
    LATER_STEPS_FASTER = "later-steps-faster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One doubt about the figures, and what to do about it."""

    code: DoubtCode
    text: str
    """Without a full stop, so that it can stand in a list of reasons."""
    remedy: str = ""
    """Whole sentences; empty where the text says it all."""

    @property
    def in_list(self) -> str:
        """The text as one of several reasons in a sentence."""
        return self.text[:1].lower() + self.text[1:] if self.text[1:2].islower() else self.text

    @property
    def sentences(self) -> str:
        """Text and remedy as they stand in a report."""
        return " ".join(filter(None, (f"{self.text}.", self.remedy)))
