"""What one DataLoader was built with, and what it did: from the object and from notes of its fetches.

In: a DataLoader, or an iterator whose loader was not seen; then a `LoaderRecord` with its notes.
Out: `LoaderFacts`. The loader and its dataset are only looked at.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils.data import IterableDataset

from ...model.run import LoaderFacts, Production, SourceSite
from ..lines.line_sampler import Line, LineSampler, as_sites, rows_share
from .batches import BatchBook
from .starts import Making, starts_of
from .worker import Batch, Begun

BATCHES_KEPT = 512
SITES_KEPT = 16


class LoaderRecord:
    """One DataLoader while the program runs."""

    def __init__(self, number: int, facts: LoaderFacts) -> None:
        self.number = number
        self.facts = facts
        self.fetches = 0
        self.iterators = 0
        self.startup_ms: list[float] = []
        self.makings: list[Making] = []
        self.wait_ms: list[float] = []
        self.wait_step: list[int] = []
        self.made: deque[tuple[int, int, int]] = deque(maxlen=BATCHES_KEPT)
        """The last batches that were made in this process, as tuples of what a `Batch` has."""
        self.batches = BatchBook()
        self.sampler: LineSampler | None = None
        self.advances = 0
        """Fetches in a row, from one iterator, with a step between them: a training loader's."""
        self.no_grad = 0
        self.eval_votes = 0
        self.train_votes = 0


def are_twins(old: LoaderFacts, new: LoaderFacts) -> bool:
    """Return whether two loaders were built alike at one line."""
    return old.site is not None and old == replace(new, id=old.id)


def facts_of(
    loader: LoaderRecord, *, workers: list[list[Batch]], begun: list[Begun], lines: dict[Line, int]
) -> LoaderFacts:
    """Return all that is known of a loader."""
    return replace(
        loader.facts,
        role=_role(loader),
        fetches=loader.fetches,
        iterators=loader.iterators,
        startup_ms=[round(value, 3) for value in loader.startup_ms],
        starts=starts_of(loader.makings, begun),
        wait_ms=[round(value, 4) for value in loader.wait_ms],
        wait_step=loader.wait_step,
        production=_production(loader, workers, lines),
        batch=loader.batches.facts(),
        duplicated_samples_share=loader.batches.duplicated_share(workers=loader.facts.num_workers),
    )


def _role(loader: LoaderRecord) -> Any:
    if loader.train_votes or loader.eval_votes:
        return "train" if loader.train_votes >= loader.eval_votes else "eval"
    if loader.advances:
        return "train"
    if loader.no_grad * 2 > loader.fetches:
        return "eval"
    if loader.iterators >= 3 and loader.fetches < 2 * loader.iterators:
        return "train"  # next(iter(loader)) in each step leaves no iterator to follow
    if loader.fetches >= 2:
        return "eval"
    return "unknown"


def _production(
    loader: LoaderRecord, workers: list[list[Batch]], lines: dict[Line, int]
) -> Production | None:
    if any(workers):
        every = sorted((b for batches in workers for b in batches), key=lambda b: b.end_ns)
        spans = [batches[-1].end_ns - batches[0].start_ns for batches in workers if batches]
        busy = sum(b.samples_ns + b.collate_ns for b in every)
        return _as_production("workers", every, len(every), busy / max(1, sum(spans)), lines)
    if loader.made:
        made = [Batch(*batch) for batch in loader.made]
        return _as_production("main", made, max(len(made), loader.fetches), None, lines)
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
        core_wait_ms=_core_waits(kept),
        worker_cores=min((batch.cores for batch in kept if batch.cores), default=None),
        computed_ms=_mean_ms([batch.computed_ns for batch in kept]),
        helped_ms=_mean_ms([batch.helped_ns for batch in kept]),
        sites=as_sites(lines, share_of_ms=mean_ms * count)[:SITES_KEPT],
        samples=sum(lines.values()),
        rows_share=rows_share(lines),
    )


def _mean_ms(values_ns: list[int]) -> float | None:
    return round(sum(values_ns) / len(values_ns) / 1e6, 4) if any(values_ns) else None


def _core_waits(batches: list[Batch]) -> list[float]:
    if any(batch.waited_ns < 0 for batch in batches):
        return []
    return [round(min(b.waited_ns, b.samples_ns + b.collate_ns) / 1e6, 4) for b in batches]


def arguments_of(loader: Any, number: int, site: SourceSite | None) -> LoaderFacts:
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


def told_by_iterator(iterator: Any, number: int) -> LoaderFacts:
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
