"""Findings: what was found, what it costs, and on what evidence; and reasons to doubt the figures.

In: nothing. Out: frozen structs made by analyzers and carried unchanged into diagnosis.json; `Doubt`, whose
code is compared, while its text is only shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from .codes import BottleneckClass
from .run import SourceSite

NEGLIGIBLE_SHARE = 0.02
"""Below this share of the step nothing matters. Such a cause is listed but never headlined, such a gain is
no reason to start with a fix, and such a change of a measured step does not count."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A two-sided 95 % interval in milliseconds."""

    low_ms: float
    high_ms: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One number or fact, with its unit and where it was measured."""

    text: str
    """A whole short statement, ready to print: "18 cudaFree calls per step"."""
    value: float | None = None
    unit: str = ""
    source: str = ""
    """Which window or artefact it comes from: "baseline window", "trace", "loader.json" ..."""
    site: SourceSite | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause (or fact) found by one analyzer.

    `cost_ms` is what the step would save if the cause were gone (by replay), None when it cannot
    be priced; it is not the time spent in it, which, where known, is `time_ms`.
    """

    code: str
    bottleneck_class: BottleneckClass | None = msgspec.field(name="class", default=None)
    title: str
    cost_ms: float | None = None
    cost_share: float | None = None
    """cost_ms over the true step time, 0..1."""
    interval: Interval | None = None
    time_ms: float | None = None
    predicted_step_ms: float | None = None
    evidence: tuple[Evidence, ...] = ()
    sites: tuple[SourceSite, ...] = ()
    not_this: str = ""
    """What the finding does not mean: the misreading that it guards against."""
    call: str = ""
    """Of one line of the user's: what it calls, as written there."""
    callee: str = ""
    """`module.name` of that in a library; "evaluation" where it runs a model without gradients."""
    is_needed: bool = False
    """Training needs what that call, or most of what the finding is about, does: it writes into what is
    trained, or into its gradients."""
    in_rounds: bool = False
    """Nearly all of it is done in the rounds of a Python loop, by the user's own lines and operators."""
    note: bool = False
    """True: worth knowing, never a cause of the verdict."""
    ranks: tuple[int, ...] = ()


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
