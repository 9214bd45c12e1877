"""Captures in the middle of a watched job: where they lie, and how one is asked for.

In: the folder of a process of a job that runs. Out: a file in it that asks, gone once the process has seen
it; run folders below `captures/`, numbered from 1, complete as soon as they have that name. No torch.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec

from ..errors import InputError
from ..model.documents import DIAGNOSIS_FILE, load_diagnosis
from ..model.watch import CaptureTaken
from .store import final_name

CAPTURES = "captures"
_QUESTION = ".capture"
_NUMBER = re.compile(r"\.?(?P<number>\d+)(\.partial)?$")


def ask_for_capture(process: Path) -> Path:
    """Ask a process for a capture, and return the one that will answer: under way, or the next.

    The process's folder has the name that it has while it is written.

    Raises:
        OSError: the folder cannot be written.
    """
    for path in _entries(process):
        if path.name.endswith(".partial"):
            return final_name(path)
    answer = next_capture(process)
    (process / _QUESTION).touch()
    return answer


def is_asked(process: Path) -> bool:
    """Return whether a question waits there."""
    return (process / _QUESTION).exists()


def take_question(process: Path) -> bool:
    """Return whether somebody has asked; the question is gone then."""
    try:
        (process / _QUESTION).unlink()
    except OSError:
        return False
    return True


def next_capture(process: Path) -> Path:
    """Return the folder of the next capture of a process."""
    numbers = [int(found["number"]) for path in _entries(process) if (found := _NUMBER.match(path.name))]
    return process / CAPTURES / str(max(numbers, default=0) + 1)


def captures_in(process: Path) -> list[Path]:
    """Return the complete captures of a process, in their order."""
    return sorted((path for path in _entries(process) if path.name.isdecimal()), key=lambda p: int(p.name))


def with_verdict(taken: CaptureTaken, process: Path) -> CaptureTaken:
    """Return what is known of a capture, with what its diagnosis says, if it has one."""
    folder = process / taken.folder
    with contextlib.suppress(InputError):
        if (folder / DIAGNOSIS_FILE).exists():
            return msgspec.structs.replace(taken, says=load_diagnosis(folder).verdict.headline)
    return taken


def _entries(process: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list((process / CAPTURES).iterdir())
    return []
