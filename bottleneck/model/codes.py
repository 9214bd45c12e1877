"""Stable names: bottleneck classes, finding codes, budget parts, what-if questions.

In: nothing. Out: enumerations and the append-only table of finding codes. A code is never reused
and never renumbered; a retired one keeps its row with status "removed".
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

__all__ = ["FINDING_CODES", "BottleneckClass", "CodeEntry", "Part", "WhatIf"]


class BottleneckClass(str, Enum):
    """What a step waits on. The first four are the mission's own words."""

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
    """A line of the step budget; the lines partition the true step time exclusively."""

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
    """A question put to the replay: the step without one cause, or with one thing changed."""

    INPUT_READY = "input-ready"
    INPUT_WORKERS = "input-workers"
    INPUT_IN_MAIN = "input-in-main"
    WORKERS_KEPT = "workers-kept"
    SYNCS_GONE = "syncs-gone"
    ALLOCATOR_FREE = "allocator-free"
    COPIES_ASYNC = "copies-async"
    COPIES_GONE = "copies-gone"
    ONE_LAUNCH = "one-launch"
    DISPATCH_FREE = "dispatch-free"
    COMPILED = "compiled"
    OPTIMIZER_FUSED = "optimizer-fused"
    SEAMS_GONE = "seams-gone"
    NO_COMPILE = "no-compile"
    COMM_OVERLAPPED = "comm-overlapped"
    COMM_ONCE = "comm-once"
    HOST_WORK_GONE = "host-work-gone"
    ZERO_GRAD_FREE = "zero-grad-free"
    GC_FREE = "gc-free"
    TF32 = "tf32"
    BF16 = "bf16"
    SINGLE_PRECISION = "single-precision"
    FUSED_ATTENTION = "fused-attention"
    CHANNELS_LAST = "channels-last"
    RECOMPUTE_GONE = "recompute-gone"
    LOOP_GONE = "loop-gone"
    ANOMALIES_IGNORED = "anomalies-ignored"
    SPARSE_ROWS = "sparse-rows"
    FORWARD_STORED = "forward-stored"


class CodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of finding codes."""

    code: str
    name: str
    bottleneck_class: BottleneckClass | None
    status: Literal["stable", "preview", "removed"] = "stable"
    since: str = "0.1.0"


def _rows(
    *rows: tuple[str, str, BottleneckClass | None],
) -> dict[str, CodeEntry]:
    return {c: CodeEntry(code=c, name=n, bottleneck_class=b) for c, n, b in rows}


_C = BottleneckClass

FINDING_CODES: dict[str, CodeEntry] = _rows(
    ("BN001", "capture-quality-too-low", _C.UNDETERMINED),
    ("BN101", "waiting-for-input", _C.INPUT),
    ("BN102", "input-production-slow", _C.INPUT),
    ("BN103", "input-bursty", _C.INPUT),
    ("BN104", "worker-start-up", _C.INPUT),
    ("BN201", "allocator-in-critical-path", _C.ALLOCATOR),
    ("BN202", "empty-cache-in-loop", _C.ALLOCATOR),
    ("BN203", "page-faults-each-step", _C.ALLOCATOR),
    ("BN204", "gradients-alive-in-forward", None),
    ("BN205", "memory-leak", None),
    ("BN206", "narrow-memory-spike", None),
    ("BN207", "state-dominates-memory", None),
    ("BN208", "activations-dominate-memory", None),
    ("BN209", "large-vocabulary-logits", None),
    ("BN210", "batch-headroom", None),
    ("BN211", "recomputation-with-memory-to-spare", _C.COMPUTE),
    ("BN212", "fragmented-memory", None),
    ("BN213", "out-of-memory", None),
    ("BN214", "resident-memory-grows", None),
    ("BN301", "device-busy", _C.COMPUTE),
    ("BN302", "fp32-matmul-without-tf32", _C.COMPUTE),
    ("BN303", "fp32-without-autocast", _C.COMPUTE),
    ("BN304", "attention-materialises-scores", _C.COMPUTE),
    ("BN305", "optimizer-kernels-unfused", _C.COMPUTE),
    ("BN306", "memory-bound-kernels", _C.COMPUTE),
    ("BN307", "layout-conversions", _C.COMPUTE),
    ("BN308", "cudnn-benchmark-off", _C.COMPUTE),
    ("BN309", "zero-grad-fills", _C.COMPUTE),
    ("BN310", "double-precision", _C.COMPUTE),
    ("BN311", "forward-without-gradients", _C.COMPUTE),
    ("BN401", "graph-breaks", _C.GRAPH_BREAK),
    ("BN402", "recompiles-in-steady-state", _C.COMPILE),
    ("BN403", "cudagraphs-skipped", _C.LAUNCH),
    ("BN501", "dispatch-decides", _C.LAUNCH),
    ("BN502", "optimizer-dispatch", _C.LAUNCH),
    ("BN503", "python-loop-in-step", _C.LAUNCH),
    ("BN601", "synchronisation-stalls", _C.SYNC),
    ("BN701", "blocking-copy", _C.TRANSFER),
    ("BN702", "exposed-copies", _C.TRANSFER),
    ("BN801", "exposed-communication", _C.COMMUNICATION),
    ("BN802", "straggler", _C.COMMUNICATION),
    ("BN901", "other-host-work", _C.HOST),
    ("BN902", "garbage-collector", _C.HOST),
    ("BN903", "thread-settings", _C.HOST),
)
