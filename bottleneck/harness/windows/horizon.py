"""How many steps the script has left at least, as far as its data loader tells.

In: the iterator of each batch of the training thread. Out: a lower bound of the steps that are
left, and the number of workers. The loops themselves cannot be read: since Python 3.11 a running
frame shows its value stack to nobody. Epochs may follow and a `break` may come, so the bound only
says whether there is plenty of room for longer windows.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["Horizon"]


class Horizon:
    """Remembers the loader that fed the last steps."""

    def __init__(self) -> None:
        self._iterator: weakref.ref[Any] | None = None
        self._fetches = 0
        self._cuts = 0

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
        """Return how many steps the current epoch still has, or None."""
        iterator = self._iterator() if self._iterator is not None else None
        if iterator is None or not self._cuts:
            return None
        try:
            rest = len(iterator) - iterator._num_yielded
        except (TypeError, AttributeError):
            return None
        return max(0, int(rest * self._cuts / max(self._fetches, 1)))
