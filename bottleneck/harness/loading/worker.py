"""Timing the production of batches where it happens: in DataLoader workers, or in the main process.

In: a fetcher of torch.utils.data. Out: one record per batch. Workers append theirs to a file each,
since they share no memory with the trainer; perf_counter is one clock for the whole machine.

The dataset is not wrapped: scripts ask `isinstance` of it and pickle it.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...clocks import perf_counter_ns, thread_time_ns
from ...runs.environment import affinity
from ..cores import library_threads_ns, waited_ns_in
from ..lines.line_sampler import Line, LineSampler

_RECORD = struct.Struct("<qqqqqqq")
_BEGUN = struct.Struct("<qq")
_GROWTH = 1.5
_OWN = "/proc/thread-self/schedstat"


class Batch(NamedTuple):
    """One batch as it was produced, in perf_counter nanoseconds."""

    start_ns: int
    samples_ns: int
    """Getting the samples: `dataset[...]` or `next(iter(dataset))`."""
    collate_ns: int
    waited_ns: int = -1
    """In a worker: of both, about, those in which it could run and had no core; negative if not measured."""
    cores: int = 0
    """In a worker: those that it may use."""
    computed_ns: int = 0
    """In a worker: about, the processor time of the thread that makes the batch."""
    helped_ns: int = 0
    """In a worker: about, that of threads which libraries have started (BLAS, OpenMP, OpenCV)."""

    @property
    def end_ns(self) -> int:
        """When it was whole."""
        return self.start_ns + self.samples_ns + self.collate_ns


class Begun(NamedTuple):
    """How a worker process came to work, in perf_counter nanoseconds."""

    reads_ns: int
    """It begins to read the dataset that was sent to it; of a forked one, as below."""
    works_ns: int
    """Its loop begins."""


def time_fetcher(
    fetcher: Any, record: Callable[[tuple[int, int, int]], None], sampler: LineSampler | None = None
) -> None:
    """Report every batch that this fetcher makes; replaces attributes of the one object only.

    Without workers this runs inside the steps that are timed: as few calls as can be.
    """
    fetch, collate = fetcher.fetch, fetcher.collate_fn
    clock = perf_counter_ns
    collating = 0

    def timed_collate(data: Any) -> Any:
        nonlocal collating
        begin = clock()
        try:
            return collate(data)
        finally:
            collating = clock() - begin

    def timed_fetch(index: Any) -> Any:
        nonlocal collating
        collating = 0
        sampling = sampler if sampler is not None and sampler.wants else None
        if sampling is not None:
            sampling.begin()
        begin = clock()
        try:
            data = fetch(index)
        finally:
            whole = clock() - begin
            if sampling is not None:
                sampling.end()
        record((begin, whole - collating, collating))
        return data

    fetcher.collate_fn = timed_collate
    fetcher.fetch = timed_fetch


class WorkerLoop:
    """Stands in for torch's `_worker_loop`; pickles by reference, so spawn and forkserver work."""

    original: Callable[..., None] | None = None
    """torch's own loop, kept on the class: a forked worker finds only us under its name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """Where the workers' files go."""
        self.loader = 0
        """Number of the DataLoader whose workers are being started."""
        self._reads_ns = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Note when this is unpickled: a process reads its function just before the arguments."""
        self.__dict__.update(state)
        self._reads_ns = perf_counter_ns()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run torch's loop with its fetchers timed."""
        from torch.utils.data import _DatasetKind
        from torch.utils.data._utils import worker

        works_ns = perf_counter_ns()
        # Python-level signal handlers of the trainer's have no place in a worker.
        loop = worker._worker_loop
        if isinstance(loop, WorkerLoop):
            assert WorkerLoop.original is not None
            loop = WorkerLoop.original
        with contextlib.suppress(Exception):
            begun = Begun(self._reads_ns or works_ns, works_ns)
            Path(f"{self._stem()}.begun").write_bytes(_BEGUN.pack(*begun))
        with contextlib.suppress(Exception):
            create = _DatasetKind.create_fetcher
            sampler = LineSampler()
            record = self._recorder(sampler)

            def create_fetcher(*create_args: Any, **create_kwargs: Any) -> Any:
                fetcher = create(*create_args, **create_kwargs)
                with contextlib.suppress(Exception):
                    time_fetcher(fetcher, record, sampler)
                return fetcher

            _DatasetKind.create_fetcher = staticmethod(create_fetcher)
        loop(*args, **kwargs)

    def _stem(self) -> str:
        return os.path.join(self.folder, f"{self.loader}-{os.getpid()}")  # noqa: PTH118

    def _recorder(self, sampler: LineSampler) -> Callable[[tuple[int, int, int]], None]:
        stem = self._stem()
        file: int | None = None
        written = 0
        threads = WorkerThreads()

        def record(batch: tuple[int, int, int]) -> None:
            nonlocal file, written
            # The run folder may be gone or full by now; the worker works on.
            with contextlib.suppress(OSError):
                if file is None:
                    file = os.open(f"{stem}.bin", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.write(
                    file, _RECORD.pack(*batch, threads.waited_ns(), len(affinity()), *threads.worked_ns())
                )
                # A worker may be killed at any time; its lines are written as they grow.
                if sampler.taken > written * _GROWTH:
                    written = sampler.taken
                    lines = [[*line, count] for line, count in sampler.counts.copy().items()]
                    Path(f"{stem}.lines").write_text(json.dumps(lines))

        return record


class WorkerThreads:
    """What the threads of a worker did since the last batch; asked by the one that makes batches."""

    def __init__(self) -> None:
        self._waited = waited_ns_in(_OWN)
        self._computed, self._helped = thread_time_ns(), library_threads_ns()

    def waited_ns(self) -> int:
        """Return how long this thread could run and had no core; negative where the system does not tell."""
        now, last = waited_ns_in(_OWN), self._waited
        self._waited = now
        return -1 if now is None or last is None else now - last

    def worked_ns(self) -> tuple[int, int]:
        """Return the processor time of this thread, and of those that Python has not started."""
        computed, helped = thread_time_ns(), library_threads_ns() or self._helped
        passed = computed - self._computed, max(0, helped - self._helped)
        self._computed, self._helped = computed, helped
        return passed


def read_records(folder: Path) -> Iterator[tuple[int, list[Batch]]]:
    """Yield (loader number, its batches in order) for each worker's file."""
    for path in sorted(folder.glob("*-*.bin")):
        data = path.read_bytes()
        whole = len(data) - len(data) % _RECORD.size
        yield (
            int(path.stem.partition("-")[0]),
            [Batch(*fields) for fields in _RECORD.iter_unpack(data[:whole])],
        )


def read_begun(folder: Path) -> Iterator[tuple[int, Begun]]:
    """Yield (loader number, how it came to work) for each worker's file."""
    for path in sorted(folder.glob("*-*.begun")):
        data = path.read_bytes()
        if len(data) == _BEGUN.size:
            yield int(path.stem.partition("-")[0]), Begun(*_BEGUN.unpack(data))


def read_lines(folder: Path) -> Iterator[tuple[int, dict[Line, int]]]:
    """Yield (loader number, samples per user line) for each worker's file."""
    for path in sorted(folder.glob("*-*.lines")):
        # Caught while it was being written: the other workers tell the same.
        with contextlib.suppress(ValueError):
            lines = json.loads(path.read_text())
            yield (
                int(path.stem.partition("-")[0]),
                {(file, function, tuple(position)): count for file, function, position, count in lines},
            )
