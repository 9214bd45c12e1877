"""The step's clock: which of the two times of a step is its time. Everything that times steps asks here.

In: the table of a window. Out: one time per step, and the clock that they come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ...model.run import StepTable

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


def shortened(table: StepTable, by_ms: Mapping[str, Mapping[int, float]]) -> StepTable:
    """Return a table in which some phases of some steps take less time, and so do the steps.

    `by_ms` says how much less, by phase and index of the step. More than it took comes off the step.
    """
    gone = [sum(of_phase.get(index, 0.0) for of_phase in by_ms.values()) for index in table.index]
    if len(gone) != len(table.wall_ms) or not any(gone):
        return table

    def less(column: Sequence[float], by: Sequence[float]) -> list[float]:
        return [max(0.0, ms - much) for ms, much in zip(column, by, strict=True)]

    phases = dict(table.phases_ms)
    for name, of_phase in by_ms.items():
        if len(phases.get(name, ())) == len(gone):
            phases[name] = less(phases[name], [of_phase.get(index, 0.0) for index in table.index])
    device = table.device_ms
    if len(device) == len(gone):
        device = [None if ms is None else max(0.0, ms - much) for ms, much in zip(device, gone, strict=True)]
    return msgspec.structs.replace(
        table, wall_ms=less(table.wall_ms, gone), device_ms=device, phases_ms=phases
    )
