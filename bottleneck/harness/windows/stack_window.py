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

    def begin(self, *, steps: int, behind: bool, why_not: str | None = None) -> bool:
        """Begin to sample; False, with the reason stored, where that cannot be or need not be.

        Args:
            steps: to be sampled in all windows together, this one included.
            behind: the last stretch is over.
            why_not: a reason not even to try.
        """
        self.behind = behind
        self._planned = steps - len(self._bounds)
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
