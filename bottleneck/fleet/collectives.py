"""The collectives of one rank as columns, small enough to be kept for a thousand ranks.

In: a `Trace`, its steps. Out: `Collectives`, and its form in a file.

Of each collective it is noted when the host launched it (ready), when its kernel began and ended, and how
much of that the device did nothing else (exposed). A kernel that waits for other ranks runs all the while, so
its begin is the arrival of the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..timeline.lanes.alone import PLACES, Alone, undisturbed
from ..timeline.steps.traced import Steps
from ..timeline.trace import intervals
from ..timeline.trace.dialect import Kind
from ..timeline.trace.gradients import backward_of, send_calls
from ..timeline.trace.kernels import are_messages, is_collective, is_message
from ..timeline.trace.table import NONE, Message, Trace, TraceMeta
from .columns import Ints, packed, unpacked
from .phases import BACKWARD, phases

__all__ = [
    "BINS",
    "MOST",
    "Collectives",
    "MessageGroup",
    "PackedCollectives",
    "PackedMessage",
    "StatedGroup",
    "collectives_of",
    "message_groups",
    "messages_ms",
    "pack",
    "queues_of",
    "stated_groups",
    "unpack",
]

MOST = 4000
"""Collectives in a summary, of the last whole steps: 20 to 40 bytes each."""
BINS = 8
"""Parts of equal length of a collective, in each of which the exposed time is noted."""
StatedGroup = tuple[str, tuple[int, ...]]
"""Name, ranks."""


class PackedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A `Message`."""

    group: str
    ranks: str
    collective: str
    description: str = ""
    uneven: bool = False


class MessageGroup(msgspec.Struct, frozen=True, array_like=True):
    """A process group in which a rank sends messages to another one or gets them."""

    group: str
    ranks: str
    description: str
    outside: int
    """Messages that the host asked for outside of all backward passes."""
    in_backward: int


class PackedCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """Columns as bytes: differences of neighbours, compressed."""

    count: int = 0
    messages: tuple[PackedMessage, ...] = ()
    kinds: tuple[tuple[int, int], ...] = ()
    """(position in `messages`, bytes), `NONE` bytes where they are not written."""
    columns: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Columns of equal length n, in the order of their starts; times in ns of the trace's clock."""

    kinds: tuple[tuple[Message, int], ...]
    kind: Ints
    """Position in `kinds`."""
    sequence: Ints
    """Number in the process group; NONE where the trace does not tell."""
    step: Ints
    """Position of the step whose host part launched it; NONE outside all steps."""
    backward: Ints
    """By which backward pass DistributedDataParallel sent it as a bucket of gradients; NONE for others."""
    phase: Ints
    """Where in the step the host launched it: see `phases`."""
    ready: Ints
    start: Ints
    end: Ints
    alone: Ints
    """(n, PLACES), ns: see `Alone.places`; 0 without a replay."""
    exposed: Ints
    """(n, BINS), ns in each part of [start, end) in which this one alone kept the device."""

    def __len__(self) -> int:
        return len(self.kind)


def collectives_of(
    trace: Trace,
    steps: Steps,
    alone: Alone | None = None,
    waits: Ints | None = None,
    buckets: Sequence[Sequence[int]] = (),
) -> Collectives:
    """Return the collectives of a trace.

    Without a device, `waits` are the stretches in which the training thread stands waiting. `buckets` are
    `Run.gradient_buckets`, which tell the size of a bucket where the trace does not.
    """
    rows = (
        trace.rows(Kind.KERNEL, named=is_collective)
        if waits is None
        else alone.rows
        if alone is not None
        else np.zeros(0, dtype=np.intp)
    )
    rows = rows[~are_messages(trace, rows)]
    ready = _ready(trace, rows)
    step = np.asarray(steps.which(ready), dtype=np.int64)
    backward = _backward(trace, rows, ready if waits is None else _sent_by_host(trace, rows))
    phase = phases(trace, ready, launched=waits is not None or _launch_known(trace, rows))
    size = _sizes(trace, rows, backward, [sum(each) for each in buckets])
    kinds, kind = _kinds(trace, rows, size, _queues(trace, rows) if waits is not None else None)
    start, end = trace.ts_ns[rows].astype(np.int64), trace.end_of(rows)
    return Collectives(
        kinds=kinds,
        kind=kind,
        sequence=trace.group_sequence[rows].astype(np.int64),
        step=step,
        backward=backward,
        phase=phase,
        ready=ready.astype(np.int64),
        start=start,
        end=end,
        alone=_places(rows, alone),
        exposed=_exposed(trace, start, end, waits),
    )


def messages_ms(trace: Trace, steps: Steps, waits: Ints | None) -> tuple[tuple[float, float, int], ...]:
    """Return per step how long messages to another rank last, what of it may be transfer, and how many.

    In ms as traced, and only what nothing hides; no transfer is longer than the shortest of its kind and
    size. Empty if a step has no message.
    """
    rows = _messages(trace, waits)
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    step = np.asarray(steps.which(_ready(trace, rows)), dtype=np.int64)
    rows, step = rows[step != NONE], step[step != NONE]
    if not len(steps) or not np.bincount(step, minlength=len(steps)).all():
        return ()
    start, end = trace.ts_ns[rows].astype(np.int64), trace.end_of(rows)
    _, kind = np.unique(np.stack([trace.name[rows], trace.bytes[rows]]), axis=1, return_inverse=True)
    least = np.full(len(rows), np.iinfo(np.int64).max)
    np.minimum.at(least, kind, end - start)
    exposed = _exposed(trace, start, end, waits).sum(axis=1)
    transfer = np.minimum(exposed, least[kind])
    lasts, sends = (np.bincount(step, each / 1e6, len(steps)).tolist() for each in (exposed, transfer))
    return tuple(zip(lasts, sends, np.bincount(step, minlength=len(steps)).tolist(), strict=True))


def message_groups(trace: Trace, waits: Ints | None) -> tuple[MessageGroup, ...]:
    """Return the process groups of messages to another rank; one without a name where none is told."""
    rows = _messages(trace, waits)
    phase = phases(trace, _ready(trace, rows), launched=waits is not None or _launch_known(trace, rows))
    found: dict[tuple[str, str, str], list[int]] = {}
    for code, where in zip(trace.message[rows].tolist(), phase.tolist(), strict=True):
        told = trace.messages[code] if code != NONE else Message("", "", "")
        counts = found.setdefault((told.group, told.ranks, told.description), [0, 0])
        counts[where == BACKWARD] += 1
    return tuple(MessageGroup(*group, *counts) for group, counts in found.items())


def _messages(trace: Trace, waits: Ints | None) -> NDArray[np.intp]:
    """Return the rows of messages to another rank."""
    if waits is not None:
        return trace.rows(Kind.ANNOTATION, named=is_message)
    rows = trace.rows(Kind.KERNEL, named=is_message)
    return rows[are_messages(trace, rows)]


def _call(trace: Trace, rows: Ints) -> Ints:
    """Return the rows of the calls that launched them; NONE where the trace does not tell."""
    launched = np.full(len(trace), NONE, dtype=np.int64)
    launched[trace.activities] = trace.launched_by
    return launched[rows]


def _launch_known(trace: Trace, rows: Ints) -> NDArray[np.bool_]:
    return np.asarray(_call(trace, rows) != NONE)


def _ready(trace: Trace, rows: Ints) -> Ints:
    """Return when the host launched them."""
    call = _call(trace, rows)
    return np.where(call != NONE, trace.ts_ns[call], trace.ts_ns[rows])


def _sent_by_host(trace: Trace, rows: Ints) -> Ints:
    """Return when the host asked for collectives that threads of gloo make one after the other; else NONE."""
    sums = np.flatnonzero(trace.named(_adds_up, rows))
    calls = send_calls(trace)
    out = np.full(len(rows), NONE, dtype=np.int64)
    # Asked for in the trace and not yet done at its end are some of them.
    if 0 < len(sums) <= len(calls):
        out[sums[np.argsort(trace.ts_ns[rows[sums]], kind="stable")]] = trace.ts_ns[calls[: len(sums)]]
    return out


def _adds_up(name: str) -> bool:
    return "allreduce" in name.lower().replace("_", "")


def _backward(trace: Trace, rows: Ints, sent_ns: Ints) -> Ints:
    """Return by which backward each collective was sent as a bucket of gradients; NONE for others."""
    return np.where(trace.named(_adds_up, rows), backward_of(trace, sent_ns), NONE)


def _sizes(trace: Trace, rows: Ints, backward: Ints, buckets: Sequence[int]) -> Ints:
    """Return the bytes of each collective; of buckets, where the trace does not tell, those of DDP."""
    out = trace.bytes[rows].astype(np.int64)
    order = np.argsort(trace.ts_ns[rows], kind="stable")
    for each in np.unique(backward[backward != NONE]).tolist():
        sent = order[backward[order] == each]
        if len(sent) == len(buckets) and (out[sent] == NONE).all():
            out[sent] = buckets
    return out


def stated_groups(meta: TraceMeta) -> tuple[StatedGroup, ...]:
    """Return the groups that a rank is in, as they were made, one by one; none if all are of all ranks."""
    told = meta.distributed or {}
    stated = told.get("pg_config")
    found = []
    for each in stated if isinstance(stated, list) else ():
        ranks = each.get("ranks") if isinstance(each, dict) else None
        if isinstance(ranks, list) and len(ranks) > 1 and all(isinstance(rank, int) for rank in ranks):
            found.append((f"{each.get('pg_desc') or ''} {each.get('pg_name') or ''}".strip(), tuple(ranks)))
    return tuple(found) if any(len(ranks) != told.get("world_size") for _, ranks in found) else ()


def queues_of(threads: Ints) -> Ints:
    """Return which collectives are of one group, numbered from 0, by the numbers of their threads.

    gloo serves each group with two threads of its own, which are started one after the other.
    """
    seen = np.unique(threads)
    begins = list(range(0, len(seen), 2))
    if len(seen) % 2:  # one thread had nothing to do: that whose neighbour is far away
        gaps = np.diff(seen)
        alone = min(begins, key=lambda k: gaps[:k:2].sum() + gaps[k + 1 :: 2].sum())
        begins = [*range(0, alone + 1, 2), *range(alone + 1, len(seen), 2)]
    return np.asarray(np.searchsorted(seen[begins], threads, side="right") - 1, dtype=np.int64)


def _queues(trace: Trace, rows: Ints) -> Ints | None:
    """Return which of several groups collectives without a name are of; None where all are of all ranks."""
    threads = [trace.tids[code] for code in trace.tid[rows].tolist()]
    if not stated_groups(trace.meta) or not all(thread.isdigit() for thread in threads):
        return None
    return queues_of(np.asarray(list(map(int, threads)), dtype=np.int64))


def _kinds(
    trace: Trace, rows: Ints, size: Ints, queues: Ints | None
) -> tuple[tuple[tuple[Message, int], ...], Ints]:
    found: dict[tuple[Message, int], int] = {}
    kind = np.empty(len(rows), dtype=np.int64)
    for i, row in enumerate(rows.tolist()):
        code = int(trace.message[row])
        group = str(queues[i]) if queues is not None else ""
        # A name without its template arguments: they hold pointers' types, not what is sent.
        message = (
            trace.messages[code] if code != NONE else Message(group, "", trace.name_of(row).partition("(")[0])
        )
        kind[i] = found.setdefault((message, int(size[i])), len(found))
    return tuple(found), kind


def _places(rows: Ints, alone: Alone | None) -> Ints:
    out = np.zeros((len(rows), PLACES), dtype=np.int64)
    if alone is not None:
        _, mine, theirs = np.intersect1d(rows, alone.rows, return_indices=True)
        out[mine] = np.round(alone.places[theirs])
    return out


def _exposed(trace: Trace, start: Ints, end: Ints, waits: Ints | None) -> Ints:
    """Return the time in which the device does nothing else, each moment counted for one collective.

    Without a device that is the time in which the training thread waits.
    """
    # Of several that run at once the one that began first has the time.
    own_start = np.minimum(np.maximum(start, _ended_before(end)), end)
    edges = start[:, None] + (end - start)[:, None] * np.arange(BINS + 1) // BINS
    edges = np.maximum(edges, own_start[:, None])
    if waits is not None:
        return np.asarray(np.diff(intervals.covered(waits[:, 0], waits[:, 1], edges), axis=1), dtype=np.int64)
    others = trace.activities
    others = others[~trace.named(is_collective, others)]
    begin, length = trace.ts_ns[others].astype(np.int64), trace.dur_ns[others].astype(np.int64)
    # What a kernel takes longer beside a waiting collective is waiting, too.
    length = (length * undisturbed(trace)[others]).astype(np.int64)
    busy = intervals.covered(begin, begin + length, edges)
    return np.asarray(np.diff(edges, axis=1) - np.diff(busy, axis=1), dtype=np.int64)


def _ended_before(end: Ints) -> Ints:
    out = np.full(len(end), np.iinfo(np.int64).min, dtype=np.int64)
    if len(end) > 1:
        out[1:] = np.maximum.accumulate(end)[:-1]
    return out


# -- in a file ---------------------------------------------------------------------------------------------

_COLUMNS = ("kind", "sequence", "step", "backward", "phase", "ready", "start", "end", "alone", "exposed")
_WIDE = {"alone": PLACES, "exposed": BINS}


def pack(found: Collectives) -> PackedCollectives:
    """Return the columns as bytes."""
    # Lengths are smaller than moments, and more alike.
    columns = {name: getattr(found, name) for name in _COLUMNS}
    columns["end"] = found.end - found.start
    columns["ready"] = found.start - found.ready
    columns |= {name: columns[name].T for name in _WIDE}
    messages = list(dict.fromkeys(message for message, _ in found.kinds))
    number = {message: i for i, message in enumerate(messages)}
    return PackedCollectives(
        count=len(found),
        messages=tuple(
            PackedMessage(m.group, m.ranks, m.collective, m.description, m.uneven) for m in messages
        ),
        kinds=tuple((number[message], size) for message, size in found.kinds),
        columns={name: packed(column) for name, column in columns.items()},
    )


def unpack(stored: PackedCollectives) -> Collectives:
    """Return the columns again.

    Raises:
        ValueError: the bytes are not those of `pack`.
    """
    if not 0 <= stored.count <= MOST or (not stored.columns.keys() >= set(_COLUMNS) and stored.count):
        raise ValueError("not the columns of collectives")
    if not stored.count:
        nothing = dict.fromkeys(_COLUMNS, np.zeros(0, dtype=np.int64))
        wide = {name: np.zeros((0, width), dtype=np.int64) for name, width in _WIDE.items()}
        return Collectives(kinds=(), **{**nothing, **wide})
    lengths = {name: stored.count * _WIDE.get(name, 1) for name in _COLUMNS}
    columns: dict[str, Any] = {name: unpacked(stored.columns[name], n) for name, n in lengths.items()}
    if (
        columns["kind"].min() < 0
        or columns["kind"].max() >= len(stored.kinds)
        or columns["step"].min() < NONE
        or not all(0 <= message < len(stored.messages) for message, _ in stored.kinds)
    ):
        raise ValueError("not the columns of collectives")
    for name, width in _WIDE.items():
        # One place after the other: neighbours of one kind are alike.
        columns[name] = columns[name].reshape(width, stored.count).T
    columns["end"] = columns["start"] + columns["end"]
    columns["ready"] = columns["start"] - columns["ready"]
    messages = [Message(m.group, m.ranks, m.collective, m.description, m.uneven) for m in stored.messages]
    return Collectives(kinds=tuple((messages[i], size) for i, size in stored.kinds), **columns)
