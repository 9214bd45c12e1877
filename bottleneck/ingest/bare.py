"""Finds traces and snapshots without a run.json, and the rank of each.

In: a file or a folder. Out: files worth reading, and a `Rank` for each. The rank comes from the
trace's own `distributedInfo`, else from the file's name, else from the order of names.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import InputError, NotATraceError
from ..model.diagnosis import UnreadRank
from .event_array import EventArray
from .header import read_header
from .rank import Rank
from .snapshot_pickle import looks_like_pickle
from .sources import PERFETTO_SUFFIXES, open_source

_TENSORBOARD_NAME = re.compile(r"(?P<worker>.+?)(?:\.(?P<span>\d+))?\.pt\.trace\.json(?:\.gz)?")
_RANK_IN_NAME = re.compile(r"rank[_\-. ]?(\d+)", re.IGNORECASE)
_TRACE_SUFFIXES = (".json", ".json.gz")
_SNAPSHOT_SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_DEEPEST = 3
_PEEK_BYTES = 64 * 1024


def bare_files(place: Path, problems: list[str]) -> list[Path]:
    """Return the traces (and snapshots) that a path stands for.

    Files named as torch.profiler's TensorBoard handler names them are taken if there are any, of
    several spans of one worker the last; else every JSON file that is a trace.

    Raises:
        NotATraceError: a folder without traces.
    """
    if not place.is_dir():
        return [place]
    files = [p for p in sorted(place.rglob("*")) if p.is_file() and _depth(p, place) <= _DEEPEST]
    snapshots = [p for p in files if p.name.endswith(_SNAPSHOT_SUFFIXES)]
    traces = [p for p in files if p.name.endswith(_TRACE_SUFFIXES)]
    named = [p for p in traces if _TENSORBOARD_NAME.fullmatch(p.name)]
    found = _last_spans(named, problems) if named else [p for p in traces if _is_trace(p, problems)]
    if not found and not snapshots:
        for path in files:
            if path.name.endswith(PERFETTO_SUFFIXES):
                open_source(path)  # says what it is
        raise NotATraceError(
            f"{place} holds neither a run (run.json) nor a trace (*.json, *.json.gz).",
            remedy="Give a run folder, a trace file, or the folder that traces were written to.",
        )
    return found + snapshots


def _depth(path: Path, root: Path) -> int:
    return len(path.relative_to(root).parts)


def _is_trace(path: Path, problems: list[str]) -> bool:
    try:
        _peek(path)
    except InputError as error:
        if isinstance(error, NotATraceError) and path.stat().st_size:
            return False  # some other JSON
        problems.append(f"{path.name} is left out: {error.message}")
        return False
    return True


def _last_spans(files: list[Path], problems: list[str]) -> list[Path]:
    """Keep the last span of each worker."""
    last: dict[tuple[Path, str], tuple[int, Path]] = {}
    for file in files:
        match = _TENSORBOARD_NAME.fullmatch(file.name)
        assert match is not None
        key = (file.parent, match["worker"])
        span = int(match["span"] or 0)
        if key not in last or span > last[key][0]:
            last[key] = (span, file)
    if len(last) < len(files):
        problems.append(f"Of {len(files)} trace files only the last of each of {len(last)} workers is used.")
    return [file for _, file in last.values()]


def _peek(path: Path) -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks that a trace file states near its start, or None.

    Raises:
        InputError: it is no trace.
    """
    source = open_source(path)
    try:
        array = EventArray(source, path=str(path), window_bytes=_PEEK_BYTES)
    finally:
        source.close()
    stated = read_header(array.header, b"").distributed or {}
    rank, world = stated.get("rank"), stated.get("world_size")
    return rank if isinstance(rank, int) else None, world if isinstance(world, int) else None


def rank_in_name(name: str) -> int | None:
    """Return the rank that a file's or folder's name tells."""
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


def bare_ranks(files: list[Path], unread: list[UnreadRank]) -> list[Rank]:
    """Make a rank of each file; `unread` gets those that cannot be read, as long as others can.

    Raises:
        InputError: no file exists, or none is a trace or a snapshot.
    """
    ranks: list[Rank] = []
    failure: InputError | None = None
    for order, file in enumerate(files):
        if file.name.endswith(_SNAPSHOT_SUFFIXES) or looks_like_pickle(file):
            by_name = rank_in_name(file.name)
            ranks.append(Rank(rank=order if by_name is None else by_name, snapshot_path=file))
            continue
        by_name = rank_in_name(file.name)
        try:
            stated, world = _peek(file)
        except InputError as error:
            failure = failure or error
            unread.append(UnreadRank(rank=by_name, path=file.name, reason=str(error)))
            continue
        number = stated if stated is not None else by_name if by_name is not None else order
        ranks.append(Rank(rank=number, world_size=world, trace_path=file))
    if failure is not None and not ranks:
        raise failure
    return ranks
