"""Moves away what a killed run left in the working folder of a new run.

In: the working folder of the new run. Out: the same folder, locked and without another run's files,
which would be taken for measurements of the new run. Runs in the parent process; no torch here.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
from pathlib import Path

from ..errors import InputError
from .store import final_name, partial_name

_held: list[int] = []
"""Descriptors of the working folders of this process; each holds a lock."""


def put_aside(working: Path, process: str, *, alone: bool) -> Path | None:
    """Move what an earlier run left in a working folder, lock the folder, and return where it is now.

    None if there was none, or only one rank's part of it: a rank that shares the folder (not `alone`) removes
    only its own leftovers, since the others may have started already.

    Raises:
        InputError: another live run writes there.
    """
    # `Place.prepare` reports what cannot be written.
    with contextlib.suppress(OSError):
        if not alone:
            for left in (working / process, partial_name(working / process)):
                shutil.rmtree(left, ignore_errors=True)
            (working / f".{process}.done").unlink(missing_ok=True)
            return None
        working.mkdir(parents=True, exist_ok=True)
        _lock(working)
        if not any(working.iterdir()):
            return None
        kept = _free(working.with_name(f"{final_name(working).name}.left"))
        working.rename(kept)
        working.mkdir()
        _lock(working)
        return kept
    return None


def _lock(folder: Path) -> None:
    """Hold the folder until `release`, or for as long as this process lives.

    Raises:
        InputError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"Another run is writing {final_name(folder)}.",
            remedy="Choose another folder with --out, or wait until it ends.",
        ) from None
    except OSError:
        os.close(descriptor)  # a file system without locks
    else:
        _held.append(descriptor)


def release() -> None:
    """Release the locks: the run has its final name, and nothing writes under the temporary one."""
    while _held:
        os.close(_held.pop())


def is_written(working: Path) -> bool:
    """Return whether a live run writes to a working folder; True also where its file system has no locks."""
    try:
        descriptor = os.open(working, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _free(name: Path) -> Path:
    for number in itertools.count(1):
        path = name if number == 1 else name.with_name(f"{name.name}-{number}")
        if not path.exists():
            return path
    raise AssertionError("unreachable")
