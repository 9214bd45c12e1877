"""Who waits for whom: what a host call waited for, and what device work waited for.

In: device calls and device work with their times. Out: wait targets, dependencies between streams,
unexplained delays. A trace seldom says which event a wait belongs to; the times do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..trace.dialect import COPY_CALL, NOT_AWAITED, STREAM_WAIT, TO_DEVICE, TO_HOST, Kind
from ..trace.intervals import before, latest
from ..trace.table import Trace

NO_WAIT = -1
WAIT_ALL = -2
"""Wait targets below zero: nothing, or everything launched so far."""

QUEUE_DEPTH = 1024
"""Launches that the host may run ahead of the device. CUDA documents no number; 1024 is what the
driver's channel holds in practice (the host blocks in its 1025th pending launch)."""


_AT_ONCE_NS, _UNEXPLAINED_NS = 15_000, 20_000
"""Device work starts within the one after what it waited for, and has waited if it starts by the other later
than launch and order explain."""


class EventKind(IntEnum):
    """What an event is."""

    LAUNCH = 0
    SYNC = 1
    """cuda*Synchronize, or a device-to-host copy that the host waits for."""
    COPY = 2
    """A host-to-device copy that the host waits for (pageable memory)."""
    ALLOCATOR = 3
    MARK = 4
    """A step boundary."""
    PHASE = 5
    """All of one phase of the step: the events of a run without a GPU."""


@dataclass(frozen=True, slots=True)
class Activities:
    """Device work in the order of its launches, one entry per (launch, lane)."""

    call_row: NDArray[np.int64]
    row: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    busy: NDArray[np.float64]
    lane: NDArray[np.int64]
    part: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Calls:
    """Events as they stand in the trace; `kind` is corrected as waits are found."""

    row: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int8]


def told_to_wait(
    trace: Trace, a: Activities, lanes: tuple[tuple[int, int], ...], call_end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how much had been launched when the stream of each activity was told to wait for another one.

    `lanes` are the device and stream of each lane, `call_end` when each activity was launched, in order.

    Returns:
        shape (n,): a count of activities, 0 where no cudaStreamWaitEvent lies between an activity and the one
        before it on its stream, or the trace does not say.
    """
    told = np.zeros(len(a.row), dtype=np.int64)
    rows = trace.rows(Kind.SYNC, named=STREAM_WAIT)
    for lane, (device, stream) in enumerate(lanes):
        waits = np.sort(trace.ts_ns[rows[(trace.device[rows] == device) & (trace.stream[rows] == stream)]])
        on = np.flatnonzero(a.lane == lane)
        count = before(waits, trace.ts_ns[a.call_row[on]])
        new = count > np.concatenate([[0], count[:-1]])
        told[on[new]] = before(call_end, waits[count[new] - 1])
    return told


def _last_told(a: Activities, told: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what of the work before a told wait ended last on another lane, and before its stream went on.

    Which event of which stream a wait is for, traces do not say (in torch 2.11 and 2.13 it is -1).

    Returns:
        shape (n,): an activity, or -1.
    """
    out = np.full(len(a.row), -1, dtype=np.int64)
    waits = np.flatnonzero(told)
    ended = np.full(len(waits), np.iinfo(np.int64).min)
    for lane in np.unique(a.lane):
        on = np.flatnonzero(a.lane == lane)
        reach = np.maximum.accumulate(a.end[on])
        at = np.minimum(before(on, told[waits]) - 1, latest(reach, a.start[waits]))
        later = (at >= 0) & (a.lane[waits] != lane) & (reach[at] > ended)
        out[waits[later]], ended[later] = on[at[later]], reach[at[later]]
    return out


def find_dependencies(
    a: Activities,
    call_end: NDArray[np.int64],
    previous_end: NDArray[np.int64],
    latency: float,
    collective: NDArray[np.bool_],
    *,
    told: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Find what an activity waited for on another lane, and what nothing explains.

    The latter is a delay where the launch came last of what is known, and held where other work on the device
    did: it is the device that something is left of, whenever the host launches.

    Where the trace tells that a stream was to wait, that counts, also where the host came so late that
    nothing was left to wait for. Beyond that the times do: an activity that was launched, whose lane was
    free, and that still started only when an activity of another lane ended (within 15 us), waited for it. A
    collective always waits for the stream that it is called on, and starts up to half a millisecond after
    that: it waited for what ended last before it started.
    """
    n = len(a.row)
    depends = _last_told(a, told)
    issued = call_end + latency
    ready = np.maximum(issued, previous_end)
    ready = np.where(depends >= 0, np.maximum(ready, a.end[depends]), ready)
    late = a.start - ready
    explained = np.zeros(n, dtype=bool)
    if len(np.unique(a.lane)) > 1:
        by_end = np.argsort(a.end, kind="stable")
        ends = a.end[by_end]
        for k in np.flatnonzero(late > 5_000):
            j = int(latest(ends, a.start[k]))
            since = ready[k] if collective[k] and late[k] > _UNEXPLAINED_NS else a.start[k] - _AT_ONCE_NS
            while j >= 0 and ends[j] >= since:
                other = int(by_end[j])
                if other < k and a.lane[other] != a.lane[k]:
                    depends[k], explained[k] = other, True
                    break
                j -= 1
    left = np.where(~explained & (late > _UNEXPLAINED_NS), late, 0.0)
    by_launch = ready <= issued
    return depends, np.where(by_launch, left, 0.0), np.where(by_launch, 0.0, left)


def previous_ends(a: Activities) -> NDArray[np.int64]:
    """Return per activity the end of the one before it on its lane (a far past for the first)."""
    out = np.full(len(a.row), np.iinfo(np.int64).min // 4, dtype=np.int64)
    for lane in np.unique(a.lane):
        on = np.flatnonzero(a.lane == lane)
        reach = np.maximum.accumulate(a.end[on])
        out[on[1:]] = reach[:-1]
    return out


def find_waits(
    trace: Trace,
    calls: Calls,
    a: Activities,
    act_event: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find what each call waited for: index of an activity, WAIT_ALL or NO_WAIT, and its end.

    A call counts as waiting only where the times agree: the awaited work ended inside the call, or
    before it (a synchronisation that found the device done still orders the host behind it).
    """
    rows, start, end, kind = calls.row, calls.start, calls.end, calls.kind
    n = len(rows)
    wait = np.full(n, NO_WAIT, dtype=np.int64)
    wait_end = np.zeros(n, dtype=np.int64)
    launched_before = before(act_event, np.arange(n))
    reach = np.maximum.accumulate(a.end) if len(a.end) else a.end
    slack = 2_000
    # Copies that the host waits for: their own activity ended inside the call.
    # Staging pageable memory, the call returns with the last chunk still in flight: such a copy
    # began long before the call returned.
    own = np.flatnonzero((rows >= 0) & trace.named(COPY_CALL, rows))
    first = before(act_event, own)
    pinned = np.zeros(n, dtype=bool)
    for e, k in zip(own.tolist(), first.tolist(), strict=True):
        if k >= len(a.row) or act_event[k] != e:
            continue
        copy = trace.name_of(a.row[k])
        if "Async" in trace.name_of(rows[e]) and NOT_AWAITED.search(copy):
            pinned[e] = a.end[k] <= end[e] + slack and bool(TO_DEVICE.search(copy))
            continue
        staged = end[e] - a.start[k] > max(20_000, 0.5 * (a.end[k] - a.start[k]))
        if a.end[k] <= end[e] + slack or staged:
            wait[e], wait_end[e] = k, a.end[k]
            kind[e] = EventKind.SYNC if TO_HOST.search(copy) else EventKind.COPY
    for e in np.flatnonzero((kind == EventKind.SYNC) | (kind == EventKind.ALLOCATOR)).tolist():
        if wait[e] != NO_WAIT:
            continue
        name = trace.name_of(rows[e])
        behind_copy = e > 0 and (kind[e - 1] == EventKind.COPY or (pinned[e - 1] and "Stream" in name))
        if behind_copy and kind[e] == EventKind.SYNC:
            # Tensor.to() copies, then synchronises its stream: one blocking copy.
            kind[e] = EventKind.COPY
        k = int(launched_before[e])
        if k == 0:
            continue
        if kind[e] == EventKind.ALLOCATOR:
            # cudaFree and cudaMalloc may drain the device first; only the times tell.
            drained = int(reach[k - 1])
            if start[e] + slack < drained <= end[e] + slack:
                wait[e], wait_end[e] = WAIT_ALL, drained
        elif "Device" in name or "Ctx" in name:
            wait[e], wait_end[e] = WAIT_ALL, int(reach[k - 1])
        else:
            # A stream or event: the latest activity whose end explains the return, of those before.
            ended = np.flatnonzero(a.end[max(0, k - 4096) : k] <= end[e] + slack) + max(0, k - 4096)
            if len(ended):
                target = int(ended[np.argmax(a.end[ended])])
                wait[e], wait_end[e] = target, int(a.end[target])
    return wait, wait_end


def limit_full_queue(
    own_call: NDArray[np.float64],
    kind: NDArray[np.int8],
    start: NDArray[np.int64],
    a: Activities,
    act_event: NDArray[np.int64],
) -> None:
    """Take the waiting for room in a full launch queue out of the launch calls' own work.

    Where the device begins what is launched here late, as much as it does in that time was launched before.
    """
    launches = np.flatnonzero(kind == EventKind.LAUNCH)
    if not len(launches):
        return
    ends = np.sort(a.end)
    begins, each = a.start.min(), (ends[-1] - a.start.min()) / len(ends)
    is_late = begins - start[launches[0]] - own_call[launches[0]] > _UNEXPLAINED_NS
    earlier = is_late * np.maximum(begins - start[launches], 0) / max(each, 1.0)
    waiting = before(act_event, launches) - before(ends, start[launches]) + earlier
    full = waiting >= QUEUE_DEPTH * 0.9
    free = launches if full.all() else launches[~full]
    typical = float(np.percentile(own_call[free], 10) if full.all() else np.median(own_call[free]))
    own_call[launches[full]] = np.minimum(own_call[launches[full]], typical)
