"""The step's clock: which of the two times of a step is its time. Everything that times steps asks here.

In: the table of a window. Out: one time per step, and the clock that they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...model.run import StepTable

__all__ = ["shortened", "step_times"]

_KNOWN = 0.8
"""Share of the steps whose device time must be known for the device's clock to be the step's."""


def step_times(table: StepTable) -> tuple[list[float | None], Literal["device", "host"]]:
    """Return a time in ms per step and its clock: device events where they exist, since a host runs ahead.

    A step without a device time is then one that could not be timed: None, never the host's time for it.
    """
    device = table.device_ms
    if len(device) == len(table.wall_ms) and sum(t is not None for t in device) >= _KNOWN * len(device) > 0:
        return list(device), "device"
    return list(table.wall_ms), "host"


def shortened(table: StepTable, by_ms: Mapping[int, float]) -> StepTable:
    """Return a table in which steps, and their waits for data, take less time.

    Args:
        table: of a window.
        by_ms: how much less, by the index of the step.
    """
    less = [by_ms.get(index, 0.0) for index in table.index]
    if len(less) != len(table.wall_ms) or not any(less):
        return table
    phases = dict(table.phases_ms)
    if len(phases.get("data", ())) == len(less):
        # No more than the wait itself: making the iterator may have been outside of it.
        phases["data"] = [max(0.0, ms - gone) for ms, gone in zip(phases["data"], less, strict=True)]
    device = table.device_ms
    if len(device) == len(less):
        device = [None if ms is None else max(0.0, ms - gone) for ms, gone in zip(device, less, strict=True)]
    wall = [max(0.0, ms - gone) for ms, gone in zip(table.wall_ms, less, strict=True)]
    return msgspec.structs.replace(table, wall_ms=wall, device_ms=device, phases_ms=phases)
