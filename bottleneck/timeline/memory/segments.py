"""What is reserved and holds nothing: at the end of a history, and at its peak.

In: the `Reading` of one device. Out: `Fragmentation`. Whole free segments are a cache that can be given
back; what is free inside a segment that also holds a live block is not, and is what counts here.
Segments of mapped pages (expandable_segments) give free pages back wherever they lie.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model.memory import Fragmentation
from ...model.snapshot import Action, BlockState, DeviceMemory
from ..trace.intervals import latest
from .reading import Reading

_MAPPED = (int(Action.SEGMENT_MAP), int(Action.SEGMENT_UNMAP))
_TRAFFIC = (int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_FREE))


def find_fragmentation(reading: Reading) -> Fragmentation | None:
    """Return what could not be used; None where the snapshot has no segments."""
    memory = reading.memory
    if not len(memory.segment_size):
        return None
    idle = memory.block_state == int(BlockState.INACTIVE)
    active = ~idle
    # Graphs that are replayed write where the allocator sees free blocks: nobody else may have these.
    private = memory.segment_private[memory.block_segment]
    private_free = int(memory.block_size[idle & private].sum())
    idle &= ~private
    used = np.zeros(len(memory.segment_size), np.bool_)
    used[memory.block_segment[active]] = True
    split = idle & (used & ~memory.segment_expandable)[memory.block_segment]
    return Fragmentation(
        reserved_bytes=int(memory.segment_size.sum()),
        active_bytes=int(memory.block_size[active].sum()),
        inactive_split_bytes=int(memory.block_size[split].sum()),
        unfreeable_segments=len(np.unique(memory.block_segment[split])),
        segments=len(memory.segment_size),
        largest_free_bytes=int(memory.block_size[idle].max(initial=0)),
        unused_at_peak_bytes=_unused_at_peak(reading),
        private_bytes=int(memory.segment_size[memory.segment_private].sum()),
        private_free_bytes=private_free,
    )


def _unused_at_peak(reading: Reading) -> int | None:
    """Return the free bytes inside used segments at the moment when most was live.

    None without a history, and with expandable segments, whose pieces are not told apart.
    """
    memory, peak = reading.memory, reading.peak
    mapped = bool(memory.segment_expandable.any()) or bool(np.isin(memory.action, _MAPPED).any())
    if not reading.lives.events or mapped:
        return None
    start, size = _segments_at(memory, peak)
    # Which pool a segment belonged to is known of those that are still there.
    shared = ~np.isin(start, memory.segment_address[memory.segment_private])
    start, size = start[shared], size[shared]
    rows = reading.lives.live_at(peak)
    address, held = reading.lives.address[rows], reading.lives.size[rows]
    if not len(start):
        return None
    home = np.maximum(latest(start, address), 0)
    inside = (address >= start[home]) & (address < start[home] + size[home].astype(np.uint64))
    used = np.unique(home[inside])
    return max(0, int(size[used].sum()) - int(held[inside].sum()))


def _segments_at(memory: DeviceMemory, event: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return addresses, in order, and sizes of the segments after an event: the end's, traffic undone."""
    there = dict(zip(memory.segment_address.tolist(), memory.segment_size.tolist(), strict=True))
    later = np.flatnonzero(np.isin(memory.action, _TRAFFIC))
    for row in later[later > event][::-1].tolist():
        address = int(memory.address[row])
        if memory.action[row] == int(Action.SEGMENT_ALLOC):
            there.pop(address, None)
        else:
            there[address] = int(memory.size[row])
    order = sorted(there)
    return np.array(order, np.uint64), np.array([there[address] for address in order], np.int64)
