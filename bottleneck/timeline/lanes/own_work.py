"""What a rank does in each step, whether its device waits for it or not: by this ranks are compared.

In: a `Program`, factors on host work. Out: ns per cause of lateness and step.

The budget would not do. What the host dispatches while the device waits for another rank is hidden there, and
stands open on the rank that is late, which has no such wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model.codes import BUDGET_PARTS, LateCause
from ..trace import intervals
from .labels import PART_OF_WORK, Work
from .program import Program


def own_work(
    program: Program, factors: NDArray[np.float64], undisturbed: NDArray[np.float64]
) -> dict[LateCause, NDArray[np.float64]]:
    """Return the work of the host, and of the device without collectives, (steps,) per cause.

    Args:
        program: of one rank.
        factors: on host work, by category.
        undisturbed: on device work: see `alone.undisturbed`.
    """
    out: dict[LateCause, NDArray[np.float64]] = {}

    def add(cause: LateCause, step: NDArray[np.intp], amounts: NDArray[np.float64]) -> None:
        inside = (step >= 0) & (step < program.steps)
        if cause and amounts[inside].any():
            sums = np.bincount(step[inside], weights=amounts[inside], minlength=program.steps)
            out[cause] = out.get(cause, np.zeros(program.steps)) + sums

    # The work of an event lies before it: that of a mark belongs to the step which ends there.
    before = intervals.before(program.marks, np.arange(len(program.kind))) - 1
    for work in Work:
        cause = "garbage collection" if work is Work.COLLECTOR else BUDGET_PARTS[PART_OF_WORK[work]].late_for
        add(cause, before, program.work[:, work] * factors[work])
    for index, part in enumerate(program.parts):
        mine = program.part == index
        add(BUDGET_PARTS[part].late_for, program.step[mine], (program.duration * undisturbed)[mine])
    return out
