"""A profiler trace as columns, and the questions that everybody asks of them.

In: columns that ingest read. Out: `Trace`, one process (rank) of one capture. Only complete events
("ph": "X") are rows; names of processes and threads, device properties and the like are in `TraceMeta`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import intervals
from .dialect import DEVICE_KINDS, HOST_CALL_KINDS, MISNAMED, Kind, normalise

NONE = -1
"""Marks "this event has no such field" in the integer columns."""

FULL = 1000
"""What the column `filled` counts in: a warp for each scheduler of the device."""
SCHEDULERS = 4
"""Of a multiprocessor; each issues from warps of its own (CUDA C++ Programming Guide, "Compute Capabilities":
5.0 and later). A compute unit of AMD has as many."""

Names = str | Collection[str] | re.Pattern[str] | Callable[[str], bool]
"""Which names are meant: this one, one of these, those that a pattern is found in, those that pass a test."""
Ints = NDArray[np.signedinteger[Any]]
"""A column in integers no larger than its values need: widen it before arithmetic beyond sums."""
Thread = tuple[int, int]
"""(pid, tid) codes."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a collective is, in the words of the profiler, which are the same on all ranks of the group."""

    group: str
    """Name of the process group."""
    ranks: str
    """Its ranks, as in "[0, 1]"; long lists have "..." in them."""
    collective: str
    description: str = ""
    """What the program calls the process group: a dimension of a device mesh, the purpose it was made for."""
    uneven: bool = False
    """The ranks get parts of different sizes, in an exchange of all with all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMeta:
    """What the file contains besides events."""

    path: str = ""
    base_ns: int = 0
    """baseTimeNanoseconds: wall clock (ns since the epoch) of `ts_ns` 0; 0 when absent."""
    torch_version: str | None = None
    device_properties: tuple[dict[str, object], ...] = ()
    distributed: dict[str, object] | None = None
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    """(pid, tid) as written in the file -> name."""
    process_names: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    """The file ended early; every whole event before the cut is here."""
    warnings: tuple[str, ...] = ()
    layout: str = "kineto"
    """Which reader was used: "kineto" (fast) or "json" (general)."""
    clock_resolution_ns: int = 1
    has_shapes: bool = False
    """Operators were recorded with the shapes of their arguments."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Stretches of time on threads, in order of their starts; ranges of one thread nest."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    tid: Ints

    def around(self, when_ns: NDArray[np.int64], tid: NDArray[Any]) -> NDArray[np.int64]:
        """Return the position of the range, on each moment's own thread, that began last before it.

        -1 where no range of that thread still runs at the moment.
        """
        return self._on_own_thread(intervals.which, when_ns, tid)

    def innermost(self, when_ns: NDArray[np.int64], tid: NDArray[Any]) -> NDArray[np.int64]:
        """Return the position of the innermost range that runs at each moment on its thread; -1: none."""
        return self._on_own_thread(intervals.innermost, when_ns, tid)

    def _on_own_thread(
        self,
        find: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[np.intp]],
        when_ns: NDArray[np.int64],
        tid: NDArray[Any],
    ) -> NDArray[np.int64]:
        out = np.full(len(when_ns), NONE, dtype=np.int64)
        for thread in np.unique(self.tid).tolist():
            mine = np.flatnonzero(self.tid == thread)
            on = np.flatnonzero(tid == thread)
            at = find(self.start[mine], self.end[mine], when_ns[on])
            out[on[at >= 0]] = mine[at[at >= 0]]
        return out


# No slots: the answers that every reader needs are kept in the instance.
@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Columns of equal length n, sorted by (ts_ns, -dur_ns); times in ns from `base_ns`.

    Names and categories are dictionary-coded: `names[name[i]]`, `cats[cat[i]]`. pid and tid are
    codes into `pids` / `tids`, the values as the file writes them, as strings.

    Rows are asked for and given as positions in order of time.
    """

    ts_ns: NDArray[np.int64]
    dur_ns: Ints
    name: Ints
    cat: Ints
    pid: Ints
    tid: Ints
    correlation: Ints
    """Joins a runtime/driver call to the device activity it launched; NONE where absent."""
    stream: Ints
    device: Ints
    bytes: Ints
    """Memcpy / memset size, or the input message of a collective kernel; NONE elsewhere."""
    sequence: Ints
    """Autograd sequence number of an operator; NONE elsewhere."""
    message: Ints
    """Position in `messages` of a collective, on the host and on the device; NONE elsewhere."""
    group_sequence: Ints
    """Number of a collective in its process group; NONE elsewhere, and before torch wrote it."""
    filled: Ints
    """Share of the warp schedulers that a kernel has a warp for, in parts of `FULL`; NONE elsewhere."""
    names: Sequence[str]
    cats: Sequence[str]
    pids: Sequence[str]
    tids: Sequence[str]
    messages: Sequence[Message]
    meta: TraceMeta
    _answers: dict[Hashable, NDArray[np.bool_]] = field(init=False, default_factory=dict, repr=False)
    """Which names are meant, per question that was asked before."""

    def __len__(self) -> int:
        return len(self.ts_ns)

    # --- what a row is

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """The `Kind` of every row."""
        by_category = np.asarray([normalise(category) for category in self.cats], dtype=np.int8)
        out: NDArray[np.int8] = by_category[self.cat] if len(self) else np.zeros(0, dtype=np.int8)
        for kind, prefixes in MISNAMED:
            codes = self._meant(re.compile("|".join(f"^{re.escape(prefix)}" for prefix in prefixes)))
            if codes.any():
                out[(out == Kind.KERNEL) & codes[self.name]] = kind
        return out

    def has(self, *kinds: Kind) -> bool:
        """Return whether any row is of one of these kinds."""
        return bool(_marked(kinds)[self.kind].any())

    def rows(
        self,
        *kinds: Kind,
        named: Names | None = None,
        tid: int | None = None,
        among: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.intp]:
        """Return the rows, in order of time, of these kinds (all without any), names, and thread code.

        `among` (n,) marks those to choose from.
        """
        wanted = _marked(kinds)[self.kind] if kinds else np.ones(len(self), dtype=bool)
        if named is not None:
            codes = self._meant(named)
            if not codes.any():
                return np.zeros(0, dtype=np.intp)
            wanted &= codes[self.name]
        if tid is not None:
            wanted &= self.tid == tid
        if among is not None:
            wanted &= among
        return np.flatnonzero(wanted)

    def on(self, rows: NDArray[np.intp], thread: Thread) -> NDArray[np.intp]:
        """Return those of the rows that lie on a thread."""
        on: NDArray[np.bool_] = (self.pid[rows] == thread[0]) & (self.tid[rows] == thread[1])
        return rows[on]

    def end_of(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return when these rows end, int64 ns."""
        return np.asarray(self.ts_ns[rows] + self.dur_ns[rows], dtype=np.int64)

    def overlapping(self, low_ns: int, high_ns: int) -> NDArray[np.bool_]:
        """Return which rows take some of [low_ns, high_ns), shape (n,)."""
        out = np.zeros(len(self), dtype=bool)
        begun = intervals.within(self.ts_ns, low_ns + 1, high_ns)
        out[begun] = True
        earlier = slice(0, begun.start)
        out[earlier] = self.ts_ns[earlier] + self.dur_ns[earlier] > low_ns
        return out

    # --- names

    def _meant(self, names: Names) -> NDArray[np.bool_]:
        """Return which entries of `names` are meant."""
        key = frozenset(names) if isinstance(names, Collection) and not isinstance(names, str) else names
        if key not in self._answers:
            if isinstance(key, str):
                key_test: Callable[[str], object] = key.__eq__
            elif isinstance(key, frozenset):
                key_test = key.__contains__
            elif isinstance(key, re.Pattern):
                key_test = key.search
            else:
                key_test = key
            self._answers[key] = np.asarray([bool(key_test(name)) for name in self.names], dtype=bool)
        return self._answers[key]

    def codes(self, names: Names) -> NDArray[np.intp]:
        """Return the codes of such names."""
        return np.flatnonzero(self._meant(names))

    def knows(self, names: Names) -> bool:
        """Return whether any row has such a name."""
        return bool(self._meant(names).any())

    def named(self, names: Names, rows: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which of the rows have such a name."""
        return np.asarray(self._meant(names)[self.name[rows]], dtype=bool)

    def name_of(self, row: int) -> str:
        """Return the name of one row."""
        return self.names[int(self.name[row])]

    def by_name(
        self, rows: NDArray[np.integer[Any]], tell: Callable[[str], object], dtype: DTypeLike
    ) -> NDArray[Any]:
        """Return what `tell` says of the name of each row; it is asked once per name."""
        code = self.name[rows]
        occurs = np.zeros(len(self.names), dtype=bool)
        occurs[code] = True
        codes = np.flatnonzero(occurs)
        told = np.asarray([tell(self.names[each]) for each in codes.tolist()], dtype=dtype)
        out = np.zeros(len(self.names), dtype=told.dtype)
        out[codes] = told
        return np.asarray(out[code])

    # --- what lies in what

    def ranges(self, rows: NDArray[np.intp]) -> Ranges:
        """Return the stretches of time that these rows take on their threads."""
        return Ranges(self.ts_ns[rows], self.end_of(rows), self.tid[rows])

    def inside(self, rows: NDArray[np.integer[Any]], ranges: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which rows begin inside one of the ranges (rows, too) of their own thread."""
        return self.ranges(ranges).around(self.ts_ns[rows], self.tid[rows]) >= 0

    def outermost(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of the rows that lie inside no other one of their thread."""
        keep = np.ones(len(rows), dtype=bool)
        for thread in np.unique(self.tid[rows]).tolist():
            mine = np.flatnonzero(self.tid[rows] == thread)
            keep[mine] = intervals.outermost(self.ts_ns[rows[mine]], self.end_of(rows[mine]))
        return rows[keep]

    # --- who launched what

    @cached_property
    def calls(self) -> NDArray[np.intp]:
        """Rows of calls into the device's API."""
        return self.rows(*HOST_CALL_KINDS)

    @cached_property
    def activities(self) -> NDArray[np.intp]:
        """Rows of work on a stream of the device."""
        return self.rows(*DEVICE_KINDS)

    @cached_property
    def launched_by(self) -> NDArray[np.int64]:
        """Row of the call that launched each of `activities`; NONE where there is no such call."""
        calls = self.calls[self.correlation[self.calls] > 0]
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        wanted = self.correlation[self.activities]
        if not len(calls):
            return np.full(len(wanted), NONE, dtype=np.int64)
        at = np.minimum(intervals.before(self.correlation[calls], wanted), len(calls) - 1)
        return np.where(self.correlation[calls[at]] == wanted, calls[at], NONE)

    @property
    def lacks_launches(self) -> bool:
        """There are kernels, but none of the calls that launched them was recorded."""
        return self.has(Kind.KERNEL) and not len(self.launches)

    @cached_property
    def launches(self) -> NDArray[np.intp]:
        """Rows of calls that device work was recorded for."""
        launched = np.zeros(len(self), dtype=bool)
        launched[self.launched_by[self.launched_by != NONE]] = True
        return np.flatnonzero(launched)

    def busiest_threads(self, rows: NDArray[np.intp]) -> tuple[tuple[Thread, int], ...]:
        """Return the threads of these rows, each with its number of them, the busiest first."""
        key = self.pid[rows].astype(np.int64) << 32 | self.tid[rows].astype(np.int64)
        values, counts = np.unique(key, return_counts=True)
        return tuple(
            ((int(values[i]) >> 32, int(values[i]) & 0xFFFFFFFF), int(counts[i]))
            for i in np.argsort(-counts, kind="stable").tolist()
        )


def _marked(kinds: Sequence[Kind]) -> NDArray[np.bool_]:
    out = np.zeros(len(Kind), dtype=bool)
    out[list(kinds)] = True
    return out
