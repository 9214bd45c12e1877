"""How far the loss may move under each fix.

In: fix ids. Out: `Tolerance`. A fix that only changes when or where the same arithmetic happens must
give the same losses to rounding. One that computes the same in another order may differ by what
32-bit rounding amounts to; reduced precision by its own rounding (TF32 keeps 10 bits of mantissa,
bfloat16 keeps 7: 2^-11 and 2^-8 relative error per operation, before averaging).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["MOVES_SAMPLES", "Tolerance", "tolerance_of", "widened"]

MOVES_SAMPLES = frozenset({"FX101", "FX102", "FX105", "FX106"})
"""Fixes that make samples in other processes: random transforms draw other numbers there, and workers
that persist take another order from the second pass over the data on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Relative differences of the loss that a fix may cause."""

    name: str
    early: float
    """At the first steps, before differences have grown."""
    tail: float
    """Of the mean over the last third, beyond what the curve itself scatters."""


EXACT = Tolerance(name="the same arithmetic", early=1e-5, tail=1e-3)
REORDERED = Tolerance(name="the same arithmetic in another order", early=1e-3, tail=1e-2)
TF32 = Tolerance(name="TF32", early=1e-2, tail=2e-2)
BF16 = Tolerance(name="bfloat16", early=5e-2, tail=3e-2)

_OF = {
    "FX301": TF32,
    "FX302": TF32,
    "FX303": BF16,
    "FX308": REORDERED,
    "FX309": REORDERED,
    "FX310": REORDERED,
    "FX311": REORDERED,
    "FX312": REORDERED,
    "FX406": REORDERED,
    "FX407": REORDERED,
    "FX410": REORDERED,
    "FX411": REORDERED,
    "FX412": REORDERED,
    "FX414": REORDERED,
    "FX416": REORDERED,
    "FX506": REORDERED,
    "FX601": REORDERED,
    "FX602": REORDERED,
}


_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance of 1 to the next number of that type."""


def widened(tolerance: Tolerance, dtypes: Iterable[str]) -> Tolerance:
    """Return a tolerance that allows for the rounding of what the script itself computes in.

    A loss in bfloat16 has 8 bits: equal losses and such that differ by 0.4 % are neighbours in it,
    and which of them comes out depends on the order of sums.

    Args:
        tolerance: of the fix.
        dtypes: of the loss, of most parameters, of autocast.
    """
    unit = max((_EPSILON.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    if not unit:
        return tolerance
    return replace(tolerance, early=max(tolerance.early, 2 * unit), tail=max(tolerance.tail, unit))


def tolerance_of(fixes: Iterable[str]) -> Tolerance:
    """Return the widest tolerance among these fixes; what is not listed is exact."""
    return max((_OF.get(fix, EXACT) for fix in fixes), key=lambda t: t.early, default=EXACT)
