"""The shapes that operators were called with, from a trace that was recorded with `record_shapes`.

In: the path of a trace file, the operators of interest, a stretch of time. Out: their calls.

A second pass over the file, for the few operators that are asked for: shapes are lists in lists, a fifth
of such a file, and no column of the table. Events are found by their name and read no further than
their own end, so a broken one is passed over and the rest of the file still counts.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from ..model.flops import COUNTED, OperatorCall, count_flops
from ..model.run import FlopCount
from .sources import open_source

_PIECE = 4 * 1024 * 1024
_LONGEST = 64 * 1024
"""Bytes that one event may take."""
_TS = re.compile(rb'"ts"\s*:\s*"?(\d{1,19}(?:\.\d+)?)')
_NEXT = re.compile(rb'"ph"\s*:')
_DECODER = json.JSONDecoder()


def _list_after(event: bytes, key: bytes) -> list[object] | None:
    """Return the list after a key, None if there is none."""
    found = re.search(rb'"' + key + rb'"\s*:\s*(?=\[)', event)
    if found is None:
        return None
    try:
        value, _ = _DECODER.raw_decode(event[found.end() :].decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


_ARGUMENTS = re.compile(rb'"(?:Concrete Inputs|Input type|Input Dims|Input Strides)"\s*:')
_BEHIND_A_LIST = re.compile(rb'\]\s*(?:,\s*"[^"]*"\s*:|\})')


def _arguments(event: bytes) -> bytes:
    """Return the part of an event with its arguments; the rest of the event if their end is missing.

    Steps are alike: what was understood of it once need not be understood again.
    """
    lists = list(_ARGUMENTS.finditer(event))
    if not lists:
        return b""
    end = _BEHIND_A_LIST.search(event, lists[-1].end())
    return event[lists[0].start() : end.start() + 1 if end is not None else len(event)]


def _value(text: object) -> object:
    """Return what a concrete argument was: kineto writes them as text, tensors as an empty one."""
    if not isinstance(text, str) or not text:
        return None if isinstance(text, str) else text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # what literal_eval raises on deep text
        return None


def operator_calls(
    path: str | os.PathLike[str], names: Collection[str], *, low_ns: int, high_ns: int
) -> Iterator[OperatorCall]:
    """Yield the calls of some operators that began within [low_ns, high_ns), in file order."""
    wanted = re.compile(
        rb'"name"\s*:\s*"(' + b"|".join(re.escape(n.encode()) for n in sorted(names)) + rb')"'
    )
    source = open_source(path)
    try:
        piece, kept = bytearray(_PIECE), b""
        while True:
            size = source.readinto(memoryview(piece))
            text = kept + bytes(piece[:size])
            begin = 0
            for found in wanted.finditer(text):
                end = _NEXT.search(text, found.end())
                stop = end.start() if end is not None else len(text)
                if end is None and size and len(text) - found.start() < _LONGEST:
                    break  # its end is in the next piece
                begin = stop
                call = _read(found[1].decode(), text[found.start() : stop], low_ns, high_ns)
                if call is not None:
                    yield call
            if not size:
                return
            kept = text[max(begin, len(text) - _LONGEST) :]
    finally:
        source.close()


def _read(name: str, event: bytes, low_ns: int, high_ns: int) -> OperatorCall | None:
    ts = _TS.search(event)
    if ts is None or not low_ns <= round(float(ts[1]) * 1000) < high_ns:
        return None
    return _call(name, _arguments(event))


@lru_cache(maxsize=4096)
def _call(name: str, arguments: bytes) -> OperatorCall | None:
    shapes, dtypes = _list_after(arguments, b"Input Dims"), _list_after(arguments, b"Input type")
    if shapes is None or dtypes is None:
        return None
    values = [_value(text) for text in _list_after(arguments, b"Concrete Inputs") or []]
    return OperatorCall(
        name=name,
        shapes=[_shape(shape) for shape in shapes],
        dtypes=[str(kind) for kind in dtypes],
        values=values + [None] * (len(shapes) - len(values)),
    )


def _shape(value: object) -> list[int]:
    """Return the shape of one argument; empty for what is no tensor (or a list of them)."""
    sizes = value if isinstance(value, list) else []
    return sizes if all(isinstance(size, int) for size in sizes) else []


def flops_from_shapes(
    path: str | os.PathLike[str], *, low_ns: int, high_ns: int, steps: int
) -> FlopCount | None:
    """Count the FLOPs of one of the whole `steps` of a trace between two moments, from its shapes.

    None where the file holds no shapes, or some that cannot be understood. Times are on the clock of
    `Trace.ts_ns`.
    """
    calls = operator_calls(path, COUNTED.keys(), low_ns=low_ns, high_ns=high_ns)
    by_dtype, by_operator, lost = count_flops(calls)
    if lost or not by_operator or steps < 1:
        return None
    return FlopCount(
        step=-1,
        flops=sum(by_operator.values()) / steps,
        by_dtype={name: flops / steps for name, flops in by_dtype.items()},
        by_operator={name: flops / steps for name, flops in by_operator.items()},
        operators=sorted(COUNTED),
    )
