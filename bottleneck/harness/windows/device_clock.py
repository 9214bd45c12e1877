"""Device time from cut to cut, by CUDA events that are read only after the window.

In: `mark()` at every cut, `before_backward()` where ranks ask. Out: milliseconds between consecutive marks,
and from a mark to the backward pass after it. One mark costs about 3 us
on the host and no synchronisation; events are reused from window to window.
"""

from __future__ import annotations

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
        self._taken = 0
        self._on = False
        self._marks: list[Any] = []
        self._halves: dict[int, Any] = {}
        """Position of a mark -> the event before the first backward pass after it."""

    def start(self) -> None:
        """Begin a window; does nothing where no CUDA device is in use."""
        self._taken = 0
        self._marks, self._halves = [], {}
        self._on = torch_private.device_kind() != "cpu"
        while self._on and len(self._pool) < AHEAD:
            # An event comes to be at its first record, which takes longer than later ones.
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._pool.append(event)

    def mark(self) -> None:
        """A step ends and another begins here."""
        if self._on:
            self._marks.append(self._recorded())

    def before_backward(self) -> None:
        """A backward pass is about to begin: the first one of a step counts."""
        if self._on and self._marks:
            last = len(self._marks) - 1
            if last not in self._halves:
                self._halves[last] = self._recorded()

    def before_backward_ms(self) -> float | None:
        """Wait for the device; return its typical time from a step's begin to its backward pass."""
        # From the last one on, so that the device is waited for once.
        found = (_between(self._marks[k], half, waits=True) for k, half in reversed(self._halves.items()))
        times = [ms for ms in found if ms is not None]
        return median(times) if times else None

    def stop(self) -> list[float | None]:
        """Wait for the device and return the device time of each step (marks minus one)."""
        if not self._on or not self._marks:
            return []
        self._on = False
        self._marks[-1].synchronize()
        return [_between(first, second) for first, second in pairwise(self._marks)]

    def _recorded(self) -> Any:
        """Return the next event, recorded now."""
        if self._taken == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        event = self._pool[self._taken]
        self._taken += 1
        event.record()
        return event


def _between(first: Any, second: Any, *, waits: bool = False) -> float | None:
    """Return the ms between two events; None inside a graph capture, or on streams of different devices."""
    try:
        if waits:
            second.synchronize()
        return float(first.elapsed_time(second))
    except RuntimeError:
        return None
