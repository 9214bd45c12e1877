"""The period of a sequence: how many entries make one step.

In: integer codes, one per update or launch. Out: the period, or None when nothing repeats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LONGEST_SEQUENCE = 400_000
_MOST_ANCHORS = 24
_MOST_CANDIDATES = 160
_ENOUGH_AGREEMENT = 0.97
_EQUALLY_GOOD = 0.005
_SHORTEST_PERIOD = 2


def identity_period(codes: NDArray[np.int32]) -> int | None:
    """Return the smallest P with codes[i] == codes[i + P] throughout, seen at least once over.

    D G D G gives 2, a single optimizer 1; None when the sequence never repeats.
    """
    for period in range(1, len(codes)):
        if bool((codes[period:] == codes[:-period]).all()):
            return period
    return None


def find_period(codes: NDArray[np.int64]) -> int | None:
    """Return the period of a long sequence that repeats almost exactly.

    Layers repeat within a step, so that a short period agrees nearly as well as the true one: of
    all candidates the shortest is taken that agrees as well as the best. Candidates are distances
    between occurrences of rare names.

    Returns:
        The period, or None when less than 97 % of the entries recur at any distance.
    """
    codes = codes[:_LONGEST_SEQUENCE]
    candidates = _candidates(codes)
    agreement = {p: float((codes[p:] == codes[:-p]).mean()) for p in candidates}
    best = max(agreement.values(), default=0.0)
    if best < _ENOUGH_AGREEMENT:
        return None
    return min(p for p, share in agreement.items() if share >= best - _EQUALLY_GOOD)


def _candidates(codes: NDArray[np.int64]) -> list[int]:
    n = len(codes)
    values, counts = np.unique(codes, return_counts=True)
    found: dict[int, None] = {}
    for i in np.argsort(counts, kind="stable"):
        if counts[i] < 2:
            continue
        if len(found) >= _MOST_CANDIDATES:
            break
        where = np.flatnonzero(codes == values[i])[: 4 * _MOST_ANCHORS]
        for distance in (where[1 : _MOST_ANCHORS + 1] - where[0]).tolist():
            found.setdefault(int(distance))
    return [p for p in found if _SHORTEST_PERIOD <= p <= n // 2]
