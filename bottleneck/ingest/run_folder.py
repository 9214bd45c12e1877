"""Reads one process's part of a run folder: run.json and the files next to it.

In: a folder that holds run.json. Out: a `Rank`. A newer format is refused with the version that
wrote it; a broken side file only becomes a problem, since the rest can still be analysed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import InputError
from ..files import is_file, read_json
from ..model.documents import RUN_FILE, read_run
from ..model.run import CompileFacts, LoaderFacts, Run
from ..model.snapshot import FAILURE_SUFFIX
from ..model.stacks import Stacks
from ..model.verify import TriedFixes
from .rank import Rank

PARTIAL_SUFFIX = ".partial"
"""A folder is written as `.NAME.partial` and renamed to `NAME` when whole."""

_T = TypeVar("_T")


def is_partial(folder: Path) -> bool:
    """Return whether the folder still bears its temporary name: its process was killed."""
    return folder.name.endswith(PARTIAL_SUFFIX)


def _side_file(file: Path, kind: type[_T], problems: list[str]) -> _T | None:
    if not file.exists():
        return None
    try:
        return read_json(file, kind)
    except (InputError, msgspec.DecodeError) as error:
        problems.append(f"{file.name} cannot be read ({error}).")
        return None


def _artefact(folder: Path, run: Run, kind: str, pattern: str, problems: list[str]) -> Path | None:
    """Return the file of an artefact: the one that run.json names, else the newest that is there.

    Only files of the folder itself: run.json may come from anywhere, and what it names is copied into
    reports and log folders.
    """
    stated = run.artefacts.get(kind)
    if stated is not None and (stated.status == "failed" or (stated.status, kind) == ("absent", "trace")):
        # A memory snapshot is absent by choice or for want of a device: no doubt about the rest.
        state = "is absent" if stated.status == "absent" else "failed"
        problems.append(f"The {kind} artefact {state}: {stated.reason or 'no reason given'}.")
    if stated is not None and stated.path is not None:
        file = folder / stated.path
        if not _is_inside(file, folder):
            problems.append(
                f"run.json names {stated.path} as its {kind} artefact, which leads out of the run folder:"
                " it is not read."
            )
            return None
        if is_file(file):
            return file
    there = _files_in(folder, kind, pattern)
    if there:
        return max(there, key=lambda p: (p.stat().st_mtime_ns, p.name))
    if stated is not None and stated.status == "ok":
        problems.append(f"run.json lists the {kind} artefact {stated.path}, but the file is missing.")
    return None


def _failure_snapshot(folder: Path) -> Path | None:
    """Return the snapshot of the last allocation that failed; there is one name per process."""
    return max(_files_in(folder, "memory", f"*{FAILURE_SUFFIX}*"), default=None)


def _files_in(folder: Path, kind: str, pattern: str) -> list[Path]:
    return [file for file in (folder / kind).glob(pattern) if is_file(file) and _is_inside(file, folder)]


def _is_inside(file: Path, folder: Path) -> bool:
    """Return whether a path stays in the folder, links followed."""
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, a link to itself
        return False


def read_rank(folder: Path) -> Rank:
    """Read the run folder of one process.

    Raises:
        RunFolderError: run.json is unreadable, cut off, not ours, or of a newer format.
    """
    run = read_run(folder / RUN_FILE)
    problems: list[str] = []
    if is_partial(folder):
        problems.append(
            "The process ended before its run folder was finished (killed, or still running);"
            " what was captured until then is used."
        )
    loaders = _side_file(folder / "loader.json", list[LoaderFacts], problems)
    compiled = _side_file(folder / "compile.json", CompileFacts, problems)
    tried = _side_file(folder / "trials.json", TriedFixes, problems)
    stacks = _side_file(folder / "stacks.json", Stacks, problems)
    trace = _artefact(folder, run, "trace", "*.json*", problems)
    snapshot = _artefact(folder, run, "memory", "*.snapshot.pickle*", problems)
    failure = _failure_snapshot(folder)
    if snapshot == failure:
        snapshot = None
    return Rank(
        rank=run.rank,
        world_size=run.world_size,
        run=run,
        loaders=None if loaders is None else tuple(loaders),
        compile=compiled,
        tried=tried,
        stacks=stacks,
        trace_path=trace,
        snapshot_path=snapshot,
        failure_path=failure,
        folder=folder,
        problems=tuple(problems),
    )
