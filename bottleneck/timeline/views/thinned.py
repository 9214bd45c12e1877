"""Lanes of the timeline that reports draw: one step, thinned to what a screen can show.

In: columns of events inside one step. Out: `Lane`s of bounded size.

The rule of thinning: where a lane holds more events than it may, events shorter than R that begin
within the same stretch of length R are drawn as one block, R being the smallest for which the lane
fits. No time is dropped: a block spans all its events, gaps between them below R included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.view import NO_PART, Lane, Span, StepTimeline
from ...model.words import shorten
from ..trace.dialect import Kind
from ..trace.table import Trace

PARTS: tuple[Part, ...] = tuple(Part)
"""What `Span.part` indexes."""

MOST_SPANS = {"idle": 800, "stream": 800, "work": 800, "phases": 400, "calls": 400, "operators": 400}
"""Per lane: about what a thousand pixels can show; more for device lanes, into which readers zoom."""
MOST_LANES = 12
DEEPEST = 2
_LONGEST_NAME = 160
_ENGINE = re.compile(r"^autograd::engine::")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEvents:
    """Events of one lane before thinning; columns of equal length, times in ns of the trace's clock."""

    kind: Literal["phases", "idle", "stream", "calls", "operators", "work"]
    name: str
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    label: NDArray[np.int64]
    """Code into the name table that `Sketch` was given."""
    part: NDArray[np.int64]
    depth: NDArray[np.int64]

    @property
    def busy_ns(self) -> int:
        """Time of the outermost events."""
        return int((self.end - self.start)[self.depth == 0].sum())


def part_codes(parts: Sequence[Part | None]) -> NDArray[np.int64]:
    """Return the codes that spans carry for these parts."""
    return np.asarray([NO_PART if p is None else PARTS.index(p) for p in parts], dtype=np.int64)


def choose_step(lengths: NDArray[np.float64]) -> int:
    """Return the position of the median step, the earlier one of two."""
    order = np.argsort(lengths, kind="stable")
    return int(order[(len(order) - 1) // 2])


def nesting(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how deep each event is nested, for one thread's events sorted by (start, -duration)."""
    depth = np.zeros(len(start), dtype=np.int64)
    open_ends: list[int] = []
    for k, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        depth[k] = len(open_ends)
        open_ends.append(finish)
    return depth


def thread_name(trace: Trace, tid: int) -> str:
    """Return what a thread other than the training thread is called."""
    runs_backward = len(trace.rows(Kind.OP, named=_ENGINE, tid=tid)) > 0
    return f"{'autograd ' if runs_backward else ''}thread {trace.tids[tid]}"


@dataclass(slots=True, kw_only=True)
class Sketch:
    """Collects the lanes of one step and makes the timeline of them."""

    trace: Trace
    low_ns: int
    high_ns: int
    extra_names: list[str] = field(default_factory=list)
    """Names that are not in the trace, for labels of our own; their codes follow the trace's."""
    lanes: list[LaneEvents] = field(default_factory=list)

    def code(self, name: str) -> int:
        """Return the label code of a name of our own."""
        if name not in self.extra_names:
            self.extra_names.append(name)
        return len(self.trace.names) + self.extra_names.index(name)

    def inside(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of the rows that overlap the step."""
        return rows[(self.trace.end_of(rows) > self.low_ns) & (self.trace.ts_ns[rows] < self.high_ns)]

    def add_rows(
        self,
        kind: Literal["phases", "stream", "calls", "operators"],
        name: str,
        rows: NDArray[np.intp],
        *,
        part: NDArray[np.int64] | None = None,
        deepest: int = DEEPEST,
    ) -> None:
        """Add a lane of trace rows; those nested deeper than `deepest` are left to their parents."""
        start, end = self.trace.ts_ns[rows], self.trace.end_of(rows)
        depth = nesting(start, end)
        kept = depth <= deepest
        parts = np.full(len(rows), NO_PART, dtype=np.int64) if part is None else part
        self.add(
            LaneEvents(
                kind=kind,
                name=name,
                start=start[kept],
                end=end[kept],
                label=self.trace.name[rows][kept].astype(np.int64),
                part=parts[kept],
                depth=depth[kept],
            )
        )

    def add(self, lane: LaneEvents) -> None:
        """Add a lane, cut to the step; one without events is left out."""
        start = np.maximum(lane.start, self.low_ns)
        end = np.minimum(lane.end, self.high_ns)
        kept = end > start
        if kept.any():
            self.lanes.append(
                LaneEvents(
                    kind=lane.kind,
                    name=lane.name,
                    start=start[kept],
                    end=end[kept],
                    label=lane.label[kept],
                    part=lane.part[kept],
                    depth=lane.depth[kept],
                )
            )

    def timeline(self, *, step: int | None, of_steps: int, chosen: str) -> StepTimeline:
        """Thin the lanes and put the timeline together."""
        ranked = sorted(range(len(self.lanes)), key=lambda i: (self.lanes[i].kind != "phases", i))
        busiest = sorted(
            (i for i in ranked if self.lanes[i].kind in ("stream", "operators")),
            key=lambda i: -self.lanes[i].busy_ns,
        )
        spare = MOST_LANES - sum(i not in busiest for i in ranked)
        dropped = set(busiest[max(spare, 0) :])
        table: dict[int, int] = {}
        lanes = tuple(
            _thin(lane, low=self.low_ns, high=self.high_ns, table=table)
            for i, lane in enumerate(self.lanes)
            if i not in dropped
        )
        known = len(self.trace.names)
        names = (self.trace.names[code] if code < known else self.extra_names[code - known] for code in table)
        return StepTimeline(
            length_us=(self.high_ns - self.low_ns) / 1e3,
            lanes=lanes,
            names=tuple(shorten(name, _LONGEST_NAME) for name in names),
            parts=PARTS,
            start_ns=self.low_ns,
            step=step,
            of_steps=of_steps,
            chosen=chosen,
            lanes_left_out=len(dropped),
        )


def _blocks(lane: LaneEvents, low: int, radius: float) -> NDArray[np.int64]:
    """Return a block number per event under radius R; numbers need not be dense."""
    alone = (lane.end - lane.start) >= radius
    cell = ((lane.start - low) / radius).astype(np.int64)
    block = (cell * (DEEPEST + 2) + lane.depth) * 2
    block[alone] = 2 * np.flatnonzero(alone) + 1
    return block


def _thin(lane: LaneEvents, *, low: int, high: int, table: dict[int, int]) -> Lane:
    """Return the lane with no more spans than it may have."""
    radius = 0.0
    block = np.arange(len(lane.start), dtype=np.int64)
    most = MOST_SPANS[lane.kind]
    if len(block) > most:
        radius = (high - low) / (4 * most)
        block = _blocks(lane, low, radius)
        while len(np.unique(block)) > most and radius < high - low:
            radius *= 1.5
            block = _blocks(lane, low, radius)
    _, member = np.unique(block, return_inverse=True)
    count = int(member.max()) + 1
    dur = lane.end - lane.start
    start = np.full(count, high, dtype=np.int64)
    end = np.full(count, low, dtype=np.int64)
    np.minimum.at(start, member, lane.start)
    np.maximum.at(end, member, lane.end)
    # The longest event names its block: the last write wins, so write in order of length.
    by_length = np.argsort(dur, kind="stable")
    label = np.zeros(count, dtype=np.int64)
    depth = np.zeros(count, dtype=np.int64)
    label[member[by_length]] = lane.label[by_length]
    depth[member[by_length]] = lane.depth[by_length]
    time = np.zeros((count, len(PARTS) + 1))
    np.add.at(time, (member, lane.part - NO_PART), dur)
    part = time.argmax(axis=1) + NO_PART
    events = np.bincount(member, minlength=count)
    order = np.lexsort((depth, start))
    spans = tuple(
        Span(
            round((int(start[k]) - low) / 1e3, 2),
            round(int(end[k] - start[k]) / 1e3, 2),
            table.setdefault(int(label[k]), len(table)),
            int(part[k]),
            int(depth[k]),
            int(events[k]),
        )
        for k in order.tolist()
    )
    return Lane(
        kind=lane.kind,
        name=lane.name,
        spans=spans,
        events=len(lane.start),
        merged_below_us=round(radius / 1e3, 2),
    )
