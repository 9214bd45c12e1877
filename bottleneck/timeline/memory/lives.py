"""Blocks of memory over time: when each was asked for and given back.

In: one device of a snapshot. Out: `Lives`, one row per block that was ever live in the history, and
live and reserved bytes after every event.

The history is a ring: what was asked for before its first event shows only where it is given back, or
in the state at the end. So the bytes at the beginning are those of the blocks that were there already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.snapshot import Action, BlockState, DeviceMemory

BEFORE = -1
"""`begin` of a block that was there before the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Columns of equal length, one row per block that was live; in order of `begin`."""

    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    """As asked for."""
    begin: NDArray[np.int64]
    """Index of the event that asked for it, or BEFORE."""
    end: NDArray[np.int64]
    """Index of the event that gave it back; the number of events if none did."""
    stack: NDArray[np.int32]
    """Where it was asked for, -1 if not recorded."""
    events: int

    def live_after(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the live bytes after each event, shape (events,); of some rows, or of all."""
        size, begin, end = self.size, self.begin, self.end
        if rows is not None:
            size, begin, end = size[rows], begin[rows], end[rows]
        delta = np.zeros(self.events + 1, np.int64)
        np.add.at(delta, np.maximum(begin, 0), size)
        np.subtract.at(delta, end, size)
        return np.cumsum(delta[: self.events])

    def live_at(self, event: int) -> NDArray[np.bool_]:
        """Return which rows are live after an event; `events` itself stands for the end."""
        if event >= self.events:
            return self.end >= self.events
        return (self.begin <= event) & (self.end > event)


def find_lives(memory: DeviceMemory) -> Lives:
    """Pair what was asked for with what was given back.

    A block counts as given back when the program asks for that (`free_requested`), not when other
    streams have finished with it, as `torch.cuda.memory_allocated` counts.
    """
    count = len(memory.action)
    rows: list[list[int]] = []
    live: dict[int, int] = {}
    early: list[list[int]] = []
    wanted = np.flatnonzero(memory.action <= int(Action.FREE_COMPLETED))
    for i, action, address, size, stack in zip(
        wanted.tolist(),
        memory.action[wanted].tolist(),
        memory.address[wanted].tolist(),
        memory.size[wanted].tolist(),
        memory.stack[wanted].tolist(),
        strict=True,
    ):
        if action == Action.ALLOC:
            lost = live.get(address)
            if lost is not None:
                rows[lost][3] = i
            live[address] = len(rows)
            rows.append([address, size, i, count, stack])
        elif address in live:
            rows[live.pop(address)][3] = i
        elif action == Action.FREE_REQUESTED:
            early.append([address, size, BEFORE, i, -1])
    active = memory.block_state == int(BlockState.ACTIVE)
    for address, size, stack in zip(
        memory.block_address[active].tolist(),
        memory.block_requested[active].tolist(),
        memory.block_stack[active].tolist(),
        strict=True,
    ):
        if address not in live:
            early.append([address, size, BEFORE, count, stack])
    table = early + rows
    columns = list(zip(*table, strict=True)) if table else [()] * 5
    return Lives(
        address=np.array(columns[0], np.uint64),
        size=np.array(columns[1], np.int64),
        begin=np.array(columns[2], np.int64),
        end=np.array(columns[3], np.int64),
        stack=np.array(columns[4], np.int32),
        events=count,
    )


def begins_late(lives: Lives) -> bool:
    """Whether the ring has lost the first events: a block with a stack, but without its allocation."""
    recorded = (lives.begin < 0) & (lives.end >= lives.events) & (lives.stack >= 0)
    return bool(lives.events) and bool(recorded.any())


def reserved_after(memory: DeviceMemory) -> NDArray[np.int64]:
    """Return the bytes reserved from the driver after each event, shape (events,)."""
    sign = np.zeros(len(memory.action), np.int64)
    sign[np.isin(memory.action, (int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP)))] = 1
    sign[np.isin(memory.action, (int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP)))] = -1
    grown = np.cumsum(sign * memory.size)
    at_end = int(memory.segment_size.sum())
    return grown + (at_end - int(grown[-1])) if len(grown) else grown
