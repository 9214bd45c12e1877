"""The shape of a run folder: one process -> its files at the top; several -> rank0/, rank1/, ...

In: the folder in which each process wrote its own folder. Out: the run folder under its final
name. Runs in the parent, after the script has ended in whatever way. No torch here.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .. import __version__
from ..errors import RunFolderError
from ..model.documents import RUN_FILE, read_run
from ..model.run import Run, ScriptOutcome
from .launch import name_signal
from .store import RAW_RECORDS, Store, publish, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Plan

__all__ = [
    "collect",
    "first_run",
    "has_steps",
    "holds_steps",
    "processes",
    "record_end",
    "report_done",
    "run_of",
    "runs_of",
    "wait_for_ranks",
]

_PARTIAL = re.compile(r"\.(?P<name>.+)\.partial$")
_CHILD = re.compile(r"child-\d+$")
_DONE = ".done"
_NO_RECORD = "the run left no record: its folder was removed while it ran, or could not be written"
POLL_SECONDS = 0.1


def report_done(working: Path, process: str) -> None:
    """Tell the leading rank that this rank's folder will not be touched again."""
    (working / f".{process}{_DONE}").touch()


def wait_for_ranks(working: Path, ranks: Sequence[int], *, seconds: float) -> list[int]:
    """Wait until every rank has reported that its folder is whole.

    Args:
        working: the folder that the ranks share.
        ranks: whom to wait for.
        seconds: how long at most.

    Returns:
        Ranks that have not reported.
    """
    deadline = time.monotonic() + seconds
    while True:
        missing = [rank for rank in ranks if not (working / f".rank{rank}{_DONE}").exists()]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(POLL_SECONDS)


def record_end(working: Path, process: str, plan: Plan, returncode: int) -> ScriptOutcome:
    """Make the script's process folder whole, whatever became of the process.

    Args:
        working: the folder that holds the process folders.
        process: name of the process folder.
        plan: what was run.
        returncode: as subprocess gives it.

    Returns:
        How the script ended: as the process has recorded it, or as its return code tells.
    """
    publish_leftovers(working, only=process)
    path = working / process
    left = path.is_dir()
    run = run_of(path)
    if run is None:
        # It died before it could write anything: a fault of the interpreter's or of ours.
        store = Store(
            path, run=Run(tool_version=__version__, command=[plan.target, *plan.args], cwd=str(Path.cwd()))
        )
        outcome = _end_of(returncode)
        if not left:
            outcome = msgspec.structs.replace(outcome, notes=[*outcome.notes, _NO_RECORD])
        store.finish(outcome)
        return outcome
    if run.outcome.how != "running":
        return run.outcome
    outcome = _end_of(returncode)
    write_atomically(path / RUN_FILE, msgspec.json.encode(msgspec.structs.replace(run, outcome=outcome)))
    return outcome


def _end_of(returncode: int) -> ScriptOutcome:
    """Return what a return code tells of a process that could not tell it itself."""
    if returncode < 0:
        return ScriptOutcome(
            how="killed", exit_code=returncode, exception=f"ended by {name_signal(returncode)}"
        )
    return ScriptOutcome(
        how="exited", exit_code=returncode, notes=["the process left without python's own exit"]
    )


def publish_leftovers(working: Path, *, only: str | None = None) -> None:
    """Give the folders of processes that died without finishing their names.

    Args:
        working: the folder that holds the process folders.
        only: a process folder's name; others may still be at work.
    """
    for path in sorted(working.glob(".*.partial")):
        found = _PARTIAL.match(path.name)
        if found is not None and only in (None, found["name"]):
            publish(path, working / found["name"])


def collect(working: Path, folder: Path) -> Path:
    """Turn the folder of process folders into a run folder and rename it.

    A process that trained nothing (the launcher of `mp.spawn`, helpers) is dropped when another
    one did. When the script's first process trains, it is the run, and what its children did beside
    it goes into `others/`. What a single process wrote moves to the top.

    Args:
        working: the folder that holds the process folders; no process writes any more.
        folder: the run folder's name.

    Returns:
        The run folder: that name, or with a number when it was taken meanwhile.
    """
    publish_leftovers(working)
    _number_children(working)
    for mark in working.glob(f".*{_DONE}"):
        mark.unlink()
    processes = sorted(path for path in working.iterdir() if (path / RUN_FILE).is_file())
    trained = [path for path in processes if has_steps(path)]
    kept = [path for path in trained if path.name == "main"] or trained or processes[:1]
    for path in processes:
        # Records that workers left raw because nobody was there any more to read them.
        shutil.rmtree(path / RAW_RECORDS, ignore_errors=True)
        if path in kept:
            continue
        if path in trained or (path / "diverted").is_dir():
            (working / "others").mkdir(exist_ok=True)
            path.rename(working / "others" / path.name)
        else:
            shutil.rmtree(path)
    if len(kept) == 1 and not _is_rank_of_several(kept[0]):
        _move_up(kept[0], working)
    return publish(working, folder)


def run_of(path: Path) -> Run | None:
    """Return the run.json of a process folder, or None where it is missing or broken."""
    try:
        return read_run(path / RUN_FILE)
    except RunFolderError:
        return None


def processes(folder: Path) -> list[Path]:
    """Return the folders of a run's processes: itself, and those of its ranks, the first one first."""
    return [folder, *sorted(folder.glob("rank*"))]


def runs_of(folder: Path) -> list[Run]:
    """Return what the processes of a run wrote, one per rank, as far as it can be read."""
    return [run for run in map(run_of, processes(folder)) if run is not None]


def first_run(folder: Path) -> Run | None:
    """Return what the first of a run's processes wrote."""
    return next(iter(runs_of(folder)), None)


def has_steps(path: Path) -> bool:
    """Say whether a process folder holds anything measured."""
    run = run_of(path)
    return run is not None and (
        any(window.steps.index for window in run.windows) or any(path.glob("trace/*"))
    )


def holds_steps(folder: Path) -> bool:
    """Say whether a run folder holds anything measured: by its one process, or by any of its ranks."""
    return any(map(has_steps, processes(folder)))


def _number_children(working: Path) -> None:
    """Name the folders of the script's own children by rank, now that their run.json tells it."""
    children = [path for path in working.iterdir() if _CHILD.match(path.name)]
    taken = {path.name for path in working.iterdir()}
    for path in sorted(children, key=lambda child: int(child.name.removeprefix("child-"))):
        if not has_steps(path):
            continue
        run = run_of(path)
        number = run.rank if run is not None and run.world_size > 1 else 0
        while f"rank{number}" in taken:
            number += 1
        taken.add(f"rank{number}")
        path.rename(working / f"rank{number}")
    _number_main(working, taken)


def _number_main(working: Path, taken: set[str]) -> None:
    """Name the first process's folder by rank as well if it is one of several that trained alike."""
    main = run_of(working / "main")
    if main is None or main.world_size == 1 or f"rank{main.rank}" in taken:
        return
    others = (run_of(working / name) for name in taken if re.fullmatch(r"rank\d+", name))
    if any(run is not None and run.world_size == main.world_size for run in others):
        (working / "main").rename(working / f"rank{main.rank}")


def _is_rank_of_several(path: Path) -> bool:
    run = run_of(path)
    return run is not None and run.world_size > 1


def _move_up(process: Path, working: Path) -> None:
    for path in list(process.iterdir()):
        path.rename(working / path.name)
    process.rmdir()
