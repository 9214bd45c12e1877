"""Collectives over several ranks: what the wire takes, and who keeps the others waiting.

In: one trace per rank. Out: `Skew`.

A collective ends on all ranks at about the same moment, and its kernel runs on each rank from that
rank's arrival: it waits inside the kernel for the last one to come. So the shortest duration of one
collective over the ranks is what it takes, and the rest of a longer one is waiting for a straggler
(the reading that TraceLens gives, too). Traces of several hosts need no common clock for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .dialect import Kind
from .kernels import is_collective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .table import Trace

__all__ = ["Skew", "collective_ns", "rank_skew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Per rank, in ms per step; all arrays of shape (ranks,)."""

    waits_ms: NDArray[np.float64]
    """Time inside collectives spent waiting for other ranks."""
    critical: int
    """The rank that the others wait for: it waits least."""

    @property
    def skew_ms(self) -> float:
        """How much longer the most patient rank waits than the critical one."""
        return float(self.waits_ms.max() - self.waits_ms[self.critical])


def collective_ns(trace: Trace) -> NDArray[np.int64]:
    """Return the durations of all collective kernels of a trace, in order of start, ns.

    Not only of those inside the steps' host intervals: on a rank that waits, the device lags the
    host by more than a step.
    """
    return np.asarray(trace.dur_ns[trace.rows(Kind.KERNEL, named=is_collective)], dtype=np.int64)


def rank_skew(durations: Sequence[NDArray[np.int64]], steps: int) -> Skew | None:
    """Compare the collectives of several ranks.

    Args:
        durations: `collective_ns` of each rank.
        steps: traced steps.

    Returns:
        The skew, or None when there are fewer than two ranks or their collectives do not match.
    """
    count = min((len(d) for d in durations), default=0)
    longest = max((len(d) for d in durations), default=0)
    if len(durations) < 2 or count == 0 or count < 0.9 * longest or steps < 1:
        return None
    # Ranks cut their windows at slightly different moments: compare from the end, where all agree.
    table = np.stack([d[len(d) - count :] for d in durations]).astype(np.float64)
    # What a collective takes when every rank is there is what it takes on the last one to come.
    waits = (table - table.min(axis=0)).sum(axis=1) / steps / 1e6
    return Skew(waits_ms=waits, critical=int(np.argmin(waits)))
