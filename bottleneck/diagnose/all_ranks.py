"""Reads all ranks of a job, over the cores of this machine where that pays, or over a cluster.

In: what ingest found of each rank. Out: `Job`: a summary per rank, and the whole reading of those that are
asked for. A rank that cannot be read is told, and the others are read all the same.

Whole readings of many ranks would not fit into memory: of more than a few only the summaries are kept, also
beside the traces for the next time, and the rank that decides is read once more. Files that lie elsewhere are
fetched for one rank at a time, by who reads it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import msgspec

from ..clocks import monotonic
from ..errors import BottleneckError, InputError
from ..fleet.compare import compare_ranks
from ..fleet.summary import RankSummary, content_hash, load, store
from ..ingest import bundle as ingest
from ..ingest.remote import RemoteFiles, fetch, state
from ..model.diagnosis import Fleet, UnreadRank
from .cluster import spread
from .ranks import summary_of
from .reading import Reading, read_rank

_FEW = 8
"""Ranks whose readings are kept."""
_FEW_BYTES = 32_000_000
"""Of traces as text: reading them takes as long as starting processes."""
_COMPRESSION = 12
"""Of a trace by gzip."""
_PREFIX = "bottleneck-rank-"
_KILLED = "the process that read it was killed (too little memory?)"

_FIRST = 16
"""Ranks after which the first words are said, where there are at least twice as many."""
_FIRST_FEW, _SOON_S = 4, 8.0
"""Where ranks are large: so many, after so many seconds."""

Progress = Callable[[int, int], None]
"""Takes how many ranks are read, of how many."""
Preview = Callable[[Fleet], None]
"""Takes what the first ranks say together."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The ranks of a job that could be read, in the order given."""

    ranks: tuple[ingest.Rank, ...]
    summaries: tuple[RankSummary, ...]
    """Empty for a rank that was given alone: it is compared with nobody."""
    unread: tuple[UnreadRank, ...]
    true_step_ms: float | None
    problems: tuple[str, ...] = ()
    _readings: dict[int, Reading] = field(default_factory=dict, repr=False)

    def reading(self, position: int) -> Reading:
        """Return the whole reading of a rank."""
        if position not in self._readings:
            rank = self.ranks[position]
            if rank.remote is not None:
                folder = mkdtemp(prefix=_PREFIX)
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                here = _fetched(rank, Path(folder))
                # Of several its number is what the comparison calls it: its files may not tell.
                rank = replace(here, rank=rank.rank) if self.summaries else here
            self._readings[position] = read_rank(rank, self.true_step_ms)
        return self._readings[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What came of one rank."""

    summary: RankSummary | None = None
    reading: Reading | None = None
    reason: str = ""


def read_job(
    ranks: Sequence[ingest.Rank],
    *,
    true_step_ms: float | None = None,
    jobs: int = 1,
    scheduler: str = "",
    progress: Progress | None = None,
    preview: Preview | None = None,
) -> Job:
    """Read all ranks.

    Raises:
        BottleneckError: no rank can be read, or the cluster cannot be used.
    """
    if len(ranks) == 1:
        job = Job(ranks=tuple(ranks), summaries=(), unread=(), true_step_ms=true_step_ms)
        job.reading(0)
        return job
    few = len(ranks) <= _FEW
    told: list[str] = []
    if scheduler:
        done = _in_cluster(ranks, true_step_ms, scheduler, jobs, tell=told.append)
    elif jobs > 1 and not (few and sum(map(_text_bytes, ranks)) <= _FEW_BYTES):
        done = _in_processes(ranks, true_step_ms, min(jobs, len(ranks)))
    else:
        done = _here(dict(enumerate(ranks)), true_step_ms, keep=few)
    found: dict[int, _Read] = {}
    began = monotonic()
    for i, read in done:
        found[i] = read
        if progress is not None:
            progress(len(found), len(ranks))
        enough = _FIRST_FEW if monotonic() - began > _SOON_S else _FIRST
        if preview is not None and enough <= len(found) <= len(ranks) // 2:
            preview(compare_ranks([s for each in found.values() if (s := each.summary) is not None]).fleet)
            preview = None
    able = [i for i in range(len(ranks)) if found[i].summary is not None]
    if not able:
        # Read once more here, for the error itself.
        Job(ranks=tuple(ranks), summaries=(), unread=(), true_step_ms=true_step_ms).reading(0)
        raise InputError(f"No rank could be read: {found[0].reason}.".replace("..", "."))
    readings = {k: found[i].reading for k, i in enumerate(able)}
    job = Job(
        ranks=tuple(ranks[i] for i in able),
        summaries=tuple(s for i in able if (s := found[i].summary) is not None),
        unread=tuple(
            UnreadRank(rank=rank.rank, path=rank.name, reason=found[i].reason)
            for i, rank in enumerate(ranks)
            if found[i].summary is None
        ),
        true_step_ms=true_step_ms,
        problems=tuple(told),
        _readings={k: reading for k, reading in readings.items() if reading is not None},
    )
    return _put_in_order(job) if any(rank.remote is not None for rank in ranks) else job


def _put_in_order(job: Job) -> Job:
    """Leave out what is not of the job, and order the rest, as ingest does with files that lie here."""
    unread = list(job.unread)
    able = ingest.of_one_job(job.summaries, unread)
    unread += ingest.missing(able, unread)
    problems = job.problems
    if len({summary.rank for summary in able}) < len(able):
        same = "Several inputs have the same rank; they are numbered in the order of their names."
        problems = (*problems, same)
        numbers = list(range(len(able)))
    else:
        numbers = [summary.rank for summary in able]
    rank_of = {id(summary): rank for summary, rank in zip(job.summaries, job.ranks, strict=True)}
    pairs = [
        (msgspec.structs.replace(summary, rank=number), replace(rank_of[id(summary)], rank=number))
        for number, summary in sorted(zip(numbers, able, strict=True), key=lambda pair: pair[0])
    ]
    return replace(
        job,
        ranks=tuple(rank for _, rank in pairs),
        summaries=tuple(summary for summary, _ in pairs),
        unread=tuple(unread),
        problems=problems,
        _readings={},
    )


def _text_bytes(rank: ingest.Rank) -> int:
    path = rank.trace_path
    if path is None:
        return 0
    size = path.stat().st_size if path.is_file() else 0
    return size * _COMPRESSION if path.suffix == ".gz" else size


def _here(
    ranks: Mapping[int, ingest.Rank], true_step_ms: float | None, *, keep: bool
) -> Iterator[tuple[int, _Read]]:
    for i, rank in ranks.items():
        yield i, _read_one(rank, true_step_ms, keep=keep)


def _in_cluster(
    ranks: Sequence[ingest.Rank],
    true_step_ms: float | None,
    scheduler: str,
    jobs: int,
    *,
    tell: Callable[[str], None],
) -> Iterator[tuple[int, _Read]]:
    left = dict(enumerate(ranks))
    tasks = {i: partial(_read_one, rank, true_step_ms) for i, rank in left.items()}
    for i, read in spread(
        tasks, scheduler=scheduler, jobs=jobs, given_up=lambda reason: _Read(reason=reason), tell=tell
    ):
        del left[i]
        yield i, read
    if left:
        tell(f"The cluster gave no answer for {len(left)} of {len(ranks)} ranks: they were read here.")
    yield from _here(left, true_step_ms, keep=False)


def _fetched(rank: ingest.Rank, place: Path) -> ingest.Rank:
    """Bring the files of a rank into a folder here."""
    assert rank.remote is not None
    here = fetch(rank.remote, place)
    try:
        return ingest.load(here).ranks[0]
    except InputError as error:
        error.message = error.message.replace(str(here), rank.remote.address)
        raise


def _read_one(rank: ingest.Rank, true_step_ms: float | None, *, keep: bool = False) -> _Read:
    """Read one rank, or take the summary that was kept of it."""
    try:
        if rank.remote is not None:
            return _read_remote(rank, rank.remote, true_step_ms)
        return _read_files(rank, true_step_ms, keep=keep)
    except (BottleneckError, OSError) as error:
        return _Read(reason=str(error))
    except MemoryError:
        return _Read(reason="there is too little memory to read it")


def _read_files(rank: ingest.Rank, true_step_ms: float | None, *, keep: bool) -> _Read:
    trace = rank.trace_path if not keep else None
    content = content_hash(_files(rank), true_step_ms) if trace is not None else ""
    kept = load(trace, content) if trace is not None else None
    if kept is not None:
        return _Read(summary=kept)
    # A rank keeps its trace once that is read: of many, only a copy may.
    reading = read_rank(rank if keep else replace(rank), true_step_ms)
    summary = summary_of(reading)
    if trace is not None:
        store(trace, content, summary)
    return _Read(summary=summary, reading=reading if keep else None)


def _read_remote(rank: ingest.Rank, remote: RemoteFiles, true_step_ms: float | None) -> _Read:
    """Its files are here only while it is read."""
    content = content_hash((), state(remote), true_step_ms)
    summary = load(None, content)
    if summary is None:
        with TemporaryDirectory(prefix=_PREFIX) as name:
            summary = summary_of(read_rank(_fetched(rank, Path(name)), true_step_ms))
        store(None, content, summary)
    return _Read(summary=summary)


def _files(rank: ingest.Rank) -> Iterable[Path]:
    """Return the files that a summary is made of."""
    own = [rank.trace_path, rank.snapshot_path, rank.failure_path]
    beside = sorted(rank.folder.glob("*.json")) if rank.folder is not None else []
    return [path for path in (*own, *beside) if path is not None and path.is_file()]


def _in_processes(
    ranks: Sequence[ingest.Rank], true_step_ms: float | None, jobs: int
) -> Iterator[tuple[int, _Read]]:
    left = set(range(len(ranks)))
    # Without what may have been read of them here.
    unread = [replace(rank) for rank in ranks]
    with contextlib.suppress(BrokenExecutor, OSError), _pool(jobs) as pool:
        futures = {pool.submit(_read_one, rank, true_step_ms): i for i, rank in enumerate(unread)}
        for future in as_completed(futures):
            try:
                read = future.result()
            except BrokenExecutor:
                continue
            left.discard(futures[future])
            yield futures[future], read
    if len(left) == len(ranks):  # no process can be started here
        yield from _here(dict(enumerate(ranks)), true_step_ms, keep=False)
        return
    # A process was killed, and all that were waiting with it: one at a time it shows which rank does that.
    while left:
        with _pool(1) as pool:
            for i in sorted(left):
                left.discard(i)
                try:
                    read = pool.submit(_read_one, unread[i], true_step_ms).result()
                except BrokenExecutor:
                    yield i, _Read(reason=_KILLED)
                    break
                yield i, read


def _pool(jobs: int) -> ProcessPoolExecutor:
    # A fork of a process with threads may hang; a fork server has none.
    how = "forkserver" if sys.platform == "linux" else "spawn"
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context(how))
