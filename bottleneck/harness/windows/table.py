"""Rows of per-step measurements, and the columns that run.json holds.

In: one `Row` per step. Out: `StepTable`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.run import StepTable


class Row(msgspec.Struct, kw_only=True, gc=False):
    """One step, from cut to cut; made inside the step, so by C code."""

    index: int
    start_ns: int
    wall_ms: float
    phases_ns: dict[str, int] = {}
    batch_bytes: int = 0
    batch_elements: int = 0
    validation: bool = False
    compiled: bool = False
    micro_steps: int = 0
    minor_faults: int | None = None
    """None, and so the two below: not read."""
    user_cpu_ms: float = 0.0
    system_cpu_ms: float = 0.0
    gc_ms: float = 0.0


def counted_ms(rows: list[Row]) -> list[float]:
    """Return the step times that medians are made of: no validation and no compilation inside."""
    return [row.wall_ms for row in rows if not (row.validation or row.compiled)]


def as_table(rows: list[Row], *, device_ms: list[float | None] | None = None) -> StepTable:
    """Turn rows into columns; a phase that occurs in some step is 0 in the others."""
    names = dict.fromkeys(name for row in rows for name in row.phases_ns)
    read = all(row.minor_faults is not None for row in rows)
    return StepTable(
        index=[row.index for row in rows],
        start_ns=[row.start_ns for row in rows],
        wall_ms=[row.wall_ms for row in rows],
        device_ms=device_ms or [],
        phases_ms={n: [row.phases_ns.get(n, 0) / 1e6 for row in rows] for n in names},
        batch_bytes=[row.batch_bytes for row in rows],
        batch_elements=[row.batch_elements for row in rows],
        validation=[row.validation for row in rows],
        compiled=[row.compiled for row in rows],
        micro_steps=[row.micro_steps for row in rows],
        minor_faults=[row.minor_faults or 0 for row in rows] if read else [],
        user_cpu_ms=[row.user_cpu_ms for row in rows] if read else [],
        system_cpu_ms=[row.system_cpu_ms for row in rows] if read else [],
        gc_ms=[row.gc_ms for row in rows],
    )


def join_tables(first: StepTable, second: StepTable) -> StepTable:
    """Return the steps of both, in order; a phase that one lacks is 0 there.

    What only one of them measured is left out.
    """
    joined: dict[str, Any] = {}
    for name in StepTable.__struct_fields__:
        a, b = getattr(first, name), getattr(second, name)
        if name != "phases_ms":
            joined[name] = [*a, *b] if len(a) + len(b) == len(first.wall_ms) + len(second.wall_ms) else []
            continue
        joined[name] = {
            phase: [
                *a.get(phase, [0.0] * len(first.wall_ms)),
                *b.get(phase, [0.0] * len(second.wall_ms)),
            ]
            for phase in {**a, **b}
        }
    return StepTable(**joined)
