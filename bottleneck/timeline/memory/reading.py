"""One device's memory, read: blocks, clock, what they are, and how to group them.

In: a snapshot, one of its devices, the harness' notes. Out: `Reading`, from which the summary and its
single facts are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...model.memory import MAX_ROWS, MemoryCategory, MemoryHolder, MemoryShare
from ...model.run import SourceSite
from ...model.snapshot import DeviceMemory, MemoryNotes, Snapshot
from .clock import PHASES, MemoryClock, read_clock
from .lives import Lives, begins_late, find_lives
from .roles import CATEGORIES, Roles, find_roles
from .stacks import StackFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One device."""

    memory: DeviceMemory
    stacks: tuple[StackFacts, ...]
    clock: MemoryClock
    lives: Lives
    roles: Roles
    live: NDArray[np.int64]
    """After each event; one entry, at the end, where there is no history."""
    truncated: bool
    """The ring was full: the first events are lost."""

    @property
    def peak(self) -> int:
        """Event after which most was live."""
        return int(self.live.argmax())

    @property
    def told(self) -> tuple[StackFacts, ...]:
        """The stacks that this device's events and blocks have."""
        numbers = np.union1d(self.memory.stack, self.memory.block_stack)
        return tuple(self.stacks[number] for number in numbers.tolist() if number >= 0)

    def origin(self, row: int) -> tuple[SourceSite | None, str]:
        """Return where a block was asked for: the user's line, else phase and library function."""
        stack = int(self.lives.stack[row])
        facts = self.stacks[stack] if stack >= 0 else None
        if facts is not None and facts.site is not None:
            return facts.site, ""
        begin = int(self.lives.begin[row])
        phase = PHASES[self.clock.phase[begin]] if begin >= 0 and self.lives.events else ""
        texts = (phase, facts.where if facts is not None else "")
        before = "before the history" if begin < 0 and self.lives.events else ""
        return None, " ".join(text for text in texts if text) or before

    def composition(self, rows: NDArray[np.bool_]) -> tuple[MemoryShare, ...]:
        """Group blocks by what they are, the largest first."""
        total = int(self.lives.size[rows].sum())
        found = []
        for code, category in enumerate(CATEGORIES):
            mine = rows & (self.roles.category == code)
            held = int(self.lives.size[mine].sum())
            if not held:
                continue
            noted = int(self.lives.size[mine & self.roles.by_address].sum())
            how: Literal["by address", "inferred", "by address and inferred"] = "inferred"
            if noted:
                how = "by address" if noted == held else "by address and inferred"
            found.append(MemoryShare(category=category, bytes=held, share=held / total, how=how))
        return tuple(sorted(found, key=lambda row: -row.bytes))

    def holders(self, rows: NDArray[np.bool_], *, most: int = MAX_ROWS) -> tuple[MemoryHolder, ...]:
        """Group blocks by the user's line that asked for them and by what they are, the largest first."""
        total = int(self.lives.size[rows].sum())
        groups: dict[tuple[SourceSite | None, str, int], list[int]] = {}
        for row in np.flatnonzero(rows).tolist():
            key = (*self.origin(row), int(self.roles.category[row]))
            groups.setdefault(key, []).append(int(self.lives.size[row]))
        found = [
            MemoryHolder(
                category=CATEGORIES[code],
                bytes=sum(sizes),
                share=sum(sizes) / total if total else 0.0,
                blocks=len(sizes),
                site=site,
                where=where,
                largest_bytes=max(sizes),
            )
            for (site, where, code), sizes in groups.items()
        ]
        return tuple(sorted(found, key=lambda holder: -holder.bytes)[:most])

    def when(self, event: int) -> str:
        """Name phase and step of an event."""
        if not self.lives.events:
            return ""
        phase = PHASES[self.clock.phase[event]]
        step = int(self.clock.step_of[event])
        if step < 0:
            return phase
        number = f"step {step + 1} of {len(self.clock.steps)}"
        return f"{phase} of {number}" if phase else number

    def unknown_share(self, rows: NDArray[np.bool_]) -> float | None:
        """Return the share of unidentified bytes in some blocks, None without blocks."""
        total = int(self.lives.size[rows].sum())
        unknown = rows & self.roles.is_a(MemoryCategory.UNKNOWN)
        return int(self.lives.size[unknown].sum()) / total if total else None


def read_memory(
    snapshot: Snapshot,
    memory: DeviceMemory,
    stacks: tuple[StackFacts, ...],
    notes: MemoryNotes | None,
) -> Reading:
    """Read one device of a snapshot."""
    lives = find_lives(memory)
    ring = notes.ring_entries if notes is not None else None
    truncated = begins_late(lives) or (ring is not None and len(memory.action) >= ring)
    clock = read_clock(snapshot, memory, stacks, notes, truncated=truncated)
    first_us = int(memory.time_us[0]) if memory.has_times else 0
    return Reading(
        memory=memory,
        stacks=stacks,
        clock=clock,
        lives=lives,
        roles=find_roles(lives, clock, stacks, notes, device=memory.device, first_us=first_us),
        live=lives.live_after() if lives.events else np.array([lives.size.sum()], np.int64),
        truncated=truncated,
    )
