"""The shape of a run folder: one process -> its files at the top; several -> rank0/, rank1/, ...

In: the folder in which each process wrote its own folder. Out: the run folder under its final
name. Runs in the parent, after the script has ended in whatever way. No torch here.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import msgspec

from ..model.run import Run
from .store import publish

__all__ = ["collect", "wait_for_ranks"]

_PARTIAL = re.compile(r"\.(?P<name>.+)\.partial$")
_CHILD = re.compile(r"child-\d+$")
POLL_SECONDS = 0.1


def wait_for_ranks(working: Path, world_size: int, *, seconds: float) -> list[int]:
    """Wait until every rank's folder is whole.

    Args:
        working: the folder that the ranks share.
        world_size: ranks to wait for.
        seconds: how long at most.

    Returns:
        Ranks whose folders did not become whole.
    """
    deadline = time.monotonic() + seconds
    while True:
        missing = [rank for rank in range(world_size) if not (working / f"rank{rank}").is_dir()]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(POLL_SECONDS)


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
    one did. What a single process wrote moves to the top.

    Args:
        working: the folder that holds the process folders; no process writes any more.
        folder: the run folder's name.

    Returns:
        The run folder: that name, or with a number when it was taken meanwhile.
    """
    publish_leftovers(working)
    _number_children(working)
    processes = sorted(path for path in working.iterdir() if (path / "run.json").is_file())
    trained = [path for path in processes if has_steps(path)]
    kept = trained or processes[:1]
    for path in processes:
        if path not in kept and not (path / "diverted").is_dir():
            shutil.rmtree(path)
    if len(kept) == 1 and not _is_rank_of_several(kept[0]):
        _move_up(kept[0], working)
    return publish(working, folder)


def read_run(path: Path) -> Run | None:
    """Return the run.json of a process folder, or None where it is missing or broken."""
    try:
        return msgspec.json.decode((path / "run.json").read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError):
        return None


def has_steps(path: Path) -> bool:
    """Say whether a process folder holds anything measured."""
    run = read_run(path)
    return run is not None and (
        any(window.steps.index for window in run.windows) or any(path.glob("trace/*"))
    )


def _number_children(working: Path) -> None:
    """Name the folders of the script's own children by rank, now that their run.json tells it."""
    children = [path for path in working.iterdir() if _CHILD.match(path.name)]
    taken = {path.name for path in working.iterdir()}
    for path in sorted(children, key=lambda child: int(child.name.removeprefix("child-"))):
        if not has_steps(path):
            continue
        run = read_run(path)
        number = run.rank if run is not None and run.world_size > 1 else 0
        while f"rank{number}" in taken:
            number += 1
        taken.add(f"rank{number}")
        path.rename(working / f"rank{number}")


def _is_rank_of_several(path: Path) -> bool:
    run = read_run(path)
    return run is not None and run.world_size > 1


def _move_up(process: Path, working: Path) -> None:
    for path in list(process.iterdir()):
        path.rename(working / path.name)
    process.rmdir()
