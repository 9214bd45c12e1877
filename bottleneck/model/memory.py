"""What the allocator's history shows: `Diagnosis.memory`, one summary per device.

In: nothing. Out: frozen structs, bounded in size whatever the history was: the curve has at most
`MAX_POINTS` points and every list at most `MAX_ROWS` rows. What was not measured is None or empty,
never zero, and `problems` says why.

Bytes are those that the program requested, as the history counts them. The allocator rounds each
request up to 512 and reserves more: see `reserved_*` and `fragmentation`.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from .run import SourceSite

MAX_POINTS = 400
MAX_ROWS = 20


class MemoryCategory(str, Enum):
    """What a block holds."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    ACTIVATIONS = "activations"
    """Allocated in forward and held for backward."""
    INPUTS = "inputs"
    TEMPORARY = "temporary"
    """Freed in the phase that allocated it."""
    UNKNOWN = "unknown"


class MemoryShare(msgspec.Struct, frozen=True, kw_only=True):
    """One category at the peak."""

    category: MemoryCategory
    bytes: int
    share: float
    """Of the peak, 0..1."""
    how: Literal["by address", "inferred", "by address and inferred"] = "inferred"
    """by address: the harness noted which tensors are parameters, gradients, optimizer state."""


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of the user's program holds at the peak."""

    category: MemoryCategory
    bytes: int
    share: float
    blocks: int
    site: SourceSite | None = None
    """Innermost frame of the user's program; None where the history has no stack."""
    where: str = ""
    """If there is no user frame: the phase or library frame, like "backward"."""
    largest_bytes: int = 0


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Live bytes over the recorded time, as columns of equal length.

    Thinned by slots of equal time (of equal event counts where the history has no times): each point
    is the moment of the slot where most was live, and the global maximum is always kept.
    """

    unit: Literal["ms", "event"] = "ms"
    at: list[float] = []
    """Since the first point."""
    live_bytes: list[int] = []
    reserved_bytes: list[int] = []
    """Empty when the history does not tell."""
    by_category: dict[str, list[int]] = {}
    """Category -> bytes; the columns add up to `live_bytes`."""


class MemoryMark(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the curve: a step, or a phase of one."""

    name: str
    """ "step", or a phase: forward, backward, optimizer, ..."""
    begin: float
    end: float
    """In the unit of the curve."""
    step: int | None = None


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """Reserved memory that holds nothing, at the moment of the snapshot."""

    reserved_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    """Free blocks inside segments that are partly used: empty_cache() cannot return them. Free pages in
    expandable segments are not counted, since it can return those."""
    unfreeable_segments: int
    """Segments in partial use."""
    segments: int
    largest_free_bytes: int
    """Largest block available without a call to the driver."""
    unused_at_peak_bytes: int | None = None
    """Free bytes inside used segments at the moment when most was live. None: not known (no history, or
    expandable segments)."""
    private_bytes: int = 0
    """Reserved in private pools (CUDA graphs, torch.cuda.MemPool). Replayed graphs use these without an
    event, so they count neither as live nor as free, and the figures above leave out their free blocks."""
    private_free_bytes: int = 0
    """Of these, free as the allocator sees it."""


class Churn(msgspec.Struct, frozen=True, kw_only=True):
    """Segments requested from the driver and returned, per step of the history."""

    allocs: float
    frees: float
    maps: float
    unmaps: float
    bytes: int
    """Bytes requested per step."""
    sites: tuple[tuple[SourceSite, float], ...] = ()
    """User lines whose allocation went to the driver, with times per step, most often first."""
    distinct_sizes: int | None = None
    """Number of different sizes that the first of these lines requested."""


class Leak(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of a step that the step after next has not freed, from one stack."""

    bytes_per_step: int
    blocks_per_step: float
    steps_seen: int
    """Steps of the history that were recorded for long enough after."""
    site: SourceSite | None = None
    where: str = ""
    steps_left: int | None = None
    """Until the device's memory is full at this rate; None where its size is not known."""


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """A peak that only a short part of a step needs."""

    above_bytes: int
    """Peak over what the other 95 % of the time stays below."""
    width_share: float
    """Share of the recorded time spent above that level."""
    holders: tuple[MemoryHolder, ...] = ()
    """What was allocated last before the peak, the largest first."""
    peak_without_bytes: int | None = None
    """Peak of the history if these lines allocated nothing."""


class Headroom(msgspec.Struct, frozen=True, kw_only=True):
    """How far the batch could grow before memory is full."""

    factor: float
    """Possible batch over the present one, with a tenth of the device kept free."""
    per_batch_bytes: int
    """Bytes at the peak that grow with the batch: activations, inputs, temporaries."""
    fixed_bytes: int
    basis: str = ""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that failed."""

    requested_bytes: int | None = None
    device_free_bytes: int | None = None
    site: SourceSite | None = None
    when: str = ""
    """Phase and step, as far as known."""
    caught: bool = False
    """The script went on after it."""
    live_bytes: int | None = None
    """Live when it failed."""
    unused_bytes: int | None = None
    """Reserved and free at that moment, but in pieces that were too small."""
    composition: tuple[MemoryShare, ...] = ()
    holders: tuple[MemoryHolder, ...] = ()
    """What held the memory, if there is a snapshot of the failure."""


class MemorySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device."""

    device: int = 0
    source: str = ""
    """File that this was read from."""
    peak_bytes: int
    """Most bytes live at once in the history (without a history: live at the snapshot)."""
    peak_at: float | None = None
    """Position on the curve."""
    peak_when: str = ""
    """Phase in which the peak lies, as in "backward of step 2"."""
    reserved_bytes: int | None = None
    """Reserved from the driver at the snapshot."""
    reserved_peak_bytes: int | None = None
    capacity_bytes: int | None = None
    """What this process may use of the device."""
    floor_bytes: int | None = None
    """Fewest bytes live between two steps: what stays allocated."""
    composition: tuple[MemoryShare, ...] = ()
    """Of the peak, the largest first; shares add up to 1."""
    unknown_share: float | None = None
    holders: tuple[MemoryHolder, ...] = ()
    """Of the peak, the largest first, at most MAX_ROWS."""
    curve: MemoryCurve = MemoryCurve()
    marks: tuple[MemoryMark, ...] = ()
    events: int = 0
    steps: int | None = None
    """Whole steps in the history."""
    steps_from: Literal["harness", "annotations", "stacks", ""] = ""
    stacks: Literal["python", "python and C++", "none"] = "none"
    truncated: bool = False
    """The history was full and begins later than the recording."""
    fragmentation: Fragmentation | None = None
    churn: Churn | None = None
    leaks: tuple[Leak, ...] = ()
    peak_without_leaks_bytes: int | None = None
    """Peak of the history without the leaked blocks; None without a leak."""
    spike: Spike | None = None
    headroom: Headroom | None = None
    varying_sizes: bool | None = None
    """Forward allocates different sizes from step to step; None: fewer than three steps to compare."""
    loss_bytes: int | None = None
    """Bytes at the peak in logits and the tensors that a cross-entropy computes from them; None:
    stacks do not show it."""
    checkpointed: bool | None = None
    """Recomputation (torch.utils.checkpoint) was seen; None: stacks do not show it."""
    empty_cache_per_step: float | None = None
    empty_cache_sites: tuple[SourceSite, ...] = ()
    gradients_in_forward_bytes: int | None = None
    """Gradients of the previous step that are alive when the forward begins; None: unknown."""
    stale_gradients_bytes: int | None = None
    """By how much the peak falls if no gradient outlives its step."""
    out_of_memory: OutOfMemory | None = None
    expandable_segments: bool | None = None
    """As the allocator itself states it in the snapshot; None: this torch does not write it."""
    max_split_bytes: int | None = None
    """Size from which blocks are not split (max_split_size_mb); 0: no such limit; None: not written."""
    problems: tuple[str, ...] = ()
