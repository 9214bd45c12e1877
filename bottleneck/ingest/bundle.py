"""Everything that belongs to one capture, whatever the user points at.

In: one or several paths: a run folder (of one process or several ranks), one left by a killed run,
a bare trace, a folder of traces, a memory snapshot. Out: a `Bundle` with one `Rank` per process.
Traces are read when first asked for; everything else is small and read at once.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ..errors import InputError, RunFolderError
from ..model.diagnosis import UnreadRank
from .bare import bare_files, bare_ranks, rank_in_name
from .rank import Rank
from .remote import find, is_address
from .run_folder import PARTIAL_SUFFIX, is_partial, read_rank

__all__ = ["Bundle", "Rank", "Ranked", "load", "missing", "of_one_job"]

_MOST_RANKS = 1 << 16
"""Of a job: a file may state any number."""
_PROCESS = re.compile(rf"\.?(?P<name>main|rank\d+)(?:{re.escape(PARTIAL_SUFFIX)})?")


class Ranked(Protocol):
    """A rank, or what is kept of one."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def world_size(self) -> int | None:
        """Ranks of its job, if it tells."""

    @property
    def name(self) -> str:
        """What it was read from."""


_Ranked = TypeVar("_Ranked", bound=Ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One capture: its ranks, in order of rank, at least one."""

    ranks: tuple[Rank, ...]
    folder: Path | None = None
    """The run folder, where diagnosis.json belongs; None for bare traces."""
    partial: bool = False
    """Some process was killed before it could finish its folder."""
    unread: tuple[UnreadRank, ...] = ()
    """Ranks that were given and cannot be used, or that are missing."""
    problems: tuple[str, ...] = ()
    """Doubts about the whole, each one sentence; those of one rank are in `Rank.problems`."""


def load(*paths: str | os.PathLike[str]) -> Bundle:
    """Gather what belongs together.

    Several paths are ranks of one run. Of addresses only the names of files are read: whether their ranks are
    of one job shows later (`of_one_job`).

    Raises:
        InputError: a path does not exist, or holds nothing that can be analysed.
        NotATraceError: a file is neither a trace nor a memory snapshot.
        RunFolderError: a run folder is incomplete or of a newer format.
    """
    if not paths:
        raise ValueError("at least one path is needed")
    addresses = [str(path) for path in paths if is_address(path)]
    if addresses:
        if len(addresses) < len(paths):
            raise InputError("Paths and addresses cannot be read together.", remedy="Give one kind of them.")
        found = [files for address in addresses for files in find(address)]
        return Bundle(
            ranks=tuple(
                Rank(rank=i if (named := rank_in_name(files.name)) is None else named, remote=files)
                for i, files in enumerate(found)
            ),
        )
    problems: list[str] = []
    ranks: list[Rank] = []
    files: list[Path] = []
    folder: Path | None = None
    for path in paths:
        place = _one_run(_existing(Path(path)))
        processes = _process_folders(place) if place.is_dir() else []
        if processes:
            ranks.extend(_read_processes(processes, problems))
            folder = folder or place
        else:
            files.extend(bare_files(place, problems))
    unread: list[UnreadRank] = []
    ranks.extend(bare_ranks(files, unread))
    ranks = of_one_job(_with_snapshots(ranks, problems), unread)
    ranks = _numbered(ranks, problems)
    unread += missing(ranks, unread)
    return Bundle(
        ranks=tuple(ranks),
        folder=folder,
        partial=any(r.folder is not None and is_partial(r.folder) for r in ranks),
        unread=tuple(unread),
        problems=tuple(problems),
    )


def _existing(path: Path) -> Path:
    """Return the path, or the temporary folder that a killed run left in its place."""
    if path.name == "run.json" and path.is_file():
        return path.parent
    if path.is_file() or path.is_dir():
        return path
    if path.exists():
        # It can be read only once, if its writer ever comes; a trace is looked at before it is read.
        raise InputError(f"{path} is a pipe or a device, not a file.", remedy="Write it to a file first.")
    left = path.with_name(f".{path.name}{PARTIAL_SUFFIX}")
    if left.is_dir():
        return left
    raise InputError(f"{path} does not exist.", remedy="Check the path.")


def _one_run(place: Path) -> Path:
    """Return the run inside a folder of runs, when there is only one.

    Raises:
        InputError: there are several.
    """
    if not place.is_dir() or _process_folders(place):
        return place
    runs = [p for p in sorted(place.iterdir()) if p.is_dir() and _process_folders(p)]
    if len(runs) > 1:
        shown = ", ".join(p.name for p in runs[:5]) + (", ..." if len(runs) > 5 else "")
        raise InputError(f"{place} contains {len(runs)} runs: {shown}.", remedy="Give one of them.")
    return runs[0] if runs else place


def _process_folders(folder: Path) -> list[Path]:
    """Return the folders that hold a run.json: this one, or those of its processes.

    While a run is on, each process writes `.rankN.partial` (or `.main.partial`, when there is one
    process only); what a killed run left counts unless the finished folder is there as well.
    """
    if (folder / "run.json").is_file():
        return [folder]
    found: dict[str, Path] = {}
    places = [file.parent for file in folder.glob("*/run.json")]
    for place in sorted(places, key=lambda p: (is_partial(p), p.name)):
        match = _PROCESS.fullmatch(place.name)
        if match is not None:
            found.setdefault(match["name"], place)
    return list(found.values())


def _read_processes(folders: list[Path], problems: list[str]) -> list[Rank]:
    """Read each rank; a broken one is a problem as long as another can be read."""
    ranks: list[Rank] = []
    failure: RunFolderError | None = None
    for folder in folders:
        try:
            ranks.append(read_rank(folder))
        except RunFolderError as error:
            failure = error
            problems.append(f"{folder.name} is left out: {error}")
    if not ranks and failure is not None:
        raise failure
    return ranks


def _with_snapshots(ranks: list[Rank], problems: list[str]) -> list[Rank]:
    """Give each lone memory snapshot to the trace it belongs to, by name or because there is one."""
    alone = [r for r in ranks if r.run is None and r.trace_path is None]
    others = [r for r in ranks if r.run is not None or r.trace_path is not None]
    if not others:
        return ranks
    for lone in alone:
        snapshot = lone.snapshot_path
        assert snapshot is not None
        stem = snapshot.name.partition(".")[0]
        mates = [r for r in others if r.trace_path and r.trace_path.name.startswith(f"{stem}.")]
        mates = mates or (others if len(others) == 1 else [])
        if len(mates) == 1 and mates[0].snapshot_path is None:
            i = others.index(mates[0])
            others[i] = dataclasses.replace(mates[0], snapshot_path=snapshot)
        else:
            problems.append(f"{snapshot.name} belongs to no trace here and is left out.")
    return others


def of_one_job(ranks: Sequence[_Ranked], unread: list[UnreadRank]) -> list[_Ranked]:
    """Leave out ranks of a job of another size, and a rank that is there already."""
    sizes = Counter(r.world_size for r in ranks if r.world_size is not None and r.world_size > 1)
    if not sizes:
        return list(ranks)
    size = sizes.most_common(1)[0][0]
    kept: dict[int, _Ranked] = {}
    for rank in ranks:
        reason = ""
        if rank.world_size not in (None, size):
            reason = f"it is of a job of {rank.world_size} ranks, the others are of one of {size}"
        elif rank.rank in kept:
            reason = f"this rank was given before, as {kept[rank.rank].name}"
        if reason:
            unread.append(UnreadRank(rank=rank.rank, path=rank.name, reason=reason))
        else:
            kept[rank.rank] = rank
    return list(kept.values())


def missing(ranks: Sequence[Ranked], unread: Sequence[UnreadRank]) -> list[UnreadRank]:
    """Return the ranks of the job that were not given; of a single rank nobody expects the others."""
    size = max((r.world_size for r in ranks if r.world_size is not None), default=0)
    if len(ranks) + len(unread) < 2 or size > _MOST_RANKS:
        return []
    there = {r.rank for r in ranks} | {each.rank for each in unread}
    return [UnreadRank(rank=i, reason="it was not given") for i in range(size) if i not in there]


def _numbered(ranks: list[Rank], problems: list[str]) -> list[Rank]:
    """Return the ranks in order; equal numbers are replaced by the order in which they came."""
    numbers = [r.rank for r in ranks]
    if len(set(numbers)) < len(numbers):
        problems.append("Several inputs have the same rank; they are numbered in the order given.")
        return [dataclasses.replace(r, rank=i) for i, r in enumerate(ranks)]
    world = max((r.run.world_size for r in ranks if r.run is not None), default=1)
    if len(ranks) < world:
        problems.append(f"{len(ranks)} of {world} ranks are here; the others are not analysed.")
    return sorted(ranks, key=lambda r: r.rank)
