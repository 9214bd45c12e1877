"""What the harness notes beside a memory snapshot: steps, phases, and who owns which address.

In: JSON bytes. Out: frozen structs. A snapshot tells addresses and stacks; it does not tell which of
them are parameters, nor where a step begins. The harness, which sits in the process, can: this file
(`<name>.notes.json` beside `<name>.snapshot.pickle`) is the contract between the two.

Clock: microseconds since the Unix epoch, as `time_us` of the snapshot's events.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .run import SourceSite

__all__ = [
    "FAILURE_SUFFIX",
    "NOTES_FORMAT",
    "NOTES_SUFFIX",
    "SNAPSHOT_SUFFIX",
    "MemoryNotes",
    "NotedFailure",
    "NotedOwners",
]

NOTES_FORMAT = 1
SNAPSHOT_SUFFIX = ".snapshot.pickle"
FAILURE_SUFFIX = ".oom.snapshot.pickle"
"""Of the snapshot taken where an allocation failed."""
NOTES_SUFFIX = ".notes.json"

Owner = Literal["parameters", "gradients", "optimizer state"]


class NotedOwners(msgspec.Struct, frozen=True, kw_only=True):
    """Storages of known use at one instant, as columns of equal length."""

    owner: Owner
    at_us: int
    device: list[int] = []
    address: list[int] = []
    bytes: list[int] = []


class NotedFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that failed, as the allocator reported it."""

    at_us: int
    device: int
    requested_bytes: int
    limit_bytes: int | None = None
    """What the process may use of the device."""
    device_free_bytes: int | None = None
    site: SourceSite | None = None
    """The user's line that was running on the training thread."""
    phase: str = ""
    step: int | None = None
    window: str = ""


class MemoryNotes(msgspec.Struct, frozen=True, kw_only=True):
    """All notes of one snapshot."""

    format: int = NOTES_FORMAT
    device: int = 0
    """The device of the training thread."""
    capacity_bytes: int | None = None
    """Of that device, the cap of this process considered."""
    step_index: list[int] = []
    step_begin_us: list[int] = []
    step_end_us: list[int] = []
    phase: list[str] = []
    """Phases that were open while the history was recorded, inner ones after outer ones."""
    phase_begin_us: list[int] = []
    phase_end_us: list[int] = []
    owners: list[NotedOwners] = []
    ring_entries: int | None = None
    """Events that the history could hold per device."""
    failure: NotedFailure | None = None
