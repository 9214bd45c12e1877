"""How long the recorded steps took, host and device both done.

In: a `Trace`, its steps. Out: lengths in ms. A host that runs ahead of the device passes through its own
steps faster than they are worked off: four traced steps of 49 ms each read as 31 between its marks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..trace.table import NONE, Trace
from .traced import Steps

_FAR_AHEAD = 0.05
"""Share of a step that the device may lag behind the host at its end."""


def _ends(trace: Trace, steps: Steps) -> NDArray[np.int64]:
    """Return when each step had ended on the host and so had the last device work it launched, int64 ns."""
    ends = steps.end_ns.astype(np.int64)
    launched = trace.launched_by != NONE
    step = steps.which(trace.ts_ns[trace.launched_by[launched]])
    inside = step != NONE
    np.maximum.at(ends, step[inside], trace.end_of(trace.activities[launched][inside]))
    return ends


def _far_ahead(ends: NDArray[np.int64], steps: Steps) -> bool:
    if len(steps) < 2:
        return False
    lag = float(np.median(ends - steps.end_ns))
    return lag > _FAR_AHEAD * float(np.median(np.diff(ends)))


def runs_ahead(trace: Trace, steps: Steps) -> bool:
    """Return whether the host is so far ahead of the device that the first step has no begin there."""
    return _far_ahead(_ends(trace, steps), steps)


def recorded_ms(trace: Trace, steps: Steps) -> NDArray[np.float64]:
    """Return the lengths of the recorded steps.

    Between the host's marks, or, where the device lags behind them by more than 5 % of a step, from end
    to end with host and device both done. The first step has no such begin, and is left out then.

    Returns:
        float64 ms of shape (steps,) or (steps - 1,).
    """
    ends = _ends(trace, steps)
    if _far_ahead(ends, steps):
        return np.asarray(np.diff(ends) / 1e6, dtype=np.float64)
    return np.asarray((steps.end_ns - steps.start_ns) / 1e6, dtype=np.float64)
