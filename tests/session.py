"""What the processes of one test session make once and share: diagnoses, and runs that tests only read.

In: a name and how to make it. Out: the bytes that were made, by whichever process came first. The folder
lies where a variable of the environment says; conftest makes it before xdist starts its workers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["FOLDER", "folder", "once"]

FOLDER = "BOTTLENECK_TEST_SESSION"


def folder() -> Path:
    """Return the folder that this session shares."""
    return Path(os.environ[FOLDER])


def once(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what `make` returns; a second process that asks waits for the first."""
    made = folder() / name
    with Path(f"{made}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_file():
            made.write_bytes(make())
    return made.read_bytes()
