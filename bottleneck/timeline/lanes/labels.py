"""What host time is spent on: one list of categories and one table of labels, with a GPU and without.

In: names of ranges. Out: `Work`, the category of the time inside a range (`label_of`), the phase that a
range opens (`phase_of`), and the budget line of each category (`PART_OF_WORK`).

Categories come from labels, never from durations: `data` and `enumerate(DataLoader)` are input,
`optimizer` and `Optimizer.step#` the optimizer, `(dynamo_timed)` ranges compilation, and so on. The
one exception is unlabelled Python: a stretch with neither an operator nor a device call for longer
than `PYTHON_GAP_NS` is host work of its own (logging, tokenising, sleeping), since a dispatching
program does not pause that long between two operators. An operator that runs as long without calling
another or the device computes on the host, and is host work as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...stats import CLOSE
from ..trace.operators import COMPILING
from .waits import EventKind

PYTHON_GAP_NS = 400_000
"""Longest pause between operators that still counts as dispatching. An eager operator costs 5 to
60 us of host time (up to 2x more under the profiler); nn.Module glue adds some tens of us."""


def near_the_gap(pauses_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pauses that another choice of `PYTHON_GAP_NS` would count differently."""
    return pauses_ns[np.abs(pauses_ns / PYTHON_GAP_NS - 1.0) <= CLOSE]


class Work(IntEnum):
    """Categories of host time."""

    DISPATCH = 0
    OPTIMIZER = 1
    """Dispatch inside the optimizer label."""
    ZERO_GRAD = 2
    INPUT = 3
    SYNC = 4
    ALLOCATOR = 5
    """Allocator calls; without a GPU, page faults."""
    COMPILE = 6
    SEAM = 7
    """Between and around compiled regions of one forward or backward."""
    HOST = 8
    COPY = 9
    OVERHEAD = 10
    """The profiler's own buffer work, which the true step does not have."""
    ASIDE = 11
    """Dispatch behind the step's last update: metrics, logging, averaged weights."""
    # Without a GPU the host computes, too.
    MATH = 12
    MEMORY = 13
    """Element-wise work, copies, reductions, generated kernels."""
    UPDATE = 14
    """What the optimizer's operators compute."""
    COMMUNICATION = 15
    COLLECTOR = 16
    """Python's garbage collector, as far as it was measured."""
    UNKNOWN = 17
    """Time of the step that no trace divides."""
    OPERATORS = 18
    """On a run with a GPU: operators that compute on the host."""
    BATCH_OPERATORS = 19
    """Those of them that make the batch."""


PART_OF_WORK: dict[Work, Part] = {
    Work.DISPATCH: Part.DISPATCH,
    Work.OPTIMIZER: Part.DISPATCH,
    Work.ZERO_GRAD: Part.DISPATCH,
    Work.INPUT: Part.INPUT,
    Work.SYNC: Part.SYNC,
    Work.ALLOCATOR: Part.ALLOCATOR,
    Work.COMPILE: Part.COMPILE,
    Work.SEAM: Part.GRAPH_BREAK,
    Work.HOST: Part.HOST,
    Work.ASIDE: Part.HOST,
    Work.COPY: Part.COPIES,
    Work.OVERHEAD: Part.UNEXPLAINED,
    Work.MATH: Part.OTHER_MATH,
    Work.MEMORY: Part.MEMORY_BOUND,
    Work.UPDATE: Part.OPTIMIZER,
    Work.COMMUNICATION: Part.COMMUNICATION,
    Work.COLLECTOR: Part.HOST,
    Work.UNKNOWN: Part.UNEXPLAINED,
    Work.OPERATORS: Part.HOST,
    Work.BATCH_OPERATORS: Part.INPUT,
}
WORK_OF_WAIT = {
    EventKind.SYNC: Work.SYNC,
    EventKind.COPY: Work.COPY,
    EventKind.ALLOCATOR: Work.ALLOCATOR,
}
"""Category of the time in calls that wait, copy or allocate, whatever the labels around them."""

_LABELS: tuple[tuple[Work, re.Pattern[str]], ...] = (
    (Work.COMPILE, COMPILING),
    (
        Work.INPUT,
        re.compile(
            r"^data$|^enumerate\(DataLoader\)|DataLoader.*__next__|^\[pl\]\[.*(next|fetch)", re.IGNORECASE
        ),
    ),
    (
        Work.OPTIMIZER,
        re.compile(r"^optimizer$|^Optimizer\.step#|^\[pl\].*optimizer_step", re.IGNORECASE),
    ),
    (Work.ZERO_GRAD, re.compile(r"^zero_grad$|^Optimizer\.zero_grad#|zero_grad$", re.IGNORECASE)),
    (
        Work.DISPATCH,
        re.compile(
            r"^(forward|backward|h2d|closure)$|DistributedDataParallel\.forward|FSDP::|FullyShardedDataParallel\."
        ),
    ),
    (
        Work.HOST,
        re.compile(r"^evaluation$|checkpoint|validat|^logging$|^gc$|save_", re.IGNORECASE),
    ),
)
"""The first that fits counts."""
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "zero_grad", "evaluation")
"""Labels that the harness writes; user labels are phases too when the baseline window has them."""
OUTSIDE = "closure"
"""The range of training code that an optimizer's step calls: outside of all phases."""
PHASE_OF_WORK = {Work.INPUT: "data", Work.OPTIMIZER: "optimizer", Work.ZERO_GRAD: "zero_grad"}


def label_of(name: str, *, evaluates: bool = False) -> Work | None:
    """Return the category that a range of that name gives to the time inside it, if any.

    With `evaluates` every step runs a model without gradients, which is dispatch as any other forward.
    """
    work = next((work for work, pattern in _LABELS if pattern.search(name)), None)
    return Work.DISPATCH if evaluates and name == "evaluation" else work


def phase_of(name: str, *, labels: Collection[str]) -> str | None:
    """Return the phase that a range opens, empty for none of all, or None when it opens none.

    Torch's own labels ("Optimizer.step#SGD.step") name the phases that the harness's labels do: they nest
    inside those, and are all that a bare trace has.
    """
    if name in labels:
        return name
    if name == OUTSIDE:
        return ""
    work = label_of(name)
    return PHASE_OF_WORK.get(work) if work is not None else None
