"""What the timeline says about one rank: the common result of the GPU and the CPU reading.

In: nothing. Out: `Timeline`, read by analyzers and composed into the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Literal

from ..model.codes import LateCause, Part, QuestionKey, WhatIf
from ..model.diagnosis import BudgetLine, KernelRow, WhatIfResult
from ..model.finding import Doubt
from ..model.run import JsonValue, LoopTime, SiteTime, SourceSite
from ..model.view import CodeNode, StepTimeline
from ..model.work import ComputeFacts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .lanes.alone import Alone
    from .steps.starts import WorkerStarts


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamPrice:
    """The seams that one set of graph breaks is the reason of."""

    owners: tuple[int, ...]
    """Positions in `CompileFacts.breaks`; empty if unknown."""
    per_step: float
    host_ms: float
    """Host time in them per step, at the speed of the true step."""
    cost_ms: float | None
    """Their share of what the step saves with all seams gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostlyCall:
    """The calls of one operator for which there is a cheaper way, in forward and backward."""

    callee: str
    """As in "torch.quantile"."""
    count: float
    """Per step."""
    site: SourceSite | None = None
    """Where the way was tried, or, on a GPU, a graph was noted."""
    left: float | None = None
    """Of their time, what the other way takes, where it was tried."""
    left_on_host: float | None = None
    """Of the host's, where `left` is of the device's."""
    shown: str = ""
    """The calls, as a reader knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowCall:
    """An operator whose kernels keep little of the device at work, for long."""

    callee: str
    """As in "cumsum"."""
    count: float
    """Kernels per step."""
    share: float
    """Of the device's warp schedulers that have a warp, over the kernels' time."""
    ms: float = 0.0
    """The kernels' time per step."""
    site: SourceSite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWork:
    """How much of forward and backward runs compiled, per step."""

    kernel_share: float | None
    """Kernels (CPU: operators and generated kernels) launched by compiled code, of all. None where
    CUDA graphs launch them: what one launch starts is one piece of work here."""
    time_share: float
    """The same by their time."""
    eager_in_seams: float | None = None
    """Launches per step between the graphs, which fell back to eager."""
    graph_launches: float | None = None
    """CUDA graph launches per step."""
    regions: float = 0.0
    """Compiled regions entered per step, forward."""


class SpanKind(Enum):
    """What a span of host time is, for those who decide by it; `HostSpan.what` is only shown."""

    CALL = auto()
    """A device call, an operator, or all of one category."""
    PREPARATION = auto()
    """Making the batch ready, between its fetch and the forward."""
    COLLECTOR = auto()
    """Python's garbage collector."""
    BEFORE_MODEL = auto()
    """Python in the forward or before it, as behind an evaluation that the step itself makes."""
    IN_LOSS = auto()
    """Python between the model and its update."""
    ASIDE = auto()
    """Other Python: behind the update, or in no phase."""
    RARE = auto()
    """What only some steps do."""


KIND_OF_PLACE = {
    (True, "forward"): SpanKind.BEFORE_MODEL,
    (False, "evaluation"): SpanKind.BEFORE_MODEL,
    (False, "forward"): SpanKind.IN_LOSS,
    (True, "backward"): SpanKind.IN_LOSS,
}
"""(whether inside of it, the phase that began last) -> what Python there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpan:
    """Host time that kept the step waiting, attributed: one row per (part, what, site)."""

    part: Part
    kind: SpanKind = SpanKind.CALL
    what: str
    """API call, operator or label, as in "cudaMemcpyAsync" or "aten::item"; for people."""
    exposed_ms: float
    """Per step: device idle (GPU) or step time (CPU) that it explains."""
    called_ms: float
    """Per step: time spent in it, exposed or not."""
    count: float
    """Per step."""
    site: SourceSite | None = None
    label: str = ""
    """Innermost phase or user label around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Budget and what-if answers of one rank, all in milliseconds of the *true* step.

    Invariant: the `ms` of `budget` add up to `true_ms` (to rounding).
    """

    kind: Literal["gpu", "cpu"]
    true_ms: float
    profiled_ms: float | None
    steps: int
    """Whole traced steps behind these figures."""
    budget: tuple[BudgetLine, ...]
    what_ifs: dict[QuestionKey, WhatIfResult]
    kernels: tuple[KernelRow, ...] = ()
    spans: tuple[HostSpan, ...] = ()
    """By exposed time, largest first."""
    replay_error: float | None = None
    dispatch_scale: float | None = None
    usable_what_ifs: bool = True
    """False when the replay's error forbids predictions (above 10 %)."""
    doubts: tuple[Doubt, ...] = ()
    """What makes these figures doubtful, each with what to do."""
    context: dict[str, JsonValue] = field(default_factory=dict)
    """Keys of model/context.py that only the timeline can fill."""
    launches: int | None = None
    device_activities: int | None = None
    missing_activities: int | None = None
    seams: tuple[SeamPrice, ...] = ()
    compiled: CompiledWork | None = None
    """None where the trace holds no compiled code."""
    compute: ComputeFacts | None = None
    """What the trace alone shows about the device's math; FLOPs are added later."""
    after: dict[tuple[QuestionKey, QuestionKey], float] = field(default_factory=dict)
    """(first removed, then asked) -> step time in ms with both gone: ceilings do not add up."""
    loop: LoopTime | None = None
    """The Python loop inside the step that `LOOP_GONE` is about."""
    loop_owner: str = ""
    """See `Tree.owner`."""
    costly: tuple[CostlyCall, ...] = ()
    """What `CALL_GONE` is asked about, each by its `callee`."""
    narrow: NarrowCall | None = None
    """What `KERNELS_SPREAD` is about."""
    full_precision: SourceSite | None = None
    """The line that most of the math in fp32 is asked for on."""
    input_call: SiteTime | None = None
    """See `Facts.input_call`."""
    update_loop: SourceSite | None = None
    """The loop of the user's that the optimizer's update runs in."""
    own_work_ms: dict[LateCause, tuple[float, ...]] = field(default_factory=dict)
    """Work of host and device in each traced step, exposed or not, by what a rank is late for if it has more
    of it. Empty where nothing is communicated."""
    window_ms: float | None = None
    """What the traced steps take on average without a profiler, where they hold rare work more or less often
    than all steps; None: the true step."""
    alone_ms: tuple[float, ...] = ()
    """Lengths of single traced steps, the last ones, as replayed without communication: the pace of this rank
    if it waited for nobody. Empty where nothing is communicated."""
    alone_host_ms: tuple[float, ...] = ()
    """The same with a device that takes no time: the pace of the host. Empty where there is no device."""
    alone: Alone | None = None
    """Where its collectives stand in these steps; None where nothing is communicated."""
    waits: NDArray[np.int64] | None = None
    """(w, 2): when the training thread stood waiting for other ranks, on the trace's clock; None with a
    device."""
    alone_without: dict[WhatIf, tuple[tuple[float, ...], bool]] = field(default_factory=dict)
    """By how much these steps are shorter without a cause, and whether that is a bound."""
    pauses_ms: tuple[float, ...] = ()
    """Pauses between operators near the limit from which they are Python of its own, of all traced steps."""
    tree: CodeNode | None = None
    """The step by whose code it is."""
    extras: tuple[CodeNode, ...] = ()
    """Extra work in the step, the most expensive first; none is inside another."""
    plain: tuple[CodeNode, ...] = ()
    """Functions of the user's in the model, the loss and the update that call no operator, the most expensive
    first."""
    device_lines: tuple[CodeNode, ...] = ()
    """The lines that the device works for, the longest first; empty where they are not known."""
    device_calls: tuple[CodeNode, ...] = ()
    """The calls that several of these lines belong to, each dearer than any of them."""
    starts: WorkerStarts | None = None
    """Starts of loaders' workers, which are part of the step; None where there are none."""
    view: StepTimeline | None = None
    """One traced step, for reports to draw; None without a trace."""

    def part_ms(self, *parts: Part) -> float:
        """Return the sum of the budget lines of these parts, ms per step."""
        return sum(line.ms for line in self.budget if line.part in parts)
