"""The diagnosis: diagnosis.json, the contract that every report is rendered from.

In: nothing. Out: frozen structs, fully resolved (texts included). `SCHEMA` is raised when a field
changes meaning or goes away; adding a field does not raise it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .codes import BottleneckClass, GroupRole, LateCause, Part, WhatIf
from .counters import StepCounters
from .finding import DoubtCode, Finding
from .fix import MeasuredHere, Suggestion
from .memory import MemorySummary
from .run import Artefact, DeviceFacts, HostFacts, JsonValue, SourceSite
from .verify import Outcome
from .view import CodeNode, JobPart, LoaderRow, StepTimeline, WindowSteps
from .work import CompileSummary, ComputeFacts, Workload

SCHEMA = 1

Confidence = Literal["high", "medium", "low", "none"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    bottleneck_class: BottleneckClass = msgspec.field(name="class")
    confidence: Confidence
    headline: str
    """One sentence with the price in ms and %."""
    code: str = ""
    """The finding whose title is in the headline; empty if there is none."""
    also: tuple[BottleneckClass, ...] = ()
    """Classes whose cost is within the noise of the first."""
    reason: str = ""
    """Why this confidence; for `undetermined`, why no verdict is possible (also part of the headline)."""
    doubts: tuple[DoubtCode, ...] = ()
    """Of `Capture.codes`: what `reason` names."""
    remedy: str = ""
    """For `undetermined`: what to do to get a verdict."""


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The step time that everything is measured against."""

    true_ms: float | None
    true_ci_ms: tuple[float, float] | None = None
    """95 % interval of `true_ms`, a mean: elapsed time over steps, without single outliers.
    Of this run: another one of the same script may differ by more."""
    profiled_ms: float | None = None
    count: int = 0
    """Number of steps in `true_ms`."""
    true_is: Literal["measured", "given", "profiled"] = "measured"
    """profiled: no unprofiled window exists, so the figure is inflated."""
    spread_ms: float | None = None
    """Median absolute deviation of the baseline step times, times 1.4826."""
    step_signal: str = ""


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the step budget; the lines sum to the true step time."""

    part: Part
    ms: float
    share: float
    detail: str = ""


class WhatIfResult(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the replay."""

    question: WhatIf
    about: str = ""
    """The call that it is about, as `Finding.callee`, where the question is asked for each of several."""
    call: str = ""
    """The call of the user's that takes the time, as written; empty where there is not one."""
    callee: str = ""
    """What that calls in a library, where the gain is its alone."""
    site: SourceSite | None = None
    """The line that it is about, where that is not the finding's."""
    step_ms: float
    """Predicted true step time."""
    saves_ms: float
    basis: str
    bound: bool = False
    """True: an upper bound of the gain, not an estimate of it."""
    relieved_ms: float | None = None
    """The step if the change also ended the allocator's calls to the driver, which is possible if it needs
    less memory. None if it needs as much, or if such calls cost nothing."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One class with its price, in order of cost; the second is priced with the first removed."""

    bottleneck_class: BottleneckClass = msgspec.field(name="class")
    code: str
    cost_ms: float
    share: float
    predicted_ms: float
    """The step without this cause alone."""
    after_previous_ms: float | None = None
    """Cost once the first cause that can be removed is already gone."""
    headline: str = ""
    sites: tuple[SourceSite, ...] = ()
    negligible: bool = False
    """Below `NEGLIGIBLE_SHARE` of the step: listed, never headlined."""


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """Two suggestions replayed together: gains do not add up."""

    fixes: tuple[str, str]
    predicted_ms: float
    """Predicted true step time with both."""
    bound: bool = False
    measured: MeasuredHere | None = None
    """What both did to the step in the running process."""


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """Device time by kernel (or operator time on CPU), per step."""

    name: str
    part: Part
    count: float
    ms: float
    share: float


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One switch of the acceleration state."""

    name: str
    state: Literal["on", "off", "partly", "not applicable", "unknown"]
    value: str = ""
    seen_by: str = ""


class UnreadRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is missing from the comparison."""

    rank: int | None
    """None: its file does not say."""
    path: str = ""
    reason: str


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that the others wait for."""

    ranks: tuple[int, ...]
    kind: Literal["persistent", "wandering", "group"]
    """persistent: the same rank in all steps. wandering: one rank in one step, another in the next. group:
    all ranks of a process group, of a pipeline stage, or of one of several equal blocks of ranks."""
    cause: LateCause
    costs_ms: float
    """What the step of all ranks would be shorter without it."""
    late_ms: float
    """How much more of its own such a rank does in a step than its peers; wandering: in the steps
    concerned."""
    group: str = ""
    """Which group, in words."""
    site: SourceSite | None = None
    """Where the cause stands in the source, if the trace or the run tells."""


class PathPart(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the critical path of a step over the ranks."""

    rank: int | None
    """Whose own work; None: transfer."""
    ms: float


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process group."""

    name: str
    """As torch numbers it; empty where the trace does not tell."""
    description: str = ""
    """What the program calls it."""
    ranks: tuple[int, ...]
    """Its ranks, in order; of long lists that the trace cuts, those that were read."""
    roles: tuple[GroupRole, ...] = ()
    """What its ranks divide among them; empty where nothing tells. Some programs use one group for two."""
    told_by: Literal["name", "collectives", ""] = ""
    """By what the roles are told: the description, or which collectives are launched where in a step."""


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind and size in process groups of one size."""

    collective: str
    ranks: int
    """In a group."""
    groups: int = 1
    """Of that size that lie alike among the ranks."""
    example: str = ""
    """Ranks of one of them, as the trace writes them."""
    bytes: int | None = None
    """That each rank sends; None: the trace does not tell."""
    per_step: float
    """On one rank."""
    transfer_ms: float
    """Of one, once all ranks are there; the median."""
    gbytes_per_s: float | None = None
    """Bytes over that time; where others run beside it, less than the link gives."""
    bus_gbytes_per_s: float | None = None
    """What the slowest link must have carried in one direction for that, by NCCL's definition (bus bandwidth,
    nccl-tests, PERFORMANCE.md): comparable between kinds and with the link. None: of other kinds."""
    latency_ms: float | None = None
    """What `LinkRow.latency_ms` says of the time of one, no more than all of it."""
    waits_ms: float
    """Per step and rank: inside the collective until the last rank comes, hidden or not."""


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the collectives of one kind, in process groups of one size, show of the link."""

    collective: str
    ranks: int
    groups: int = 1
    example: str = ""
    """As in `CollectiveRow`."""
    best_bus_gbytes_per_s: float
    """The best bus bandwidth that those of one size reached; the median of that size."""
    best_bytes: int
    """That size."""
    latency_ms: float | None = None
    """Time = latency + bytes / bandwidth, fitted to their sizes. None: nothing shows it, as where they have
    one size, or sizes that are alike."""
    link_gbytes_per_s: float | None = None
    """What the driver says that the NVLinks of a device carry in one direction. None: not measured, or the
    ranks are not known to be on one machine."""


class BucketRow(msgspec.Struct, frozen=True, kw_only=True):
    """The step with gradient buckets of one size."""

    cap_bytes: int | None
    """bucket_cap_mb of DistributedDataParallel, in bytes: a bucket is closed when it holds as much. None: all
    gradients are in one."""
    buckets: int
    """In a backward pass."""
    step_ms: float
    step_at_most_ms: float
    """With a bandwidth that is lower by two standard errors."""


class BucketSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The step by size of the buckets in which DistributedDataParallel sends gradients."""

    buckets: int
    """In a backward pass, as it was."""
    bytes: int | None = None
    """Of all gradients."""
    largest_bytes: int | None = None
    """Of the largest bucket, as it was."""
    rows: tuple[BucketRow, ...] = ()
    """By size, the smallest first; of sizes that make the same buckets the smallest one."""
    latency_ms: float | None = None
    """Time of a collective = latency + bytes / bandwidth, fitted to those of the run."""
    gbytes_per_s: float | None = None
    replay_error: float | None = None
    """|replayed - true| / true of the step as it was."""
    unknown: str = ""
    """What is not known, and why."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What the traces of several ranks say together."""

    compared: int
    """Ranks in the comparison."""
    world_size: int | None = None
    """Ranks of the job, if a trace tells."""
    stragglers: tuple[Straggler, ...] = ()
    step_ms: float | None = None
    """The median of the ranks."""
    step_without_late_ranks_ms: float | None = None
    what_ifs: tuple[WhatIfResult, ...] = ()
    """The step of the job without a cause on all ranks, or with one change, by replaying them together."""
    replay_error: float | None = None
    """|replayed - true| / true of that replay; None where it was not possible."""
    path: tuple[PathPart, ...] = ()
    """What the step consists of, following the ranks that the others wait for; the parts add up to it."""
    groups: tuple[GroupRow, ...] = ()
    """Process groups in which something is sent, those of the lowest ranks first."""
    collective_rows: tuple[CollectiveRow, ...] = ()
    """By kind and size, those that take most time first."""
    links: tuple[LinkRow, ...] = ()
    """By kind, in the order of the rows."""
    clock_error_us: float | None = None
    """How far apart the ends of one collective still lie on two ranks, once their clocks are aligned by them
    (robust spread, on the worst rank). None: no collectives in common."""
    collectives: int = 0
    """Collectives that were matched on all ranks of their group, in all steps together."""
    unmatched: int = 0
    """Collectives that could not be matched, on the rank that has most of them."""
    steps_left_out: int = 0
    """Traced steps before those that are compared, on the rank that has most of them: there is no room for
    them in what is kept of a rank."""
    unread: tuple[UnreadRank, ...] = ()


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, compared with the others."""

    rank: int
    step_ms: float | None
    busy_share: float | None = None
    own_ms: float | None = None
    """The step without waiting for other ranks, transfer and bubble: with them it adds up to `step_ms`."""
    waits_for_others_ms: float | None = None
    """Time in which the device only waits for a rank that comes later."""
    waits_for: int | None = None
    """The rank that it waits for longest."""
    transfer_ms: float | None = None
    """Time in which the device only communicates, and all ranks of the group are there."""
    bubble_ms: float | None = None
    """Time in which a stage of a pipeline waits because the schedule has nothing for it: what the stage that
    waits least does, too. None without stages."""
    late_steps_ms: tuple[float, ...] = ()
    """The same step by step, the last ones; below 0 where it has less."""
    excess_ms: dict[LateCause, float] = {}
    """By cause, how much more of it the rank does in a step than its peers."""
    node: int | None = None
    """Lowest rank on the same machine, if its run tells."""
    late_ms: float | None = None
    """How much more work of its own it has in a step than its peers; 0 if it has less."""
    cause: LateCause = ""
    path: str = ""
    source: str = ""
    """Where its files lie: what `bottleneck analyze` takes to show this rank by itself."""
    report: str = ""
    """Its own report.html, from the folder that this report is written to; empty where there is none."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """How far the figures can be trusted, and what the capture cost."""

    quality: Literal["good", "fair", "poor"]
    problems: tuple[str, ...] = ()
    """What is missing or doubtful, each with what to do."""
    codes: dict[DoubtCode, int] = {}
    """Position in `problems` of those that have a code."""
    replay_error: float | None = None
    """|replayed - profiled| / profiled of the traced window; None when there was no replay."""
    dispatch_scale: float | None = None
    """Factor on host work that brings the replay from the profiled to the true step time."""
    inflation: float | None = None
    """Profiled over true step time."""
    launches: int | None = None
    kernels: int | None = None
    missing_kernels: int | None = None
    overhead: dict[str, float] = {}
    """Measured: hook_us_per_step, profiler_stop_ms, total_seconds, ... and after_trace_ratio."""
    trials_s: float | None = None
    """What trying fixes after the capture took; None where none was tried."""
    artefacts: dict[str, Artefact] = {}
    """Artefact -> "ok", or "absent: why", or "failed: why"."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a report shows."""

    schema: int = SCHEMA
    tool_version: str = ""
    created: str = ""
    title: str = ""
    """Script or trace name, of `rank`."""
    command: tuple[str, ...] = ()
    verdict: Verdict
    step: StepSummary
    budget: tuple[BudgetLine, ...] = ()
    causes: tuple[Cause, ...] = ()
    findings: tuple[Finding, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    applicable: tuple[Suggestion, ...] = ()
    """Fixes that match no finding of this run but apply to it; `verify` can try them."""
    combination: Combination | None = None
    """The best pair with the first suggestion, if both together gain more."""
    tried: tuple[Outcome, ...] = ()
    """What `bottleneck verify` measured for fixes of this script, with the predictions."""
    what_ifs: tuple[WhatIfResult, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    memory: tuple[MemorySummary, ...] = ()
    """One per device in the snapshot; empty if no memory history was read."""
    phases_ms: dict[str, float] = {}
    """Mean host time per phase of the baseline window (exclusive), as timed. With the time outside the
    phases they add up to the host's step."""
    settings: dict[str, JsonValue] = {}
    acceleration: tuple[SettingRow, ...] = ()
    compile: CompileSummary | None = None
    """None: nothing was compiled, or compiling was not watched (bare traces: see `acceleration`)."""
    compute: ComputeFacts | None = None
    """None: no trace to read them from."""
    device: DeviceFacts | None = None
    host: HostFacts = HostFacts()
    rank: int = 0
    """The rank that these figures belong to: of several, the one that decides the step."""
    ranks: tuple[RankRow, ...] = ()
    buckets: BucketSizes | None = None
    """None: DistributedDataParallel sent no gradients, or there was no replay."""
    fleet: Fleet | None = None
    """The ranks together; None for a single one."""
    counters: StepCounters | None = None
    """Counters of a step, on the lowest rank; None in files of older versions."""
    workload: Workload | None = None
    capture: Capture
    outcome: str = ""
    """How the script ended, when that matters to the reader."""
    notes: tuple[str, ...] = ()
    windows: tuple[WindowSteps, ...] = ()
    """Step times over the run, window by window."""
    timeline: StepTimeline | None = None
    """One traced step, thinned; None where no trace divides it."""
    loaders: tuple[LoaderRow, ...] = ()
    job: tuple[JobPart, ...] = ()
    """The rest of the job: what comes once, beside its steps; empty where no first step was seen."""
    device_lines: tuple[CodeNode, ...] = ()
    """The lines that the device works for longest, forward and backward together."""
    device_calls: tuple[CodeNode, ...] = ()
    """The calls that several of these lines belong to, each dearer than any of them, the longest first."""
    tree: CodeNode | None = None
    """The step by whose code it is; None where no stacks were sampled."""
