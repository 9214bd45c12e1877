"""Gathers decoded events into the columns of a `Trace`.

In: lists of decoded events, chunk by chunk, in file order. Out: one `Trace`, sorted by time.

Each chunk is turned into small arrays at once, so that the decoded events of one chunk only are
alive at any time; each column takes integers no larger than its values, some 35 bytes per event in all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..timeline.trace.nodes import with_numbers
from ..timeline.trace.table import FULL, NONE, SCHEDULERS, Message, Trace, TraceMeta
from .events import Args, Event, Metadata, Number, XEvent, XEventExact, as_int

_COLUMNS = (
    "ts_ns", "dur_ns", "name", "cat", "pid", "tid", "correlation", "stream", "device", "bytes", "sequence",
    "message", "group_sequence", "filled",
)  # fmt: skip
_SIZES = (np.int8, np.int16, np.int32)

_COMPLETE = frozenset((XEvent, XEventExact))

_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
    "complexdouble": 16,
}
"""Widths of c10's scalar types, by the names that kineto writes for a collective's message."""

_CHUNKS_AT_A_TIME = 32

_HEAD, _TAIL = 6144, 2048
_LONGEST_TEXT = _HEAD + _TAIL
"""Names are matched against a hundred patterns, and shown. The longest kernel names have 4000 characters;
of longer ones the ends are kept, which is where kernel names differ."""

_LONGEST_WORD = 1024
"""Of the name of a process group, or of the list of its ranks."""

_NUMBERS = re.compile(r"\d+")

_LONGEST_US = 2.0**61 / 1000
"""73 years; the sum of two such times is still a 64-bit number of nanoseconds."""

_FLOAT_IS_COARSE_US = 2.0**50
"""From here on neighbouring float64 values lie a quarter microsecond apart."""


class _Codes:
    """Dictionary coding of one column; 5 and "5" are one value."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[int | str, int] = {}

    def of(self, values: Sequence[int | str], dtype: DTypeLike) -> NDArray[Any]:
        """Return the code of each value; a new value gets the next code."""
        codes = self._codes
        try:
            return np.fromiter([codes[v] for v in values], dtype, len(values))
        except KeyError:  # rare after the first pieces: most names of a step come again
            for value in values:
                if value not in codes:
                    codes[value] = self._code_of_text(str(value))
            return np.fromiter([codes[v] for v in values], dtype, len(values))

    def _code_of_text(self, text: str) -> int:
        if len(text) > _LONGEST_TEXT:
            text = f"{text[:_HEAD]}…{text[-_TAIL:]}"
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code


class _Messages:
    """Dictionary coding of what collectives are."""

    def __init__(self) -> None:
        self.found: list[Message] = []
        self._codes: dict[Message, int] = {}

    def of(self, args: Sequence[Args]) -> NDArray[np.int32]:
        """Return the code of each event's message, NONE where it is no collective."""
        out = np.full(len(args), NONE, dtype=np.int32)
        for i, each in enumerate(args):
            if each.collective and isinstance(each.collective, str):
                message = Message(
                    _word(each.group),
                    _word(each.group_ranks),
                    _word(each.collective),
                    _word(each.group_description),
                    uneven=_are_uneven(each.in_split) or _are_uneven(each.out_split),
                )
                code = self._codes.setdefault(message, len(self.found))
                if code == len(self.found):
                    self.found.append(message)
                out[i] = code
        return out


def _word(value: object) -> str:
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""


def _are_uneven(parts: object) -> bool:
    """Tell whether ranks get parts of different sizes; one rank alone is a shift, where each has one."""
    sizes = _NUMBERS.findall(str(parts)[:_LONGEST_WORD]) if parts and parts != "[]" else ()
    return len({size for size in sizes if int(size)}) > 1


def _ints(values: Sequence[Number]) -> NDArray[np.int64]:
    try:
        return np.fromiter(values, np.int64, len(values))
    except (ValueError, TypeError, OverflowError):
        return np.fromiter((as_int(v) for v in values), np.int64, len(values))


def _sizes(args: Sequence[Args]) -> NDArray[np.int64]:
    """Return the bytes that each event moves: of a copy, or of a collective's input message."""
    sizes = _ints([a.bytes for a in args])
    elements = _ints([a.message_elements for a in args])
    for i in np.flatnonzero((elements != NONE) & (sizes == NONE)).tolist():
        width = _ELEMENT_BYTES.get(str(args[i].dtype).lower())
        if width is not None:
            sizes[i] = elements[i] * width
    return sizes


def _filled(args: Sequence[Args]) -> NDArray[np.int16]:
    """Return the share of warp schedulers that each kernel has a warp for, in parts of `FULL`."""
    try:
        each = np.fromiter([a.warps_each for a in args], np.float64, len(args))
    except (ValueError, TypeError):
        each = np.asarray([NONE if isinstance(a.warps_each, str) else a.warps_each for a in args], np.float64)
    each = each * (FULL / SCHEDULERS)
    return np.where(each > 0, np.minimum(np.ceil(each), FULL), NONE).astype(np.int16)


def _compact(part: NDArray[Any]) -> NDArray[Any]:
    """Return the same values in integers no larger than needed; in no memory if all are NONE."""
    low, high = int(part.min()), int(part.max())
    if low == high == NONE:
        return np.broadcast_to(np.asarray(NONE, dtype=np.int8), part.shape)
    for size in _SIZES:
        if np.iinfo(size).min <= low and high <= np.iinfo(size).max:
            return part.astype(size)
    return part


def _to_ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert microseconds to nanoseconds; whole and fraction apart, or 1 ns in four goes wrong."""
    whole = np.floor(us)
    out = whole.astype(np.int64)
    out *= 1000
    us = us - whole
    us *= 1000.0
    out += np.rint(us, out=us).astype(np.int64)
    return out


def _exact_ns(us: Decimal | float) -> int:
    return round(Decimal(us) * 1000)


class Columns:
    """Collects events; `build` makes the trace."""

    def __init__(self) -> None:
        self._names = _Codes()
        self._cats = _Codes()
        self._pids = _Codes()
        self._tids = _Codes()
        self._messages = _Messages()
        self._fresh: list[dict[str, NDArray[Any]]] = []
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.process_names: dict[str, str] = {}
        self.rows = 0
        self.timeless = 0
        """Complete events that were left out: no clock has their time or their duration."""
        self._whole_us_only = True

    def add(self, events: Sequence[Event], *, exact: bool) -> bool:
        """Take the events of one chunk; return whether they were taken.

        `exact`: their `ts` holds all digits of the file. Without, nothing is taken where time stamps lose
        digits as floats: decode the chunk again with exact ones.
        """
        rows: list[XEvent] = [e for e in events if type(e) in _COMPLETE]  # type: ignore[misc]
        ts_us = np.fromiter([e.ts for e in rows], np.float64, len(rows))
        dur_us = np.fromiter([e.dur for e in rows], np.float64, len(rows))
        told = (np.abs(ts_us) <= _LONGEST_US) & (np.abs(dur_us) <= _LONGEST_US)
        if not told.all():
            rows = [rows[i] for i in np.flatnonzero(told).tolist()]
            ts_us, dur_us = ts_us[told], dur_us[told]
        if exact:
            ts_ns = np.fromiter((_exact_ns(e.ts) for e in rows), np.int64, len(rows))
        else:
            fractional = bool((np.floor(ts_us) != ts_us).any())
            if fractional and float(ts_us.max()) > _FLOAT_IS_COARSE_US:
                return False
            self._whole_us_only = self._whole_us_only and not fractional
            ts_ns = _to_ns(ts_us)
        if len(rows) < len(events):
            for event in [e for e in events if type(e) is Metadata]:
                self._add_metadata(event)
        self.timeless += len(told) - len(rows)
        if rows:
            self._add_rows(rows, ts_ns, dur_us)
        return True

    def _add_rows(self, rows: list[XEvent], ts_ns: NDArray[np.int64], dur_us: NDArray[np.float64]) -> None:
        n = len(rows)
        args = [e.args for e in rows]
        chunk: dict[str, NDArray[Any]] = {
            "ts_ns": ts_ns,
            "dur_ns": np.maximum(_to_ns(dur_us), 0),
            "name": self._names.of([e.name for e in rows], np.int32),
            "cat": self._cats.of([e.cat for e in rows], np.int32),
            "pid": self._pids.of([e.pid for e in rows], np.int32),
            "tid": self._tids.of([e.tid for e in rows], np.int32),
            "correlation": _ints([a.correlation for a in args]),
            "stream": _ints([a.stream if a.original_stream == NONE else a.original_stream for a in args]),
            "device": _ints([a.device for a in args]),
            "bytes": _sizes(args),
            "sequence": _ints([a.sequence for a in args]),
            "message": self._messages.of(args),
            "group_sequence": _ints([a.group_sequence for a in args]),
            "filled": _filled(args),
        }
        self._fresh.append(chunk)
        self.rows += n
        if len(self._fresh) == _CHUNKS_AT_A_TIME:
            self._settle()

    def _settle(self) -> None:
        """Put the last chunks away, together: numpy's cost per call would outweigh their size."""
        for column, parts in self._parts.items():
            part = np.concatenate([chunk[column] for chunk in self._fresh])
            if column == "device":
                part[abs(part) >= 2**31] = NONE
            parts.append(_compact(part))
        self._fresh.clear()

    def _add_metadata(self, event: Metadata) -> None:
        value = event.args.get("name")
        if not isinstance(value, str):
            return
        if event.name == "process_name":
            self.process_names[str(event.pid)] = value
        elif event.name == "thread_name":
            self.thread_names[str(event.pid), str(event.tid)] = value

    def _joined(self, column: str, order: NDArray[np.intp] | None = None) -> NDArray[Any]:
        parts = self._parts.pop(column)
        if all(part.strides == (0,) for part in parts):
            # Absent from the whole file, as some columns are from most files: costs no memory.
            return np.broadcast_to(np.asarray(NONE, dtype=np.int8), (self.rows,))
        joined = np.concatenate(parts)
        return joined if order is None else joined[order]

    def build(self, meta: TraceMeta) -> Trace:
        """Return the trace; the collection is used up.

        Rows come sorted by (start, longest first), ties in file order.
        """
        if self._fresh:
            self._settle()
        ts_ns, dur_ns = self._joined("ts_ns"), self._joined("dur_ns")
        order = _time_order(ts_ns, dur_ns)
        columns: dict[str, NDArray[Any]] = {"ts_ns": ts_ns[order], "dur_ns": dur_ns[order]}
        del ts_ns, dur_ns
        for column in list(self._parts):
            columns[column] = self._joined(column, order)
        trace = Trace(
            **columns,
            names=self._names.texts,
            cats=self._cats.texts,
            pids=self._pids.texts,
            tids=self._tids.texts,
            messages=self._messages.found,
            meta=meta,
        )
        return with_numbers(trace)

    @property
    def clock_resolution_ns(self) -> int:
        """1000 when every time stamp is a whole microsecond (before torch 2.4), else 1."""
        return 1000 if self.rows and self._whole_us_only else 1


def _time_order(ts_ns: NDArray[np.int64], dur_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the stable order by (start, -duration); duration matters among equal starts only."""
    order = np.argsort(ts_ns, kind="stable")
    ts = ts_ns[order]
    same = ts[1:] == ts[:-1]
    if same.any():
        tied = np.zeros(len(ts), dtype=bool)
        tied[1:] = same
        tied[:-1] |= same
        where = np.flatnonzero(tied)
        rows = order[where]
        order[where] = rows[np.lexsort((rows, -dur_ns[rows], ts_ns[rows]))]
    return order
