"""A small caching allocator that writes snapshots as torch does: for tests that need a known truth.

Blocks live in segments of their own rounded size, which are kept and used again, so that addresses recur
as they do on a device. The layout is that of torch 2.11 (`torch.cuda.memory._snapshot()`).
"""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

from torch_bottleneck.model.snapshot import MemoryNotes, NotedOwners

__all__ = ["MB", "Allocator", "Training", "frame"]

MB = 1024 * 1024
START_US = 1_700_000_000_000_000

LIBRARY = "/venv/lib/python3.11/site-packages/torch"
CALL = ("_call_impl", f"{LIBRARY}/nn/modules/module.py", 1790)
UPDATE = ("step", f"{LIBRARY}/optim/adamw.py", 230)
LOSS = ("cross_entropy", f"{LIBRARY}/nn/functional.py", 3500)
ZERO = ("zero_grad", f"{LIBRARY}/optim/optimizer.py", 1030)
ENGINE = ("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0)
ACCUMULATE = ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??", 0)


def frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


def main_line(line: int) -> tuple[str, str, int]:
    return ("main", "/home/me/train.py", line)


class Allocator:
    """One device; its clock is advanced by hand."""

    def __init__(self, *, device: int = 0, stacks: bool = True, times: bool = True) -> None:
        self.device = device
        self.stacks = stacks
        self.times = times
        self.now_us = START_US
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self._segments: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._next = 0x7F00_0000_0000
        self._frames: dict[tuple[tuple[str, str, int], ...], list[dict[str, Any]]] = {}

    def pass_time(self, ms: float) -> None:
        self.now_us += int(ms * 1000)

    def alloc(self, size: int, *stack: tuple[str, str, int]) -> int:
        rounded = -(-size // (2 * MB)) * 2 * MB
        free = self._free.setdefault(rounded, [])
        if free:
            address = free.pop()
        else:
            address, self._next = self._next, self._next + rounded
            self._segments[address] = rounded
            self._event("segment_alloc", address, rounded, stack)
        self.live[address] = (size, self._event("alloc", address, size, stack)["frames"])
        return address

    def free(self, address: int, *stack: tuple[str, str, int]) -> None:
        size, _ = self.live.pop(address)
        self._event("free_requested", address, size, stack)
        self._event("free_completed", address, size, stack)
        self._free[self._segments[address]].append(address)

    def empty_cache(self, *stack: tuple[str, str, int]) -> None:
        for addresses in self._free.values():
            for address in addresses:
                self._event("segment_free", address, self._segments.pop(address), stack)
            addresses.clear()

    def fail(self, size: int, *stack: tuple[str, str, int]) -> None:
        self._event("oom", 0, size, stack)

    def forget_history(self) -> None:
        """As if the recording began only now."""
        self.events.clear()
        self.live = {address: (size, []) for address, (size, _) in self.live.items()}

    def _event(
        self, action: str, address: int, size: int, stack: tuple[tuple[str, str, int], ...]
    ) -> dict[str, Any]:
        frames = self._frames.setdefault(stack, [frame(*entry) for entry in stack]) if self.stacks else []
        event = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "compile_context": "N/A",
            "frames": frames,
        }
        if self.times:
            self.now_us += 1
            event["time_us"] = self.now_us
        self.events.append(event)
        return event

    def segments(self) -> list[dict[str, Any]]:
        found = []
        for address, size in self._segments.items():
            requested, frames = self.live.get(address, (0, []))
            state = "active_allocated" if address in self.live else "inactive"
            block = {"address": address, "size": size, "requested_size": requested or size, "state": state,
                     "frames": frames}  # fmt: skip
            found.append(
                {
                    "device": self.device,
                    "address": address,
                    "total_size": size,
                    "allocated_size": requested and size,
                    "active_size": requested and size,
                    "stream": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [block],
                }
            )
        return found

    def snapshot(self, *, ring: int | None = None, annotations: list[Any] | None = None) -> dict[str, Any]:
        events = self.events if ring is None else self.events[-ring:]
        return {
            "segments": self.segments(),
            "device_traces": [[] for _ in range(self.device)] + [list(events)],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": annotations or [],
        }


class Training:
    """Steps of forward, loss, backward, update; what happens in them can be changed.

    Per step: an input of 2 MB, `layers` activations of 8 MB, logits of 32 MB with a float copy in the loss,
    gradients of the size of the parameters, a temporary of 4 MB in backward.
    """

    def __init__(self, *, layers: int = 4, parameter_bytes: int = 6 * MB, **allocator: Any) -> None:
        self.memory = Allocator(**allocator)
        self.parameters = [self.memory.alloc(parameter_bytes + i * MB) for i in range(layers)]
        self.states = [self.memory.alloc(self.memory.live[p][0]) for p in self.parameters for _ in "mv"]
        self.memory.forget_history()
        self.gradients: list[int] = []
        self.kept: list[int] = []
        self.notes = MemoryNotes(device=self.memory.device, capacity_bytes=2000 * MB)
        self._note("parameters", self.parameters)
        self._note("optimizer state", self.states)
        self.number = 0

    def step(
        self,
        *,
        keep_gradients: bool = False,
        leak_bytes: int = 0,
        keep_last: int = 0,
        spike_bytes: int = 0,
        micro_steps: int = 1,
        empty_cache: bool = False,
        scale: float = 1.0,
    ) -> None:
        memory = self.memory
        begin = memory.now_us
        if not keep_gradients:
            self._zero_grad()
        for _ in range(micro_steps):
            self._phase("data", 1)
            batch = memory.alloc(int(2 * MB * scale), main_line(10))
            memory.pass_time(0.01)
            began = memory.now_us
            held = []
            for layer in range(len(self.parameters)):
                held.append(
                    memory.alloc(int(8 * MB * scale), CALL, ("forward", "/home/me/model.py", 20 + layer))
                )
                memory.pass_time(2)
            logits = memory.alloc(int(32 * MB * scale), CALL, ("forward", "/home/me/model.py", 40))
            self._close("forward", began)
            copy = memory.alloc(int(64 * MB * scale), LOSS, main_line(30))
            memory.pass_time(4)
            if leak_bytes:
                self.kept.append(memory.alloc(leak_bytes, main_line(31)))
                if keep_last and len(self.kept) > keep_last:
                    memory.free(self.kept.pop(0), main_line(31))
            if keep_gradients:
                self._zero_grad()
            began = memory.now_us
            fresh = not self.gradients
            memory.free(copy)
            memory.free(logits)
            for parameter, activation in zip(self.parameters, reversed(held), strict=True):
                temporary = memory.alloc(int(4 * MB * scale))
                memory.pass_time(4)
                if fresh:
                    self.gradients.append(memory.alloc(memory.live[parameter][0]))
                memory.free(temporary)
                memory.free(activation)
            self._close("backward", began)
            self._note("gradients", self.gradients)
            memory.free(batch, main_line(33))
        began = memory.now_us
        if spike_bytes:
            memory.free(memory.alloc(spike_bytes, main_line(50)), main_line(50))
        if empty_cache:
            memory.empty_cache(("empty_cache", f"{LIBRARY}/cuda/memory.py", 200), main_line(60))
        memory.pass_time(1)
        self._close("optimizer", began)
        memory.pass_time(0.1)
        notes = self.notes
        notes.step_index.append(self.number)
        notes.step_begin_us.append(begin)
        notes.step_end_us.append(memory.now_us)
        self.number += 1

    def _zero_grad(self) -> None:
        began = self.memory.now_us
        for gradient in self.gradients:
            self.memory.free(gradient, ZERO, main_line(29))
        self.gradients.clear()
        self._close("zero_grad", began)

    def _phase(self, name: str, ms: float) -> None:
        began = self.memory.now_us
        self.memory.pass_time(ms)
        self._close(name, began)

    def _close(self, name: str, began: int) -> None:
        self.notes.phase.append(name)
        self.notes.phase_begin_us.append(began)
        self.notes.phase_end_us.append(self.memory.now_us + 1)

    def _note(self, owner: Any, addresses: list[int]) -> None:
        sizes = [self.memory.live[address][0] for address in addresses]
        devices = [self.memory.device] * len(addresses)
        self.notes.owners.append(
            NotedOwners(
                owner=owner, at_us=self.memory.now_us, device=devices, address=list(addresses), bytes=sizes
            )
        )

    def write(self, path: Path, *, packed: bool = False, **options: Any) -> Path:
        data = pickle.dumps(self.memory.snapshot(**options))
        path.write_bytes(gzip.compress(data) if packed else data)
        return path
