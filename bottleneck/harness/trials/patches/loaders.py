"""Patches of the DataLoader: workers, pinning, persistence, prefetching, threads, and passes of one batch.

In: keyword -> value. Out: loaders built with them, whatever the script passed; or, while the script
trains, a second loader with them, whose batches it gets. More workers only for loaders that read by
index: an IterableDataset in several workers would yield every sample several times. Whole batches with one
call only from datasets that give the same for all indices at once as for one after the other.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from ....model.verify import Applied
from ....runs.environment import usable_cores
from ... import loader_private
from ...lines.sites import line_of, user_frame, user_site
from ..seeded_batches import random_numbers_kept
from .base import NotSwitchable, Patch, Program, plural
from .second_loader import SecondLoader, arguments_of, depth_of, kept_by

FEW_WORKERS = 4
"""Without a measured need: what the catalogue's code says, bounded by the cores."""
QUEUED = 8
_THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LoaderPatch(Patch):
    """Changes the arguments of every loader that is built."""

    live = True
    for_ranks = True
    nothing_to_do = "no DataLoader was built"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._signature = inspect.signature(DataLoader.__init__)
        self._before: dict[str, set[str]] = {}
        self._second: SecondLoader | None = None

    def install(self) -> None:
        self.replaced.put(DataLoader, "__init__", self._make_init)

    def put_in(self, program: Program) -> None:
        """Hand out the batches of a second loader, which is built at the first turn."""
        loader = program.loader
        if loader is None:
            raise NotSwitchable("no DataLoader that still exists feeds the training")
        given = {"dataset": loader.dataset, **arguments_of(loader)}
        changes = self._changes(given)
        if not changes:
            raise NotSwitchable("; ".join(self.reasons))
        if self._second is None:
            self._second = SecondLoader(loader, changes)
            self._before = {name: {repr(self._given(given, name))} for name in self._told(changes)}

        def handed() -> None:
            if not self.count:
                self.acted(None, **self._told(changes))

        self._second.hand_out(handed, unless=program.replays)

    def take_out(self) -> None:
        """The second loader and its workers stay for the next turn."""
        if self._second is not None:
            self._second.stop()

    def close(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None

    def settle_steps(self, program: Program) -> int:
        """What was made ready meanwhile does not count."""
        second = self._second
        if self.is_on and second is not None:
            return self.settles + second.depth
        return self.settles + (depth_of(program.loader) if program.loader is not None else 0)

    def check(self) -> Applied:
        if self._second is not None and (self._second.failure or not self.count):
            return self.not_applied(self._second.failure or "no batch was read while it was on")
        return super().check()

    def _make_init(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
            try:
                bound = self._signature.bind(loader, *args, **kwargs)
            except TypeError:
                # The script's own mistake; torch says what is wrong with it.
                return original(loader, *args, **kwargs)  # type: ignore[no-any-return]
            given = dict(bound.arguments)
            changes = self._changes(given)
            if not changes:
                return original(loader, *args, **kwargs)  # type: ignore[no-any-return]
            told = self._told(changes)
            for name in told:
                self._before.setdefault(name, set()).add(repr(self._given(given, name)))
            bound.arguments.update(changes)
            original(*bound.args, **bound.kwargs)
            self.acted(user_site(), **told)
            return None

        return __init__

    def _given(self, arguments: dict[str, Any], name: str) -> Any:
        """Return an argument, or the default of the constructor."""
        return arguments.get(name, self._signature.parameters[name].default)

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords to change for a loader with these arguments; none to leave it."""
        raise NotImplementedError

    def _told(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords that are written down with their values."""
        return changes

    def _workers(self, given: dict[str, Any]) -> int:
        return int(self._given(given, "num_workers") or 0)

    def evidence(self) -> str:
        told = [
            f"{name} {'/'.join(sorted(before))} -> {self.values[name]!r}"
            for name, before in self._before.items()
        ]
        return f"{', '.join(told)} on {plural(self.count, 'DataLoader')}"


class Workers(LoaderPatch):
    """Another number of workers."""

    upwards: ClassVar[bool]

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        if isinstance(given.get("dataset"), IterableDataset):
            self.passed("the dataset is an IterableDataset: more workers would repeat its samples")
            return {}
        if _holds_device_tensors(given.get("dataset")):
            self.passed("the dataset holds tensors on the device, which worker processes cannot share")
            return {}
        now, upwards = self._workers(given), self.upwards
        wanted = int(self.option("num_workers", min(FEW_WORKERS, usable_cores()) if upwards else 2))
        if (now >= wanted) if upwards else (now <= wanted):
            self.passed(f"it has {plural(now, 'worker')} already")
            return {}
        changes: dict[str, Any] = {"num_workers": wanted}
        if wanted and self.option("persistent_workers", default=True):
            changes["persistent_workers"] = True
        return changes


class MoreWorkers(Workers):
    """Workers for loaders that have none, or too few."""

    fix = "FX101"
    upwards = True


class FewerWorkers(Workers):
    """Fewer workers for loaders that have too many."""

    fix = "FX102"
    upwards = False


class NoWorkers(LoaderPatch):
    """Batches made in the training process."""

    fix = "FX114"

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        if not self._workers(given):
            self.passed("the DataLoader has no workers")
            return {}
        # What only workers have is refused without them.
        without = {"persistent_workers": False, "prefetch_factor": None, "timeout": 0}
        besides = {name: value for name, value in without.items() if self._given(given, name) != value}
        if self._given(given, "multiprocessing_context") is not None:
            besides["multiprocessing_context"] = None
        return {"num_workers": 0, **besides}


class Persistent(LoaderPatch):
    """Workers that outlive the epoch."""

    fix = "FX105"
    acts_once_a_pass = True

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        if not self._workers(given):
            self.passed("the DataLoader has no workers")
        elif self._given(given, "persistent_workers"):
            self.passed("its workers persist already")
        else:
            return {"persistent_workers": True}
        return {}


class Prefetch(LoaderPatch):
    """More batches ready."""

    fix = "FX106"

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        wanted = int(self.option("prefetch_factor", QUEUED))
        if not self._workers(given):
            self.passed("the DataLoader has no workers")
        elif (self._given(given, "prefetch_factor") or 2) >= wanted:
            self.passed(f"it queues {wanted} batches per worker already")
        else:
            return {"prefetch_factor": wanted}
        return {}


class OneThread(LoaderPatch):
    """Workers in which libraries use one thread."""

    fix = "FX115"

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        if not self._workers(given):
            self.passed("the DataLoader has no workers")
            return {}
        return {"worker_init_fn": _OneThread(self._given(given, "worker_init_fn"))}

    def _told(self, changes: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - it is no plain value
        return {}

    def evidence(self) -> str:
        return f"one thread of libraries per worker on {plural(self.count, 'DataLoader')}"


class _OneThread:
    """What a worker does first; the script's own function follows."""

    def __init__(self, scripts: Callable[[int], object] | None) -> None:
        self._scripts = scripts

    def __call__(self, worker: int) -> None:
        os.environ.update(dict.fromkeys(_THREADS_OF_LIBRARIES, "1"))  # for those not loaded yet
        # In the trial's worker only: this import sets a variable, which the script's children would inherit.
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0)
        if self._scripts is not None:
            self._scripts(worker)


class Pinned(LoaderPatch):
    """Batches in pinned memory; half of a fix (`copies`)."""

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._given(given, "pin_memory"):
            self.passed("pin_memory is on already")
            return {}
        return {"pin_memory": True}


class OnePass(Patch):
    """`next(iter(loader))` goes on with the pass that it began before, until that is over."""

    fix = "FX113"
    live = True
    for_ranks = True
    settles = 3
    """It begins a pass, and goes on with it from the second step on."""
    says = ("{} of iter() went on with the pass before", "call")
    nothing_to_do = "no iterator was left behind after a single batch"

    def install(self) -> None:
        self._training = False
        self._begun: WeakKeyDictionary[Any, dict[tuple[str, int], _Begun]] = WeakKeyDictionary()
        self.replaced.put(DataLoader, "__iter__", self._make_iter)

    def training_begins(self) -> None:
        self._training = True

    def uninstall(self) -> None:
        """See `Patch`; workers end with the iterators that they serve."""
        super().uninstall()
        self._begun.clear()

    def settle_steps(self, program: Program) -> int:
        """What its workers had made ready does not count."""
        return self.settles + (depth_of(program.loader) if program.loader is not None else 0)

    def _make_iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807 - stands in for it
            frame = user_frame() if self._training else None
            if frame is None:
                return original(loader)
            begun = self._begun.setdefault(loader, {})
            place = (frame.f_code.co_filename, line_of(frame))
            if place in begun and begun[place].gave_one_more():
                self.acted_here()
            else:
                begun[place] = _Begun(original(loader))
            return begun[place].iterator

        return __iter__


class _Begun:
    """A pass that began at one line, and how far it was when that line last ran."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._given = 0

    def gave_one_more(self) -> bool:
        """Return whether a single batch was taken since, and more are to come."""
        given, total = loader_private.pass_of(self.iterator) or (0, 0)
        single = given == self._given + 1
        self._given = given
        return single and given < total


class AtOnce(LoaderPatch):
    """A whole batch read with one call of the dataset, as `__getitems__` does."""

    fix = "FX112"

    def _changes(self, given: dict[str, Any]) -> dict[str, Any]:
        dataset = given.get("dataset")
        if isinstance(dataset, IterableDataset):
            self.passed("the dataset is an IterableDataset: it is not read by index")
        elif given.get("collate_fn") not in (None, default_collate) or given.get("batch_size", 1) is None:
            self.passed("batches are put together in a way of the script's own")
        else:
            rows = RowsAtOnce(dataset)
            try:
                with random_numbers_kept():
                    same = rows.reads_the_same()
            except Exception as error:
                same = False
                self.passed(f"the dataset cannot read several samples at once: {type(error).__name__}")
            if same:
                return {"dataset": rows, "collate_fn": _as_it_is}
            self.passed("read at once, samples are not what they are one by one")
        return {}

    def _told(self, changes: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - none is a plain value
        return {}

    def evidence(self) -> str:
        return f"whole batches with one call on {plural(self.count, 'DataLoader')}"


class RowsAtOnce(Dataset[Any]):
    """A dataset as one that is asked for a whole batch."""

    def __init__(self, rows: Any) -> None:
        """Take the dataset; of a part of one, what it is part of."""
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        """Return what the script looks for in its dataset."""
        if name == "_rows":
            raise AttributeError(name)  # while it is unpickled
        return getattr(self._rows, name)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the batch of these samples."""
        rows = self._rows
        while isinstance(rows, Subset):
            rows, indices = rows.dataset, [rows.indices[index] for index in indices]
        # A tensor of one index counts as that index in NumPy: the batch would lack a dimension.
        return _as_batch(rows[list(indices)])

    def reads_the_same(self) -> bool:
        """Return whether a few samples are the same either way."""
        last = len(self) - 1
        indices = [last, 0, last // 2]
        return _same(default_collate([self[index] for index in indices]), self.__getitems__(indices))


def _as_batch(read: Any) -> Any:
    """Return what was read at once as torch's collate function gives batches."""
    if isinstance(read, (tuple, list)) and not hasattr(read, "_fields"):
        return [_as_batch(part) for part in read]
    if isinstance(read, dict):
        return {key: _as_batch(part) for key, part in read.items()}
    return torch.as_tensor(read)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return bool(one.dtype == other.dtype and torch.equal(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return False


def _as_it_is(batch: Any) -> Any:
    return batch


def _holds_device_tensors(dataset: Any) -> bool:
    return any(isinstance(item, torch.Tensor) and item.device.type != "cpu" for item in kept_by(dataset))
