"""The timeline of one traced step of a run without a GPU, as recorded.

In: a `Trace`, the flattened `Segments` of its training thread, what each is spent on. Out: `StepTimeline`:
the training thread's time with nothing left out, coloured by budget line, and other threads beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...model.codes import Part
from ..lanes.labels import PART_OF_WORK, Work
from ..trace.dialect import PROFILER_STEP, Kind
from ..trace.table import NONE
from .thinned import PARTS, LaneEvents, Sketch, choose_step, thread_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.view import StepTimeline
    from ..cpu.segments import Segments
    from ..trace.table import Trace

__all__ = ["cpu_view"]

_OTHER_THREADS = 4


def cpu_view(
    trace: Trace,
    segments: Segments,
    work: NDArray[np.int8],
    *,
    numbers: NDArray[np.int64] | None = None,
) -> StepTimeline | None:
    """Draw the median step.

    Args:
        trace: the trace.
        segments: flattened whole steps.
        work: category of each segment (`Division.work`).
        numbers: the profiler's numbers of the steps.
    """
    if segments.steps == 0 or len(segments.start_ns) == 0:
        return None
    chosen = choose_step(segments.step_ns.astype(np.float64))
    mine = np.flatnonzero(segments.step == chosen)
    if not len(mine):
        return None
    low = int(segments.start_ns[mine[0]])
    sketch = Sketch(trace=trace, low_ns=low, high_ns=low + int(segments.step_ns[chosen]))

    notes = sketch.inside(
        trace.rows(Kind.ANNOTATION, named=lambda name: not PROFILER_STEP.match(name), tid=segments.tid)
    )
    sketch.add_rows("phases", "phases of the training thread", notes, deepest=1)

    part = np.asarray([PARTS.index(PART_OF_WORK[w]) for w in Work], dtype=np.int64)[work[mine]]
    row = segments.row[mine]
    python = sketch.code("Python between operators")
    label = np.full(len(row), python)
    label[row != NONE] = trace.name[row[row != NONE]]
    # Fetching a batch is one piece of work, however many operators it takes.
    fetching = part == PARTS.index(Part.INPUT)
    label = np.where(fetching, sketch.code("fetching or making the batch"), label)
    start = segments.start_ns[mine]
    first = np.ones(len(mine), dtype=bool)
    first[1:] = ~(fetching[1:] & fetching[:-1])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(mine) - 1)
    sketch.add(
        LaneEvents(
            kind="work",
            name="training thread, by budget line",
            start=start[first],
            end=(start + segments.dur_ns[mine])[last],
            label=label[first].astype(np.int64),
            part=part[first],
            depth=np.zeros(int(first.sum()), dtype=np.int64),
        )
    )
    ops = sketch.inside(trace.rows(Kind.OP))
    on_main = trace.tid[ops] == segments.tid
    sketch.add_rows("operators", "training thread: operators", ops[on_main])
    _add_other_threads(sketch, ops[~on_main])
    count = segments.steps
    return sketch.timeline(
        step=int(numbers[chosen]) if numbers is not None and chosen < len(numbers) else chosen,
        of_steps=count,
        chosen="the only traced step" if count == 1 else f"the median of {count} traced steps",
    )


def _add_other_threads(sketch: Sketch, rows: NDArray[np.intp]) -> None:
    trace = sketch.trace
    threads, inverse = np.unique(trace.tid[rows], return_inverse=True)
    busy = np.bincount(inverse, weights=trace.dur_ns[rows], minlength=len(threads))
    for k in np.argsort(-busy, kind="stable")[:_OTHER_THREADS].tolist():
        mine = rows[trace.tid[rows] == threads[k]]
        sketch.add_rows("operators", f"{thread_name(trace, int(threads[k]))}: operators", mine, deepest=1)
