"""What the start of an epoch takes: workers that start, and the wait for the first batch.

In: iterations and fetches of data loaders. Out: for each step, the time that the epoch which it trains on
took to start. An evaluation's loader starts as well, but the step trains on the batch of the loader fetched
from last.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ...clocks import perf_counter_ns
from ..events.replacing import Replacements
from ..lines.sites import user_site

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...model.run import SourceSite

__all__ = ["EpochStarts"]


class EpochStarts:
    """Takes the tracker's fetches, in the place of a `LoaderWatch`."""

    def __init__(self) -> None:
        """Begin before the first epoch."""
        self._replaced = Replacements()
        self._iterating: tuple[int, SourceSite | None] = (0, None)
        self._new: int | None = None
        self._starts: dict[int, tuple[int, SourceSite | None]] = {}
        self._last = 0
        self.under_way: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        """Iterators that live, and their loaders."""
        self._workers: set[int] = set()
        """Loaders that have started workers for one epoch alone, by id: one made anew may be the same."""
        self._again: set[int] = set()
        """Iterators for which they were started anew."""
        self.restarted = False
        """Likewise, for the step that ended last."""

    def install(self) -> None:
        """Time `iter(loader)`. Undo in reverse order of others."""
        self._replaced.put(DataLoader, "__iter__", self._make_iter)

    def uninstall(self) -> None:
        """Time nothing more."""
        self._replaced.undo()

    def _make_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807 - stands in for it
            began = perf_counter_ns()
            iterator = original(loader)
            self._iterating, self._new = (perf_counter_ns() - began, user_site()), id(iterator)
            self.under_way[iterator] = weakref.ref(loader)
            if loader.num_workers and not loader.persistent_workers:
                if id(loader) in self._workers:
                    self._again.add(self._new)
                self._workers.add(id(loader))
            return iterator

        return __iter__

    def handed_over(
        self,
        iterator: object,
        *,
        at_ns: int,  # noqa: ARG002 - as a loader watch is told
        grad: bool,  # noqa: ARG002 - likewise
        wait_ms: float,
        step_index: int,  # noqa: ARG002 - likewise
        window: str,  # noqa: ARG002 - likewise
    ) -> None:
        """A batch was handed over."""
        self._last = id(iterator)
        if self._new == self._last:
            took_ns, site = self._iterating
            self._starts[self._last] = took_ns + round(wait_ms * 1e6), site
            self._new = None

    def exhausted(self, *, wait_ms: float, step_index: int) -> None:
        """An epoch is over: its last wait lies in the step, as any other does."""

    def train_fetch(self, iterator: object) -> None:
        """A backward followed this iterator's batch; at a cut that is known anyway."""

    def eval_fetch(self, iterator: object) -> None:
        """No backward followed."""

    def forget(self) -> None:
        """Steps have gone by unseen, with all that began in them."""
        self._new = None
        self._starts.clear()
        self._again.clear()

    def at_cut(self) -> tuple[int, SourceSite | None]:
        """A step has ended: return the ns that the start of its epoch took, and where; 0 where none began."""
        self.restarted = False
        if not self._starts:
            return 0, None
        took = self._starts.get(self._last, (0, None))
        self.restarted = self._last in self._again
        self._starts.clear()
        self._again.clear()
        return took
