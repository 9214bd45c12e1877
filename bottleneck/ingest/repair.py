"""Handles a piece of a trace that does not decode: repairs it, or reads it event by event.

In: bytes of a few hundred kilobytes. Out: mended bytes, or whole events and what is left.

Known ways in which profilers write invalid JSON: torch 2.13 does not escape `"` in names; user
metadata adds bare NaN; some tools write bytes that are not UTF-8 or raw control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from .events import Event, coerce_event

_NAME_LINES = (
    # From torch 2.13 on a name has a line to itself; before, pid and tid end its line. Nothing is
    # mended in other layouts: a JSON library wrote them, and a name could not be told from the next.
    re.compile(rb'^([ \t]*"name": ")((?:(?!", "ph":).)*)(",[ \t]*)$', re.MULTILINE),
    re.compile(
        rb'^([ \t]*"ph": "X", "cat": "[^"\n]*", "name": ")(.*)(", "pid": [^,\n]+, "tid": [^,\n]+,[ \t]*)$',
        re.MULTILINE,
    ),
)
_INNER_QUOTE = re.compile(rb'(?<!\\)((?:\\\\)*)"')
_NOT_A_NUMBER = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"|[+-]?\b(?:nan|inf(?:inity)?|n/a)\b', re.IGNORECASE | re.DOTALL
)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_BETWEEN = re.compile(rb"[ \t\r\n,]*")
_AFTER_VALUE = re.compile(rb"[,\]]")
_NEXT_EVENT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name)"\s*:)')
_INTEGER_DIGITS = 20
_FORGIVING = json.JSONDecoder(
    # What no counter holds is a float, which may be infinite: longer integers fit into no float.
    strict=False,
    parse_int=lambda text: int(text) if len(text) <= _INTEGER_DIGITS else float(text),
)
_LONGEST_EVENT_BYTES = 64 * 1024 * 1024
_SEARCHES = 2
"""How many times over the data the ends of broken events are looked for."""


def mend(data: bytes) -> bytes:
    """Return the piece with the known kinds of invalid JSON put right."""
    data = data.decode("utf-8", errors="replace").encode()
    data = _CONTROL.sub(b" ", data)
    for line in _NAME_LINES:
        data = line.sub(_escaped, data)
    return _NOT_A_NUMBER.sub(lambda m: m[0] if m[0][:1] == b'"' else b"null", data)


def _escaped(match: re.Match[bytes]) -> bytes:
    before, name, after = match.groups()
    return before + (_INNER_QUOTE.sub(rb'\1\\"', name) if b'"' in name else name) + after


class Scan(NamedTuple):
    """Events found one by one."""

    events: list[Event]
    lost: int
    """Events that could not be understood."""
    rest: int
    """Offset of what was not used: the start of an unfinished event."""
    closed: bool
    """The end of the event array was reached; `rest` is just after its bracket."""


def scan(data: bytes, decode: Callable[[bytes], Event], *, patience_bytes: int) -> Scan:
    """Read events one by one, by matching brackets, until the array ends or the data does.

    What the strict decoder of one event refuses is read forgivingly. An event without an end is given up once
    `patience_bytes` of it are here; before, it is taken to be unfinished.
    """
    events: list[Event] = []
    lost = 0
    position = 0
    search_bytes = _SEARCHES * len(data)
    while True:
        between = _BETWEEN.match(data, position)
        start = between.end() if between is not None else position
        if start == len(data):
            return Scan(events, lost, start, False)
        if data[start] == 0x5D:
            return Scan(events, lost, start + 1, True)
        resync = None
        stop = len(data)
        if search_bytes <= 0:
            # Many events have no end. That is now looked for no further than the next one's beginning,
            # or the time would grow with the square of the bytes.
            resync = _NEXT_EVENT.search(data, start)
            stop = resync.start() + 1 if resync is not None else stop
        end = _event_end(data, start, stop)
        if end is None:
            search_bytes -= stop - start
            resync = resync or _NEXT_EVENT.search(data, start)
            if resync is None or len(data) - start < patience_bytes:
                return Scan(events, lost, start, False)
            lost += 1
            position = resync.end()
            continue
        event = _decode_one(data[start:end], decode) if data[start] == 0x7B else None
        if event is None:
            lost += 1
        else:
            events.append(event)
        position = end


def _event_end(data: bytes, start: int, stop: int) -> int | None:
    """Return where the object or value that begins at `start` ends; None when it does not before `stop`."""
    if data[start] not in b"{[":
        after = _AFTER_VALUE.search(data, start, stop)
        return after.start() if after is not None else None
    depth = 0
    for token in _TOKEN.finditer(data, start, min(stop, start + _LONGEST_EVENT_BYTES)):
        first = data[token.start()]
        if token[0] == b'"':
            return None  # the data ends inside this string
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _decode_one(data: bytes, decode: Callable[[bytes], Event]) -> Event | None:
    try:
        return decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        return coerce_event(_FORGIVING.decode(data.decode()))
    except (ValueError, RecursionError):
        return None
