"""The result of a comparison: what every report of `compare` and `gate` is rendered from.

In: nothing. Out: `Comparison`, fully resolved, texts included; as JSON it is the machine's report.
`COMPARISON_SCHEMA` is raised when a field changes meaning or goes away.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .codes import BottleneckClass, Part
from .run import SourceSite

__all__ = [
    "COMPARISON_SCHEMA",
    "Annotation",
    "BudgetChange",
    "Comparison",
    "CounterRow",
    "Drift",
    "FindingChange",
    "Mismatch",
    "NameChange",
    "Outcome",
    "SettingChange",
    "SideSummary",
    "TimeRow",
]

COMPARISON_SCHEMA = 1

Outcome = Literal["ok", "regression", "undecided", "incomparable"]


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One side in a line."""

    label: str
    """What it was read from."""
    title: str = ""
    runs: int = 0
    step_ms: float | None = None
    """The middle one of the runs' unprofiled steps, each the mean over its run, as `diagnose` reports it."""
    spread: float | None = None
    """Standard deviation of the runs' step times, relative; None with one run."""
    verdict: BottleneckClass | None = None
    device: str = ""
    torch: str = ""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must agree and does not."""

    what: Literal["device", "batch", "world-size", "torch", "step"]
    base: str
    head: str
    allowed: bool = False
    """Overridden with --allow."""


class CounterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One counter, both sides."""

    name: str
    title: str
    unit: str = ""
    scope: Literal["step", "run"] = "step"
    base: float | None = None
    head: float | None = None
    status: Literal["same", "better", "within", "worse", "unstable", "unknown", "off"]
    """within: grown, not beyond the limit. unstable: the runs of a side disagree too much to tell.
    unknown: measured on one side only. off: not gated."""
    limit: float | None = None
    """Largest value of head that passes."""
    note: str = ""


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The step time, both sides."""

    decision: Literal["slower", "faster", "no change", "undecided", "not compared"]
    gated: bool
    """It counts for the outcome; otherwise it is told only."""
    base_ms: float | None = None
    head_ms: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    tolerance: float = 0.05
    noise: float | None = None
    base_runs: int = 0
    head_runs: int = 0
    interleaved: bool = False
    needed: int | None = None
    """Runs per side that would find an increase of the tolerance, four times in five."""
    note: str = ""


class BudgetChange(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the step budget, both sides."""

    part: Part
    base_ms: float
    head_ms: float
    because: tuple[str, ...] = ()
    """What changed in the run that belongs to this line."""

    @property
    def delta_ms(self) -> float:
        """Growth in ms per step."""
        return self.head_ms - self.base_ms


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is new, gone, or changed its price."""

    change: Literal["new", "gone", "dearer", "cheaper"]
    code: str
    title: str
    bottleneck_class: BottleneckClass | None = msgspec.field(name="class", default=None)
    base_ms: float | None = None
    head_ms: float | None = None
    site: SourceSite | None = None


class NameChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel (CPU: operator) whose count per step changed."""

    name: str
    base: float
    head: float


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, loader argument or version that differs."""

    name: str
    base: str
    head: str
    site: SourceSite | None = None


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """Something to show at a line of the user's program (or at the run as a whole)."""

    level: Literal["error", "warning", "notice"]
    title: str
    message: str
    site: SourceSite | None = None
    key: str = ""
    """What it is about, stable over runs: a counter, a finding code, "time"."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A slow trend over the kept history."""

    what: str
    title: str
    points: int
    growth: float
    p_value: float | None = None
    """None for counters, which have no noise."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a report of a comparison shows."""

    schema: int = COMPARISON_SCHEMA
    tool_version: str = ""
    outcome: Outcome
    headline: str
    """One sentence."""
    reasons: tuple[str, ...] = ()
    """Why this outcome, one sentence each, worst first."""
    base: SideSummary
    head: SideSummary
    mismatches: tuple[Mismatch, ...] = ()
    counters: tuple[CounterRow, ...] = ()
    time: TimeRow
    budget: tuple[BudgetChange, ...] = ()
    """Lines that changed, largest change first."""
    findings: tuple[FindingChange, ...] = ()
    names: tuple[NameChange, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    drifts: tuple[Drift, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    notes: tuple[str, ...] = ()
