"""The runs that the user names, each prepared in one log folder.

In: run folders, traces, or folders of runs. Out: a folder that TensorBoard reads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import __version__
from ..catalog.job import with_fixes
from ..errors import InputError, NotATraceError
from ..files import is_file
from ..model.diagnosis import Diagnosis
from ..model.documents import DIAGNOSIS_FILE, RUN_FILE, load_diagnosis, load_watch, run_files
from ..model.watch import WATCH_FILE
from .logdir import prepare_run, prepare_watched
from .page import PAGE_FILE


def expand(runs: Sequence[Path]) -> list[Path]:
    """Replace a folder of runs by the runs in it.

    Raises:
        InputError: a path does not exist, or was prepared before.
    """
    found: list[Path] = []
    for path in runs:
        if not path.exists():
            raise InputError(f"{path} does not exist.", remedy="Give a run folder or a trace.")
        if (path / PAGE_FILE).is_file():
            raise InputError(
                f"{path} is already prepared for TensorBoard.",
                remedy=f"Show it with `tensorboard --logdir {path}`, or give its run folder.",
            )
        inside = []
        if path.is_dir() and not _is_run(path):
            inside = [
                below for below in sorted(path.iterdir()) if _is_run(below) and not below.name.startswith(".")
            ]
        # One process folder per rank is one run.
        ranks = bool(inside) and all(below.name.startswith("rank") for below in inside)
        found += inside if inside and not ranks else [path]
    return list(dict.fromkeys(found))


def _is_run(path: Path) -> bool:
    return (path / RUN_FILE).is_file() or (path / DIAGNOSIS_FILE).is_file()


def prepare_runs(
    runs: Sequence[Path],
    folder: Path,
    *,
    diagnose: Callable[[Path], Diagnosis],
    say: Callable[[str], None],
) -> None:
    """Write the log folder; a run that cannot be read is reported and left out, if others can be read.

    Each run gets a folder in `folder`; `say` takes what was left out.

    Raises:
        InputError: no run can be read, or the folder cannot be written to.
    """
    failure: InputError | None = None
    taken: set[str] = set()
    for path in runs:
        try:
            name = _free_name(path, taken)
            if is_file(path / WATCH_FILE) and not is_file(path / DIAGNOSIS_FILE):
                watch = with_fixes(load_watch(path))
                prepared = prepare_watched(watch, folder / name, run=name)
            else:
                diagnosis, sources = _diagnosis(path, diagnose)
                prepared = prepare_run(diagnosis, sources, folder / name, run=name, report=True)
        except InputError as error:
            if len(runs) == 1:
                raise
            failure = error
            say(f"{path} is left out: {error}")
            continue
        taken.add(name)
        for problem in prepared.problems:
            say(problem)
    if failure is not None and not taken:
        raise failure


def _diagnosis(path: Path, diagnose: Callable[[Path], Diagnosis]) -> tuple[Diagnosis, list[Path]]:
    """Return the diagnosis of a run and what its traces are read from, nothing if it has none.

    A stored diagnosis counts when this version wrote it, or when there is nothing else.
    """
    stored = path / DIAGNOSIS_FILE
    if stored.is_file() and run_files(path):
        with contextlib.suppress(InputError):
            diagnosis = load_diagnosis(stored)
            if diagnosis.tool_version == __version__ and diagnosis.timeline is not None:
                return diagnosis, [path]
    elif stored.is_file():
        try:
            return diagnose(path), [path]
        except NotATraceError:
            return load_diagnosis(stored), []
    return diagnose(path), [path]


def _free_name(path: Path, taken: set[str]) -> str:
    """Return a name for the run, from its path; numbered if another run has it."""
    # Not resolved: a link is named by whoever made it.
    whole = os.path.basename(os.path.abspath(path))  # noqa: PTH100, PTH119
    stem = whole.partition(".")[0] or whole.strip(".") or "run"
    stem = os.fsencode(stem).decode("utf-8", "replace")  # TensorBoard's files have names of UTF-8
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
