"""The numbers behind the charts, as one JSON document inside the page.

In: a diagnosis. Out: plain lists and dicts, text cleaned; nothing here decides anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.codes import BUDGET_PARTS, CLASSES, BottleneckClass, Part
from ...model.diagnosis import Diagnosis
from ...model.memory import MemorySummary
from ...model.view import Lane, StepTimeline
from ...model.words import clean
from ..rows.heat import heat_map

_LONGEST_NAME = 200


def json_for_script(data: object) -> str:
    """Return JSON that cannot end the script element it stands in, nor open a comment or tag in it."""
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _name(text: str) -> str:
    return clean(text)[:_LONGEST_NAME]


def chart_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what the page's script draws."""
    step = diagnosis.step
    timeline = diagnosis.timeline
    return {
        "parts": [part.value for part in Part],
        "true_ms": step.true_ms,
        "true_ci_ms": step.true_ci_ms,
        "budget": [
            {"part": list(Part).index(line.part), "ms": line.ms, "share": line.share}
            for line in sorted(diagnosis.budget, key=lambda line: (line.part is Part.UNEXPLAINED, -line.ms))
            if line.ms > 0
        ],
        "windows": [
            {
                "name": _name(window.name),
                "index": window.index,
                "ms": window.ms,
                "of_steps": window.of_steps,
                "left_out": window.left_out,
                "compiled": window.compiled,
            }
            for window in diagnosis.windows
            if window.ms
        ],
        "timeline": _timeline(timeline) if timeline is not None else None,
        "causes": [
            {
                "name": cause.bottleneck_class.value,
                "parts": [list(Part).index(part) for part in CLASSES[cause.bottleneck_class].parts],
                "lanes": _where(timeline, cause.bottleneck_class) if timeline is not None else [],
            }
            for cause in diagnosis.causes
        ],
        "heat": _heat(diagnosis),
        "memory": [_memory(summary) for summary in diagnosis.memory if summary.curve.at],
    }


def _timeline(timeline: StepTimeline) -> dict[str, Any]:
    codes = {part: list(Part).index(part) for part in Part}
    part_of = [codes[part] for part in timeline.parts]
    return {
        "length_us": timeline.length_us,
        "names": [_name(name) for name in timeline.names],
        "lanes": [
            {
                "kind": lane.kind,
                "name": _name(lane.name),
                "merged_us": lane.merged_below_us,
                "spans": [
                    [
                        s.start_us,
                        s.dur_us,
                        s.name,
                        part_of[s.part] if 0 <= s.part < len(part_of) else -1,
                        s.depth,
                        s.count,
                    ]
                    for s in lane.spans
                    if 0 <= s.name < len(timeline.names)
                ],
            }
            for lane in timeline.lanes
        ],
    }


def _heat(diagnosis: Diagnosis) -> dict[str, Any] | None:
    found = heat_map(diagnosis)
    if found is None:
        return None

    def per_cent(values: tuple[float, ...]) -> list[int]:
        return [round(100 * ms / found.most_ms) for ms in values]

    return {
        "ranks": found.ranks,
        "nodes": [[band.first, band.label] for band in found.nodes],
        "groups": [[band.first, band.label] for band in found.groups],
        "steps": [per_cent(values) for values in found.steps],
        "causes": [[name, per_cent(values)] for name, values in found.causes],
        "most_ms": found.most_ms,
    }


def _memory(summary: MemorySummary) -> dict[str, Any]:
    curve = summary.curve
    return {
        "device": summary.device,
        "unit": curve.unit,
        "at": curve.at,
        "live": curve.live_bytes,
        "reserved": curve.reserved_bytes,
        "categories": {_name(name): column for name, column in curve.by_category.items() if any(column)},
        "marks": [
            {"name": _name(mark.name), "begin": mark.begin, "end": mark.end, "step": mark.step}
            for mark in summary.marks
        ],
        "peak_bytes": summary.peak_bytes,
        "peak_at": summary.peak_at,
        "capacity": summary.capacity_bytes,
    }


def _matching(timeline: StepTimeline, lane: Lane, parts: tuple[Part, ...]) -> list[float]:
    wanted = {i for i, part in enumerate(timeline.parts) if part in parts}
    return [span.dur_us for span in lane.spans if span.part in wanted]


def _where(timeline: StepTimeline, group: BottleneckClass) -> list[int]:
    """Return the lanes in which a class is looked for: the first kind of lane that shows it at all."""
    parts = CLASSES[group].parts
    calls = ("calls",) if any(BUDGET_PARTS[part].in_calls for part in parts) else ()
    for kind in ("idle", "work", "stream", *calls):
        found = [
            i
            for i, lane in enumerate(timeline.lanes)
            if lane.kind == kind and _matching(timeline, lane, parts)
        ]
        if found:
            return found
    return []


def blocks_of(timeline: StepTimeline | None, group: BottleneckClass) -> tuple[int, float]:
    """Return how many blocks of the timeline show a class, and their time in ms."""
    if timeline is None:
        return 0, 0.0
    times = [
        us
        for i in _where(timeline, group)
        for us in _matching(timeline, timeline.lanes[i], CLASSES[group].parts)
    ]
    return len(times), sum(times) / 1e3
