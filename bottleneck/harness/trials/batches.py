"""Batches recorded while steps run, and handed out again: the same steps once more.

In: what the script's loaders deliver. Out: the same batches, in the same order, while they are replayed, and
with each the random numbers that followed it: a loader draws some for a new pass, and its dataset may. The
loaders do not move meanwhile. A pass still gives no more batches than its length: scripts count on that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .. import loader_private
from ..events.replacing import Replacements
from .seeded_batches import put_back_random, random_states


class BatchTape:
    """Between the loaders and the script; one per trial window."""

    def __init__(self) -> None:
        self.problem = ""
        """Why the batches cannot be repeated."""
        self._batches: list[tuple[Any, Any, tuple[Any, ...]]] = []
        """Each after the dataset that it was read from, before the random states at its handing out."""
        self._recording = False
        self._with_random = True
        self._next: int | None = None
        """The batch to hand out next; None: the loaders' own."""
        self._replaced = Replacements()

    def record(self) -> None:
        """Keep a copy of each batch from now on."""
        self._batches.clear()
        self._recording = True
        for kind in loader_private.batch_sources():
            self._replaced.put(kind, "_next_data", self._make_next)

    def replay(self, *, with_random: bool = True) -> None:
        """Hand out the batches that were kept, from the first one on; after the last, the loaders' own.

        `with_random`: the random numbers after each of them are those that followed it when it was kept.
        """
        self._recording, self._next, self._with_random = False, 0, with_random

    @property
    def replaying(self) -> bool:
        """Batches that were kept are handed out."""
        return self._next is not None and self._next < len(self._batches)

    def stop(self) -> None:
        """Neither keep nor hand out."""
        self._recording, self._next = False, None

    def close(self) -> None:
        """Give up what was kept, and the place between."""
        self.stop()
        self._batches.clear()
        self._replaced.undo()

    def _make_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_data(iterator: Any) -> Any:
            if loader_private.has_given_all(iterator):
                raise StopIteration
            data = loader_private.read_by(iterator)
            if self._next is not None:
                if self._next >= len(self._batches):
                    self._next = None
                elif self._batches[self._next][0] is data:
                    _, batch, random = self._batches[self._next]
                    self._next += 1
                    if self._with_random:
                        put_back_random(*random)
                    return copy.deepcopy(batch)
            batch = original(iterator)
            if self._recording:
                self._keep(data, batch)
            return batch

        return _next_data

    def _keep(self, data: Any, batch: Any) -> None:
        try:
            self._batches.append((data, copy.deepcopy(batch), random_states()))
        except Exception as error:
            self.problem = f"a batch cannot be copied ({type(error).__name__})"
            self._recording = False
