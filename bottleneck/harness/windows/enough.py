"""Whether the steps that are timed are enough: counted, added up, and asked for their mean at times.

In: rows of the baseline, stretch by stretch, as they come. Out: yes or no, and in how many steps to ask
again. A step costs an addition; the interval of the mean is worked out only where it may end the stretch.
"""

from __future__ import annotations

import math

from ...stats import mean_interval
from .lengths import FOREVER_MS, Enough
from .table import Row

LOOK_AGAIN = 5
"""After a look at the interval, the next one comes when there are more steps by one in so many."""
SPARE_STEPS = 10
"""Steps with an evaluation or a compilation do not count; so many more are waited for in their place."""


class Watch:
    """Steps that are timed: those of one stretch, or of all stretches together."""

    def __init__(self) -> None:
        self.taken = 0
        """Steps, of whatever kind."""
        self.spent_ms = 0.0
        self._times_ms: list[float] = []
        """Of steps without an evaluation or a compilation."""
        self._look_at = 0

    def take(self, rows: list[Row]) -> None:
        """Take in more steps."""
        for row in rows:
            self.spent_ms += row.wall_ms
            if not (row.validation or row.compiled):
                self._times_ms.append(row.wall_ms)
        self.taken += len(rows)

    def _bounds(self, enough: Enough) -> tuple[int, int]:
        if self.spent_ms < enough.soft_ms:
            return enough.least, enough.most
        return min(enough.least, enough.soft_least), min(enough.most, enough.soft_most)

    def is_enough(self, enough: Enough) -> bool:
        """Return whether a limit is reached, or the mean of the least is known.

        The mean, since waits that recur every few steps (bursts of a data loader) hide from a median.
        """
        least, most = self._bounds(enough)
        if enough.most_ms >= FOREVER_MS:
            # Ranks: what their steps hold or how long they take must not matter.
            return self.taken >= most
        count = len(self._times_ms)
        if count >= most or self.taken >= most + SPARE_STEPS or self.spent_ms >= enough.most_ms:
            return True
        if count < max(least, self._look_at):
            return False
        self._look_at = count + max(1, count // LOOK_AGAIN)
        interval = mean_interval(self._times_ms)
        return interval is not None and interval[1] - interval[0] <= enough.within * sum(interval)

    def rest(self, enough: Enough, *, step_ms: float) -> int:
        """Return how many steps are left until there is something to ask, one at least."""
        least, most = self._bounds(enough)
        count = len(self._times_ms)
        rest = min(most, max(least, self._look_at)) - count
        if self.spent_ms < enough.soft_ms < FOREVER_MS:
            soon = max(enough.soft_least - count, math.ceil((enough.soft_ms - self.spent_ms) / step_ms))
            rest = min(rest, soon)
        return max(1, rest)
