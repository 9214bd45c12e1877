"""Reads a Kineto (Chrome JSON) trace file into columns.

In: the path of a .json or .json.gz file, from any version of torch or edited by any tool. Out: a
`Trace`, or (`each_event`) the events as they stand in the file. A file that was cut off gives every
whole event before the cut and says so.

The array of events is decoded in pieces of half a megabyte into typed structs (msgspec), which is
faster than decoding it whole and keeps memory at the size of the columns. A piece that does not
decode is mended, or read event by event; the rest of the file stays on the fast path.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from ..errors import NotATraceError
from ..timeline.trace.table import Trace, TraceMeta
from .columns import Columns
from .event_array import EventArray
from .events import Event, event_types
from .header import read_header
from .repair import mend, scan
from .sources import open_source

_WINDOW_BYTES = 512 * 1024
_PATIENCE_BYTES = 4 * 1024 * 1024
_LONGEST_EVENT_BYTES = 64 * 1024 * 1024


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Hold the collector off: it would walk the decoded events again and again, to no end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Sink(Protocol):
    """What takes the events; False asks for them again with exact time stamps."""

    def add(self, events: list[Any], *, exact: bool) -> bool: ...


class _Reader:
    """State of reading one file."""

    def __init__(self, array: EventArray, sink: _Sink) -> None:
        self._array = array
        self._use_decoder(exact=False)
        self._sink = sink
        self.understood = 0
        self.lost = 0
        self.mended = 0
        self.truncated = False
        self.trailer = b""

    def _use_decoder(self, *, exact: bool) -> None:
        types = event_types(exact=exact)
        self._exact = exact
        self._many: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[types])  # type: ignore[valid-type]
        self._one: msgspec.json.Decoder[Event] = msgspec.json.Decoder(types)

    def read(self) -> None:
        """Go through the whole array."""
        array = self._array
        while True:
            array.fill()
            comma = array.boundary()
            if comma is not None:
                if self._take_piece(comma):
                    array.use(comma)
                    continue
                array.keep(comma)
            if self._take_one_by_one(comma):
                return

    def _take_piece(self, comma: int) -> bool:
        """Take the events before `comma` at once; False when they do not decode."""
        with self._array.piece(comma) as piece:
            try:
                events = self._many.decode(piece)
            except (ValueError, RecursionError):
                data = bytes(piece)
                mended = mend(data)
                if mended == data:
                    return False
                try:
                    events = self._many.decode(mended)
                except (ValueError, RecursionError):
                    return False
                self.mended += 1
            if not self._sink.add(events, exact=self._exact):
                self._use_decoder(exact=True)
                return self._take_piece(comma)
        self.understood += len(events)
        return True

    def _take_one_by_one(self, comma: int | None) -> bool:
        """Take the events in the window singly; True when there are no more."""
        array = self._array
        window = array.window()
        patience = 0 if array.ended else _PATIENCE_BYTES
        found = scan(window, self._one.decode, patience_bytes=patience)
        rest = window[found.rest :]
        blank = bool(window) and found.rest == len(window)
        if found.lost or not (found.events or found.closed or blank):
            # Mend whole events only: half a string looks like something else.
            whole = len(window) if array.ended else (comma or 1) - 1
            mended = mend(window[:whole])
            again = scan(mended, self._one.decode, patience_bytes=0)
            if whole and (len(again.events), -again.lost) > (len(found.events), -found.lost):
                found, rest = again, mended[again.rest :] + window[whole:]
                self.mended += 1
        if not self._sink.add(found.events, exact=self._exact):
            self._use_decoder(exact=True)
            return self._take_one_by_one(comma)
        self.understood += len(found.events)
        self.lost += found.lost
        if found.closed:
            self.trailer = array.trailer(rest)
            return True
        if found.events or found.lost or blank:
            array.replace(rest)
        elif array.ended or len(window) > _LONGEST_EVENT_BYTES:
            self.truncated = True
            return True
        else:
            array.grow()
        return False


def read_trace(path: str | os.PathLike[str], *, window_bytes: int = _WINDOW_BYTES) -> Trace:
    """Read a trace file.

    Args:
        path: a .json file, or one compressed with gzip, whatever its name.
        window_bytes: how much is decoded at a time; changes speed and memory, never the result.

    Returns:
        Columns of all complete events, sorted by (start, longest first), in ns from `meta.base_ns`.

    Raises:
        NotATraceError: the file is something else.
        InputError: the file does not exist or cannot be read.
    """
    name = os.fspath(path)
    source = open_source(name)
    try:
        with _no_garbage_collection():
            array = EventArray(source, path=name, window_bytes=window_bytes)
            columns = Columns()
            reader = _Reader(array, columns)
            reader.read()
            if reader.lost and not reader.understood:
                raise NotATraceError(
                    f"None of the {reader.lost} entries in {name} can be read as a trace event.",
                    remedy="Give what torch.profiler's export_chrome_trace wrote.",
                )
            return columns.build(_meta(name, array, reader, columns, damaged=source.damaged))
    finally:
        source.close()


class _AsWritten(_Reader):
    """Reads events as plain mappings, with everything that the file says of them."""

    def _use_decoder(self, *, exact: bool) -> None:
        self._exact = exact
        self._many = msgspec.json.Decoder(list[dict[str, Any]])
        self._one = msgspec.json.Decoder(dict[str, Any])


class _Taker:
    """Hands each event that is a mapping to a function; an event read forgivingly is not one."""

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take

    def add(self, events: list[Any], *, exact: bool) -> bool:
        del exact
        for event in events:
            if isinstance(event, dict):
                self._take(event)
        return True


def each_event(path: str | os.PathLike[str], take: Callable[[dict[str, Any]], None]) -> None:
    """Hand every event of a trace file, of whatever phase, to `take`, in the order of the file.

    Events that only a forgiving parser understands are left out. Memory stays at one piece of the
    file.

    Raises:
        NotATraceError: the file is something else.
        InputError: the file does not exist or cannot be read.
    """
    name = os.fspath(path)
    source = open_source(name)
    try:
        with _no_garbage_collection():
            _AsWritten(EventArray(source, path=name, window_bytes=_WINDOW_BYTES), _Taker(take)).read()
    finally:
        source.close()


def _meta(path: str, array: EventArray, reader: _Reader, columns: Columns, *, damaged: str) -> TraceMeta:
    header = read_header(array.header, reader.trailer)
    return TraceMeta(
        path=path,
        base_ns=header.base_ns,
        torch_version=header.torch_version,
        device_properties=header.device_properties,
        distributed=header.distributed,
        has_shapes=header.shapes,
        thread_names=columns.thread_names,
        process_names=columns.process_names,
        truncated=reader.truncated,
        warnings=_warnings(reader, columns.rows, columns.timeless, damaged),
        layout="kineto" if array.kineto else "json",
        clock_resolution_ns=columns.clock_resolution_ns,
    )


def _warnings(reader: _Reader, rows: int, timeless: int, damaged: str) -> tuple[str, ...]:
    """Say what was wrong with the file, for the report's capture section."""
    out: list[str] = []
    if reader.truncated:
        why = f" ({damaged})" if damaged else ""
        out.append(
            f"The file was cut off{why}: the {rows} whole events before the cut are"
            " used, later ones are missing."
        )
    if reader.lost:
        out.append(f"{reader.lost} events of the file could not be read and are left out.")
    if timeless:
        out.append(f"{timeless} events are left out: no clock has such a time or duration.")
    if reader.mended:
        out.append("The file is not valid JSON (unescaped quotes, NaN or broken text); it was repaired.")
    if not rows:
        out.append("The file holds no complete events.")
    return tuple(out)
