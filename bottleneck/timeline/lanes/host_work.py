"""What the host is doing at each moment: a piecewise-constant function of time over categories.

In: a `Trace`, the launching threads. Out: `HostWork`, which splits any host interval
over the categories of labels.py. Device calls themselves (launches, waits, allocator calls) are events of
the program (program.py); here is what lies between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...model.run import CompileFacts
from ..trace import intervals
from ..trace.dialect import COPY_CALL, HOST_CALL_KINDS, WAIT_CALL, Kind
from ..trace.operators import OpClass, classify
from ..trace.table import Trace
from .labels import PYTHON_GAP_NS, Work, label_of, near_the_gap
from .seams import find_seams

_WORKS_ON_DATA = (OpClass.MATH, OpClass.MEMORY)
_SHORTEST_NS = 50_000
"""An operator on the host that takes less is no matter of data: step counts, a scalar. Nor are several, one
after the other, that take less together."""
_READ = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal|nonzero)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """Piecewise-constant categories: `work[k]` holds on [edges[k], edges[k+1])."""

    edges: NDArray[np.int64]
    work: NDArray[np.int8]
    group: NDArray[np.int16]
    """Where `work` is SEAM: position in `seam_owners`; -1 elsewhere."""
    seam_owners: tuple[tuple[int, ...], ...] = ()
    """Sets of graph breaks (positions in compile.json) that seams are owed to."""
    seam_count: tuple[int, ...] = ()
    """Seams of each, over the window."""
    pauses_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Pauses between operators, as long as the limit between dispatch and Python of its own or nearly so."""

    def split(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
        """Split intervals (int64 ns, (n,)) over the categories: float64 ns of shape (n, len(Work)).

        Rows sum to end - start; an end before its start counts as empty.
        """
        out = np.zeros((len(start), len(Work)))
        end = np.maximum(start, end)
        lengths = np.diff(self.edges).astype(np.float64)
        for work in Work:
            held = np.where(self.work == work, lengths, 0.0)
            if not held.any():
                continue
            total = np.concatenate([[0.0], np.cumsum(held)])
            out[:, work] = np.interp(end, self.edges, total) - np.interp(start, self.edges, total)
        # What lies outside the edges has no label at all.
        out[:, Work.DISPATCH] += np.maximum(0.0, (end - start) - out.sum(axis=1))
        return out

    def split_seams(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
        """Split the SEAM part of intervals over `seam_owners`: float64 ns of shape (n, owners)."""
        out = np.zeros((len(start), len(self.seam_owners)))
        lengths = np.diff(self.edges).astype(np.float64)
        for group in range(len(self.seam_owners)):
            held = np.where((self.group == group) & (self.work == Work.SEAM), lengths, 0.0)
            total = np.concatenate([[0.0], np.cumsum(held)])
            out[:, group] = np.interp(end, self.edges, total) - np.interp(start, self.edges, total)
        return out

    def at(self, when: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the category at each moment."""
        return self.work[self._cell(when)]

    def group_at(self, when: NDArray[np.int64]) -> NDArray[np.int16]:
        """Return the seam's group at each moment, -1 outside seams."""
        cell = self._cell(when)
        return np.where(self.work[cell] == Work.SEAM, self.group[cell], -1).astype(np.int16)

    def _cell(self, when: NDArray[np.int64]) -> NDArray[np.intp]:
        return np.clip(intervals.latest(self.edges, when), 0, len(self.work) - 1)


@dataclass(slots=True)
class _Painter:
    """Paints ranges over a time axis; what is painted later lies on top."""

    edges: NDArray[np.int64]
    work: NDArray[np.int8]

    def paint(self, start: int, end: int, work: Work, *, over: Work | None = None) -> None:
        cells = self.work[intervals.within(self.edges, start, end)]
        if over is None:
            cells[:] = work
        else:
            cells[cells == over] = work


def read_host_work(
    trace: Trace,
    *,
    threads: NDArray[np.bool_],
    main: NDArray[np.bool_],
    low_ns: int,
    high_ns: int,
    compile_facts: CompileFacts | None = None,
    evaluates: bool = False,
    own_input: float = 0.0,
) -> HostWork:
    """Read what the launching threads did between their device calls.

    Between `low_ns` and `high_ns`. `threads` marks rows on launching threads (training and autograd), `main`
    those on the training thread, whose labels hold for all. With `evaluates` every step runs a model without
    gradients, which is dispatch as any other forward. `own_input` is the share of the time from an update to
    the next forward, its last part, in which the step makes its batch itself.
    """
    in_window = trace.overlapping(low_ns, high_ns)

    def work_of(name: str) -> Work | None:
        return label_of(name, evaluates=evaluates)

    inside = trace.rows(
        Kind.ANNOTATION, Kind.OP, named=lambda name: work_of(name) is not None, among=main & in_window
    )
    label = trace.by_name(inside, work_of, np.int8)
    others = trace.rows(
        Kind.ANNOTATION,
        Kind.OP,
        named=lambda name: work_of(name) is Work.COMPILE,
        among=threads & ~main & in_window,
    )

    seams = find_seams(trace, threads & in_window, compile_facts)
    owners = tuple(dict.fromkeys(seam.owners for seam in seams))
    stretches = [pair for seam in seams for pair in seam.stretches]
    idle_start, idle_end = _idle(trace, threads & in_window, low_ns, high_ns)
    long = idle_end - idle_start > PYTHON_GAP_NS
    pauses = list(zip(idle_start[long].tolist(), idle_end[long].tolist(), strict=True))
    computing, looping = _computing(trace, threads & in_window)
    compiles = np.concatenate([inside[label == Work.COMPILE], others])
    around = _around(trace, threads & in_window, compiles)
    reads = _reads(trace, threads & in_window)
    overhead = trace.rows(Kind.OVERHEAD, among=in_window)

    points = [np.asarray([low_ns, high_ns], dtype=np.int64)]
    for rows in (inside, others, overhead, reads):
        points += [trace.ts_ns[rows], trace.end_of(rows)]
    aside = _aside(trace, inside, label, high_ns=high_ns)
    pairs_of_all = (stretches, pauses, computing, looping, around, aside)
    points += [np.asarray(pairs, dtype=np.int64).ravel() for pairs in pairs_of_all]
    edges = np.unique(np.concatenate(points))
    cells = max(len(edges) - 1, 1)
    painter = _Painter(edges, np.full(cells, Work.DISPATCH, dtype=np.int8))
    group = np.full(cells, -1, dtype=np.int16)

    def spans(rows: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
        return zip(trace.ts_ns[rows].tolist(), trace.end_of(rows).tolist(), strict=True)

    for (start, end), work in zip(spans(inside), label.tolist(), strict=True):
        painter.paint(start, end, Work(work))
    for seam in seams:
        for start, end in seam.stretches:
            painter.paint(start, end, Work.SEAM, over=Work.DISPATCH)
            group[intervals.within(edges, start, end)] = owners.index(seam.owners)
    unlabelled = ((pauses, Work.HOST), (computing, Work.OPERATORS), (looping, Work.HOST), (aside, Work.ASIDE))
    for pairs, work in unlabelled:
        for start, end in pairs:
            painter.paint(start, end, work, over=Work.DISPATCH)
    _paint_input(painter, trace, inside, label, own_input)
    for start, end in spans(reads):
        painter.paint(start, end, Work.SYNC)
    for start, end in around:
        for lies_under in (Work.DISPATCH, Work.SEAM, Work.HOST):
            painter.paint(start, end, Work.COMPILE, over=lies_under)
    for start, end in spans(others):
        painter.paint(start, end, Work.COMPILE)
    for start, end in spans(overhead):
        painter.paint(start, end, Work.OVERHEAD)
    found = HostWork(
        edges=edges,
        work=painter.work,
        group=group,
        seam_owners=owners,
        seam_count=tuple(sum(seam.owners == each for seam in seams) for each in owners),
    )
    own = np.isin(found.at((idle_start + idle_end) // 2), (Work.DISPATCH, Work.HOST))
    return replace(found, pauses_ns=near_the_gap((idle_end - idle_start)[own]))


def _reads(trace: Trace, rows: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the operators that read a value off the device: what they do goes with the wait.

    `.item()` on a tensor of the host (optimizers keep their step counts there) waits for nothing
    and stays dispatch.
    """
    ops = trace.rows(Kind.OP, named=_READ, among=rows)
    waits = trace.rows(
        *HOST_CALL_KINDS,
        named=lambda name: bool(WAIT_CALL.search(name) or COPY_CALL.search(name)),
        among=rows,
    )
    moments = trace.ts_ns[waits]
    return ops[intervals.before(moments, trace.end_of(ops)) > intervals.before(moments, trace.ts_ns[ops])]


def _aside(
    trace: Trace, rows: NDArray[np.intp], label: NDArray[np.int8], *, high_ns: int
) -> list[tuple[int, int]]:
    """Return the stretches from the end of an update to the next label: they are no part of training.

    Metrics, logging, a moving average of the weights: they launch like any training does, but neither a
    compiled model nor CUDA graphs would make them fewer. Where no forward is labelled, as in a bare trace,
    the next label may stand behind it: then nothing is known to stand aside.
    """
    if not trace.named("forward", rows).any():
        return []
    begins = np.append(trace.ts_ns[rows], high_ns)
    ends = trace.end_of(rows[label == Work.OPTIMIZER])
    following = np.minimum(begins[intervals.before(begins[:-1], ends)], high_ns)
    return [(start, end) for start, end in zip(ends.tolist(), following.tolist(), strict=True) if end > start]


def _paint_input(
    painter: _Painter, trace: Trace, rows: NDArray[np.intp], label: NDArray[np.int8], share: float
) -> None:
    """Count what makes a batch as input: the last part of the host's own work between update and forward."""
    if share <= 0:
        return
    forwards = trace.ts_ns[rows[trace.named(("forward", "evaluation"), rows)]]
    edges, work = painter.edges, painter.work
    ends = np.append(edges[:1], trace.end_of(rows[label == Work.OPTIMIZER]))
    untils = np.append(forwards, edges[-1])[intervals.before(forwards, ends)]
    own = np.isin(work, (Work.HOST, Work.OPERATORS, Work.ASIDE, Work.DISPATCH))
    lengths = np.diff(edges)
    for end, until in zip(ends.tolist(), untils.tolist(), strict=True):
        cells = intervals.within(edges, end, until)
        made = intervals.behind_share(np.where(own[cells], lengths[cells], 0), 1.0 - share)
        for before, then in ((Work.HOST, Work.INPUT), (Work.OPERATORS, Work.BATCH_OPERATORS)):
            work[cells][made & (work[cells] == before)] = then


def _idle(
    trace: Trace, rows: NDArray[np.bool_], low_ns: int, high_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of the stretches without operator and device call."""
    busy = trace.rows(Kind.OP, *HOST_CALL_KINDS, among=rows)
    return intervals.gaps(trace.ts_ns[busy], trace.end_of(busy), low_ns, high_ns)


def _works_on_data(name: str) -> bool:
    """Return whether an operator does; a function of the program's, in Python, has a name without "::"."""
    return "::" in name and classify(name) in _WORKS_ON_DATA


def _computing(trace: Trace, rows: NDArray[np.bool_]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the stretches of operators that work on data and call the device nowhere: on the host, that is.

    First those of one operator: random numbers or a sort of a tensor that lies there. Then those of many
    small ones one after the other, with no more than dispatch between them: a loop that fills a tensor entry
    by entry. On the device each would launch a kernel.
    """
    calls = trace.rows(*HOST_CALL_KINDS, among=rows)
    moments = np.sort(trace.ts_ns[calls])
    ops = trace.rows(Kind.OP, named=_works_on_data, among=rows)
    ops = ops[intervals.before(moments, trace.end_of(ops)) == intervals.before(moments, trace.ts_ns[ops])]
    start, end = intervals.union(trace.ts_ns[ops], trace.end_of(ops))
    alone = end - start > _SHORTEST_NS
    long = list(zip(start[alone].tolist(), end[alone].tolist(), strict=True))
    start, end = start[~alone], end[~alone]
    between = intervals.before(moments, start)
    new = np.ones(len(start), dtype=bool)
    new[1:] = (between[1:] > between[:-1]) | (start[1:] - end[:-1] > PYTHON_GAP_NS)
    begins, ends = start[new], end[np.roll(new, -1)]
    many = np.bincount(new.cumsum() - 1, weights=end - start) > _SHORTEST_NS
    return long, list(zip(begins[many].tolist(), ends[many].tolist(), strict=True))


def _around(trace: Trace, rows: NDArray[np.bool_], compiles: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return the stretches between a compilation and the nearest beginning or end of an operator or call.

    The compiler's ranges do not cover all it does: guards are built, code objects made and wrappers put
    together before the first operator of the new code runs (2 ms per graph on an H200's host).
    """
    if not len(compiles):
        return []
    beside = rows.copy()
    beside[compiles] = False
    others = trace.rows(Kind.OP, *HOST_CALL_KINDS, among=beside)
    points = np.unique(np.concatenate([trace.ts_ns[others], trace.end_of(others)]))
    if not len(points):
        return []
    edges = np.unique(np.concatenate([trace.ts_ns[compiles], trace.end_of(compiles)]))
    low = points[np.maximum(intervals.latest(points, edges), 0)]
    high = points[np.minimum(intervals.before(points, edges), len(points) - 1)]
    return list(zip(np.minimum(low, edges).tolist(), np.maximum(high, edges).tolist(), strict=True))
