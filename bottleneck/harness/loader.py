"""What the script's DataLoaders are and how they keep up.

In: constructors, iterations and fetches of `torch.utils.data.DataLoader`, seen through hooks. Out:
loader.json, a list of `LoaderFacts`. The loader, its dataset and its batches are only looked at.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
import traceback
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import worker as torch_worker

from ..model.run import LoaderFacts, Production, SourceSite
from .batch_facts import BatchBook
from .line_sampler import Line, LineSampler, as_sites, merge
from .loader_worker import Batch, WorkerLoop, read_lines, read_records, time_fetcher
from .sites import user_site
from .store import RAW_RECORDS
from .torch_private import mark_skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from .store import Store

__all__ = ["LoaderWatch"]

BATCHES_KEPT = 512
WAITS_KEPT = 4096
SITES_KEPT = 16


class _Loader:
    """One DataLoader while the program runs."""

    def __init__(self, number: int, facts: LoaderFacts) -> None:
        self.number = number
        self.facts = facts
        self.fetches = 0
        self.iterators = 0
        self.startup_ms: list[float] = []
        self.wait_ms: list[float] = []
        self.wait_step: list[int] = []
        self.made: deque[Batch] = deque(maxlen=BATCHES_KEPT)
        self.made_count = 0
        self.batches = BatchBook()
        self.sampler: LineSampler | None = None
        self.advances = 0
        """Fetches in a row, from one iterator, with a step between them: a training loader's."""
        self.no_grad = 0
        self.eval_votes = 0
        self.train_votes = 0

    def produced(self, batch: Batch) -> None:
        """Note a batch made in this process."""
        self.made.append(batch)
        self.made_count += 1


class _Iteration:
    """One pass over a loader."""

    def __init__(self, iterator: Any, loader: _Loader, begun_ns: int) -> None:
        self.iterator = weakref.ref(iterator)
        self.loader = loader
        self.begun_ns: int | None = begun_ns
        self.last_step: int | None = None


class LoaderWatch:
    """Collects facts about every DataLoader of the process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._loaders: list[_Loader] = []
        self._iterations: weakref.WeakKeyDictionary[Any, _Iteration] = weakref.WeakKeyDictionary()
        self._folder = store.working / RAW_RECORDS
        self._pid = os.getpid()
        self._loop = WorkerLoop(str(self._folder))
        self._window = ""
        self._problem = ""
        self._last: _Iteration | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Hook the constructor, `__iter__` and the worker loop. Undo in reverse order of others."""
        self._folder.mkdir(exist_ok=True)
        self._replace(DataLoader, "__init__", self._make_init)
        self._replace(DataLoader, "__iter__", self._make_iter)
        original = torch_worker._worker_loop
        WorkerLoop.original = original
        torch_worker._worker_loop = self._loop

        def restore() -> None:
            if torch_worker._worker_loop is self._loop:
                torch_worker._worker_loop = original

        self._undo.append(restore)

    def uninstall(self) -> None:
        """Take everything off and remove the workers' raw records."""
        while self._undo:
            self._undo.pop()()
        if os.getpid() == self._pid:
            # A forked child takes its parent's hooks out too, and has no say in its files.
            shutil.rmtree(self._folder, ignore_errors=True)

    def fetched(
        self,
        iterator: object,
        batch: object,
        tensors: list[Any],
        *,
        wait_ms: float,
        step_index: int,
        window: str,
    ) -> None:
        """Note one batch handed over.

        Args:
            iterator: what `next()` was called on.
            batch: what it returned.
            tensors: the tensors in the batch.
            wait_ms: host time blocked in it.
            step_index: the step under way.
            window: name of the window under way.
        """
        loader = self.handed_over(
            iterator,
            at_ns=time.perf_counter_ns(),
            grad=torch.is_grad_enabled(),
            wait_ms=wait_ms,
            step_index=step_index,
            window=window,
        )
        if loader is None:
            return
        try:
            facts = loader.facts
            loader.batches.note(batch, tensors, several_workers=facts.iterable and facts.num_workers > 1)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"

    def handed_over(
        self,
        iterator: object,
        *,
        at_ns: int,
        grad: bool,
        wait_ms: float,
        step_index: int,
        window: str,
    ) -> _Loader | None:
        """Note that a batch was handed over, whatever was in it.

        Args:
            iterator: what `next()` was called on.
            at_ns: when (perf_counter_ns).
            grad: whether gradients were enabled then.
            wait_ms: host time blocked in it.
            step_index: the step under way.
            window: name of the window under way.
        """
        if window != self._window:
            self._window = window
            self._stop_samplers()
        try:
            iteration = self._last
            if iteration is None or iteration.iterator() is not iterator:
                self._last = iteration = self._iteration_of(iterator)
            if iteration.begun_ns is not None:
                iteration.loader.startup_ms.append((at_ns - iteration.begun_ns) / 1e6)
                iteration.begun_ns = None
            self._note_fetch(iteration.loader, iteration, wait_ms, step_index, window)
            iteration.loader.no_grad += not grad
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            return None
        return iteration.loader

    def train_fetch(self, iterator: object) -> None:
        """A backward followed this iterator's batch."""
        with contextlib.suppress(Exception):
            self._iteration_of(iterator).loader.train_votes += 1

    def eval_fetch(self, iterator: object) -> None:
        """A forward without gradients, and no backward, followed this iterator's batch."""
        with contextlib.suppress(Exception):
            self._iteration_of(iterator).loader.eval_votes += 1

    def write(self) -> None:
        """Write loader.json with what is known so far. Never raises."""
        try:
            self._store.write_json("loader", self.facts())
            if self._problem:
                self._store.warn(f"Some batches could not be looked at ({self._problem}).")
        except Exception:
            self._store.artefact("loader", "failed", reason=traceback.format_exc(limit=-2))

    def facts(self) -> list[LoaderFacts]:
        """Return the facts of every loader that was iterated, or built and never used."""
        workers: dict[int, list[list[Batch]]] = {}
        for number, batches in read_records(self._folder):
            workers.setdefault(number, []).append(batches)
        lines: dict[int, dict[Line, int]] = {
            loader.number: loader.sampler.counts.copy()
            for loader in self._loaders
            if loader.sampler is not None
        }
        for number, counts in read_lines(self._folder):
            lines[number] = merge([lines.get(number, {}), counts])
        return [
            _facts(loader, workers.get(loader.number, []), lines.get(loader.number, {}))
            for loader in self._loaders
        ]

    def _stop_samplers(self) -> None:
        """Leave the process as it was before anything is timed in it."""
        if self._window != "warm-up":
            for loader in self._loaders:
                if loader.sampler is not None:
                    loader.sampler.stop()

    # -- hooks ----------------------------------------------------------------------------------

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        plain = make(original)
        mark_skip(plain.__code__)
        ours = functools.wraps(original)(plain)
        setattr(owner, name, ours)

        def restore() -> None:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)

        self._undo.append(restore)

    def _make_init(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
            original(loader, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._built(loader, user_site())

        return __init__

    def _make_iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:  # noqa: N807 - stands in for it
            begun = time.perf_counter_ns()
            known: _Loader | None = None
            with contextlib.suppress(Exception):
                known = self._loader_of(loader)
                self._loop.loader = known.number
            iterator = original(loader)
            with contextlib.suppress(Exception):
                if known is not None:
                    self._begun(known, iterator, begun)
            return iterator

        return __iter__

    # -- notes ----------------------------------------------------------------------------------

    def _built(self, loader: Any, site: SourceSite | None) -> _Loader:
        facts = _arguments(loader, len(self._loaders), site)
        # Scripts that build a loader per epoch build the same one at the same line each time.
        known = next((old for old in self._loaders if _are_twins(old.facts, facts)), None)
        if known is None:
            known = _Loader(len(self._loaders), facts)
            self._loaders.append(known)
        self._numbers[loader] = known.number
        return known

    def _loader_of(self, loader: Any) -> _Loader:
        number = self._numbers.get(loader)
        # Made before the hooks were in, or by unpickling: `__init__` did not run under our eyes.
        return self._built(loader, None) if number is None else self._loaders[number]

    def _begun(self, known: _Loader, iterator: Any, begun_ns: int) -> None:
        known.iterators += 1
        self._last = None  # persistent workers keep their iterator from pass to pass
        self._iterations[iterator] = _Iteration(iterator, known, begun_ns)
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            time_fetcher(fetcher, known.produced, self._sampler_for(known))

    def _sampler_for(self, known: _Loader) -> LineSampler | None:
        """Return the loader's sampler while nothing is being timed: in the warm-up only."""
        if self._window not in ("", "warm-up"):
            return None
        if known.sampler is None:
            known.sampler = LineSampler()
        return known.sampler

    def _iteration_of(self, iterator: Any) -> _Iteration:
        found = self._iterations.get(iterator)
        if found is None:
            # A subclass with an `__iter__` of its own that does not call DataLoader's.
            known = _Loader(len(self._loaders), _of_iterator(iterator, len(self._loaders)))
            self._loaders.append(known)
            known.iterators = 1
            found = self._iterations[iterator] = _Iteration(iterator, known, time.perf_counter_ns())
            found.begun_ns = None
        return found

    def _note_fetch(
        self, loader: _Loader, iteration: _Iteration, wait_ms: float, step: int, window: str
    ) -> None:
        loader.fetches += 1
        if iteration.last_step is not None and step > iteration.last_step:
            loader.advances += 1
        iteration.last_step = step
        if window == "baseline" and len(loader.wait_ms) < WAITS_KEPT:
            loader.wait_ms.append(wait_ms)
            loader.wait_step.append(step)


def _are_twins(old: LoaderFacts, new: LoaderFacts) -> bool:
    return old.site is not None and old == replace(new, id=old.id)


def _facts(loader: _Loader, workers: list[list[Batch]], lines: dict[Line, int]) -> LoaderFacts:
    return replace(
        loader.facts,
        role=_role(loader),
        fetches=loader.fetches,
        iterators=loader.iterators,
        startup_ms=[round(value, 3) for value in loader.startup_ms],
        wait_ms=[round(value, 4) for value in loader.wait_ms],
        wait_step=loader.wait_step,
        production=_production(loader, workers, lines),
        batch=loader.batches.facts(),
        duplicated_samples_share=loader.batches.duplicated_share(workers=loader.facts.num_workers),
    )


def _role(loader: _Loader) -> Any:
    if loader.train_votes or loader.eval_votes:
        return "train" if loader.train_votes >= loader.eval_votes else "eval"
    if loader.advances:
        return "train"
    if loader.no_grad * 2 > loader.fetches or loader.fetches >= 2:
        return "eval"
    return "unknown"


def _production(loader: _Loader, workers: list[list[Batch]], lines: dict[Line, int]) -> Production | None:
    if any(workers):
        every = sorted((b for batches in workers for b in batches), key=lambda b: b.end_ns)
        spans = [batches[-1].end_ns - batches[0].start_ns for batches in workers if batches]
        busy = sum(b.samples_ns + b.collate_ns for b in every)
        return _as_production("workers", every, len(every), busy / max(1, sum(spans)), lines)
    if loader.made:
        return _as_production("main", list(loader.made), loader.made_count, None, lines)
    return None


def _as_production(
    where: Any, batches: list[Batch], count: int, busy: float | None, lines: dict[Line, int]
) -> Production:
    kept = batches[-BATCHES_KEPT:]
    mean_ms = sum(batch.samples_ns + batch.collate_ns for batch in kept) / len(kept) / 1e6
    return Production(
        where=where,
        batches=count,
        fetch_ms=[round(batch.samples_ns / 1e6, 4) for batch in kept],
        collate_ms=[round(batch.collate_ns / 1e6, 4) for batch in kept],
        busy_share=round(busy, 4) if busy is not None else None,
        ready_ns=[batch.end_ns for batch in kept],
        sites=as_sites(lines, share_of_ms=mean_ms * count)[:SITES_KEPT],
    )


def _arguments(loader: Any, number: int, site: SourceSite | None) -> LoaderFacts:
    """Return what the loader was built with, read from the object: defaults are filled in there."""
    sampler = getattr(loader, "sampler", None)
    iterable = isinstance(loader.dataset, IterableDataset)
    length: int | None = None
    if not iterable:
        # Of an iterable dataset, asking would make the loader warn about it later.
        with contextlib.suppress(Exception):
            length = len(loader)
    context = getattr(loader, "multiprocessing_context", None)
    return LoaderFacts(
        id=number,
        cls=type(loader).__qualname__,
        site=site,
        dataset=type(loader.dataset).__qualname__,
        iterable=iterable,
        length=length,
        batch_size=_batch_size(loader),
        num_workers=int(loader.num_workers),
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        prefetch_factor=loader.prefetch_factor,
        drop_last=bool(loader.drop_last),
        shuffle=None if iterable or sampler is None else _shuffles(sampler),
        start_method=_start_method(context) if loader.num_workers else None,
    )


def _of_iterator(iterator: Any, number: int) -> LoaderFacts:
    """Return what an iterator tells of a loader that we have not seen."""
    workers = int(getattr(iterator, "_num_workers", 0) or 0)
    return LoaderFacts(
        id=number,
        cls=type(iterator).__qualname__,
        dataset=type(getattr(iterator, "_dataset", None)).__qualname__,
        num_workers=workers,
        pin_memory=bool(getattr(iterator, "_pin_memory", False)),
        persistent_workers=bool(getattr(iterator, "_persistent_workers", False)),
        prefetch_factor=getattr(iterator, "_prefetch_factor", None),
    )


def _batch_size(loader: Any) -> int | None:
    size = loader.batch_size
    if size is None:
        # With a batch sampler of one's own the loader's is None; HF and Lightning do that.
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return int(size) if isinstance(size, int) else None


def _shuffles(sampler: Any) -> bool | None:
    name = type(sampler).__name__
    if name == "SequentialSampler":
        return False
    if name == "DistributedSampler":
        return bool(getattr(sampler, "shuffle", True))
    return True if "Random" in name else None


def _start_method(context: Any) -> str | None:
    if context is not None:
        return str(context.get_start_method())
    # Asking outright would fix the default, and the script's own set_start_method would fail.
    chosen = torch.multiprocessing.get_start_method(allow_none=True)
    return str(chosen or torch.multiprocessing.get_all_start_methods()[0])
