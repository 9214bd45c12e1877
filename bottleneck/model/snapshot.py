"""A memory snapshot as columns: what ingest makes of `torch.cuda.memory._dump_snapshot` pickles.

In: nothing. Out: `Snapshot`, the allocator of one process: per device the state at the end and the history
of events before it, oldest first. `MemoryNotes`, which the harness writes beside it: the times of steps and
phases, and what each address belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from .run import SourceSite


class Action(IntEnum):
    """What the allocator did, in the words of the snapshot."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    OTHER = 9
    """Of a later torch version, or user-defined: counted, but not interpreted."""


class BlockState(IntEnum):
    """State of a block when the snapshot was taken."""

    ACTIVE = 0
    PENDING = 1
    """Freed by the program, still in use by another stream."""
    INACTIVE = 2


class Frame(NamedTuple):
    """One frame of a stack; C++ frames have line 0 or a file that is no Python."""

    name: str
    file: str
    line: int


class Annotation(NamedTuple):
    """A `record_function` range seen while the history was recorded."""

    name: str
    begin_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device. All columns of a group have equal length; stack -1 means that none was recorded.

    `size` of an event is what the program asked for; `block_size` includes the rounding.
    """

    device: int
    action: NDArray[np.int8]
    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    time_us: NDArray[np.int64]
    """Since the epoch; all 0 where this torch recorded no times."""
    stack: NDArray[np.int32]
    block_address: NDArray[np.uint64]
    block_size: NDArray[np.int64]
    block_requested: NDArray[np.int64]
    block_state: NDArray[np.int8]
    block_stack: NDArray[np.int32]
    block_segment: NDArray[np.int32]
    """Index into the segment columns."""
    segment_address: NDArray[np.uint64]
    segment_size: NDArray[np.int64]
    segment_expandable: NDArray[np.bool_]
    """Made of pages that are mapped one by one, so free pages inside can be returned."""
    segment_private: NDArray[np.bool_]
    """In a private pool (CUDA graphs): free blocks there cannot be used otherwise."""
    device_free: dict[int, int] = field(default_factory=dict)
    """Event of a failed allocation -> bytes that were free on the device."""

    @property
    def has_times(self) -> bool:
        """Events carry times."""
        return bool(len(self.time_us)) and bool(self.time_us[0] > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All devices of one process."""

    path: str
    devices: tuple[DeviceMemory, ...]
    """Those that hold segments or events."""
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    """Frame numbers, innermost first."""
    annotations: tuple[Annotation, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)
    """Allocator settings, as the snapshot states them."""

    def stack_frames(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first; empty for -1."""
        return tuple(self.frames[i] for i in self.stacks[stack]) if stack >= 0 else ()


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
    """Memory of that device, or the limit of this process."""
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
