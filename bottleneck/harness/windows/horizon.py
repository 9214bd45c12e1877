"""How many steps the script has left at least, as far as its loops and its data loader tell.

In: the iterator of each batch of the training thread; the loops that the thread is in, when asked. Out: a
lower bound of the steps that are left, and the number of workers. Another `break` than those that can be read
may come, so the bound only says whether there is plenty of room for longer windows.
"""

from __future__ import annotations

import weakref
from typing import Any

from .. import loader_private
from ..lines.rounds_left import rounds_left


class Horizon:
    """Remembers the loader that fed the last steps."""

    def __init__(self) -> None:
        self._iterator: weakref.ref[Any] | None = None
        self._fetches = 0
        self._cuts = 0
        self._rounds: tuple[int, int] | None = None
        """Rounds left of the loops, and the number of cuts, when they were first read."""

    def fetched(self, iterator: object) -> None:
        """A batch came from this iterator."""
        self._fetches += 1
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)

    def at_cut(self) -> None:
        """A step has ended."""
        self._cuts += 1

    @property
    def workers(self) -> int:
        """Workers of the loader: batches come in bursts of as many."""
        iterator = self._iterator() if self._iterator is not None else None
        return int(getattr(iterator, "_num_workers", 0))

    @property
    def queued(self) -> int:
        """Batches that these workers hold ready when they keep up."""
        iterator = self._iterator() if self._iterator is not None else None
        return self.workers * int(getattr(iterator, "_prefetch_factor", None) or 0)

    def steps_left(self) -> int | None:
        """Return how many steps are left at least, or None. The training thread asks, between two steps."""
        if not self._cuts:
            return None
        epoch, rest = self._of_loader()
        rounds = rounds_left()
        if rounds is None:
            return rest
        if self._rounds is None or rounds > self._rounds[0]:
            self._rounds = (rounds, self._cuts)
        first, since = self._rounds
        cuts = self._cuts - since
        if first > rounds:
            return rounds * cuts // (first - rounds)
        if self._fetches > 1.5 * cuts and epoch is not None:
            # A step has several batches: what seems to stand still may be the loop over them, inside of it.
            return rest
        # Only outer loops can be read. Each of their rounds has as many steps as this one had so far.
        return (rest or 0) + rounds * max(epoch or 0, cuts) if epoch or cuts else None

    def _of_loader(self) -> tuple[int | None, int | None]:
        """Return how many steps an epoch has, and this one still, as far as the loader knows."""
        known = loader_private.pass_of(self._iterator() if self._iterator is not None else None)
        if known is None:
            return None, None
        given, length = known
        steps = self._cuts / max(self._fetches, 1)
        return int(length * steps), max(0, int((length - given) * steps))
