"""A second loader over the script's data, whose batches the script gets in place of its own.

In: the loader that feeds the training, and the arguments to change. Out: while it hands out, each
`next()` on an iterator of the script's loader returns a batch of ours, and ends where our pass ends: what
the script does between epochs is part of the steps on both sides. Its `iter()` begins our next pass, and
returns the iterator that it had. That one stands still, and goes on afterwards where it stood. Samplers and
generators are copied.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ... import loader_private
from ...events.replacing import Replacements
from ...loading.worker import WorkerLoop
from ..seeded_batches import random_numbers_kept
from .base import NotSwitchable

HUNG_S = 60.0
"""A worker that makes no batch for so long is not waited for; then the script's own batches come again."""
PASSED_ON = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


class SecondLoader:
    """One per trial; its workers live from `__init__` to `close`."""

    def __init__(self, loader: DataLoader[Any], changes: dict[str, Any]) -> None:
        """Build it and make a first batch.

        Raises:
            NotSwitchable: that failed, or would disturb what the script reads itself.
        """
        self.failure = ""
        """Why the script gets its own batches again."""
        self._loader = loader
        self._replaced = Replacements()
        self._handed: Callable[[], None] = lambda: None
        self._unless: Callable[[], bool] = bool
        self._iterator: Any = None
        self._scripts: Any = None
        """The script's iterator, which stands still."""
        # A change may put something in front of the dataset.
        arguments = _with_changes(arguments_of(loader), changes)
        self._refuse(loader.dataset, arguments)
        arguments = _what_is_read(loader) | arguments
        self._signals = loader_private.WorkerSignals()
        try:
            with random_numbers_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of more workers than cores, and the like
                self._second = loader_private.build_loader(**arguments)
                self._begin()
                self._held: Any = loader_private.next_batch(self._iterator)
        except StopIteration:
            self.close()
            raise NotSwitchable("a second DataLoader over the same dataset is empty") from None
        except Exception as error:
            self.close()
            raise NotSwitchable(f"a second DataLoader fails: {_told(error)}") from error
        self._holds = True

    @property
    def depth(self) -> int:
        """Batches that it has ready when it keeps up."""
        return depth_of(self._second)

    def hand_out(self, handed: Callable[[], None], *, unless: Callable[[], bool] = bool) -> None:
        """Begin to hand batches to the script.

        Args:
            handed: called with each.
            unless: while it says so, the script's own batches pass.
        """
        self._handed, self._unless = handed, unless
        for kind in loader_private.batch_sources():
            self._replaced.put(kind, "_next_data", self._make_next)
        if not self._replaced.entries:
            raise NotSwitchable("this torch offers no place to hand batches over")
        self._replaced.put(DataLoader, "__iter__", self._make_iter)

    def stop(self) -> None:
        """Have the script read its own batches again."""
        self._replaced.undo()
        self._scripts = None

    def close(self) -> None:
        """End the workers."""
        self.stop()
        self._held, self._holds = None, False
        if self._iterator is not None:
            loader_private.end_pass(self._iterator)
            self._iterator = None
        self._signals.put_back()

    def _refuse(self, dataset: Any, arguments: dict[str, Any]) -> None:
        if isinstance(dataset, IterableDataset) and not arguments["num_workers"]:
            raise NotSwitchable("an IterableDataset read in this process has one position only")
        if any(isinstance(value, io.IOBase) and not value.closed for value in kept_by(dataset)):
            raise NotSwitchable("the dataset holds an open file, whose position all who read it share")

    def _begin(self) -> None:
        self._iterator = loader_private.begin_pass(self._second, WorkerLoop.original)

    def _make_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_data(iterator: Any) -> Any:
            is_ours = not self.failure and loader_private.reads_for(iterator, self._loader)
            if not is_ours or self._unless():
                return original(iterator)
            self._scripts = iterator
            if loader_private.has_given_all(iterator):
                raise StopIteration
            try:
                batch = self._next()
            except StopIteration:
                raise
            except Exception as error:
                # Never the script's problem: it reads on where it stood.
                self.failure = f"the second DataLoader failed: {_told(error)}"
                return original(iterator)
            self._handed()
            return batch

        return _next_data

    def _next(self) -> Any:
        if self._holds:
            batch, self._held, self._holds = self._held, None, False
            return batch
        return loader_private.next_batch(self._iterator)

    def _make_iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807 - stands in for it
            if loader is not self._loader or self._scripts is None or self.failure or self._unless():
                return original(loader)
            try:
                with random_numbers_kept(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._begin()
            except Exception as error:
                self.failure = f"the second DataLoader failed: {_told(error)}"
                return original(loader)
            loader_private.count_anew(self._scripts)
            return self._scripts

        return __iter__


def arguments_of(loader: Any) -> dict[str, Any]:
    """Return what a loader was built with, except for what it reads and in which order."""
    return {name: getattr(loader, name) for name in PASSED_ON if hasattr(loader, name)}


def depth_of(loader: Any) -> int:
    """Return how many batches a loader has ready when it keeps up."""
    return int(loader.num_workers) * int(loader.prefetch_factor or 0)


def kept_by(dataset: Any) -> Iterator[Any]:
    """Yield what a dataset holds where things are usually kept: attributes, TensorDataset, Subset."""
    for layer in _layers(dataset):
        for value in getattr(layer, "__dict__", {}).values():
            yield from value[:16] if isinstance(value, (tuple, list)) else (value,)


def _layers(dataset: Any, depth: int = 4) -> Iterator[Any]:
    """Yield a dataset and those that it is a part of."""
    while dataset is not None and depth:
        yield dataset
        dataset, depth = getattr(dataset, "dataset", None), depth - 1


def _with_changes(arguments: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with what the changes rule out left at its default."""
    made = {**arguments, **changes}
    if not made["num_workers"]:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            made.pop(name, None)
    elif not made["timeout"]:
        made["timeout"] = HUNG_S
    if not made.get("pin_memory_device"):
        made.pop("pin_memory_device", None)
    return made


def _what_is_read(loader: Any) -> dict[str, Any]:
    """Return dataset, order and generator, the latter two as copies: the script's own do not move."""
    dataset, generator = loader.dataset, loader.generator
    same: dict[int, Any] = {id(inner): inner for inner in _layers(dataset)}
    if generator is not None:
        same[id(generator)] = _twin(generator)
    given = {"dataset": dataset, "generator": same.get(id(generator))}
    if isinstance(dataset, IterableDataset):
        return {**given, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    in_batches = loader.batch_sampler is not None
    sampler = loader.batch_sampler if in_batches else loader.sampler
    for owner in (sampler, loader.sampler):
        for value in getattr(owner, "__dict__", {}).values():
            if isinstance(value, Dataset):
                same[id(value)] = value
            elif isinstance(value, torch.Generator):
                same.setdefault(id(value), _twin(value))
    try:
        own = copy.deepcopy(sampler, same)
    except Exception as error:
        raise NotSwitchable(f"its sampler cannot be copied: {_told(error)}") from error
    return given | ({"batch_sampler": own} if in_batches else {"batch_size": None, "sampler": own})


def _twin(generator: torch.Generator) -> torch.Generator:
    twin = torch.Generator(generator.device)
    twin.set_state(generator.get_state())
    return twin


def _told(error: BaseException) -> str:
    """Return an error in one line: torch puts a worker's whole traceback into it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    name = type(error).__name__
    return last if last.startswith(name) else f"{name}: {last}" if last else name
