"""Every private corner of torch's DataLoader that is needed, as `torch_private` for the rest of torch.

In: nothing. Out: small functions about loaders, their iterators and workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

LoaderIterator: type = dataloader._BaseDataLoaderIter
_PLAIN_INIT, _PLAIN_ITER = dataloader.DataLoader.__init__, dataloader.DataLoader.__iter__


def _plain_sources() -> dict[type, Callable[[Any], Any]]:
    kinds = (
        getattr(dataloader, name, None)
        for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
    )
    return {
        kind: vars(kind)["_next_data"] for kind in kinds if kind is not None and "_next_data" in vars(kind)
    }


_PLAIN_NEXT = _plain_sources()


def batch_sources() -> tuple[type, ...]:
    """Return the classes whose `_next_data(iterator)` makes the next batch of a loader's iterator.

    `__next__`, around which fetches are noted, calls it. Empty where this torch has no such method.
    """
    return tuple(_PLAIN_NEXT)


def reads_for(iterator: object, loader: object) -> bool:
    """Return whether an iterator is one of this loader's; they share what the indices come from."""
    sampler = getattr(loader, "_index_sampler", None)
    return sampler is not None and getattr(iterator, "_index_sampler", None) is sampler


def read_by(iterator: object) -> object:
    """Return the dataset that a loader's iterator reads."""
    return getattr(iterator, "_dataset", None)


def pass_of(iterator: Any) -> tuple[int, int] | None:
    """Return how many batches an iterator has given, and how many its pass has; None if that is not known."""
    try:
        return iterator._num_yielded, len(iterator)
    except (AttributeError, TypeError):
        return None


def has_given_all(iterator: Any) -> bool:
    """Return whether an iterator has given as many batches as its pass has; False where that is not known."""
    known = pass_of(iterator)
    return known is not None and known[0] >= known[1]


def count_anew(iterator: Any) -> None:
    """A pass begins with an iterator that has given batches before."""
    if hasattr(iterator, "_num_yielded"):
        iterator._num_yielded = 0


def build_loader(**arguments: Any) -> Any:
    """Build a DataLoader past what is put around its constructor: it is none of the script's."""
    loader = dataloader.DataLoader.__new__(dataloader.DataLoader)
    _PLAIN_INIT(loader, **arguments)
    return loader


def begin_pass(loader: Any, worker_loop: Callable[..., None] | None) -> Any:
    """Return an iterator over a loader, past what is put around `__iter__`.

    The workers run `worker_loop`, or None: what the script's run.
    """
    workers = getattr(getattr(dataloader, "_utils", None), "worker", None)
    replaced = getattr(workers, "_worker_loop", None)
    if worker_loop is None or replaced is None:
        return _PLAIN_ITER(loader)
    workers._worker_loop = worker_loop  # type: ignore[union-attr]
    try:
        return _PLAIN_ITER(loader)
    finally:
        workers._worker_loop = replaced  # type: ignore[union-attr]


def serves_another_process(iterator: Any) -> bool:
    """Return whether the workers of a loader's iterator were started by another process than this one."""
    workers = getattr(iterator, "_workers", None)
    return any(getattr(worker, "_parent_pid", None) != os.getpid() for worker in workers or ())


def without_pass(loader: Any) -> Any:
    """Return a loader that has forgotten the pass that it keeps for its workers' sake."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None
    return loader


def next_batch(iterator: Any) -> Any:
    """Return the next batch of one of our iterators, past what is put around its class.

    Raises:
        StopIteration: the pass is over.
    """
    return _PLAIN_NEXT[type(iterator)](iterator)


def end_pass(iterator: Any) -> None:
    """End the workers of an iterator, if it has any; how they end is no error of the script's.

    A worker that is ended while it hands over a batch may abort: its interpreter stops a thread inside of
    C++. torch's handler of SIGCHLD raises then, so it is told first that these are none of its own.
    """
    if getattr(iterator, "_worker_pids_set", False):
        with contextlib.suppress(AttributeError, ValueError):
            dataloader._utils.signal_handling._remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()


class WorkerSignals:
    """The handler of SIGCHLD as it is now: torch sets one for good when it first starts workers."""

    def __init__(self) -> None:
        """Keep it."""
        self._module = getattr(getattr(dataloader, "_utils", None), "signal_handling", None)
        self._was_set = bool(getattr(self._module, "_SIGCHLD_handler_set", True))
        self._handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None

    def put_back(self) -> None:
        """Take torch's off again, if it is one for workers that have ended."""
        if self._was_set or self._handler is None or not self._module._SIGCHLD_handler_set:  # type: ignore[union-attr]
            return
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGCHLD, self._handler)
            self._module._SIGCHLD_handler_set = False  # type: ignore[union-attr]
