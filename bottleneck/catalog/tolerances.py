"""How far the loss may move under each fix.

In: fix ids, whose entries say what becomes of the arithmetic. Out: `Tolerance`. A fix that only changes
when or where the same arithmetic happens must give the same losses to rounding. One that computes the
same in another order may differ by what 32-bit rounding amounts to; reduced precision by its own
rounding (TF32 keeps 10 bits of mantissa, bfloat16 keeps 7: 2^-11 and 2^-8 relative error per operation,
before averaging).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..model.fix import Arithmetic
from .registry import by_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Relative differences of the loss that a fix may cause."""

    arithmetic: Arithmetic
    early: float
    """At the first steps, before differences have grown."""
    tail: float
    """Of the mean over the last third, beyond what the curve itself scatters."""


EXACT = Tolerance(arithmetic=Arithmetic.SAME, early=1e-5, tail=1e-3)
REORDERED = Tolerance(arithmetic=Arithmetic.REORDERED, early=1e-3, tail=1e-2)
TF32 = Tolerance(arithmetic=Arithmetic.TF32, early=1e-2, tail=2e-2)
BF16 = Tolerance(arithmetic=Arithmetic.BF16, early=5e-2, tail=3e-2)

OTHER_SAMPLES = Tolerance(arithmetic=Arithmetic.OTHER_SAMPLES, early=math.inf, tail=1e-2)
"""A step's own loss says nothing then; the mean over the last third may move by what the curve scatters."""

_OF = {each.arithmetic: each for each in (EXACT, REORDERED, TF32, BF16, OTHER_SAMPLES)}

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance of 1 to the next number of that type."""


def widened(tolerance: Tolerance, dtypes: Collection[str]) -> Tolerance:
    """Return a tolerance that allows for the rounding of what the script itself computes in.

    A loss in bfloat16 has 8 bits: equal losses and such that differ by 0.4 % are neighbours in it,
    and which of them comes out depends on the order of sums.

    `dtypes`: of the loss, of most parameters, of autocast; "tf32" where it computes in that.
    """
    if "tf32" in dtypes:
        tolerance = replace(
            tolerance, early=max(tolerance.early, TF32.early), tail=max(tolerance.tail, TF32.tail)
        )
    unit = max((_EPSILON.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    if not unit:
        return tolerance
    return replace(tolerance, early=max(tolerance.early, 2 * unit), tail=max(tolerance.tail, unit))


def tolerance_of(fixes: Iterable[str]) -> Tolerance:
    """Return the widest tolerance among these fixes."""
    return max((_OF[by_id(fix).arithmetic] for fix in fixes), key=lambda t: t.early, default=EXACT)
