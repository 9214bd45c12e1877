"""A moving window over the event array of a trace file.

In: an open `Source`. Out: pieces that are JSON arrays of whole events, and the text before and
after the array.

Nothing here depends on how the file is indented, on the order of keys, or on there being a
top-level object: a boundary between events is a `}` and a `,` followed by a `{` and a key, which
valid JSON cannot hold inside a string because of the bare quote. Where such a boundary lies deeper
(a list of objects in an event's arguments), the piece is unbalanced and does not decode; the caller
then goes through the window event by event.
"""

from __future__ import annotations

import re

from ..errors import NotATraceError
from .sources import Source

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_OF_OBJECTS = re.compile(rb"\s*\[\s*[{\]]")
_OBJECT = re.compile(rb'\s*\{\s*["}]')
_KINETO_BOUNDARY = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|name)"\s*:')
_ANY_BOUNDARY = re.compile(rb'\}\s*(,)\s*\{\s*"[^"\\]*"\s*:')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMMA, _OPEN, _CLOSE = b",[]"
_LONGEST_HEADER_BYTES = 64 * 1024 * 1024
_LONGEST_TRAILER_BYTES = 4 * 1024 * 1024
_TAILS_BYTES = (4 * 1024, 64 * 1024, 1 << 62)


class EventArray:
    """The part of the array that is in memory; byte 0 is always a `[`.

    Attributes:
        header: text before the array.
        ended: the source has nothing more to give.
        kineto: events begin with the keys that kineto begins them with.
    """

    def __init__(self, source: Source, *, path: str, window_bytes: int) -> None:
        self._source = source
        self._buffer = bytearray(window_bytes + 1)
        self._filled = 0
        self.ended = False
        self.kineto = True
        self.header = self._read_header(path)

    def _read(self) -> None:
        with memoryview(self._buffer) as view:
            while self._filled < len(view):
                got = self._source.readinto(view[self._filled :])
                if not got:
                    self.ended = True
                    return
                self._filled += got

    def grow(self) -> None:
        """Double the window, for an event longer than it."""
        self._buffer.extend(bytes(len(self._buffer)))

    def _read_header(self, path: str) -> bytes:
        """Read up to the array and leave the window at its bracket."""
        while True:
            self._read()
            text = bytes(self._buffer[: self._filled])
            if text.startswith(_BYTE_ORDER_MARK):
                text = b"   " + text[3:]
            if found := _LIST_OF_OBJECTS.match(text):
                start = text.index(b"[")
            elif found := _EVENTS.search(text):
                start = found.end() - 1
            else:
                if self.ended or self._filled > _LONGEST_HEADER_BYTES or not _OBJECT.match(text):
                    raise _not_a_trace(path, text, whole=self.ended)
                self.grow()
                continue
            self.replace(text[start + 1 :])
            return text[:start]

    def fill(self) -> None:
        """Read on until the window is full or the source has ended."""
        if not self.ended:
            self._read()

    def replace(self, rest: bytes) -> None:
        """Make `rest` the content of the window, after its opening bracket."""
        while len(rest) + 1 > len(self._buffer):
            self.grow()
        self._buffer[0] = _OPEN
        self._buffer[1 : 1 + len(rest)] = rest
        self._filled = 1 + len(rest)

    def window(self) -> bytes:
        """Return all that is in memory after the opening bracket."""
        return bytes(self._buffer[1 : self._filled])

    def boundary(self) -> int | None:
        """Return the offset of the last comma between events, or None."""
        for pattern in (_KINETO_BOUNDARY, _ANY_BOUNDARY):
            for tail in _TAILS_BYTES:
                start = max(self._filled - tail, 0)
                comma = -1
                for match in pattern.finditer(self._buffer, start, self._filled):
                    comma = match.start(1)
                if comma >= 0:
                    self.kineto = self.kineto and pattern is _KINETO_BOUNDARY
                    return comma
                if start == 0:
                    break
        return None

    def piece(self, comma: int) -> memoryview:
        """Return the events before `comma` as a JSON array; release it before anything else."""
        self._buffer[comma] = _CLOSE
        return memoryview(self._buffer)[: comma + 1]

    def use(self, comma: int) -> None:
        """Drop the piece before `comma`."""
        rest = self._filled - comma
        self._buffer[:rest] = self._buffer[comma : self._filled]
        self._buffer[0] = _OPEN
        self._filled = rest

    def keep(self, comma: int) -> None:
        """Undo `piece`: the events before `comma` stay in the window."""
        self._buffer[comma] = _COMMA

    def trailer(self, start: bytes) -> bytes:
        """Return the text after the array, which begins with `start`."""
        parts = [start]
        size = len(start)
        while not self.ended and size < _LONGEST_TRAILER_BYTES:
            self._filled = 0
            self._read()
            parts.append(bytes(self._buffer[: self._filled]))
            size += self._filled
        return b"".join(parts)


def _not_a_trace(path: str, text: bytes, *, whole: bool) -> NotATraceError:
    if _OBJECT.match(text):
        what = 'is JSON, but has no list of trace events ("traceEvents")'
        if not whole:
            what += " near its start"
        return NotATraceError(
            f"{path} {what}.",
            remedy="Give what torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote.",
        )
    return NotATraceError(
        f"{path} is not a Kineto trace: it does not hold JSON.",
        remedy="Give what torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote.",
    )
