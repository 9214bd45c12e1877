"""Where steps and phases lie in a memory history.

In: a snapshot's events, and the harness' notes where there are any. Out: `MemoryClock`: per event its
position, step and phase, and where each phase occurs.

Three sources, the best that is there: the harness' notes (steps and phases by time), `record_function`
ranges that the snapshot keeps (ProfilerStep, Optimizer.step), and the stacks of the events. On a GPU
backward runs on a thread of its own that has no Python stack, so an event without one between events
that have one belongs to backward.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...model.snapshot import Action, Annotation, DeviceMemory, MemoryNotes, Snapshot
from ..trace.intervals import within
from .stacks import StackFacts

PHASES = (
    "",
    "data",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "zero_grad",
    "evaluation",
    "set-up",
)
_CODE = {name: code for code, name in enumerate(PHASES)}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A phase or a step: events [begin, end)."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryClock:
    """Positions, steps and phases of the events of one device."""

    at: NDArray[np.float64]
    """Since the first event: ms, or event numbers."""
    unit: Literal["ms", "event"]
    steps: tuple[Stretch, ...] = ()
    """Whole steps."""
    steps_from: Literal["harness", "annotations", "stacks", ""] = ""
    phase: NDArray[np.int8]
    """Code into PHASES per event."""
    phases: tuple[Stretch, ...] = ()
    """In order; adjacent events of one phase make one stretch."""
    step_of: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Number of the whole step that an event lies in, -1 outside."""

    def first(self, name: str, within: Stretch) -> int | None:
        """Return the first event of a phase inside a stretch."""
        inside = np.flatnonzero(self.phase[within.begin : within.end] == _CODE[name])
        return int(inside[0]) + within.begin if len(inside) else None

    def last(self, name: str, within: Stretch) -> int | None:
        """Return the last event of a phase inside a stretch."""
        inside = np.flatnonzero(self.phase[within.begin : within.end] == _CODE[name])
        return int(inside[-1]) + within.begin if len(inside) else None


def read_clock(
    snapshot: Snapshot,
    memory: DeviceMemory,
    stacks: tuple[StackFacts, ...],
    notes: MemoryNotes | None,
    *,
    truncated: bool,
) -> MemoryClock:
    """Find steps and phases of one device's history; of a truncated one the first step may be cut."""
    count = len(memory.action)
    timed = memory.has_times
    # The clock behind the times is calibrated and may step back by a microsecond.
    time_us = np.maximum.accumulate(memory.time_us) if timed else memory.time_us
    at = (time_us - time_us[0]) / 1e3 if timed else np.arange(count, dtype=np.float64)
    phase = _phases_by_stack(memory, stacks)
    steps: list[Stretch] = []
    steps_from: Literal["harness", "annotations", "stacks", ""] = ""
    if timed and notes is not None and notes.step_begin_us:
        steps_from = "harness"
        phase = _phases_by_notes(time_us, notes)
        steps = _cut(
            time_us,
            [(f"step {i}", b, e) for i, b, e in zip(
                notes.step_index, notes.step_begin_us, notes.step_end_us, strict=True
            )],
            truncated=truncated,
        )  # fmt: skip
    if not steps and timed:
        steps = _cut(time_us, _annotated_steps(snapshot.annotations), truncated=truncated)
        steps_from = "annotations" if steps else ""
    if not steps:
        steps = _steps_by_phase(phase)
        steps_from = "stacks" if steps else ""
    step_of = np.full(count, -1, np.int32)
    for number, step in enumerate(steps):
        step_of[step.begin : step.end] = number
    return MemoryClock(
        at=at,
        unit="ms" if timed else "event",
        steps=tuple(steps),
        steps_from=steps_from,
        phase=phase,
        phases=_stretches(phase),
        step_of=step_of,
    )


def _phases_by_stack(memory: DeviceMemory, stacks: tuple[StackFacts, ...]) -> NDArray[np.int8]:
    """Return the phase that each event's stack shows."""
    if not stacks or not bool((memory.stack >= 0).any()):
        return np.zeros(len(memory.stack), np.int8)
    # The last entry is for "no stack" (-1): with Python stacks on, only backward's thread has none.
    python_only = not any(facts.cpp for facts in stacks)
    codes = np.array(
        [_CODE[facts.phase] for facts in stacks] + [_CODE["backward"] if python_only else 0], np.int8
    )
    gives = np.isin(memory.action, (int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)))
    if bool((memory.stack[gives] >= 0).any()):
        return codes[memory.stack]
    # Recorded with context="alloc", only what asks has a stack. What gives back at the border of two
    # phases is mostly the later one's doing: backward drops the loss, zero_grad the gradients.
    places = np.arange(len(gives))
    following = np.minimum.accumulate(np.where(gives, len(gives), places)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(gives, 0, places))
    phase: NDArray[np.int8] = codes[memory.stack[np.where(following < len(gives), following, before)]]
    return phase


def _phases_by_notes(time_us: NDArray[np.int64], notes: MemoryNotes) -> NDArray[np.int8]:
    """Return the innermost noted phase of each event."""
    phase = np.zeros(len(time_us), np.int8)
    # Inner phases come after outer ones, and overwrite them.
    for name, begin, end in zip(notes.phase, notes.phase_begin_us, notes.phase_end_us, strict=True):
        phase[within(time_us, begin, end)] = _CODE.get(name, 0)
    return phase


def _cut(time_us: NDArray[np.int64], ranges: list[tuple[str, int, int]], *, truncated: bool) -> list[Stretch]:
    """Return the ranges that lie wholly inside the history, as stretches of events."""
    found = []
    for name, begin_us, end_us in ranges:
        inside = within(time_us, begin_us, end_us)
        if inside.stop > inside.start and (inside.start > 0 or not truncated):
            found.append(Stretch(name, inside.start, inside.stop))
    return found


def _annotated_steps(annotations: tuple[Annotation, ...]) -> list[tuple[str, int, int]]:
    """Return steps from the profiler's marks, else from one end of an optimizer's step to the next."""
    marked = [(a.name, a.begin_us, a.end_us) for a in annotations if a.name.startswith("ProfilerStep#")]
    if marked:
        return marked
    updates = [a for a in annotations if a.name.startswith("Optimizer.step#")]
    if not updates:
        return []
    # Of several optimizers the one that steps last in a round closes it.
    name = updates[-1].name
    ends = [a.end_us for a in updates if a.name == name]
    return [(f"step {i}", begin, end) for i, (begin, end) in enumerate(itertools.pairwise(ends))]


def _steps_by_phase(phase: NDArray[np.int8]) -> list[Stretch]:
    """Return steps from one end of backward to the next.

    Optimizers that allocate nothing leave no event, so backward marks the round; with several
    backwards per update these are micro-steps.
    """
    backward = phase == _CODE["backward"]
    forward = phase == _CODE["forward"]
    ends: list[int] = []
    inside = False
    for i in np.flatnonzero(backward | forward).tolist():
        if backward[i]:
            inside = True
        elif inside:
            ends.append(i)
            inside = False
    return [Stretch(f"step {k}", b, e) for k, (b, e) in enumerate(itertools.pairwise(ends))]


def _stretches(phase: NDArray[np.int8]) -> tuple[Stretch, ...]:
    if not len(phase):
        return ()
    edges = np.flatnonzero(np.diff(phase)) + 1
    bounds = [0, *edges.tolist(), len(phase)]
    return tuple(Stretch(PHASES[phase[b]], b, e) for b, e in itertools.pairwise(bounds) if phase[b] > 0)
