"""The step's clock: which of the two times of a step is its time. Everything that times steps asks here.

In: the table of a window. Out: one time per step, and the clock that they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ...model.run import StepTable

__all__ = ["step_times"]

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
