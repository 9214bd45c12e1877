"""What the script's DataLoaders are and how they keep up.

In: constructors, iterations and fetches of `torch.utils.data.DataLoader`, seen through hooks. Out:
loader.json, a list of `LoaderFacts`. The loader, its dataset and its batches are only looked at.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import traceback
import weakref
from collections import Counter, defaultdict
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from ...clocks import perf_counter_ns
from ...model.run import LoaderFacts, SourceSite
from ...runs.store import RAW_RECORDS, Store, reason_of
from .. import loader_private
from ..events.replacing import Replacements
from ..lines.line_sampler import Line, LineSampler
from ..lines.sites import user_site
from .records import LoaderRecord, are_twins, arguments_of, facts_of, told_by_iterator
from .starts import Making, Sending
from .worker import Batch, Begun, WorkerLoop, read_begun, read_lines, read_records, time_fetcher

WAITS_KEPT = 4096
UNTRACED = ("baseline", "between", "after")
"""Windows in which nothing is attached, so that a fetch waits as long as it does without us."""


class _Iteration:
    """One pass over a loader."""

    def __init__(self, iterator: Any, loader: LoaderRecord, begun_ns: int) -> None:
        self.iterator = weakref.ref(iterator)
        self.loader_itself: Any = None
        """Kept where it does not keep its iterator: `for batch in DataLoader(...)` keeps the latter only."""
        self.loader = loader
        self.begun_ns: int | None = begun_ns
        self.making: Making | None = None
        """None where no processes were started for it."""
        self.last_step: int | None = None


class LoaderWatch:
    """Collects facts about every DataLoader of the process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._loaders: list[LoaderRecord] = []
        self._iterations: weakref.WeakKeyDictionary[Any, _Iteration] = weakref.WeakKeyDictionary()
        self._folder = store.working / RAW_RECORDS
        self._pid = os.getpid()
        self._loop = WorkerLoop(str(self._folder))
        self._window = ""
        self._problem = ""
        self._last: _Iteration | None = None
        self._replaced = Replacements()

    def install(self) -> None:
        """Hook the constructor, `__iter__` and the worker loop. Undo in reverse order of others."""
        self._folder.mkdir(exist_ok=True)
        self._replaced.put(DataLoader, "__init__", self._make_init)
        self._replaced.put(DataLoader, "__iter__", self._make_iter)
        WorkerLoop.original = torch_worker._worker_loop
        self._replaced.set(torch_worker, "_worker_loop", self._loop)

    def uninstall(self) -> None:
        """Take everything off and remove the workers' raw records."""
        self._stop_samplers()
        self._replaced.undo()
        if os.getpid() == self._pid:
            # A forked child takes its parent's hooks out too, and has no say in its files.
            shutil.rmtree(self._folder, ignore_errors=True)

    def handed_over(
        self,
        iterator: object,
        *,
        at_ns: int,
        grad: bool,
        wait_ms: float,
        step_index: int,
        window: str,
    ) -> None:
        """Note that a batch was handed over, whatever was in it."""
        if window != self._window:
            self._window = window
            if window != "warm-up":
                self._stop_samplers()
        try:
            iteration = self._last
            if iteration is None or iteration.iterator() is not iterator:
                self._last = iteration = self._iteration_of(iterator)
            if iteration.begun_ns is not None:
                iteration.loader.startup_ms.append((at_ns - iteration.begun_ns) / 1e6)
                iteration.begun_ns = None
            if iteration.making is not None and iteration.making.step < 0:
                iteration.making.step, iteration.making.wait_ms = step_index, wait_ms
                iteration.loader.makings.append(iteration.making)
            self._note_fetch(iteration.loader, iteration, wait_ms, step_index, window)
            iteration.loader.no_grad += not grad
        except Exception as error:
            self._problem = reason_of(error)

    def exhausted(self, *, wait_ms: float, step_index: int) -> None:
        """Note that a fetch found no further batch: of the iterator that gave the last one."""
        last, self._last = self._last, None
        if last is not None and last.making is not None and not last.loader.facts.persistent_workers:
            last.making.stop_step, last.making.stopping_ms = step_index, wait_ms

    def look_at(self, iterator: object, batch: object, tensors: list[Any]) -> None:
        """Note what is in a batch that was handed over by this iterator; `tensors` are those in it."""
        try:
            loader = self._iteration_of(iterator).loader
            facts = loader.facts
            loader.batches.note(batch, tensors, several_workers=facts.iterable and facts.num_workers > 1)
        except Exception as error:
            self._problem = reason_of(error)

    @property
    def any_built(self) -> bool:
        """The program has built a loader."""
        return bool(self._loaders)

    def loader_of(self, iterator: object) -> Any:
        """Return the DataLoader that this iterator belongs to, if it lives and was seen; else None."""
        iteration = self._iterations.get(iterator)
        numbers = [] if iteration is None else [iteration.loader.number]
        # A script that builds its loader anew for each epoch has several of one number: the newest lives on.
        found = [loader for loader, number in self._numbers.items() if number in numbers]
        return found[-1] if found else None

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
        begun: dict[int, list[Begun]] = {}
        for number, worker in read_begun(self._folder):
            begun.setdefault(number, []).append(worker)
        lines: defaultdict[int, Counter[Line]] = defaultdict(Counter)
        for loader in self._loaders:
            if loader.sampler is not None:
                lines[loader.number].update(loader.sampler.counts.copy())
        for number, counts in read_lines(self._folder):
            lines[number].update(counts)
        return [
            facts_of(
                loader,
                workers=workers.get(loader.number, []),
                begun=begun.get(loader.number, []),
                lines=lines[loader.number],
            )
            for loader in self._loaders
        ]

    def began_before(self, loader: Any, iterator: Any) -> None:
        """An iteration is under way that began before the hooks were in."""
        known = self._loader_of(loader)
        known.iterators += 1
        self._iterations[iterator] = iteration = _Iteration(iterator, known, 0)
        iteration.begun_ns = None

    def _stop_samplers(self) -> None:
        """Leave the process as it was before anything is timed in it."""
        for loader in self._loaders:
            if loader.sampler is not None:
                loader.sampler.stop()

    # -- hooks ----------------------------------------------------------------------------------

    def _make_init(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
            original(loader, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._built(loader, user_site())

        return __init__

    def _make_iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:  # noqa: N807 - stands in for it
            begun = perf_counter_ns()
            known: LoaderRecord | None = None
            with contextlib.suppress(Exception):
                known = self._loader_of(loader)
                self._loop.loader = known.number
            sending = Sending()
            with sending:
                iterator = original(loader)
            with contextlib.suppress(Exception):
                if known is not None:
                    self._begun(known, iterator, Making(begun, perf_counter_ns(), sending.sent))
                    if type(loader) is DataLoader and not loader.persistent_workers:
                        self._iterations[iterator].loader_itself = loader
            return iterator

        return __iter__

    # -- notes ----------------------------------------------------------------------------------

    def _built(self, loader: Any, site: SourceSite | None) -> LoaderRecord:
        facts = arguments_of(loader, len(self._loaders), site)
        # Scripts that build a loader per epoch build the same one at the same line each time.
        known = next((old for old in self._loaders if are_twins(old.facts, facts)), None)
        if known is None:
            known = LoaderRecord(len(self._loaders), facts)
            self._loaders.append(known)
        self._numbers[loader] = known.number
        return known

    def _loader_of(self, loader: Any) -> LoaderRecord:
        number = self._numbers.get(loader)
        # Made before the hooks were in, or by unpickling: `__init__` did not run under our eyes.
        return self._built(loader, None) if number is None else self._loaders[number]

    def _begun(self, known: LoaderRecord, iterator: Any, making: Making) -> None:
        if iterator in self._iterations and (loader_private.pass_of(iterator) or (0, 0))[0]:
            return  # a pass that goes on; one that begins anew has given nothing yet
        known.iterators += 1
        self._last = None  # persistent workers keep their iterator from pass to pass
        is_new = iterator not in self._iterations
        self._iterations[iterator] = iteration = _Iteration(iterator, known, making.begin_ns)
        if is_new and known.facts.num_workers:
            iteration.making = making
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            time_fetcher(fetcher, known.made.append, self._sampler_for(known))

    def _sampler_for(self, known: LoaderRecord) -> LineSampler | None:
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
            known = LoaderRecord(len(self._loaders), told_by_iterator(iterator, len(self._loaders)))
            self._loaders.append(known)
            known.iterators = 1
            found = self._iterations[iterator] = _Iteration(iterator, known, perf_counter_ns())
            found.begun_ns = None
        return found

    def _note_fetch(
        self, loader: LoaderRecord, iteration: _Iteration, wait_ms: float, step: int, window: str
    ) -> None:
        loader.fetches += 1
        if iteration.last_step is not None and step > iteration.last_step:
            loader.advances += 1
        iteration.last_step = step
        if window in UNTRACED and len(loader.wait_ms) < WAITS_KEPT:
            loader.wait_ms.append(wait_ms)
            loader.wait_step.append(step)
