"""Device time from cut to cut, by CUDA events that are read only after the window.

In: `mark()` at every cut, `before_backward()` where ranks ask. Out: milliseconds between consecutive marks,
and from a mark to the backward pass after it. One mark costs about 3 us
on the host and no synchronisation; events are reused from window to window.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from .. import torch_private

AHEAD = 256
"""Events made before a window begins; few windows have more steps."""


class DeviceClock:
    """Events on the current stream of the training thread."""

    def __init__(self) -> None:
        self._pool: list[Any] = []
        self._used = 0
        self._on = False
        self._halves: dict[int, Any] = {}
        """Number of a mark -> the event before the first backward pass after it."""

    def start(self) -> None:
        """Begin a window; does nothing where no CUDA device is in use."""
        self._used = 0
        self._halves.clear()
        self._on = torch_private.device_kind() != "cpu"
        while self._on and len(self._pool) < AHEAD:
            # An event comes to be at its first record, which takes longer than later ones.
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._pool.append(event)

    def mark(self) -> None:
        """A step ends and another begins here."""
        if not self._on:
            return
        if self._used == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        self._pool[self._used].record()
        self._used += 1

    def before_backward(self) -> None:
        """A backward pass is about to begin: the first one of a step counts."""
        if self._on and self._used and self._used not in self._halves:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._halves[self._used] = event

    def before_backward_ms(self) -> float | None:
        """Wait for the device; return its typical time from a step's begin to its backward pass."""
        if not self._halves:
            return None
        times = []
        # From the last one on, so that the device is waited for once.
        for count, half in reversed(self._halves.items()):
            # Recorded inside a graph capture, or on streams of different devices.
            with contextlib.suppress(RuntimeError):
                half.synchronize()
                times.append(self._pool[count - 1].elapsed_time(half))
        return median(times) if times else None

    def stop(self) -> list[float | None]:
        """Wait for the device and return the device time of each step (marks minus one)."""
        if not self._on or self._used < 1:
            return []
        self._on = False
        marks = self._pool[: self._used]
        marks[-1].synchronize()
        times: list[float | None] = []
        for first, second in pairwise(marks):
            try:
                times.append(first.elapsed_time(second))
            except RuntimeError:
                # Recorded on streams of different devices, or inside a graph capture.
                times.append(None)
        return times
