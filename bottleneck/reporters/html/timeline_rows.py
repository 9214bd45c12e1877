"""What the page says of the timeline in words: the step shown, the rule of thinning, the longest blocks.

In: a diagnosis. Out: rows of clean text; the blocks as a table are what a screen reader gets.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model.diagnosis import Diagnosis
from ...model.view import Lane, Span, StepTimeline
from ...model.words import clean, milliseconds
from ..rows.pairs import Pairs, known_pairs

_LONGEST_BLOCKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSection:
    """The words around the timeline."""

    facts: Pairs
    rule: str
    blocks: tuple[tuple[str, str, str, str, str], ...]
    """Name, budget line, lane, begin, length."""


def timeline_section(diagnosis: Diagnosis) -> TimelineSection | None:
    """Return the words around the timeline, None without one."""
    timeline = diagnosis.timeline
    if timeline is None:
        return None
    length_ms = timeline.length_us / 1e3
    true_ms = diagnosis.step.true_ms if diagnosis.step.true_is != "profiled" else None
    slower = f" ({length_ms / true_ms:.2f}× the true one)" if true_ms else ""
    chosen = clean(timeline.chosen)
    return TimelineSection(
        facts=known_pairs(
            ("Step shown", f"number {timeline.step}, {chosen}" if timeline.step is not None else chosen),
            ("Its length", f"{milliseconds(length_ms)} ms, profiled{slower}"),
            ("True step", f"{milliseconds(true_ms)} ms" if true_ms is not None else "not measured"),
        ),
        rule=_rule(timeline),
        blocks=_longest(timeline, length_ms),
    )


def _rule(timeline: StepTimeline) -> str:
    merged = [lane for lane in timeline.lanes if lane.merged_below_us > 0]
    rule = "Every event is drawn."
    if merged:
        longest = max(lane.merged_below_us for lane in merged)
        rule = (
            f"In {len(merged)} of {len(timeline.lanes)} lanes, events shorter than up to {longest:.3g} µs "
            "that begin within the same stretch of that length are drawn as one block."
        )
    if timeline.lanes_left_out:
        rule += f" {timeline.lanes_left_out} lanes with less time are left out."
    return rule


def _longest(timeline: StepTimeline, length_ms: float) -> tuple[tuple[str, str, str, str, str], ...]:
    spans: list[tuple[Span, Lane]] = [
        (span, lane)
        for lane in timeline.lanes
        if lane.kind in ("idle", "work", "stream", "calls")
        for span in lane.spans
    ]
    spans.sort(key=lambda pair: -pair[0].dur_us)
    return tuple(
        (
            _name(timeline.names, span),
            timeline.parts[span.part].value if 0 <= span.part < len(timeline.parts) else "",
            clean(lane.name),
            milliseconds(span.start_us / 1e3, like=length_ms),
            milliseconds(span.dur_us / 1e3, like=length_ms),
        )
        for span, lane in spans[:_LONGEST_BLOCKS]
    )


def _name(names: tuple[str, ...], span: Span) -> str:
    name = clean(names[span.name]) if 0 <= span.name < len(names) else ""
    return f"{name} and {span.count - 1} more" if span.count > 1 else name
