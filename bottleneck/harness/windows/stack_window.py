"""The windows of stacks: the training thread's stack is sampled, before the last timed stretch and behind it.

In: begin and end at safe points, the rows of each window. Out: the artefact `stacks`. Each method notes
why it failed and goes on.
"""

from __future__ import annotations

import msgspec

from ...runs.store import Store, reason_of, write_atomically
from ..lines.stack_sampler import StackSampler
from .phases import PhaseClock
from .table import Row

ARTEFACT = "stacks"
LASTS_MS = 1500.0
"""About as many samples: what takes a tenth of the step is then known to a tenth of itself."""
FEWEST_STEPS = 5
LONGEST_MS = 10_000.0
"""Of long steps there are fewer, but two."""
LEAST_STEPS = 2
MOST_STEPS = 400
FIRST_STEPS = 30
"""Before the last stretch, which needs steps as well: a script may end soon."""


class StackWindow:
    """The samples of one process."""

    def __init__(self, store: Store, clock: PhaseClock) -> None:
        """Nothing is sampled yet."""
        self._store = store
        self._planned = 0
        self._bounds: list[tuple[int, int]] = []
        self._samples = StackSampler(clock)
        self.behind = False
        """The last stretch is over."""
        self.sampler: StackSampler | None = None
        """While a window is open."""

    def begin(self, *, step_ms: float, alone: bool, behind: bool, why_not: str | None = None) -> bool:
        """Begin to sample; False, with the reason stored, where that cannot be or need not be.

        Args:
            step_ms: a typical step.
            alone: there is one rank: several, which wait for each other, go without.
            behind: the last stretch is over: sample as many steps as are still wanted.
            why_not: a reason not even to try.
        """
        self.behind = behind
        if why_not is None and not alone:
            why_not = "several ranks"
        wanted = max(FEWEST_STEPS, min(MOST_STEPS, int(LASTS_MS / max(step_ms, 1e-3))))
        wanted = max(LEAST_STEPS, min(wanted, int(LONGEST_MS / max(step_ms, 1e-3))))
        self._planned = wanted - len(self._bounds) if behind else min(wanted, FIRST_STEPS)
        if why_not is not None and not self._bounds:
            self._store.artefact(ARTEFACT, "absent", reason=why_not)
        if why_not is not None or self._planned <= 0:
            return False
        try:
            self._samples.begin()
        except Exception as error:
            self._failed(error)
            return False
        self.sampler = self._samples
        return True

    def is_enough(self, rows: list[Row]) -> bool:
        """Return whether the window may end with these steps."""
        return len(rows) >= self._planned

    def end(self, rows: list[Row]) -> None:
        """Stop sampling and write what was seen in whole steps so far."""
        if self.sampler is None:
            return
        self.sampler = None
        try:
            self._samples.stop()
            self._bounds += [(row.start_ns, row.start_ns + int(row.wall_ms * 1e6)) for row in rows]
            if not self._bounds:
                self._store.artefact(ARTEFACT, "absent", reason="the script ended before its first step")
                return
            target = self._store.path(ARTEFACT)
            write_atomically(target, msgspec.json.encode(self._samples.seen(self._bounds)))
            self._store.artefact(ARTEFACT, "ok", path=target)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.sampler = None
        self._samples.abandon()
        self._store.artefact(ARTEFACT, "failed", reason=reason_of(error))
