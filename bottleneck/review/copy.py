"""Writes the copy of a trace that TensorBoard's profiler tab reads correctly.

In: the path of a trace, the lane to draw above it. Out: the copy, and a `Copied` that says what is in
it. The trace itself is never touched.

The plugin needs about 30 µs and 2 kB of memory per event (326 000 events: 11 s, 620 MB, in a process
per file), so the copy holds the last whole steps that fit `MOST_EVENTS`, and where not even one does,
that one without its Python frames.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np

from ..ingest.reader import each_event, read_trace
from ..timeline.steps.recorded import runs_ahead
from ..timeline.steps.traced import Steps, find_steps
from ..timeline.trace.dialect import Kind
from ..timeline.trace.intervals import before
from ..timeline.trace.kernels import is_collective
from ..timeline.trace.table import Trace
from .dialect import Event, Notes, Translator

MOST_EVENTS = 200_000
_COMPRESSION = 2
"""Of isal's levels 0 to 3 or zlib's 0 to 9: the copy can be made again at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What the copy holds."""

    path: Path
    events: int
    bytes: int
    steps: tuple[int, ...]
    """Numbers of the steps in it."""
    of_steps: int
    step_us: tuple[tuple[float, float], ...]
    """Begin and end of each on the host, microseconds of the file."""
    how: str
    """How the steps were found, as `Steps.how`."""
    without_python: bool = False


def copy_trace(
    source: Path,
    target: Path,
    *,
    lane: Callable[[Copied, Trace, Steps], Sequence[Event]],
    most_events: int = MOST_EVENTS,
) -> Copied:
    """Write the adapted copy of `source` to `target`.

    The source may be gzipped; the plugin sees only copies called .pt.trace.json.gz. `lane` makes the events
    to draw above the trace, given what the copy will hold.

    Raises:
        NotATraceError: the source is something else.
        InputError: it cannot be read.
    """
    trace = read_trace(source)
    steps = find_steps(trace)
    first, without_python = _fitting(trace, steps, most_events)
    notes, added = _notes(trace, steps, first, without_python=without_python)
    kept = slice(first, None)
    plan = Copied(
        path=target,
        events=0,
        bytes=0,
        steps=tuple(steps.numbers[kept].tolist()),
        of_steps=len(steps),
        step_us=tuple(
            zip((steps.start_ns[kept] / 1e3).tolist(), (steps.end_ns[kept] / 1e3).tolist(), strict=True)
        ),
        how=steps.how,
        without_python=without_python,
    )
    with _compressed(target) as file:
        writer = _Writer(file, _head(trace))
        for event in (*lane(plan, trace, steps), *added):
            writer.write(event)
        translate = Translator(notes)

        def take(event: Event) -> None:
            for translated in translate(event):
                writer.write(translated)

        each_event(source, take)
        writer.end()
    return dataclasses.replace(plan, events=writer.events, bytes=target.stat().st_size)


def _fitting(trace: Trace, steps: Steps, most_events: int) -> tuple[int, bool]:
    """Return the first step of the last ones that fit, and whether Python frames must go."""
    if len(trace) <= most_events or len(steps) == 0:
        return 0, False
    for python in (True, False):
        times = trace.ts_ns if python else trace.ts_ns[trace.kind != Kind.PYTHON]
        rows = len(times) - before(times, steps.start_ns)
        fits = np.flatnonzero(rows <= most_events)
        if len(fits):
            return int(fits[0]), not python
    return len(steps) - 1, True


def _notes(trace: Trace, steps: Steps, first: int, *, without_python: bool) -> tuple[Notes, list[Event]]:
    """Note what single events do not show; also return the steps to add if none are marked."""
    calls = trace.calls[trace.correlation[trace.calls] > 0]
    low_us, launched = float("-inf"), None
    if first > 0 or without_python:
        low_ns = int(steps.start_ns[first])
        low_us = low_ns / 1e3
        launched = frozenset(trace.correlation[calls[trace.ts_ns[calls] >= low_ns]].tolist())
    wanted = trace.correlation[trace.rows(Kind.KERNEL, named=is_collective)]
    rows = calls[np.isin(trace.correlation[calls], wanted)]
    marked = steps.how == "ProfilerStep"
    thread = (_code(trace.pids, steps.thread[0]), _code(trace.tids, steps.thread[1]))
    # The plugin lets a step end with the last device work it launched, and begin where the one before
    # ended. Of the first it knows no such begin, and would count the work queued before it as its own;
    # left unmarked, its end is where the second begins.
    counted = min(first + runs_ahead(trace, steps), max(len(steps) - 1, 0))
    numbers = steps.numbers[counted:].tolist() if marked else []
    notes = Notes(
        low_us=low_us,
        launched=launched,
        steps=frozenset(f"ProfilerStep#{number}" for number in numbers),
        thread=thread,
        calls_us={
            int(trace.correlation[row]): (
                float(trace.ts_ns[row]) / 1e3,
                _code(trace.pids, int(trace.pid[row])),
                _code(trace.tids, int(trace.tid[row])),
            )
            for row in rows.tolist()
        },
        without_python=without_python,
    )
    return notes, [] if marked else _steps(steps, counted, thread)


def _steps(steps: Steps, first: int, thread: tuple[int | str, int | str]) -> list[Event]:
    """Return marks for steps found in other ways: without them, the plugin shows one single step."""
    return [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{steps.numbers[k]}",
            "pid": thread[0],
            "tid": thread[1],
            "ts": float(steps.start_ns[k]) / 1e3,
            "dur": float(steps.end_ns[k] - steps.start_ns[k]) / 1e3,
            "args": {"told by": steps.how},
        }
        for k in range(first, len(steps))
    ]


def _code(values: Sequence[str], code: int) -> int | str:
    """Return a process or thread as the file writes it: the plugin wants numbers."""
    if not 0 <= code < len(values):
        return 0
    return int(values[code]) if values[code].lstrip("-").isdecimal() else values[code]


def _head(trace: Trace) -> dict[str, Any]:
    """Return what stands before the events; they must come last, the plugin appends to them."""
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms"}
    meta = trace.meta
    if meta.base_ns:
        head["baseTimeNanoseconds"] = meta.base_ns
    if meta.device_properties:
        head["deviceProperties"] = list(meta.device_properties)
    if meta.distributed is not None:
        head["distributedInfo"] = meta.distributed
    head["adaptedBy"] = "bottleneck: names and categories as torch-tb-profiler 0.4.3 wants them"
    return head


class _Writer:
    """Writes events one by one behind a head."""

    def __init__(self, file: BinaryIO, head: dict[str, Any]) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self.events = 0
        file.write(self._encoder.encode(head)[:-1] + b',"traceEvents":[')

    def write(self, event: Event) -> None:
        self._file.write((b",\n" if self.events else b"\n") + self._encoder.encode(event))
        self.events += 1

    def end(self) -> None:
        self._file.write(b"\n]}\n")


def _compressed(target: Path) -> BinaryIO:
    """Open a gzip file for writing, with the fastest library that is installed."""
    try:
        library = importlib.import_module("isal.igzip")
    except ImportError:
        library = gzip
    return cast("BinaryIO", library.open(target, "wb", compresslevel=_COMPRESSION))
