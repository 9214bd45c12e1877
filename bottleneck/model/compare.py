"""The result of a comparison: what every report of `compare` and `gate` is rendered from.

In: nothing. Out: `Comparison`, fully resolved, texts included; as JSON it is the report for
machines. `COMPARISON_SCHEMA` is raised when a field changes meaning or goes away.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .codes import BottleneckClass, LateCause, Part, class_of
from .run import SourceSite
from .words import milliseconds

COMPARISON_SCHEMA = 1

Outcome = Literal["ok", "regression", "undecided", "incomparable"]


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One side in a line."""

    label: str
    """What it was read from."""
    title: str = ""
    runs: int = 0
    step_ms: float | None = None
    """The median of the runs' unprofiled step times, each a mean over its run, as `diagnose` reports it."""
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
    """within: grown, but not beyond the limit. unstable: the runs of a side differ too much to
    decide. unknown: measured on one side only. off: not gated."""
    limit: float | None = None
    """Largest value of head that passes."""
    note: str = ""


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The step time, both sides."""

    decision: Literal["slower", "faster", "no change", "undecided", "not compared"]
    gated: bool
    """It counts for the outcome; otherwise it is only reported."""
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


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a watched job, or the whole of it, both sides; the median over the runs of each."""

    part: str
    """As in `model.watch.PARTS`; "whole job" for all of them."""
    base_s: float
    head_s: float
    base_count: int | None = None
    """How often it came; None for what does not come one by one."""
    head_count: int | None = None
    time: TimeRow
    """Of one occurrence, where both sides have some; else of all of it."""


class GrowthChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the steps of watched jobs grow, both sides, in ms per 1,000 steps; 0 where they do not."""

    status: Literal["same", "better", "worse"]
    base: float
    base_interval: tuple[float, float] | None = None
    """95 %; None where they do not grow."""
    head: float
    head_interval: tuple[float, float] | None = None
    what: str = ""
    """What grows beside the steps of head."""
    site: SourceSite | None = None


class RankChange(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the account of the job's step, both sides, in ms of a step."""

    what: Literal["own work", "waiting for late ranks", "transfer"]
    rank: int | None = None
    """Of own work; the others are the mean over the ranks."""
    time: TimeRow
    late: LateCause = ""
    """Why the rank is late on the side of head, if it is."""


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
    """Its topic, stable over runs: a counter, a finding code, "time"."""


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
    job: tuple[PartChange, ...] = ()
    """The whole job and its parts, where both sides were watched; the largest change first."""
    growth: GrowthChange | None = None
    """None where a side was not watched."""
    ranks: tuple[RankChange, ...] = ()
    """Waiting, transfer, and the ranks whose own work changed, largest change first; empty where a side has
    one rank."""
    findings: tuple[FindingChange, ...] = ()
    names: tuple[NameChange, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    drifts: tuple[Drift, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    notes: tuple[str, ...] = ()


_MISMATCH = {
    "device": "other device",
    "batch": "other batch",
    "world-size": "other number of ranks",
    "torch": "other torch",
    "step": "other kind of step",
}
_FACTOR = 3.0
_PREFIXES = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def number(value: float | None, unit: str = "") -> str:
    """Word a counter's value: exact as far as it is a count, shortened where it is bytes or FLOP."""
    if value is None:
        return "not measured"
    if unit:
        for prefix, size in _PREFIXES:
            if abs(value) >= 10 * size:
                return f"{value / size:.4g} {prefix}{'B' if unit == 'bytes' else unit}"
        return f"{value:.0f} {'B' if unit == 'bytes' else unit}"
    return f"{value:,.0f}".replace(",", " ") if float(value).is_integer() else f"{value:.4g}"


def signed_ms(value: float) -> str:
    """Word a change of time: "+9.1 ms"."""
    return f"{'+' if value >= 0 else '-'}{milliseconds(abs(value))} ms"


def mismatch_words(row: Mismatch) -> str:
    """Word what differs and must not."""
    return f"{_MISMATCH[row.what]}: {row.base} in base, {row.head} in head"


def counter_words(row: CounterRow) -> str:
    """Word one counter's change: "synchronisations 3 → 4 per step"."""
    if row.status == "unknown":
        return f"{row.title}: {row.note}"
    per = " per step" if row.scope == "step" else ""
    text = f"{row.title} {number(row.base, row.unit)} → {number(row.head, row.unit)}{per}"
    if row.status == "worse" and row.limit is not None and row.base is not None and row.limit > row.base:
        text += f" (limit {number(row.limit, row.unit)})"
    return f"{text} ({row.note})" if row.note and row.status in ("worse", "unstable") else text


def time_words(row: TimeRow, what: str = "step time") -> str:
    """Word the decision about a time, with its interval or with what would decide."""
    if row.decision == "not compared":
        return f"{what} not compared: {row.note}" if row.note else f"{what} not compared"
    change = ""
    if row.ratio is not None:
        change = _ratio(row)
    if row.decision == "no change":
        return f"{what} {change}: an increase of {100 * row.tolerance:.0f} % is ruled out"
    if row.decision != "undecided":
        return f"{what} {change}: {row.decision}"
    return f"{what} {change}: undecided, {_what_would_decide(row)}"


def part_words(row: PartChange) -> str:
    """Word the change of a part of the job, by its time."""
    each = "" if row.base_count is None or row.head_count is None else ", each"
    return time_words(row.time, f"{row.part}{each}")


def rank_words(row: RankChange) -> str:
    """Word a line of the job's step: "own work of rank 3: 20.1 → 40.2 ms (late: input)"."""
    whose = f"own work of rank {row.rank}" if row.rank is not None else row.what
    late = f" (late: {row.late})" if row.late else ""
    return f"{whose}: {milliseconds(row.time.base_ms)} → {milliseconds(row.time.head_ms)} ms{late}"


def growth_words(row: GrowthChange) -> str:
    """Word how the steps grow: "the steps grow by 3.10 ms per 1000 steps (95 %: 2.90 to 3.30), before 0"."""
    if row.head_interval is None:
        was = f", before by {milliseconds(row.base)} ms per 1000 steps" if row.base else ""
        return f"the steps do not grow{was}"
    low, high = row.head_interval
    beside = ""
    if row.what:
        at = f" at {row.site.file}:{row.site.line}" if row.site is not None else ""
        beside = f", and {row.what}{at} with them"
    return (
        f"the steps grow by {milliseconds(row.head)} ms per 1000 steps"
        f" (95 %: {milliseconds(low)} to {milliseconds(high)}){beside}; before by {milliseconds(row.base)} ms"
    )


def _ratio(row: TimeRow) -> str:
    """Word the ratio with its interval: in percent, or as a factor where percents grow unreadable."""
    assert row.ratio is not None
    bounds = row.interval or ()
    if row.ratio >= _FACTOR:
        text, ends = f"{row.ratio:.3g}×", [f"{bound:.3g}" for bound in bounds]
    else:
        text = f"{(row.ratio - 1) * 100:+.1f} %"
        ends = [f"{(bound - 1) * 100:+.1f}" for bound in bounds]
    return f"{text} [{', '.join(ends)}]" if ends else text


def _what_would_decide(row: TimeRow) -> str:
    if row.noise is None:
        return "the noise is not known"
    seen = f"at the noise seen ({row.noise * 100:.1f} % from run to run)"
    if min(row.base_runs, row.head_runs) < 2:
        seen = f"at the noise within a run ({row.noise * 100:.1f} %)"
    if row.needed is None:
        return f"no reasonable number of repeats would show {100 * row.tolerance:.0f} % {seen}"
    least = "at least " if min(row.base_runs, row.head_runs) < 2 else ""
    return f"{least}{row.needed} repeats per side would show {100 * row.tolerance:.0f} % {seen}"


def drift_words(row: Drift) -> str:
    """Word a slow rise."""
    chance = f", p = {row.p_value:.2g}" if row.p_value is not None else ""
    return f"slow drift: {row.title} rose by {row.growth * 100:.1f} % over the last {row.points} runs{chance}"


def budget_words(row: BudgetChange) -> str:
    """Word a budget line's change with its class and cause."""
    cause = class_of(row.part)
    name = f"{cause.value} ({row.part.value})" if cause is not None else row.part.value
    because = f", {', '.join(row.because)}" if row.because else ""
    return f"{signed_ms(row.delta_ms)}: {name}{because}"
