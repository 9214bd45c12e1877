"""Notes beside a memory snapshot: where steps and phases lie, and which address is whose.

In: the phase clock, the optimizers, root modules as they are met. Out: `MemoryNotes`. Asking tensors
for their addresses neither allocates nor waits for the device; it costs about 1 us a tensor, and is
done only while the memory window is open, or when an allocation has failed.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ...clocks import epoch_ns, perf_counter_ns
from ...model.snapshot import NOTES_SUFFIX, SNAPSHOT_SUFFIX, MemoryNotes, NotedOwners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ...model.snapshot import NotedFailure, Owner
    from ..windows.phases import PhaseClock
    from ..windows.table import Row

MAX_ROOTS = 32
MAX_TENSORS = 20_000
"""Of one kind: beyond it the rest is inferred."""
MAX_LOOKS, MAX_NOTED = 64, 300_000
"""Times that gradients are noted, and addresses in all: many micro-steps of a large model must not make
the file large."""


def notes_path(snapshot: Path) -> Path:
    """Return where the notes of a snapshot lie."""
    return snapshot.with_name(snapshot.name.removesuffix(SNAPSHOT_SUFFIX) + NOTES_SUFFIX)


class NoteBook:
    """Takes notes for the snapshots of one process."""

    def __init__(self, clock: PhaseClock, optimizers: Callable[[], Iterable[Any]]) -> None:
        """Take phases from `clock` and tensors from what `optimizers` returns."""
        self.rows: list[Row] = []
        """Steps of the window, filled by its owner."""
        self._clock = clock
        self._optimizers = optimizers
        self._roots: list[weakref.ref[Any]] = []
        self._owners: list[NotedOwners] = []
        self._looks = 0
        self.recording = False
        """The memory window is open."""

    def met_root(self, module: object) -> None:
        """A root module was called: parameters that no optimizer has are its."""
        if len(self._roots) < MAX_ROOTS and all(known() is not module for known in self._roots):
            with contextlib.suppress(TypeError):
                self._roots.append(weakref.ref(module))

    def start(self) -> None:
        """The memory window opens."""
        self.rows = []
        self._owners = []
        self._looks = 0
        self._clock.log = []
        self.recording = True
        self._look_at_all()

    def after_backward(self) -> None:
        """A backward has ended: its gradients have their addresses now."""
        if not self.recording or self._looks >= MAX_LOOKS:
            return
        if sum(len(entry.address) for entry in self._owners) < MAX_NOTED:
            self._looks += 1
            self._note("gradients", _gradients(self._parameters()))

    def stop(self, *, ring_entries: int) -> MemoryNotes:
        """The memory window closes; return what was noted."""
        self._look_at_all()
        log, self._clock.log, self.recording = self._clock.log or [], None, False
        offset = epoch_ns() - perf_counter_ns()
        log.sort(key=lambda entry: (entry[1], -entry[2]))
        rows, self.rows = self.rows, []
        return MemoryNotes(
            device=torch.cuda.current_device(),
            capacity_bytes=_capacity(),
            step_index=[row.index for row in rows],
            step_begin_us=[(row.start_ns + offset) // 1000 for row in rows],
            step_end_us=[(row.start_ns + int(row.wall_ms * 1e6) + offset) // 1000 for row in rows],
            phase=[name for name, _begin, _end in log],
            phase_begin_us=[(begin + offset) // 1000 for _name, begin, _end in log],
            phase_end_us=[(end + offset) // 1000 for _name, _begin, end in log],
            owners=self._take(),
            ring_entries=ring_entries,
        )

    def abandon(self) -> None:
        """The memory window came to nothing."""
        self._clock.log, self.recording = None, False
        self._owners = []

    def failed(self, failure: NotedFailure) -> MemoryNotes:
        """Return what can be said at once, an allocation having failed; an open window stays open."""
        if self.recording:
            before = list(self._owners)
            self._look_at_all()
            owners, self._owners = self._owners, before
        else:
            self._look_at_all()
            owners = self._take()
        return MemoryNotes(
            device=failure.device,
            capacity_bytes=failure.limit_bytes or _capacity(),
            owners=owners,
            failure=failure,
        )

    # -- looking -------------------------------------------------------------------------------

    def _take(self) -> list[NotedOwners]:
        owners, self._owners = self._owners, []
        return owners

    def _look_at_all(self) -> None:
        parameters = self._parameters()
        self._note("parameters", [*parameters, *self._buffers()])
        self._note("gradients", _gradients(parameters))
        self._note("optimizer state", self._states())

    def _parameters(self) -> list[Any]:
        found: dict[int, Any] = {}
        for optimizer in self._optimizers():
            for group in getattr(optimizer, "param_groups", ()):
                found.update((id(p), p) for p in group["params"])
        for root in self._living_roots():
            found.update((id(p), p) for p in root.parameters())
        return list(found.values())

    def _buffers(self) -> list[Any]:
        return [buffer for root in self._living_roots() for buffer in root.buffers()]

    def _states(self) -> list[Any]:
        found = []
        for optimizer in self._optimizers():
            for state in list(getattr(optimizer, "state", {}).values()):
                if isinstance(state, dict):
                    found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return found

    def _living_roots(self) -> list[Any]:
        return [root for root in (reference() for reference in self._roots) if root is not None]

    def _note(self, owner: Owner, tensors: Iterable[Any]) -> None:
        at_us = epoch_ns() // 1000
        device: list[int] = []
        address: list[int] = []
        size: list[int] = []
        seen: set[int] = set()
        for tensor in tensors:
            # Fake, sparse and wrapper tensors have no storage to ask: they stay unknown.
            with contextlib.suppress(Exception):
                local = getattr(tensor, "_local_tensor", tensor)
                if not local.is_cuda:
                    continue
                storage = local.untyped_storage()
                place = int(storage.data_ptr())
                if place and place not in seen and len(seen) < MAX_TENSORS:
                    seen.add(place)
                    device.append(int(local.device.index or 0))
                    address.append(place)
                    size.append(int(storage.nbytes()))
        if address:
            self._owners.append(
                NotedOwners(owner=owner, at_us=at_us, device=device, address=address, bytes=size)
            )


def _gradients(parameters: Iterable[Any]) -> list[Any]:
    return [p.grad for p in parameters if p.grad is not None]


def _capacity() -> int | None:
    """Return what this process may use of the current device."""
    with contextlib.suppress(Exception):
        total = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        with contextlib.suppress(Exception):
            # torch 2.9 and later tell the cap.
            total = int(total * min(1.0, float(torch.cuda.get_per_process_memory_fraction())))
        return total
    return None
