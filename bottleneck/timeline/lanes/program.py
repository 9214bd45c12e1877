"""The program that the replay runs: host events in launch order and the device work they launch.

In: a `Trace`, its steps. Out: `Program`, plain arrays. One lane for the host: the launching
threads merged in the order of their calls (the autograd thread launches while the training thread
waits in backward). One lane per stream.

An event is a device call that matters to the order of things: a launch, a wait, an allocator call,
or a step boundary. All other host time is work that belongs to the event it precedes, split over
the categories of labels.py. A call that waits is split at the moment when what it waited for
ended: what comes before is not work, what comes after is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.run import CompileFacts
from ..trace.dialect import ALLOCATOR_CALL, HOST_CALL_KINDS, WAIT_CALL, Kind, is_launch
from ..trace.intervals import before, latest
from ..trace.kernels import classify, is_broadcast
from ..trace.table import NONE, Trace
from .host_work import HostWork, read_host_work
from .labels import WORK_OF_WAIT, Work
from .waits import (
    NO_WAIT,
    QUEUE_DEPTH,
    WAIT_ALL,
    Activities,
    Calls,
    EventKind,
    find_dependencies,
    find_waits,
    limit_full_queue,
    previous_ends,
    told_to_wait,
)

__all__ = [
    "NO_WAIT",
    "PARTS",
    "QUEUE_DEPTH",
    "WAIT_ALL",
    "EventKind",
    "Program",
    "build_program",
    "first_counted",
    "host_program",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Events (n), activities (m) and step marks; times in float64 ns.

    Host, per event: `work` of shape (n, len(Work)) before the event's launch or wait;
    `after` (n,) after its wait, in category `after_work`. Device, per activity: `lane`, `duration`,
    `delay` (unexplained, behind its launch), `held` (unexplained, behind other work of the device),
    `depends` (activity on another lane, or -1).
    """

    kind: NDArray[np.int8]
    work: NDArray[np.float64]
    seam_work: NDArray[np.float64]
    """The SEAM column of `work` by owners, (n, len(host_work.seam_owners))."""
    after: NDArray[np.float64]
    after_work: NDArray[np.int8]
    wait: NDArray[np.int64]
    row: NDArray[np.int64]
    """Trace row of the event's call; -1 for marks."""
    first_activity: NDArray[np.int64]
    """(n + 1,): activities of event e are first_activity[e] to first_activity[e + 1]."""

    event: NDArray[np.int64]
    """Per activity: the event that launched it."""
    lane: NDArray[np.int64]
    duration: NDArray[np.float64]
    delay: NDArray[np.float64]
    held: NDArray[np.float64]
    depends: NDArray[np.int64]
    activity_row: NDArray[np.int64]
    """Trace row of the activity (the first one, for a graph launch)."""
    part: NDArray[np.int8]
    """Index into `parts`."""
    observed_start: NDArray[np.float64]
    observed_end: NDArray[np.float64]
    launch_work: NDArray[np.int8]
    """Category of the host at the launch: distinguishes optimizer kernels from the others."""
    broadcast: NDArray[np.bool_]
    """It sends what one rank has to all others, (m,)."""

    marks: NDArray[np.int64]
    """Event index of each step boundary, steps + 1 of them."""
    mark_ns: NDArray[np.float64]
    latency: float
    """Launch call's end to kernel start when the stream is idle, ns."""
    spacing: float
    """End of one kernel to start of the next when both are queued, ns."""
    lanes: tuple[tuple[int, int], ...]
    """(device, stream) of each lane."""
    parts: tuple[Part, ...]
    host_work: HostWork
    recorded: NDArray[np.int64]
    """Operators and calls that the profiler recorded, by category of host work, (len(Work),): each of
    them carries some of its cost."""
    origin_ns: int
    launch_calls: int
    missing_activities: int
    """Launch calls without any device activity in the trace."""
    orphan_activities: int
    """Device activities without their launch call."""
    phases: tuple[str, ...] = ()
    """Without a GPU: the phase of each event; empty for the marks and for what lies outside every phase."""

    @property
    def shortest_ns(self) -> float:
        """How long the shortest activities take, ns: none takes less, whatever it computes. 0 without any."""
        return float(np.percentile(self.duration, 1)) if len(self.duration) else 0.0

    @property
    def steps(self) -> int:
        """Whole steps in the window."""
        return len(self.marks) - 1

    def per_step_ns(self, work: NDArray[np.float64]) -> float:
        """Return the mean per step of host work, `work` of shape (n, ...), over the steps that count, ns."""
        first = first_counted(self.steps)
        inside = work[self.marks[first] + 1 : self.marks[-1] + 1]
        return float(inside.sum()) / max(1, self.steps - first)

    @property
    def step(self) -> NDArray[np.intp]:
        """The step that launched each activity, (m,)."""
        return latest(self.marks, self.event)


def first_counted(steps: int) -> int:
    """Return the first of so many steps that a mean is made of: of several, the second.

    The host runs ahead of the device, so the window's first boundary is a host time that no device work
    agrees with; and while the profiler started, workers have made batches for the first step.
    """
    return 1 if steps > 1 else 0


PARTS: tuple[Part, ...] = (
    Part.TENSOR_CORE,
    Part.OTHER_MATH,
    Part.MEMORY_BOUND,
    Part.OPTIMIZER,
    Part.COMMUNICATION,
    Part.COPIES,
)
"""Order of `Program.part`; also the order of precedence when kernels overlap."""


def _part_of(kernel: str) -> int:
    part = classify(kernel).part
    return PARTS.index(part if part in PARTS else Part.OTHER_MATH)


_BEGINS_GRAPH = re.compile("StreamBeginCapture")
_ENDS_GRAPH = re.compile("StreamEndCapture")


def _launching_threads(trace: Trace) -> NDArray[np.int64]:
    """Return the thread codes that launch at least 1 % of the device work."""
    least = max(1.0, 0.01 * len(trace.launches))
    busy = trace.busiest_threads(trace.launches)
    return np.asarray([tid for (_, tid), count in busy if count >= least], dtype=np.int64)


def _run_at_once(trace: Trace, calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return those of the calls that a thread does not make while it records a CUDA graph."""
    begun = trace.rows(*HOST_CALL_KINDS, named=_BEGINS_GRAPH)
    ended = trace.rows(*HOST_CALL_KINDS, named=_ENDS_GRAPH)
    into_graph, at = np.zeros(len(calls), dtype=bool), trace.ts_ns[calls]
    for tid in np.unique(trace.tid[begun]):
        opened, closed = (np.sort(trace.ts_ns[rows[trace.tid[rows] == tid]]) for rows in (begun, ended))
        into_graph |= (trace.tid[calls] == tid) & (before(opened, at) > before(closed, at))
    return calls[~into_graph]


def _gather(
    trace: Trace, device: NDArray[np.int64], parent: NDArray[np.int64]
) -> tuple[Activities, tuple[tuple[int, int], ...]]:
    lane_key = trace.device[device].astype(np.int64) * (1 << 40) + trace.stream[device]
    lanes, lane = np.unique(lane_key, return_inverse=True)
    part = trace.by_name(device, _part_of, np.int8)
    # A graph launch starts many kernels; on one lane they are one piece of work.
    call_end = trace.end_of(parent)
    order = np.lexsort((trace.ts_ns[device], lane, call_end, parent))
    order = order[np.argsort(call_end[order], kind="stable")]
    d, p, ln = device[order], parent[order], lane[order]
    head = np.ones(len(d), dtype=bool)
    head[1:] = (p[1:] != p[:-1]) | (ln[1:] != ln[:-1])
    first = np.flatnonzero(head)
    end_ns = trace.end_of(d)
    group_end = np.maximum.reduceat(end_ns, first) if len(d) else end_ns
    activities = Activities(
        call_row=p[first],
        row=d[first],
        start=trace.ts_ns[d][first],
        end=group_end,
        busy=(group_end - trace.ts_ns[d][first]).astype(np.float64),
        lane=ln[first].astype(np.int64),
        part=part[order][first],
    )
    return activities, tuple((int(k >> 40), int(k & ((1 << 40) - 1))) for k in lanes)


def _events(
    trace: Trace, calls: NDArray[np.intp], activities: Activities, step_edges_ns: NDArray[np.int64]
) -> Calls:
    """Return the calls that matter in order of their ends, and the step boundaries as calls of no length."""
    launches = np.zeros(len(trace), dtype=bool)
    launches[activities.call_row] = True
    is_sync, is_alloc = trace.named(WAIT_CALL, calls), trace.named(ALLOCATOR_CALL, calls)
    calls = calls[launches[calls] | is_sync | is_alloc]
    rows = np.concatenate([calls, np.full(len(step_edges_ns), -1, dtype=np.int64)])
    start = np.concatenate([trace.ts_ns[calls], step_edges_ns])
    end = np.concatenate([trace.end_of(calls), step_edges_ns])
    order = np.lexsort((rows >= 0, end))
    rows, start, end = rows[order], start[order], end[order]
    is_mark = rows < 0
    kind = np.full(len(rows), EventKind.LAUNCH, dtype=np.int8)
    kind[is_mark] = EventKind.MARK
    kind[~is_mark & trace.named(WAIT_CALL, rows)] = EventKind.SYNC
    kind[~is_mark & trace.named(ALLOCATOR_CALL, rows) & ~launches[rows]] = EventKind.ALLOCATOR
    return Calls(rows, start, end, kind)


def _launch_timing(trace: Trace, a: Activities, previous_end: NDArray[np.int64]) -> tuple[float, float]:
    """Return launch latency and spacing, ns, from the activities that show them."""
    call_end = trace.end_of(a.call_row)
    idle = previous_end < trace.ts_ns[a.call_row]
    offsets = (a.start - call_end)[idle]
    latency = float(np.clip(np.median(offsets), 0.0, 20_000.0)) if len(offsets) >= 8 else 2_500.0
    queued = (call_end + 20_000 < previous_end) & (a.start - previous_end < 10_000)
    spacing = float(np.median((a.start - previous_end)[queued])) if queued.sum() >= 8 else 1_000.0
    return latency, max(spacing, 0.0)


def _own_work(
    host_work: HostWork, events: Calls, since_ns: NDArray[np.int64], own_call: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]:
    """Return each event's own work by category and by seam, and the category of its call."""
    start, kind = events.start, events.kind
    work = host_work.split(since_ns, np.maximum(start, since_ns))
    call_work = host_work.at(start)
    for event, category in WORK_OF_WAIT.items():
        call_work[kind == event] = category
    call_work[call_work == Work.OVERHEAD] = Work.DISPATCH
    work[np.arange(len(start)), call_work] += own_call
    seam_work = host_work.split_seams(since_ns, np.maximum(start, since_ns))
    in_seam = np.where(call_work == Work.SEAM, host_work.group_at(start), -1)
    at_seam = np.flatnonzero(in_seam >= 0)
    seam_work[at_seam, in_seam[at_seam]] += own_call[at_seam]
    # Between two allocator calls in a row there is nothing but the allocator (empty_cache, retry).
    pair = np.zeros(len(start), dtype=bool)
    pair[1:] = (kind[1:] == EventKind.ALLOCATOR) & (kind[:-1] == EventKind.ALLOCATOR)
    between = (Work.DISPATCH, Work.HOST, Work.ASIDE)
    moved = work[pair][:, between].sum(axis=1)
    for each in between:
        work[pair, each] = 0.0
    work[pair, Work.ALLOCATOR] += moved
    return work, seam_work, call_work


def host_program(
    phases: tuple[str, ...],
    work_ns: NDArray[np.float64],
    *,
    seam_work: NDArray[np.float64],
    host_work: HostWork,
) -> Program:
    """Build the program of one step without a device: between two marks an event per phase.

    `work_ns` (phases, len(Work)) is what each phase is spent on, `seam_work` (phases,
    len(host_work.seam_owners)) its SEAM column by owners.
    """
    n = len(phases) + 2
    kind = np.full(n, EventKind.PHASE, dtype=np.int8)
    kind[[0, -1]] = EventKind.MARK
    none = np.zeros(0, dtype=np.int64)
    no_time = np.zeros(0)
    marks = np.asarray([0, n - 1])
    return Program(
        kind=kind,
        work=np.pad(work_ns, ((1, 1), (0, 0))),
        seam_work=np.pad(seam_work, ((1, 1), (0, 0))),
        after=np.zeros(n),
        after_work=np.zeros(n, dtype=np.int8),
        wait=np.full(n, NO_WAIT, dtype=np.int64),
        row=np.full(n, -1, dtype=np.int64),
        first_activity=np.zeros(n + 1, dtype=np.int64),
        event=none,
        lane=none,
        duration=no_time,
        delay=no_time,
        held=no_time,
        depends=none,
        activity_row=none,
        part=none.astype(np.int8),
        observed_start=no_time,
        observed_end=no_time,
        launch_work=none.astype(np.int8),
        broadcast=none.astype(bool),
        marks=marks,
        mark_ns=np.asarray([0.0, float(work_ns.sum())]),
        latency=0.0,
        spacing=0.0,
        lanes=(),
        parts=PARTS,
        host_work=host_work,
        recorded=np.zeros(len(Work), dtype=np.int64),
        origin_ns=0,
        launch_calls=0,
        missing_activities=0,
        orphan_activities=0,
        phases=("", *phases, ""),
    )


def build_program(
    trace: Trace,
    step_edges_ns: NDArray[np.int64],
    *,
    main_tid: int | None = None,
    compile_facts: CompileFacts | None = None,
    evaluates: bool = False,
    own_input: float = 0.0,
) -> Program | None:
    """Build the program of the whole steps between the first and the last boundary.

    `step_edges_ns` (int64, steps + 1) bound consecutive steps on the host; without `main_tid` the thread with
    the most annotations trains. None when the window holds no launched device work.
    """
    low, high = int(step_edges_ns[0]), int(step_edges_ns[-1])
    parent = trace.launched_by
    if not len(trace.launches):
        return None
    launching = _launching_threads(trace)

    in_window = (trace.ts_ns >= low) & (trace.ts_ns < high)
    call_mask = np.zeros(len(trace), dtype=bool)
    call_mask[trace.calls] = True
    call_mask &= in_window & np.isin(trace.tid, launching)
    kept = (parent >= 0) & call_mask[np.maximum(parent, 0)]
    device, parent_of = trace.activities[kept], parent[kept]
    if not len(device):
        return None
    # Capture quality: how much of what was launched or ran has no counterpart.
    launch_calls = trace.rows(*HOST_CALL_KINDS, named=is_launch, among=in_window)
    missing = len(np.setdiff1d(_run_at_once(trace, launch_calls), trace.launches, assume_unique=True))
    orphans = int(((parent == NONE) & in_window[trace.activities]).sum())

    activities, lanes = _gather(trace, device, parent_of)

    threads = np.isin(trace.tid, launching)
    if main_tid is None:
        notes = trace.rows(Kind.ANNOTATION, among=in_window)
        pool = trace.tid[notes if len(notes) else trace.launches]
        main_tid = int(np.bincount(pool).argmax())
    main = trace.tid == main_tid
    host_work = read_host_work(
        trace,
        threads=threads | main,
        main=main,
        low_ns=low,
        high_ns=high,
        compile_facts=compile_facts,
        evaluates=evaluates,
        own_input=own_input,
    )

    events = _events(trace, np.flatnonzero(call_mask), activities, step_edges_ns)
    rows, start, end, kind = events.row, events.start, events.end, events.kind
    is_mark = rows < 0

    # Activities in event order.
    position = np.full(len(trace), -1, dtype=np.int32)
    position[rows[~is_mark]] = np.flatnonzero(~is_mark)
    act_order = np.argsort(position[activities.call_row], kind="stable")
    a = Activities(*(getattr(activities, f)[act_order] for f in Activities.__slots__))
    act_event = position[a.call_row].astype(np.int64)
    call_end_a = trace.end_of(a.call_row)
    previous_end = previous_ends(a)

    latency, spacing = _launch_timing(trace, a, previous_end)

    wait, wait_end = find_waits(trace, events, a, act_event)
    # A call that waits for its own copy issues it when it begins, any other when it returns.
    issue = np.where(wait[act_event] != NO_WAIT, start[act_event], call_end_a)
    depends, delay, held = find_dependencies(
        a,
        issue,
        previous_end,
        latency,
        a.part == PARTS.index(Part.COMMUNICATION),
        told=told_to_wait(trace, a, lanes, call_end_a),
    )
    span = end - start
    before_call_end = np.concatenate([[low], np.maximum.accumulate(end)[:-1]])
    waited = wait != NO_WAIT
    # Time of a waiting call before the wait is over is no work; what follows is.
    after = np.where(waited, np.clip(end - np.maximum(wait_end, start), 0, span), 0).astype(np.float64)

    # The stretch since the last event is own work, and so is the call itself where it does not wait.
    own_call = np.where(waited, 0, np.maximum(end - np.maximum(start, before_call_end), 0)).astype(np.float64)
    limit_full_queue(own_call, kind, start, a, act_event)
    work, seam_work, call_work = _own_work(host_work, events, before_call_end, own_call)

    part = a.part.copy()
    launch_work = host_work.at(trace.ts_ns[a.call_row])
    in_optimizer = (launch_work == Work.OPTIMIZER) & (part <= PARTS.index(Part.MEMORY_BOUND))
    part[in_optimizer] = PARTS.index(Part.OPTIMIZER)

    return Program(
        kind=kind,
        work=work,
        seam_work=seam_work,
        after=after,
        after_work=call_work,
        wait=wait,
        row=rows,
        first_activity=before(act_event, np.arange(len(rows) + 1)),
        event=act_event,
        lane=a.lane,
        duration=a.busy,
        delay=delay,
        held=held,
        depends=depends,
        activity_row=a.row,
        part=part,
        observed_start=a.start.astype(np.float64),
        observed_end=a.end.astype(np.float64),
        launch_work=launch_work,
        broadcast=trace.named(is_broadcast, a.row),
        marks=np.flatnonzero(is_mark),
        mark_ns=step_edges_ns.astype(np.float64),
        latency=latency,
        spacing=spacing,
        lanes=lanes,
        parts=PARTS,
        host_work=host_work,
        recorded=np.bincount(
            host_work.at(trace.ts_ns[trace.rows(Kind.OP, *HOST_CALL_KINDS, among=in_window & threads)]),
            minlength=len(Work),
        ),
        origin_ns=low,
        launch_calls=len(launch_calls),
        missing_activities=missing,
        orphan_activities=orphans,
    )
