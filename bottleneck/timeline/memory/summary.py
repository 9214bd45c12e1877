"""From a memory snapshot to the summary that the diagnosis carries.

In: a `Snapshot` and the harness' notes. Out: a `MemorySummary` per device, the one with most at its peak
first. Arrays in, bounded structs out; nothing here knows of files or findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ...model.memory import Fragmentation, MemorySummary, OutOfMemory
from ...model.snapshot import Action, MemoryNotes, Snapshot
from ...model.words import byte_size
from .curve import draw_curve, draw_marks
from .facts import (
    churn,
    empty_cache,
    find_leaks,
    find_spike,
    floor,
    gradients_in_forward,
    headroom,
    loss_bytes,
    peak_without_leaks,
    stale_gradients,
    varying_sizes,
)
from .lives import reserved_after
from .reading import Reading, read_memory
from .segments import find_fragmentation
from .stacks import read_stacks

_NO_LIMIT = 1 << 50


def summarise_memory(
    snapshot: Snapshot,
    notes: MemoryNotes | None = None,
    *,
    capacities: Mapping[int, int] | None = None,
) -> tuple[MemorySummary, ...]:
    """Summarise every device of a snapshot.

    `capacities` has the bytes that the process may use of a device, where the notes do not tell.
    """
    stacks = read_stacks(snapshot)
    found = []
    for memory in snapshot.devices:
        mine = notes if notes is not None and notes.device == memory.device else None
        reading = read_memory(snapshot, memory, stacks, notes)
        capacity = mine.capacity_bytes if mine is not None else None
        capacity = capacity or (capacities or {}).get(memory.device)
        summary = _summarise(reading, mine, source=snapshot.path, capacity=capacity)
        found.append(msgspec.structs.replace(summary, **_settings(snapshot.settings)))
    return tuple(sorted(found, key=lambda summary: -summary.peak_bytes))


def _settings(told: Mapping[str, object]) -> dict[str, bool | int]:
    """Return what the snapshot states of the allocator's settings."""
    found: dict[str, bool | int] = {}
    expandable, limit = told.get("expandable_segments"), told.get("max_split_size")
    if isinstance(expandable, bool):
        found["expandable_segments"] = expandable
    if isinstance(limit, int):
        # Without a limit torch writes -1; a limit beyond any device is none either.
        found["max_split_bytes"] = limit if 0 < limit < _NO_LIMIT else 0
    return found


def join_failure(
    history: Sequence[MemorySummary], failure: Sequence[MemorySummary], *, caught: bool
) -> tuple[MemorySummary, ...]:
    """Put what is known of a failed allocation into the summary of the history, if there is one.

    `caught`: the script went on after it.
    """
    told = {
        summary.device: msgspec.structs.replace(summary.out_of_memory, caught=caught)
        for summary in failure
        if summary.out_of_memory is not None
    }
    known = {summary.device for summary in history}
    # A device whose memory window never came is told by the failure's snapshot alone.
    summaries = [*history, *(summary for summary in failure if summary.device not in known)]
    return tuple(
        msgspec.structs.replace(summary, out_of_memory=told.get(summary.device, summary.out_of_memory))
        for summary in summaries
    )


def _summarise(
    reading: Reading, notes: MemoryNotes | None, *, source: str, capacity: int | None
) -> MemorySummary:
    memory, clock, lives = reading.memory, reading.clock, reading.lives
    at_peak = lives.live_at(reading.peak)
    reserved = reserved_after(memory)
    told = reading.told
    python = any(facts.python for facts in told)
    emptied = empty_cache(reading) if python else None
    pieces = find_fragmentation(reading)
    failure = _failure(reading, notes, pieces)
    leaks = find_leaks(reading, capacity=capacity)
    return MemorySummary(
        device=memory.device,
        source=source.rpartition("/")[2],
        peak_bytes=int(reading.live[reading.peak]),
        peak_at=float(clock.at[reading.peak]) if lives.events else None,
        peak_when=reading.when(reading.peak),
        reserved_bytes=int(memory.segment_size.sum()) if len(memory.segment_size) else None,
        reserved_peak_bytes=int(reserved.max()) if len(reserved) else None,
        capacity_bytes=capacity,
        floor_bytes=floor(reading),
        composition=reading.composition(at_peak),
        unknown_share=reading.unknown_share(at_peak),
        holders=reading.holders(at_peak),
        curve=draw_curve(reading, reserved),
        marks=draw_marks(clock),
        events=lives.events,
        steps=len(clock.steps) or None,
        steps_from=clock.steps_from,
        stacks="none" if not python else "python and C++" if any(f.cpp for f in told) else "python",
        truncated=reading.truncated,
        fragmentation=pieces,
        churn=churn(reading),
        leaks=leaks,
        peak_without_leaks_bytes=peak_without_leaks(reading, leaks),
        spike=find_spike(reading),
        headroom=headroom(reading, capacity),
        varying_sizes=varying_sizes(reading),
        loss_bytes=loss_bytes(reading, at_peak) if python else None,
        checkpointed=any(facts.checkpoint for facts in told) if python else None,
        empty_cache_per_step=emptied[0] if emptied is not None else None,
        empty_cache_sites=emptied[1] if emptied is not None else (),
        gradients_in_forward_bytes=gradients_in_forward(reading),
        stale_gradients_bytes=stale_gradients(reading),
        out_of_memory=failure,
        problems=_problems(reading, pieces, python=python, failed=failure is not None),
    )


def _problems(
    reading: Reading, pieces: Fragmentation | None, *, python: bool, failed: bool
) -> tuple[str, ...]:
    found = []
    if pieces is not None and pieces.private_free_bytes:
        found.append(
            f"{byte_size(pieces.private_bytes)} are reserved in private pools, as used by CUDA graphs. "
            "Replayed graphs use these without events in the history, so they are not part of the peak."
        )
    if not reading.lives.events and not failed:
        found.append(
            "The snapshot has no history, only the state at one moment: to see a peak, call "
            "torch.cuda.memory._record_memory_history() some steps before it."
        )
    elif reading.lives.events and not python:
        found.append(
            'The history has no stacks, so no line of the program can be named: record with context="all".'
        )
    if reading.truncated:
        found.append("The memory history was full (max_entries): it holds only the last events.")
    if reading.lives.events and not reading.clock.steps:
        found.append("No whole training step was found in the memory history: there are no figures per step.")
    return tuple(found)


def _unused(pieces: Fragmentation) -> int:
    return pieces.reserved_bytes - pieces.active_bytes - pieces.private_free_bytes


def _failure(reading: Reading, notes: MemoryNotes | None, pieces: Fragmentation | None) -> OutOfMemory | None:
    """Return the allocation that failed: as noted, else as the history shows it."""
    noted = notes.failure if notes is not None else None
    if noted is not None:
        # The snapshot was taken then: its state is what held the memory.
        rows = reading.lives.live_at(reading.lives.events)
        step = f" of step {noted.step + 1}" if noted.step is not None else ""
        return OutOfMemory(
            requested_bytes=noted.requested_bytes or None,
            device_free_bytes=noted.device_free_bytes,
            site=noted.site,
            when=f"{noted.phase or 'between the phases'}{step}",
            live_bytes=int(reading.lives.size[rows].sum()),
            unused_bytes=_unused(pieces) if pieces is not None else None,
            composition=reading.composition(rows),
            holders=reading.holders(rows),
        )
    failed = np.flatnonzero(reading.memory.action == int(Action.OOM))
    if not len(failed):
        return None
    event = int(failed[-1])
    stack = int(reading.memory.stack[event])
    rows = reading.lives.live_at(event)
    return OutOfMemory(
        requested_bytes=int(reading.memory.size[event]) or None,
        device_free_bytes=reading.memory.device_free.get(event),
        site=reading.stacks[stack].site if stack >= 0 else None,
        when=reading.when(event),
        caught=event < reading.lives.events - 1,
        live_bytes=int(reading.live[event]),
        composition=reading.composition(rows),
        holders=reading.holders(rows),
    )
