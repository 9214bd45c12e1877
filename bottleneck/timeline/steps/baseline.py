"""What the unprofiled window says about one step: phases, system time, faults, collector, compiling.

In: a run and which of its baseline steps count. Out: `Baseline`, means per step, so that the
phases and the time outside them add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.run import Run, StepTable
from .drift import rising_blocks

_MOST_STEPS = 0.5
"""What more of the steps do is no exception: steps that hold a validation are not among those that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Means per step of the baseline window, ms unless the name says otherwise."""

    step_ms: float
    phases_ms: dict[str, float]
    """Exclusive, without `compiling_ms`."""
    compiling_ms: float = 0.0
    """How much longer the mean step is for the steps that contained a compilation."""
    gc_ms: float | None = None
    user_ms: float | None = None
    system_ms: float | None = None
    faults: float | None = None
    steps: int = 0
    micro_steps: float = 1.0
    outside_error_ms: float = 0.0
    """Standard error of the time outside every phase."""
    grown_ms: float = 0.0
    """Time outside every phase that the mean step has and the first ones had not, where it grows from
    step to step."""
    evaluates: bool = False
    """Most steps run a model without gradients (a teacher, a frozen encoder, a policy): it is part of the
    step, where a validation every N steps is not."""

    @property
    def processor_ms(self) -> float | None:
        """Processor time of the process, all threads; None where not measured."""
        return None if self.user_ms is None or self.system_ms is None else self.user_ms + self.system_ms

    @property
    def processor_share(self) -> float | None:
        """Processor time over the step without its wait for input; None where not measured."""
        working = self.step_ms - self.phases_ms.get("data", 0.0)
        if self.processor_ms is None or working <= 0:
            return None
        return min(1.0, self.processor_ms / working)

    @property
    def outside_ms(self) -> float:
        """Step time outside every phase."""
        return max(0.0, self.step_ms - self.compiling_ms - sum(self.phases_ms.values()))


def _mean(values: Sequence[float], keep: NDArray[np.bool_]) -> float | None:
    if len(values) != len(keep) or not keep.any():
        return None
    return float(np.asarray(values, dtype=np.float64)[keep].mean())


def _grown_ms(outside: NDArray[np.float64]) -> float:
    """Return by how much the mean is above the first steps; 0 where the time does not grow steadily."""
    blocks = rising_blocks(outside)
    return max(0.0, float(outside.mean()) - blocks[0]) if blocks else 0.0


def _table(run: Run) -> StepTable | None:
    window = run.window("baseline")
    return window.steps if window is not None and window.steps.wall_ms else None


def read_baseline(run: Run, *, kept: NDArray[np.bool_], true_ms: float | None = None) -> Baseline | None:
    """Average the baseline window.

    `kept` (bool[n]) are the steps that count. A `true_ms` given by the user scales the times.
    """
    table = _table(run)
    if table is None or len(kept) != len(table.wall_ms) or not kept.any():
        return None
    wall = np.asarray(table.wall_ms, dtype=np.float64)
    step_ms = float(wall[kept].mean())

    compiled = np.zeros(len(wall), dtype=np.bool_)
    if len(table.compiled) == len(wall):
        compiled = np.asarray(table.compiled, dtype=np.bool_) & kept
    plain = kept & ~compiled
    compiling_ms = 0.0
    if compiled.any() and plain.any():
        compiling_ms = max(0.0, step_ms - float(wall[plain].mean()))
    else:
        plain = kept

    phases = {name: _mean(values, plain) for name, values in table.phases_ms.items()}
    outside = wall - sum(
        (np.asarray(v, dtype=np.float64) for v in table.phases_ms.values() if len(v) == len(wall)),
        np.zeros(len(wall)),
    )
    error = float(outside[plain].std() / np.sqrt(max(1, int(plain.sum()) - 1)))
    evaluated = np.asarray(table.phases_ms.get("evaluation", ()), dtype=np.float64)
    always = len(evaluated) == len(wall) and float((evaluated[plain] > 0).mean()) > _MOST_STEPS
    scale = 1.0 if true_ms is None or step_ms <= 0 else true_ms / step_ms
    gc_ms = _mean(table.gc_ms, kept)
    user, system = _mean(table.user_cpu_ms, kept), _mean(table.system_cpu_ms, kept)
    faults = _mean([float(f) for f in table.minor_faults], kept)
    micro = _mean([float(m) for m in table.micro_steps], kept)
    return Baseline(
        step_ms=step_ms * scale,
        phases_ms={name: ms * scale for name, ms in phases.items() if ms is not None},
        compiling_ms=compiling_ms * scale,
        gc_ms=None if gc_ms is None else gc_ms * scale,
        user_ms=None if user is None else user * scale,
        system_ms=None if system is None else system * scale,
        faults=faults,
        outside_error_ms=error * scale,
        grown_ms=_grown_ms(outside[plain]) * scale,
        steps=int(kept.sum()),
        micro_steps=micro or 1.0,
        evaluates=always,
    )
