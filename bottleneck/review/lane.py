"""The Diagnosis lane of a trace, and where on it each cause shows.

In: a diagnosis and the steps of a copied trace. Out: trace events of a process "Diagnosis" that viewers
draw on top (the stock plugin does not count their category), and a place to zoom to per cause.

Every step has its verdict. Below, on a GPU run, the device's idle time by what the host did meanwhile;
without a GPU, the one step that the report shows, divided by budget line.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from ..model.codes import BUDGET_PARTS, CLASSES, Part
from ..model.diagnosis import Cause, Diagnosis
from ..model.run import CompileFacts
from ..model.view import NO_PART, StepTimeline
from ..model.words import milliseconds, percent, sentence
from ..reporters.rows.diagnosis import headline
from ..timeline.lanes.program import build_program
from ..timeline.steps.traced import Steps
from ..timeline.trace.table import Trace
from ..timeline.views.idle import idle_pieces
from ..timeline.views.thinned import PARTS
from .copy import Copied
from .dialect import LANE, Event

CATEGORY = "diagnosis"
_VERDICT, _DIVIDED = 1, 2
_MOST_PIECES = 20_000
_COLOURS: dict[Part, str] = {
    Part.INPUT: "terrible",
    Part.SYNC: "bad",
    Part.ALLOCATOR: "yellow",
    Part.COPIES: "olive",
    Part.COMMUNICATION: "rail_animation",
    Part.DISPATCH: "thread_state_iowait",
    Part.GRAPH_BREAK: "thread_state_unknown",
    Part.COMPILE: "black",
    Part.HOST: "thread_state_runnable",
    Part.DEVICE: "grey",
    Part.UNEXPLAINED: "white",
    Part.TENSOR_CORE: "good",
    Part.OTHER_MATH: "thread_state_running",
    Part.MEMORY_BOUND: "rail_load",
    Part.OPTIMIZER: "rail_response",
}
"""Colour names of the trace viewer; other viewers choose their own."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cause shows, seen from the begin of the lane's block of that step."""

    rank: int
    step: int
    offset_us: float
    dur_us: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The device's idle time over the steps of a copy: (begin, length, part), in the file's microseconds."""

    pieces: tuple[tuple[float, float, Part], ...]
    above_us: float
    """Shorter pieces are left out: there are too many of them."""


def idle_of(trace: Trace, steps: Steps, copied: Copied, *, compile_facts: CompileFacts | None) -> Idle | None:
    """Divide the device's idle time by what the host did; None for a run without a device."""
    if not copied.step_us:
        return None
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1], compile_facts=compile_facts)
    if program is None or program.steps < 1:
        return None
    found = idle_pieces(trace, program)
    length = found.end - found.start
    kept = found.start >= copied.step_us[0][0] * 1e3
    above = 0
    if int(kept.sum()) > _MOST_PIECES:
        above = int(np.sort(length[kept])[-_MOST_PIECES])
        kept &= length >= above
    return Idle(
        pieces=tuple(
            (start / 1e3, dur / 1e3, PARTS[part])
            for start, dur, part in zip(
                found.start[kept].tolist(), length[kept].tolist(), found.part[kept].tolist(), strict=True
            )
        ),
        above_us=above / 1e3,
    )


def lane_events(diagnosis: Diagnosis, copied: Copied, *, rank: int, idle: Idle | None = None) -> list[Event]:
    """Return the events of the lane for the trace of one rank."""
    verdict = diagnosis.verdict
    events: list[Event] = [
        _meta("process_name", 0, {"name": LANE}),
        _meta("process_labels", 0, {"labels": "bottleneck"}),
        _meta("process_sort_index", 0, {"sort_index": -1}),
        _meta("thread_name", _VERDICT, {"name": "verdict, per step"}),
        _meta("thread_sort_index", _VERDICT, {"sort_index": 0}),
    ]
    told = {
        "verdict": headline(diagnosis),
        "confidence": verdict.confidence,
        "true step": f"{milliseconds(diagnosis.step.true_ms)} ms",
        "times here": "as recorded under the profiler",
    }
    for number, (begin, end) in zip(copied.steps, copied.step_us, strict=True):
        name = f"step {number}: {verdict.bottleneck_class.value}"
        events.append(_block(name, _VERDICT, begin, end - begin, told | {"step": number}))
    timeline = diagnosis.timeline
    if idle is not None:
        events += _idle_lane(idle)
    elif timeline is not None and timeline.rank == rank and timeline.step in copied.steps:
        events += _divided(timeline)
    return events


def places(diagnosis: Diagnosis, copied: Copied, *, rank: int) -> dict[str, Place]:
    """Return where each cause shows in the trace of one rank, by the code of the cause."""
    timeline = diagnosis.timeline
    if timeline is None or timeline.rank != rank or timeline.step not in copied.steps:
        return {}
    step_us = copied.step_us[copied.steps.index(timeline.step)][0]
    shift = timeline.start_ns / 1e3 - step_us
    found: dict[str, Place] = {}
    for cause in diagnosis.causes:
        spot = _spot(timeline, cause)
        if spot is not None:
            begin, length, what = spot
            found[cause.code] = Place(
                rank=rank, step=timeline.step, offset_us=round(begin + shift, 3), dur_us=length, what=what
            )
    return found


def _spot(timeline: StepTimeline, cause: Cause) -> tuple[float, float, str] | None:
    """Return begin, length and name of the longest stretch of a cause in the step shown.

    What is spread over the whole step (computing, dispatch) is shown as the whole step.
    """
    known = CLASSES[cause.bottleneck_class]
    wanted = {timeline.parts.index(part) for part in known.parts if part in timeline.parts}
    spans = [s for lane in timeline.lanes if lane.kind in ("idle", "work", "stream") for s in lane.spans]
    mine = [span for span in spans if span.part in wanted]
    if not mine:
        return None
    if known.everywhere:
        return 0.0, timeline.length_us, f"step {timeline.step}"
    longest = max(mine, key=lambda span: span.dur_us)
    return longest.start_us, longest.dur_us, timeline.names[longest.name]


def _idle_lane(idle: Idle) -> list[Event]:
    above = f", pieces above {idle.above_us:.1f} µs" if idle.above_us else ""
    events = [
        _meta("thread_name", _DIVIDED, {"name": f"GPU idle, by cause{above}"}),
        _meta("thread_sort_index", _DIVIDED, {"sort_index": 1}),
    ]
    for begin, length, part in idle.pieces:
        block = _block(
            BUDGET_PARTS[part].meanwhile or part.value, _DIVIDED, begin, length, {"budget line": part.value}
        )
        events.append(block | {"cname": _COLOURS.get(part, "grey")})
    return events


def _divided(timeline: StepTimeline) -> list[Event]:
    """Return the lane that divides one step: the device's idle time, or the training thread's time."""
    lane = next((lane for lane in timeline.lanes if lane.kind in ("idle", "work")), None)
    if lane is None:
        return []
    title = f"{sentence(lane.name)} (step {timeline.step})"
    begin = timeline.start_ns / 1e3
    events = [
        _meta("thread_name", _DIVIDED, {"name": title}),
        _meta("thread_sort_index", _DIVIDED, {"sort_index": 1}),
    ]
    for span in lane.spans:
        part = timeline.parts[span.part] if span.part != NO_PART else None
        args: Event = {"share of the step": percent(span.dur_us / timeline.length_us)}
        if part is not None:
            args["budget line"] = part.value
        if span.count > 1:
            args["events drawn as one"] = span.count
        block = _block(timeline.names[span.name], _DIVIDED, begin + span.start_us, span.dur_us, args)
        if part is not None:
            block["cname"] = _COLOURS.get(part, "grey")
        events.append(block)
    return events


def _meta(name: str, thread: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": LANE, "tid": thread, "ts": 0, "args": args}


def _block(name: str, thread: int, begin: float, length: float, args: Event) -> Event:
    return {
        "ph": "X",
        "cat": CATEGORY,
        "name": name,
        "pid": LANE,
        "tid": thread,
        "ts": round(begin, 3),
        "dur": round(length, 3),
        "args": args,
    }
