"""The memory snapshots of one process with the notes that belong to them.

In: a `Rank`. Out: summaries per device, from `MemoryRecord`s: the history of the memory window, and the
state in which an allocation failed. Inside a run folder, what cannot be read is a problem only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import InputError, SnapshotError
from ..files import read_json
from ..model.memory import MemorySummary
from ..model.snapshot import NOTES_FORMAT, NOTES_SUFFIX, SNAPSHOT_SUFFIX, MemoryNotes, Snapshot
from ..timeline.memory.summary import join_failure, summarise_memory
from .rank import Rank
from .snapshot import read_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """One snapshot and its notes."""

    snapshot: Snapshot
    notes: MemoryNotes | None
    failure: bool
    """Taken because an allocation failed."""


def read_memory(rank: Rank) -> tuple[tuple[MemorySummary, ...], tuple[str, ...]]:
    """Summarise the memory of one process; returns (summaries, problems), the fullest device first.

    Raises:
        InputError: a snapshot that was given by itself cannot be read.
    """
    records, problems = read_records(rank)
    run = rank.run
    capacities = {
        device.index: int(device.total_bytes * (device.memory_fraction_cap or 1.0))
        for device in (run.devices if run is not None else ())
        if device.total_bytes and device.kind != "cpu"
    }
    history: tuple[MemorySummary, ...] = ()
    failure: tuple[MemorySummary, ...] = ()
    for record in records:
        found = summarise_memory(record.snapshot, record.notes, capacities=capacities)
        if record.failure:
            failure = found
        else:
            history = found
    caught = run is not None and not run.outcome.out_of_memory
    return join_failure(history, failure, caught=caught), problems


def read_records(rank: Rank) -> tuple[tuple[MemoryRecord, ...], tuple[str, ...]]:
    """Read what there is of one process; returns (records, problems), the history first.

    Raises:
        InputError: a snapshot that was given by itself cannot be read.
    """
    records: list[MemoryRecord] = []
    problems: list[str] = []
    for path, failure in ((rank.snapshot_path, False), (rank.failure_path, True)):
        if path is None:
            continue
        try:
            snapshot = read_snapshot(path)
            if not snapshot.devices:
                raise SnapshotError(
                    f"{path} is empty: no memory was reserved, and nothing was recorded.",
                    remedy="Call torch.cuda.memory._record_memory_history() before the first step, and take "
                    "the snapshot in the process that trains.",
                )
        except InputError as error:
            if rank.run is None and rank.trace_path is None:
                raise
            problems.append(str(error))
            continue
        notes = _notes(path, problems)
        told = notes is not None and notes.failure is not None
        records.append(MemoryRecord(snapshot=snapshot, notes=notes, failure=failure or told))
    return tuple(records), tuple(problems)


def _notes(snapshot: Path, problems: list[str]) -> MemoryNotes | None:
    stem = snapshot.name.removesuffix(".gz").removesuffix(SNAPSHOT_SUFFIX)
    file = snapshot.with_name(stem + NOTES_SUFFIX)
    if not file.exists():
        return None
    try:
        notes = read_json(file, MemoryNotes)
    except (InputError, msgspec.DecodeError) as error:
        problems.append(f"{file.name} cannot be read ({error}); what the memory holds is inferred.")
        return None
    if notes.format > NOTES_FORMAT:
        problems.append(f"{file.name} was written by a newer version; what the memory holds is inferred.")
        return None
    return notes
