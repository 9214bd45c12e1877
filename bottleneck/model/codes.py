"""Stable names and their properties: classes, budget parts, what-if questions, finding codes.

In: nothing. Out: enumerations, and one record per member of each. The table of finding codes is append-only:
a code is never reused and never renumbered; a retired one keeps its record with status "removed".
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec


class BottleneckClass(str, Enum):
    """What a step waits for."""

    INPUT = "input-bound"
    ALLOCATOR = "allocator-thrashing"
    COMPUTE = "compute-bound"
    GRAPH_BREAK = "graph-break-bound"
    LAUNCH = "launch-bound"
    SYNC = "sync-bound"
    TRANSFER = "transfer-bound"
    COMMUNICATION = "communication-bound"
    COMPILE = "compile-bound"
    HOST = "host-bound"
    UNDETERMINED = "undetermined"


class Part(str, Enum):
    """A line of the step budget. Each moment of the true step time belongs to exactly one line."""

    # Device at work (GPU runs), or operator work (CPU runs).
    TENSOR_CORE = "tensor-core math"
    OTHER_MATH = "other math"
    MEMORY_BOUND = "memory-bound kernels"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "exposed communication"
    COPIES = "exposed copies"
    # Device idle (GPU runs) or step time outside operator work (CPU runs), by host activity.
    INPUT = "waiting for input"
    SYNC = "blocked in a synchronisation"
    ALLOCATOR = "allocator"
    COMPILE = "compiling"
    GRAPH_BREAK = "graph-break seams"
    DISPATCH = "dispatching operators"
    HOST = "other host work"
    DEVICE = "device's own gaps"
    UNEXPLAINED = "unexplained"


class WhatIf(str, Enum):
    """A question to the replay: the step without one cause, or with one change."""

    INPUT_READY = "input-ready"
    INPUT_AHEAD = "input-ahead"
    INPUT_WORKERS = "input-workers"
    INPUT_IN_MAIN = "input-in-main"
    ROWS_BATCHED = "rows-batched"
    PRODUCTION_CHEAPER = "production-cheaper"
    WORKERS_KEPT = "workers-kept"
    WORKERS_ON_CORES = "workers-on-cores"
    WORKERS_ONE_THREAD = "workers-one-thread"
    BATCHES_HANDED_OVER = "batches-handed-over"
    DATASET_LIGHT = "dataset-light"
    SYNCS_GONE = "syncs-gone"
    READS_LATE = "reads-late"
    PICKS_GONE = "picks-gone"
    ASKED_WAITS_GONE = "asked-waits-gone"
    ALLOCATOR_FREE = "allocator-free"
    COPIES_ASYNC = "copies-async"
    COPIES_GONE = "copies-gone"
    COPIES_KEPT = "copies-kept"
    OFFLOADS_GONE = "offloads-gone"
    ONE_LAUNCH = "one-launch"
    DISPATCH_FREE = "dispatch-free"
    COMPILED = "compiled"
    OPTIMIZER_FUSED = "optimizer-fused"
    SEAMS_GONE = "seams-gone"
    NO_COMPILE = "no-compile"
    COMM_OVERLAPPED = "comm-overlapped"
    COMM_ONCE = "comm-once"
    GRADIENTS_OVERLAPPED = "gradients-overlapped"
    GRADIENTS_HALVED = "gradients-halved"
    BUFFERS_KEPT = "buffers-kept"
    HOST_WORK_GONE = "host-work-gone"
    PYTHON_GONE = "python-gone"
    OPERATORS_ON_DEVICE = "operators-on-device"
    EXTRA_GONE = "extra-gone"
    ZERO_GRAD_FREE = "zero-grad-free"
    GC_FREE = "gc-free"
    SEARCHES_GONE = "searches-gone"
    PLANS_GONE = "plans-gone"
    TF32 = "tf32"
    BF16 = "bf16"
    SINGLE_PRECISION = "single-precision"
    DENORMALS_GONE = "denormals-gone"
    FUSED_ATTENTION = "fused-attention"
    MASKS_GONE = "masks-gone"
    CHANNELS_LAST = "channels-last"
    RECOMPUTE_GONE = "recompute-gone"
    LOOP_GONE = "loop-gone"
    CALLS_JOINED = "calls-joined"
    ANOMALIES_IGNORED = "anomalies-ignored"
    LAUNCHES_ASYNC = "launches-async"
    MODES_GONE = "modes-gone"
    DISTRIBUTIONS_UNCHECKED = "distributions-unchecked"
    SPARSE_ROWS = "sparse-rows"
    FORWARD_STORED = "forward-stored"
    FORWARD_ONCE = "forward-once"
    COPIED_ONCE = "copied-once"
    CUDNN_ON = "cudnn-on"
    INDEX_SUMS_GONE = "index-sums-gone"
    FILLS_GONE = "fills-gone"
    KERNELS_SPREAD = "kernels-spread"
    SIZES_ALIGNED = "sizes-aligned"
    DROPPED_GONE = "dropped-gone"
    IDLE_ROWS_GONE = "idle-rows-gone"
    CONVERTED_ONCE = "converted-once"
    PADDING_GONE = "padding-gone"
    CALL_GONE = "call-gone"
    # Of several ranks together.
    NO_LATE_RANK = "no-late-rank"
    RANKS_EVEN = "ranks-even"
    WORK_DEALT = "work-dealt-evenly"
    NETWORK_TWICE = "network-twice-as-fast"
    BUCKET_SIZE = "bucket-size"


GroupRole = Literal[
    "data parallel",
    "sharded data parallel",
    "tensor parallel",
    "pipeline",
    "expert parallel",
    "context parallel",
]
"""What the ranks of a process group divide among them."""

LateCause = Literal[
    "input",
    "host",
    "garbage collection",
    "launch",
    "synchronisation",
    "allocator",
    "compiling",
    "copies",
    "optimizer",
    "compute",
    "slower device",
    "unknown",
    "",
]
"""What a late rank does longer than its peers. compute: it computes more. slower device: it takes longer for
the same kernels. unknown: nothing stands out. Empty: it is not late."""


class PartEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a line of the budget."""

    device: Literal["computes", "moves", "idle", ""]
    """What the device (CPU: the only lane) does meanwhile; empty for unexplained time."""
    in_calls: bool = False
    """The host is inside a call of the device's API, so the lane of calls shows it."""
    meanwhile: str = ""
    """What the host does while an idle device waits for it: the name of that time on a timeline."""
    counters: tuple[str, ...] = ()
    """Counters whose growth explains that the line grew."""
    settings: tuple[str, ...] = ()
    """Parts of names of settings whose change explains that the line changed."""
    late_for: LateCause = ""
    """What a rank is late for if this line is longer than on the others; empty where it follows from
    others."""


_KERNELS = ("kernels", "operators")
_MATH = ("TF32", "mixed precision", "torch.compile", "fused attention", "channels last", "matmul.")
_ALLOCATOR = ("expandable segments", "allocator", "caching malloc")

BUDGET_PARTS: dict[Part, PartEntry] = {
    Part.TENSOR_CORE: PartEntry(device="computes", late_for="compute", counters=_KERNELS, settings=_MATH),
    Part.OTHER_MATH: PartEntry(device="computes", late_for="compute", counters=_KERNELS, settings=_MATH),
    Part.MEMORY_BOUND: PartEntry(device="computes", late_for="compute", counters=_KERNELS, settings=_MATH),
    Part.OPTIMIZER: PartEntry(
        device="computes", late_for="optimizer", settings=("optimizer", "fused optimizer")
    ),
    Part.COMMUNICATION: PartEntry(device="moves", counters=("collectives",)),
    Part.COPIES: PartEntry(
        device="moves",
        late_for="copies",
        meanwhile="host in a blocking copy",
        in_calls=True,
        counters=("copies",),
        settings=("pinned", "loader"),
    ),
    Part.INPUT: PartEntry(
        device="idle", late_for="input", meanwhile="waiting for the next batch", settings=("loader",)
    ),
    Part.SYNC: PartEntry(
        device="idle",
        late_for="synchronisation",
        meanwhile="host blocked in a synchronisation",
        in_calls=True,
        counters=("syncs",),
    ),
    Part.ALLOCATOR: PartEntry(
        device="idle",
        late_for="allocator",
        meanwhile="host in the allocator",
        in_calls=True,
        counters=("segments", "allocations"),
        settings=_ALLOCATOR,
    ),
    Part.COMPILE: PartEntry(
        device="idle",
        late_for="compiling",
        meanwhile="host compiling",
        counters=("recompiles", "graphs"),
        settings=("torch.compile",),
    ),
    Part.GRAPH_BREAK: PartEntry(
        device="idle",
        late_for="launch",
        meanwhile="host between compiled regions",
        counters=("graph_breaks",),
        settings=("torch.compile",),
    ),
    Part.DISPATCH: PartEntry(
        device="idle", late_for="launch", meanwhile="host still dispatching operators", counters=_KERNELS
    ),
    Part.HOST: PartEntry(device="idle", late_for="host", meanwhile="host in Python without operators"),
    Part.DEVICE: PartEntry(device="idle", meanwhile="device's own gap between queued work"),
    Part.UNEXPLAINED: PartEntry(device="", meanwhile="the profiler's own work"),
}
WORK_PARTS = tuple(part for part in Part if BUDGET_PARTS[part].device == "computes")
IDLE_PARTS = tuple(part for part in Part if BUDGET_PARTS[part].device == "idle")


class WhatIfEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a question, independent of its answer in one run."""

    by_fix: bool = False
    """A fix can achieve it, at best. Others are parts of another answer, or of no fix's."""
    same_as: WhatIf | None = None
    """The question that changes the same: what it answers together with others holds here, too."""
    changes: Literal["", "launches", "precision"] = ""
    """Questions that change the same kernels in the same way count twice when asked together."""
    holds_less: bool = False
    """Less is saved for backward: half the bytes, no intermediates, no scores. If the allocator calls
    the driver because memory is short, this may end those calls; a trace cannot tell."""


WHAT_IFS: dict[WhatIf, WhatIfEntry] = dict.fromkeys(WhatIf, WhatIfEntry()) | {
    WhatIf.INPUT_READY: WhatIfEntry(by_fix=True),
    WhatIf.SYNCS_GONE: WhatIfEntry(by_fix=True),
    WhatIf.READS_LATE: WhatIfEntry(same_as=WhatIf.SYNCS_GONE),
    WhatIf.PICKS_GONE: WhatIfEntry(by_fix=True),
    WhatIf.ASKED_WAITS_GONE: WhatIfEntry(by_fix=True),
    WhatIf.ALLOCATOR_FREE: WhatIfEntry(by_fix=True),
    WhatIf.COPIES_ASYNC: WhatIfEntry(by_fix=True),
    WhatIf.COPIES_KEPT: WhatIfEntry(by_fix=True),
    WhatIf.OFFLOADS_GONE: WhatIfEntry(by_fix=True),
    WhatIf.PYTHON_GONE: WhatIfEntry(by_fix=True),
    WhatIf.OPERATORS_ON_DEVICE: WhatIfEntry(by_fix=True),
    WhatIf.SEAMS_GONE: WhatIfEntry(by_fix=True),
    WhatIf.CALL_GONE: WhatIfEntry(by_fix=True),
    WhatIf.ONE_LAUNCH: WhatIfEntry(by_fix=True, changes="launches", holds_less=True),
    WhatIf.COMPILED: WhatIfEntry(by_fix=True, changes="launches", holds_less=True),
    WhatIf.FUSED_ATTENTION: WhatIfEntry(by_fix=True, changes="launches", holds_less=True),
    WhatIf.OPTIMIZER_FUSED: WhatIfEntry(by_fix=True),
    WhatIf.TF32: WhatIfEntry(by_fix=True, changes="precision"),
    WhatIf.BF16: WhatIfEntry(by_fix=True, changes="precision", holds_less=True),
}


QuestionKey = WhatIf | tuple[WhatIf, str]
"""A question, with the call that it is about where it is asked for each of several."""


FIX_QUESTIONS = tuple(question for question in WhatIf if WHAT_IFS[question].by_fix)


def count_twice(one: WhatIf, other: WhatIf) -> bool:
    """Return whether two questions change the same kernels in the same way."""
    return WHAT_IFS[one].changes != "" and WHAT_IFS[one].changes == WHAT_IFS[other].changes


class ClassEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a class."""

    meaning: str
    """The cause in a few words."""
    parts: tuple[Part, ...] = ()
    """The budget lines, and spans of the timeline, that show it."""
    questions: tuple[WhatIf, ...] = ()
    """The questions that price it."""
    reached_by: tuple[WhatIf, ...] = ()
    """Where that price is a bound that no fix comes near: the questions for what its fixes do save."""
    everywhere: bool = False
    """Spread over the whole step, so no single stretch shows it."""
    told_by_baseline: bool = False
    """On a CPU the timed steps alone measure it, without trace or replay."""


CLASSES: dict[BottleneckClass, ClassEntry] = {
    BottleneckClass.INPUT: ClassEntry(
        meaning="the step waits for its next batch",
        parts=(Part.INPUT,),
        questions=(WhatIf.INPUT_READY,),
        told_by_baseline=True,
    ),
    BottleneckClass.ALLOCATOR: ClassEntry(
        meaning="memory is allocated and freed in the step",
        parts=(Part.ALLOCATOR,),
        questions=(WhatIf.ALLOCATOR_FREE,),
    ),
    BottleneckClass.COMPUTE: ClassEntry(meaning="the work itself", parts=WORK_PARTS, everywhere=True),
    BottleneckClass.GRAPH_BREAK: ClassEntry(
        meaning="compiled code is left and entered again",
        parts=(Part.GRAPH_BREAK,),
        questions=(WhatIf.SEAMS_GONE,),
    ),
    BottleneckClass.LAUNCH: ClassEntry(
        meaning="Python and dispatch, operator by operator",
        parts=(Part.DISPATCH,),
        # Not ONE_LAUNCH: a compiled graph also fuses kernels, which is no saving of the host's.
        questions=(WhatIf.DISPATCH_FREE,),
        reached_by=(
            WhatIf.COMPILED,
            WhatIf.ONE_LAUNCH,
            WhatIf.OPTIMIZER_FUSED,
            WhatIf.LOOP_GONE,
            WhatIf.CALLS_JOINED,
        ),
        everywhere=True,
    ),
    BottleneckClass.SYNC: ClassEntry(
        meaning="the host waits for the device", parts=(Part.SYNC,), questions=(WhatIf.SYNCS_GONE,)
    ),
    BottleneckClass.TRANSFER: ClassEntry(
        meaning="the step waits for copies",
        parts=(Part.COPIES,),
        questions=(WhatIf.COPIES_ASYNC, WhatIf.COPIES_GONE, WhatIf.OFFLOADS_GONE),
    ),
    BottleneckClass.COMMUNICATION: ClassEntry(
        meaning="the step waits for other ranks",
        parts=(Part.COMMUNICATION,),
        questions=(WhatIf.COMM_OVERLAPPED,),
    ),
    BottleneckClass.COMPILE: ClassEntry(
        meaning="the step waits for the compiler, or runs what it gave up",
        parts=(Part.COMPILE,),
        questions=(WhatIf.NO_COMPILE,),
        told_by_baseline=True,
    ),
    BottleneckClass.HOST: ClassEntry(
        meaning="other Python work in the step",
        parts=(Part.HOST,),
        questions=(WhatIf.HOST_WORK_GONE, WhatIf.GC_FREE, WhatIf.SEARCHES_GONE, WhatIf.PLANS_GONE),
    ),
    BottleneckClass.UNDETERMINED: ClassEntry(meaning=""),
}


CLASS_QUESTIONS = tuple(question for entry in CLASSES.values() for question in entry.questions)
"""Questions that price the classes; the expensive ones are also asked in pairs."""


def class_of(part: Part) -> BottleneckClass | None:
    """Return the class of a wait or an overhead; None for work and for lines without a class."""
    if part in WORK_PARTS:
        return None
    return next((group for group, entry in CLASSES.items() if part in entry.parts), None)


class CodeEntry(msgspec.Struct, frozen=True):
    """Properties of a finding code."""

    code: str
    name: str
    bottleneck_class: BottleneckClass | None = None
    status: Literal["stable", "preview", "removed"] = "stable"
    since: str = "0.1.0"
    is_work: bool = False
    """The work itself, which is not a cause that can be removed."""
    price_only: bool = False
    """Its title only repeats the class and its price."""
    names_call: bool = False
    """It is about one line of the user's and what that calls: its fix stands before general ones."""
    counts: bool = False
    """Its title tells how often something happens that is suspected easily; told also if it costs nothing."""
    within_others: bool = False
    """Says where the time of other causes is spent, so it has no price in addition to theirs."""
    priced_by: WhatIf | None = None
    """Its price counts only if this question has an answer; otherwise the step does not pay it."""
    kernels_by: WhatIf | None = None
    """The question about kernels whose answer is an estimate, not a bound: it can outweigh a host cause."""
    memory: Literal["", "always", "untimed", "composition"] = ""
    """Shown in a report's section on memory, since it is not about time. untimed: only if no step was
    timed. composition: only if the composition and holders of the peak do not show the same."""


def _records(*entries: CodeEntry) -> dict[str, CodeEntry]:
    return {entry.code: entry for entry in entries}


_C = BottleneckClass

FINDING_CODES: dict[str, CodeEntry] = _records(
    CodeEntry("BN001", "capture-quality-too-low", _C.UNDETERMINED),
    CodeEntry("BN101", "waiting-for-input", _C.INPUT),
    CodeEntry("BN102", "input-production-slow", _C.INPUT),
    CodeEntry("BN103", "input-bursty", _C.INPUT),
    CodeEntry("BN104", "worker-start-up", _C.INPUT),
    CodeEntry("BN105", "dataset-sent-to-workers", _C.INPUT, within_others=True),
    CodeEntry("BN106", "workers-share-few-cores", _C.INPUT, within_others=True),
    CodeEntry("BN107", "workers-start-threads", _C.INPUT, within_others=True),
    CodeEntry("BN108", "hand-over-slow", _C.INPUT, within_others=True),
    CodeEntry("BN201", "allocator-in-critical-path", _C.ALLOCATOR, memory="untimed"),
    CodeEntry("BN202", "empty-cache-in-loop", _C.ALLOCATOR),
    CodeEntry("BN203", "page-faults-each-step", _C.ALLOCATOR),
    CodeEntry("BN204", "gradients-alive-in-forward", memory="always"),
    CodeEntry("BN205", "memory-leak", memory="always"),
    CodeEntry("BN206", "narrow-memory-spike", memory="always"),
    CodeEntry("BN207", "state-dominates-memory", memory="composition"),
    CodeEntry("BN208", "activations-dominate-memory", memory="composition"),
    CodeEntry("BN209", "large-vocabulary-logits", memory="always"),
    CodeEntry("BN210", "batch-headroom", memory="always"),
    CodeEntry("BN211", "recomputation-with-memory-to-spare", _C.COMPUTE),
    CodeEntry("BN212", "fragmented-memory", memory="always"),
    CodeEntry("BN213", "out-of-memory", memory="always"),
    CodeEntry("BN214", "resident-memory-grows", memory="always"),
    CodeEntry("BN301", "device-busy", _C.COMPUTE, is_work=True, price_only=True),
    CodeEntry("BN302", "fp32-matmul-without-tf32", _C.COMPUTE, kernels_by=WhatIf.TF32),
    CodeEntry("BN303", "fp32-without-autocast", _C.COMPUTE, kernels_by=WhatIf.BF16),
    CodeEntry("BN304", "attention-materialises-scores", _C.COMPUTE, kernels_by=WhatIf.FUSED_ATTENTION),
    CodeEntry("BN305", "optimizer-kernels-unfused", _C.COMPUTE),
    CodeEntry("BN306", "memory-bound-kernels", _C.COMPUTE),
    CodeEntry("BN307", "layout-conversions", _C.COMPUTE),
    CodeEntry("BN308", "cudnn-benchmark-off", _C.COMPUTE),
    CodeEntry("BN309", "zero-grad-fills", _C.COMPUTE),
    CodeEntry("BN310", "double-precision", _C.COMPUTE, kernels_by=WhatIf.SINGLE_PRECISION),
    CodeEntry("BN311", "forward-without-gradients", _C.COMPUTE),
    CodeEntry("BN312", "padding", _C.COMPUTE, within_others=True),
    CodeEntry("BN313", "half-precision-on-cpu", _C.COMPUTE, kernels_by=WhatIf.SINGLE_PRECISION),
    CodeEntry("BN314", "mask-without-effect", _C.COMPUTE, kernels_by=WhatIf.MASKS_GONE),
    CodeEntry("BN315", "gradients-nobody-uses", _C.COMPUTE, within_others=True),
    CodeEntry("BN316", "forward-repeated", _C.COMPUTE, names_call=True, within_others=True),
    CodeEntry("BN317", "index-summed-serially", _C.COMPUTE, kernels_by=WhatIf.INDEX_SUMS_GONE),
    CodeEntry("BN318", "new-memory-filled", _C.COMPUTE, kernels_by=WhatIf.FILLS_GONE),
    CodeEntry("BN319", "sizes-unaligned", _C.COMPUTE, kernels_by=WhatIf.SIZES_ALIGNED),
    CodeEntry("BN320", "outputs-nobody-counts", _C.COMPUTE, within_others=True),
    CodeEntry("BN321", "costly-call", _C.COMPUTE, names_call=True, within_others=True),
    CodeEntry("BN322", "narrow-kernels", _C.COMPUTE, names_call=True, within_others=True),
    CodeEntry("BN323", "copied-again", _C.COMPUTE, names_call=True, within_others=True),
    CodeEntry("BN324", "denormal-numbers", _C.COMPUTE),
    CodeEntry("BN325", "convolutions-without-cudnn", _C.COMPUTE, kernels_by=WhatIf.CUDNN_ON),
    CodeEntry("BN326", "converted-again", _C.COMPUTE, within_others=True),
    CodeEntry("BN401", "graph-breaks", _C.GRAPH_BREAK),
    CodeEntry("BN402", "recompiles-in-steady-state", _C.COMPILE, priced_by=WhatIf.NO_COMPILE),
    CodeEntry("BN403", "cudagraphs-skipped", _C.LAUNCH),
    CodeEntry("BN501", "dispatch-decides", _C.LAUNCH, price_only=True),
    CodeEntry("BN502", "optimizer-dispatch", _C.LAUNCH),
    CodeEntry("BN503", "python-loop-in-step", _C.LAUNCH, within_others=True),
    CodeEntry("BN504", "anomaly-detection", _C.LAUNCH, within_others=True),
    CodeEntry("BN505", "distributions-checked", _C.LAUNCH, within_others=True),
    CodeEntry("BN506", "launches-block", _C.LAUNCH, names_call=True, within_others=True),
    CodeEntry("BN507", "model-called-in-parts", _C.LAUNCH, names_call=True, within_others=True),
    CodeEntry("BN508", "calls-go-through-modes", _C.LAUNCH, within_others=True),
    CodeEntry("BN509", "calls-in-rounds", _C.LAUNCH, names_call=True, within_others=True),
    CodeEntry("BN601", "synchronisation-stalls", _C.SYNC, counts=True),
    CodeEntry("BN701", "blocking-copy", _C.TRANSFER),
    CodeEntry("BN702", "exposed-copies", _C.TRANSFER),
    CodeEntry("BN801", "exposed-communication", _C.COMMUNICATION),
    CodeEntry("BN802", "straggler", _C.COMMUNICATION),
    CodeEntry("BN803", "unused-parameters-searched", _C.COMMUNICATION),
    CodeEntry("BN804", "buffers-sent", _C.COMMUNICATION, within_others=True),
    CodeEntry("BN805", "ranks-uneven", _C.COMMUNICATION),
    CodeEntry("BN806", "extra-collectives", _C.COMMUNICATION, names_call=True),
    CodeEntry("BN901", "other-host-work", _C.HOST, price_only=True),
    CodeEntry("BN902", "garbage-collector", _C.HOST),
    CodeEntry("BN903", "thread-settings", _C.HOST),
    CodeEntry("BN904", "extra-work", _C.HOST, within_others=True, names_call=True),
    CodeEntry("BN905", "script-profiles-itself", _C.HOST),
    CodeEntry("BN906", "convolutions-searched", _C.HOST),
    CodeEntry("BN907", "tensors-made-value-by-value", _C.HOST, within_others=True, names_call=True),
    CodeEntry("BN908", "thread-takes-cores", _C.HOST, names_call=True),
    CodeEntry("BN909", "attention-planned-anew", _C.HOST),
    CodeEntry("BN910", "python-without-operators", _C.HOST, within_others=True, names_call=True),
    CodeEntry("BN911", "python-traced", _C.HOST),
)


def entry_of(code: str) -> CodeEntry:
    """Return the properties of a code; only the code itself for one of a newer version."""
    return FINDING_CODES.get(code) or CodeEntry(code, "")
